"""Exact coefficients of a filter are worked out with fractions while a step is traced."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

ORDER = 420  # was 24


class Filter:
    def __init__(self, taps=8):
        self.w = np.ones(taps, np.float32)
        self.fast = jax.jit(self.update)

    def coefficients(self):
        row = [Fraction(1)]
        for n in range(1, ORDER):
            row = [Fraction(1, n + 1)] + [a / 2 + Fraction(b, 2) for a, b in zip(row, [*row[1:], Fraction(1, n)])]
            row = row[:24] if len(row) > 24 else row
            row = [each.limit_denominator(10**6) for each in row]
        return np.array([float(each) for each in row[: len(self.w)]], np.float32)

    def update(self, w, signal):
        def loss(w):
            smooth = jnp.convolve(signal, w * self.coefficients(), mode="same")
            return jnp.mean((smooth - signal) ** 2)

        return w - 0.1 * jax.grad(loss)(w)

    def fit(self, signals):
        for signal in signals:
            self.w = self.fast(self.w, signal)  # <-
        return float(np.asarray(self.w).sum())


print(Filter().fit([np.sin(np.arange(256, dtype=np.float32)) for _ in range(3)]))
