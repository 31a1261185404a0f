"""Six functions of one line."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

import ejcache

LINES = (
    lambda x: x * 2,
    jnp.tanh,
    lambda x: x.sum(),
    lambda x: x @ x,
    lambda x: jnp.exp(x) + 1,
    lambda x: x > 0,
)


def calls(size: int) -> list[Any]:
    """Each is called once, with an array of `size` times `size` numbers."""
    x = np.ones((size, size), np.float32)
    direct = [ejcache.ejit(each) for each in LINES]
    return [partial(each, x) for each in direct]
