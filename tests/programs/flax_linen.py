"""A Flax linen model with dropout and batch statistics; prints a digest of what it computed."""

import hashlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


class Model(nn.Module):
    @nn.compact
    def __call__(self, x, *, train):
        x = nn.Dense(16)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.Dropout(0.5, deterministic=not train)(nn.gelu(x))
        return nn.Dense(2)(x)


model = Model()
x = jax.random.normal(jax.random.key(1), (8, 4))
variables = model.init(jax.random.key(0), x, train=False)


@jax.jit
def step(variables, x, key):
    def loss(params):
        out, changed = model.apply(
            {**variables, "params": params}, x, train=True, mutable=["batch_stats"], rngs={"dropout": key}
        )
        return jnp.mean(out**2), changed

    (value, changed), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
    params = jax.tree.map(lambda p, g: p - 0.1 * g, variables["params"], grads)
    return {"params": params, **changed}, value


for number in range(3):
    variables, value = step(variables, x, jax.random.key(number))
leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((variables, value))]
print(hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest())
