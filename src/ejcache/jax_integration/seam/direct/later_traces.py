"""Tells of the functions that JAX traces: jitted ones, bodies of loops, branches.

`jax._src.interpreters.partial_eval.trace_to_jaxpr` traces them all, and remembers what it has traced.

Read for this: jax 0.10.2 and 0.12.0.1, `partial_eval.py`, `pjit.py`, `lax/control_flow/`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from jax._src.interpreters import partial_eval

from ejcache.jax_integration.seam.patch import without_our_frames

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["later_traces_mismatches", "watch_traces"]

_METHODS: Final = ("cache_clear", "cache_info", "cache_keys", "evict_weakref")
_watching: list[Callable[[str], None]] = []


def later_traces_mismatches() -> list[str]:
    """How this JAX differs from what is replaced here; empty if it does not."""
    traces = getattr(partial_eval, "trace_to_jaxpr", None)
    return [f"trace_to_jaxpr has no {name}" for name in _METHODS if not hasattr(traces, name)]


def watch_traces(call: Callable[[str], None]) -> None:
    """From now on, call `call` with the name of each function that JAX has traced; again does nothing.

    What JAX remembers is not told of. The function that tells stays: taking it out could take out what another library
    has put around it.
    """
    if call in _watching:
        return
    if not _watching:
        _replace()
    _watching.append(call)


def _replace() -> None:
    original: Any = partial_eval.trace_to_jaxpr

    def trace_and_tell(fun: Any, *arguments: Any, **named: Any) -> Any:
        before = original.cache_info().misses
        result = original(fun, *arguments, **named)
        if original.cache_info().misses != before:
            while isinstance(fun, functools.partial):
                fun = fun.func
            for call in tuple(_watching):
                call(getattr(fun, "__name__", ""))
        return result

    replaced: Any = without_our_frames(trace_and_tell)
    for name in _METHODS:
        setattr(replaced, name, getattr(original, name))
    partial_eval.trace_to_jaxpr = replaced
