"""Stands in for ejkernel's functions that compile and cache: `ejit`, `smart_compile` and `load_cached_functions`.

ejkernel's `ejit` gives JAX a directory of its own each time that it decorates a function, or writes pickles. These
functions have the same parameters, and compile through the cache of this process.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ejit", "load_cached_functions", "smart_compile"]


def ejit(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`ejcache.ejit` with the parameters of ejkernel's `ejit`."""
    from ejcache.jax_integration.decorator import ejit as ours

    if options.get("abstracted_axes", 0) is None:
        # Not every JAX has this option. ejkernel passes its default.
        del options["abstracted_axes"]
    return functools.partial(ejit, **options) if func is None else ours(func, **options)


def smart_compile(
    lowered_func: Any,
    tag: str | None = None,
    verbose: bool = True,  # noqa: FBT001, FBT002
    cache_key: Any = None,
) -> tuple[Any, Any]:
    """The executable of a lowered function, which comes from the cache if it is there, and `cache_key` as it is."""
    del tag, verbose
    return lowered_func.compile(), cache_key


def load_cached_functions(verbose: bool = True) -> None:  # noqa: FBT001, FBT002
    """Load nothing: the cache loads each executable when it is needed."""
    del verbose
