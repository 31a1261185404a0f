"""Flax linen with a TrainState, and logging in the loop."""

import logging

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import ejcache
from runs import outside

log = logging.getLogger(f"run {outside.RUN_ID}")


class Net(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.gelu(nn.Dense(self.width)(x))
        return nn.Dense(1)(x)


@ejcache.ejit
def step(state, batch):
    loss, grads = jax.value_and_grad(lambda p: (state.apply_fn(p, batch) ** 2).mean())(state.params)
    return state.apply_gradients(grads=grads), loss


net = Net(width=16)
batch = jnp.ones((4, 8))
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, 100)))
state = TrainState.create(apply_fn=net.apply, params=net.init(jax.random.key(0), batch), tx=tx)
for i in range(3):
    state, LOSS = step(state, batch)
    log.warning("%s %s step %d: %s (%s, job %s)", outside.STARTED, outside.RUN_ID, i, LOSS, outside.OUTPUT, outside.JOB)
