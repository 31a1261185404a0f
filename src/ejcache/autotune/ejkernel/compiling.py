"""Stands in for what ejkernel and EasyDeL compile and cache with: `ejit`, `smart_compile` and others.

ejkernel's `ejit` gives JAX a directory of its own each time that it decorates a function, or writes pickles. These
functions have the same parameters, and compile through the cache of this process.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ejcache.errors import CompileForbiddenError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NoCompileContext", "ejit", "load_cached_functions", "smart_compile"]


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


class NoCompileContext:
    """EasyDeL's context manager that fails if anything is compiled: `ejcache.forbid_compile(everywhere=True)`.

    EasyDeL's own raises also for a program that the cache would serve. Here such a program is loaded. The error is a
    RuntimeError, as there.

    Args:
        message: a note on the error.
    """

    def __init__(self, message: str = "") -> None:
        self.message = message
        self._guards: list[Any] = []

    def __enter__(self) -> None:
        from ejcache.jax_integration.warm_start.forbidding import forbid_compile

        self._guards.append(forbid_compile(everywhere=True))
        self._guards[-1].__enter__()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._guards.pop().__exit__(kind, error, traceback)
        if isinstance(error, CompileForbiddenError) and self.message:
            error.add_note(self.message)


def load_cached_functions(verbose: bool = True) -> None:  # noqa: FBT001, FBT002
    """Load nothing: the cache loads each executable when it is needed."""
    del verbose
