"""An optax optimiser in a scan with donated state; prints a digest of what it computed."""

import functools
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
params = {"w": jax.random.normal(jax.random.key(0), (4, 4)), "b": jnp.zeros(4)}
state = optimizer.init(params)


def loss(params, x):
    return jnp.mean((jnp.tanh(x @ params["w"] + params["b"]) - x) ** 2)


@functools.partial(jax.jit, donate_argnums=(0, 1), static_argnames=("steps",))
def train(params, state, x, *, steps):
    def body(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value

    (params, state), values = jax.lax.scan(body, (params, state), length=steps)
    return params, state, values


x = jax.random.normal(jax.random.key(1), (8, 4))
for steps in (2, 3):
    params, state, values = train(params, state, x, steps=steps)
leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((params, values))]
print(hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest())
