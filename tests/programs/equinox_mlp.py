"""An Equinox model trained for a few steps; prints a digest of what it computed."""

import hashlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

model = eqx.nn.MLP(in_size=4, out_size=2, width_size=16, depth=2, key=jax.random.key(0))


@eqx.filter_jit
def step(model, x, y):
    def loss(model):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    value, grads = eqx.filter_value_and_grad(loss)(model)
    return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), value


x, y = jax.random.normal(jax.random.key(1), (8, 4)), jnp.ones((8, 2))
for _ in range(3):
    model, value = step(model, x, y)
leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array))]
print(hashlib.sha256(b"".join(leaf.tobytes() for leaf in [*leaves, np.asarray(value)])).hexdigest())
