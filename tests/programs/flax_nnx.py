"""A Flax nnx model with its own jit and optimiser; prints a digest of what it computed."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


class Model(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 16, rngs=rngs)
        self.last = nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))


model = Model(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


@nnx.jit
def step(model, optimizer, x, y):
    value, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    return value


x, y = jax.random.normal(jax.random.key(1), (8, 4)), jnp.ones((8, 2))
for _ in range(3):
    value = step(model, optimizer, x, y)
leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]
print(hashlib.sha256(b"".join(leaf.tobytes() for leaf in [*leaves, np.asarray(value)])).hexdigest())
