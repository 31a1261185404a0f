"""Flax NNX: one line, and the second start of this program compiles nothing.

python flax_train.py
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import ejcache


class Model(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(16, 64, rngs=rngs), nnx.Linear(64, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))


@nnx.jit
def train_step(model, optimizer, x, y):
    loss, gradients = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
    optimizer.update(model, gradients)
    return loss


def main():
    cache = ejcache.enable()  # this is the line; `EJCACHE=1 python train.py` does the same without it
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    x = jax.random.normal(jax.random.key(1), (32, 16))
    y = x.sum(axis=1, keepdims=True)
    for _ in range(20):
        loss = train_step(model, optimizer, x, y)
    print(f"loss {loss:.3f}; {cache.stats()}")


if __name__ == "__main__":
    main()
