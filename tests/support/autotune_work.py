"""Functions that waste time, so that other candidates are faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from collections.abc import Callable


def after_work(function: Callable[..., Any], steps: int = 50_000) -> Callable[..., Any]:
    """The same function, after some milliseconds of work that every other candidate saves."""

    def made(*args: Any) -> Any:
        wasted = jax.lax.fori_loop(0, steps, lambda _, y: jnp.sin(y) + 1, 1.0)

        def beside(leaf: Any) -> Any:
            # No value of the sine's sum is above this, and the compiler does not know that.
            return jnp.where(wasted > 1e9, jnp.zeros_like(leaf), leaf)

        return jax.tree.map(beside, function(*args))

    return made
