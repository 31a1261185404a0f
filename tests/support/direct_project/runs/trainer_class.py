"""A Trainer that holds everything: logger, clock, open file and parameters."""

import logging
import time

import jax
import jax.numpy as jnp

import ejcache
from runs import outside


class Trainer:
    def __init__(self, *, width, rate, output, run_id):
        self.width, self.rate, self.output, self.run_id = width, rate, output, run_id
        self.logger = logging.getLogger(run_id)
        self.started, self.clock = time.time(), time.perf_counter
        self.file = (output / "losses.txt").open("w")
        keys = jax.random.split(jax.random.key(0), 2)
        self.params = {
            "in": jax.random.normal(keys[0], (8, width)),
            "out": jax.random.normal(keys[1], (width, 1)),
        }
        self.losses = []
        self.step = ejcache.ejit(self._step)

    def forward(self, params, x):
        return jax.nn.silu(x @ params["in"]) @ params["out"] / self.width

    def _step(self, params, x):
        loss, grads = jax.value_and_grad(lambda p: (self.forward(p, x) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - self.rate * g, params, grads), loss

    def fit(self, x, steps):
        for i in range(steps):
            began = self.clock()
            self.params, loss = self.step(self.params, x)
            self.losses.append(float(loss))
            self.file.write(f"{self.run_id} {i} {loss} {self.clock() - began} {outside.JOB}\n")
            self.logger.info("%d: %f after %f s", i, loss, time.time() - self.started)
        return loss


LOSS = Trainer(width=16, rate=0.1, output=outside.OUTPUT, run_id=outside.RUN_ID).fit(jnp.ones((4, 8)), 3)
