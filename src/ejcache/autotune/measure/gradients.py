"""Runs a call with its gradient: the results, and what flows back into each array for a random cotangent.

A cotangent that is constant, as that of a sum is, would hide a backward pass that ignores it, or transposes it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_PERIOD: Final = 8_191
"""So many values of a cotangent are random, and repeat. It is a prime, so that rows of an array differ."""

_MEAN: Final = 0.5
"""Values of both signs, whose sum over an array does not cancel out: that would be rounding noise."""


def differentiable(arrays: Sequence[Any]) -> bool:
    """True if one of the arrays has a gradient."""
    import jax.numpy as jnp

    return any(jnp.issubdtype(array.dtype, jnp.inexact) for array in arrays)


def with_gradient(core: Callable[..., Any], arrays: Sequence[Any]) -> Callable[..., Any]:
    """Return a function of the arrays that returns the results of `core`, and the gradients of those that have one.

    It raises `TypeError` where no result has a gradient.
    """
    import jax
    import jax.numpy as jnp

    inexact = [jnp.issubdtype(array.dtype, jnp.inexact) for array in arrays]

    def both(*leaves: Any) -> Any:
        def forward(moving: list[Any]) -> Any:
            rest = iter(moving)
            out = core(*(next(rest) if moves else leaf for leaf, moves in zip(leaves, inexact, strict=True)))
            parts = [
                leaf for leaf in jax.tree_util.tree_leaves(out) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
            ]
            if not parts:
                raise TypeError("no output has a gradient")
            return parts, out

        parts, pull_back, out = jax.vjp(
            forward, [leaf for leaf, moves in zip(leaves, inexact, strict=True) if moves], has_aux=True
        )
        return out, pull_back([_cotangent(part, number) for number, part in enumerate(parts)])

    return both


def _cotangent(like: Any, number: int) -> Any:
    import jax
    import jax.numpy as jnp
    import numpy as np

    size = math.prod(like.shape)

    def made(seed: int) -> Any:
        values = np.random.default_rng([number, seed]).standard_normal(_PERIOD, dtype=np.float32) + np.float32(_MEAN)
        # The barrier keeps the compiler from making a constant as large as the result.
        short = jax.lax.optimization_barrier(jnp.asarray(values))
        long = jnp.broadcast_to(short, (max(1, -(-size // _PERIOD)), _PERIOD)).reshape(-1)
        return long[:size].reshape(like.shape)

    value = made(0) + 1j * made(1) if jnp.iscomplexobj(like) else made(0)
    return value.astype(like.dtype)
