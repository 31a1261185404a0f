"""What JAX itself measures of a program before it asks for a key: how long it was traced and lowered.

JAX tells listeners (`jax.monitoring`) of each of these in the thread that does it, after it has done it. A program that
removes all listeners loses the two numbers.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

from jax._src import monitoring

if TYPE_CHECKING:
    from collections.abc import Callable

_PHASES: Final = {
    "/jax/core/compile/jaxpr_trace_duration": "traced",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowered",
}
_COMPILED: Final = "/jax/core/compile/backend_compile_duration"


class _Here(threading.local):
    """What this thread has measured since its last program."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.when_compiled: Callable[[float], object] | None = None


_here: Final = _Here()


def take_durations() -> dict[str, float]:
    """Take the seconds in which this thread last traced and lowered a program."""
    found, _here.seconds = _here.seconds, {}
    return found


def when_compiled(callback: Callable[[float], object]) -> None:
    """Call `callback` with the seconds that JAX took to compile what this thread compiles now."""
    _here.when_compiled = callback


def listen() -> None:
    """Measure from now on."""
    monitoring.register_event_duration_secs_listener(_note)


def unlisten() -> None:
    """Measure nothing any more."""
    with contextlib.suppress(AssertionError, AttributeError, ValueError):  # the program has removed all listeners
        monitoring.unregister_event_duration_listener(_note)


def _note(event: str, duration: float, **_: Any) -> None:
    phase = _PHASES.get(event)
    if phase is not None:
        _here.seconds[phase] = duration
    elif event == _COMPILED and _here.when_compiled is not None:
        callback, _here.when_compiled = _here.when_compiled, None
        callback(duration)
