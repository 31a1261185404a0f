"""A variational autoencoder: the weight of its divergence grows from epoch to epoch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


def encode(params, x):
    h = jax.nn.relu(x @ params["in"])
    return h @ params["mean"], h @ params["scale"]


def decode(params, z):
    return jax.nn.sigmoid(jax.nn.relu(z @ params["up"]) @ params["out"])


def loss(params, x, noise, beta):
    mean, scale = encode(params, x)
    rebuilt = decode(params, mean + noise * jnp.exp(scale))
    error = jnp.sum((rebuilt - x) ** 2, axis=-1)
    divergence = 0.5 * jnp.sum(mean**2 + jnp.exp(2 * scale) - 2 * scale - 1, axis=-1)
    return jnp.mean(error + beta * divergence)  # <-


@partial(jax.jit, static_argnames=("beta",))
def step(params, x, noise, beta):
    grads = jax.grad(loss)(params, x, noise, beta)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)


rng = np.random.default_rng(0)
shapes = {"in": (784, 128), "mean": (128, 8), "scale": (128, 8), "up": (8, 128), "out": (128, 784)}
params = {name: (0.05 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
for epoch in range(6):
    x = rng.uniform(size=(32, 784)).astype(np.float32)
    noise = rng.normal(size=(32, 8)).astype(np.float32)
    params = step(params, x, noise, beta=0.15 * (epoch + 1))
print({name: each.shape for name, each in params.items()})
