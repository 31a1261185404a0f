"""Flax NNX with a tracker object that writes into the output directory."""

import json
import time

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import ejcache
from runs import outside


class Tracker:
    def __init__(self, run_id, directory):
        self.run_id, self.started = run_id, time.time()
        self.file = (directory / "log.jsonl").open("w")

    def log(self, **values):
        self.file.write(json.dumps({"run": self.run_id, "after": time.time() - self.started, **values}) + "\n")


class Net(nnx.Module):
    def __init__(self, width, *, rngs):
        self.first, self.second = nnx.Linear(8, width, rngs=rngs), nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x):
        return self.second(jax.nn.relu(self.first(x)))


tracker = Tracker(outside.RUN_ID, outside.OUTPUT)
tx = optax.adam(1e-3)
graph, params = nnx.split(Net(16, rngs=nnx.Rngs(0)))


@ejcache.ejit
def step(params, opt_state, batch):
    def loss_of(params):
        return (nnx.merge(graph, params)(batch) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


opt_state, batch = tx.init(params), jnp.ones((4, 8))
for i in range(3):
    params, opt_state, LOSS = step(params, opt_state, batch)
    tracker.log(step=i, loss=float(LOSS), job=outside.JOB, at=outside.STARTED)
