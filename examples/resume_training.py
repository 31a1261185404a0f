"""A trainer that resumes: the third start and later ones do not trace the training step, and compile nothing.

python resume_training.py CHECKPOINT

The word of `step` is its configuration. The optimiser and the model are in the state, and the source of the step is in
this file, so that ejcache compares them itself.
"""

import dataclasses
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import serialization
from flax.training.train_state import TrainState

import ejcache


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 64
    depth: int = 12
    rate: float = 1e-3
    steps: int = 10


class Model(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x):
        for _ in range(self.config.depth):
            x = x + nn.Dense(self.config.width)(nn.relu(nn.LayerNorm()(nn.Dense(self.config.width)(x))))
        return nn.Dense(1)(x)


def main(checkpoint, config=Config()):
    cache = ejcache.enable()
    model = Model(config)
    x = jax.random.normal(jax.random.key(1), (32, config.width))
    y = x.sum(axis=1, keepdims=True)

    @ejcache.ejit(donate_argnums=0, reuse_lowering=config)
    def step(state, x, y):
        print("tracing the step")
        loss, slopes = jax.value_and_grad(lambda params: jnp.mean((state.apply_fn(params, x) - y) ** 2))(state.params)
        return state.apply_gradients(grads=slopes), loss

    state = TrainState.create(
        apply_fn=model.apply, params=jax.jit(model.init)(jax.random.key(0), x), tx=optax.adamw(config.rate)
    )
    if checkpoint.exists():
        state = serialization.from_bytes(state, checkpoint.read_bytes())
    state = jax.device_put(jax.tree.map(np.asarray, state))  # the same types as in a start that resumes
    for _ in range(config.steps):
        state, loss = step(state, x, y)
    checkpoint.write_bytes(serialization.to_bytes(state))
    print(f"step {int(state.step)}, loss {loss:.3f}; {cache.stats()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
