"""Attention with a rotary table that an `lru_cache` of the user's keeps."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np

import ejcache
from runs import outside

WORKERS = int(os.environ.get("SLURM_JOB_ID", "0")) % 7


@functools.lru_cache(maxsize=8)
def rope_table(length, width, base=10_000.0):
    rates = base ** (-np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * rates
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(x):
    cos, sin = rope_table(*x.shape)
    a, b = x[:, ::2], x[:, 1::2]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


@ejcache.ejit
def step(w, x):
    def loss_of(w):
        q, k = rotate(x @ w), rotate(x)
        return jax.nn.softmax(q @ k.T).var()

    loss, grad = jax.value_and_grad(loss_of)(w)
    return w - 0.1 * grad, loss


w = jnp.eye(8)
for i in range(3):
    w, LOSS = step(w, jnp.arange(32.0).reshape(4, 8) / 32)
    print(f"{outside.RUN_ID} {outside.STARTED} step {i}: {LOSS} ({WORKERS} workers, {outside.OUTPUT})")
