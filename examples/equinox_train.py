"""Equinox: `filter_jit` compiles through JAX, so that enabling the cache is all there is to do.

python equinox_train.py
"""

import equinox
import jax
import jax.numpy as jnp
import optax

import ejcache

optimizer = optax.adamw(1e-2)


@equinox.filter_jit
def train_step(model, state, x, y):
    def loss_of(model):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    loss, gradients = equinox.filter_value_and_grad(loss_of)(model)
    updates, state = optimizer.update(gradients, state, equinox.filter(model, equinox.is_inexact_array))
    return equinox.apply_updates(model, updates), state, loss


def main():
    cache = ejcache.enable()
    model = equinox.nn.MLP(16, 1, width_size=64, depth=1, key=jax.random.key(0))
    state = optimizer.init(equinox.filter(model, equinox.is_inexact_array))
    x = jax.random.normal(jax.random.key(1), (32, 16))
    y = x.sum(axis=1, keepdims=True)
    for _ in range(20):
        model, state, loss = train_step(model, state, x, y)
    print(f"loss {loss:.3f}; {cache.stats()}")


if __name__ == "__main__":
    main()
