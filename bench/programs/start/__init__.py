"""Programs whose start is measured; each has `calls(size)`: what it calls one after the other, made without JAX.

Those that direct mode is measured with have `step(size)`, too: a function, and the arguments of its first call.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["first_call", "jit"]


def jit(fun: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit`, or `ejcache.ejit` where `EJCACHE_DIRECT` asks for direct mode."""
    if os.environ.get("EJCACHE_DIRECT"):
        import ejcache

        return ejcache.ejit(fun, **options)
    import jax

    return jax.jit(fun, **options)


def first_call(step: tuple[Callable[..., Any], tuple[Any, ...]]) -> list[Callable[[], Any]]:
    """The `calls` of a program that has a `step`: jitting the function, and calling it once."""
    function, arguments = step
    return [lambda: jit(function)(*arguments)]
