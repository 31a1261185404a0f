"""`size` programs of a few operations each, all different, as notebooks and test suites have them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def calls(size: int) -> list[Any]:
    """A call of each."""
    x = np.arange(8, dtype=np.float32)
    return [_call(number, x) for number in range(size)]


def _call(number: int, x: Any) -> Any:
    def tiny(x: Any) -> Any:
        return jnp.sum(jnp.tanh(x) * x) + number

    tiny.__name__ = f"program_{number}"
    return lambda: jax.jit(tiny)(x)
