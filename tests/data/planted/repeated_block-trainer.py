"""A recurrent network, its time written out."""

import jax
import jax.numpy as jnp
import numpy as np


class Forecaster:
    def __init__(self, width=48):
        rng = np.random.default_rng(0)
        make = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
        self.params = {"x": make(6, 4 * width), "h": make(width, 4 * width), "b": make(4 * width), "out": make(width, 6)}
        self.width = width
        self.fast = jax.jit(self.update)

    def cell(self, params, carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ params["x"] + h @ params["h"] + params["b"], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    def loss(self, params, series):
        carry = jnp.zeros((series.shape[0], self.width)), jnp.zeros((series.shape[0], self.width))
        for t in range(series.shape[1] - 1):
            carry = self.cell(params, carry, series[:, t])  # <-
        return jnp.mean((carry[0] @ params["out"] - series[:, -1]) ** 2)

    def update(self, params, series):
        grads = jax.grad(self.loss)(params, series)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)

    def fit(self, batches):
        for series in batches:
            self.params = self.fast(self.params, series)
        return float(np.abs(np.asarray(self.params["out"])).mean())


rng = np.random.default_rng(1)
print(Forecaster().fit([rng.normal(size=(16, 31, 6)).astype(np.float32) for _ in range(3)]))
