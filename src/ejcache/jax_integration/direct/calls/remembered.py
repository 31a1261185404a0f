"""Traces of the user's functions that JAX remembers: where JAX uses one, what the function reads now does not count.

`jax.jit`, `scan` and others trace a function once for arguments of one kind, and keep the trace for as long as the
function lives. A record says what a function is traced to as everything is now. So where JAX remembers a trace of a
function that a call leads to, and its values may have been others, the call is JAX's own.

Traces that direct mode has observed are noted, with what the function read. As long as that is the same, a trace that
JAX remembers and a new one are equal.
"""

from __future__ import annotations

import functools
import threading
import weakref
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.guarding.tokens import functions_of
from ejcache.fingerprint.refusal import RefusedError
from ejcache.jax_integration.direct.calls.question import walk_function
from ejcache.jax_integration.seam.direct.retracing import remembered_traces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.fingerprint.coverage import Coverage
    from ejcache.fingerprint.walk import Walk

__all__ = ["note_traces", "why_remembered"]


class _Note(NamedTuple):
    """What is known of the traces of a function.

    Attributes:
        function: a weak reference to it.
        traces: those that were observed.
        digest: of everything that the function read.
        coverage: what ran in them; None if that was not recorded for each of them.
    """

    function: Any
    traces: frozenset[tuple[int, ...]]
    digest: str
    coverage: Coverage | None


_notes: Final[dict[int, _Note]] = {}
"""By the identity of the function."""
_lock: Final = threading.Lock()

_CALLED: Final = "__call__"


def why_remembered(walked: Walk) -> str:
    """Why JAX may use a trace that was made from other values, in words; empty if it does not.

    Args:
        walked: what the function of the call leads to.
    """
    for function, traces in _reached(walked):
        note = _note_of(function)
        if note is None or not traces <= note.traces or _digest(function) != note.digest:
            name = getattr(function, "__name__", type(function).__name__)
            return f"JAX remembers a trace of {name}, which may be of other values than those it would read now"
    return ""


def note_traces(walked: Walk, coverage: Coverage | None, *, but: object) -> list[Coverage | None]:
    """Note the traces that JAX has made by now, after a trace that left everything as it was.

    Args:
        walked: what the traced function leads to.
        coverage: what ran in the trace, if that was recorded.
        but: the traced function, of which a part has just run if any has: all of it, then.

    Returns:
        What ran in those that were there before; None for each of which that was not recorded.
    """
    before: list[Coverage | None] = []
    with _lock:
        for key in [key for key, note in _notes.items() if note.function() is None]:
            del _notes[key]
    for function, traces in _reached(walked):
        note = _note_of(function)
        seen = coverage
        if note is not None:
            if function is not but or not _ran(function, coverage):
                before.append(note.coverage)
            if traces <= note.traces:
                continue
            seen = _both(note.coverage, coverage)
        digest = _digest(function)
        if digest is not None:
            with _lock:
                _notes[id(function)] = _Note(weakref.ref(function), traces, digest, seen)
    return before


def _ran(function: Any, coverage: Coverage | None) -> bool:
    return coverage is not None and any(id(each.__code__) in coverage.user for each in _inside(function))


def _both(one: Coverage | None, other: Coverage | None) -> Coverage | None:
    if one is None or other is None:
        return None
    other.include(one)
    return other


def _note_of(function: Any) -> _Note | None:
    note = _notes.get(id(function))
    return note if note is not None and note.function() is function else None


def _digest(function: Any) -> str | None:
    try:
        return walk_function(lambda: {"": function}).digest
    except RefusedError:
        return None


def _reached(walked: Walk) -> list[tuple[Any, frozenset[tuple[int, ...]]]]:
    """The functions of which JAX remembers traces, and that the walk has reached."""
    functions = walked.functions

    def reached(function: Any) -> bool:
        if type(function) is FunctionType and (id(function) in functions or function.__closure__ is None):
            return id(function) in functions
        return any(id(each) in functions for each in _inside(function))

    return remembered_traces(reached)


def _inside(function: Any) -> Iterator[FunctionType]:
    """The functions in a callable: those that it wraps and closes over, and what its class calls."""
    yield from functions_of(function)
    if not isinstance(function, FunctionType | MethodType | functools.partial):
        yield from functions_of(getattr(type(function), _CALLED, None))
