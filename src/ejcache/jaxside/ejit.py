"""`@ejit`: `jax.jit`, and the store with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from ejcache.jaxside.activate import active, enable
from ejcache.settings import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ejit"]


def ejit(fun: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """`jax.jit` whose executables are kept: the object that `jax.jit` itself returns, so a call costs what it costs.

    The first use in a process enables the cache for the process, unless something else did, or
    `EASYDEL_CACHE_COMPILES` is false.

    Args:
        fun: the function; without it, a decorator is returned.
        options: every parameter of the installed `jax.jit`, and `func`, as ejkernel calls `fun`.

    Raises:
        TypeError: an option that the installed `jax.jit` does not have.
    """
    fun = options.pop("func", fun)
    if fun is None:
        return lambda function: ejit(function, **options)
    if active() is None and resolve().cache_compiles is not False:
        enable()
    return jax.jit(fun, **options)
