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


_here: Final = threading.local()
"""What this thread has measured since its last program, `seconds`, and what waits for it, `when_compiled`."""


def take_durations() -> dict[str, float]:
    """Take the seconds in which this thread last traced and lowered a program."""
    found: dict[str, float] = vars(_here).pop("seconds", {})
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
        vars(_here).setdefault("seconds", {})[phase] = duration
    elif event == _COMPILED and (callback := vars(_here).pop("when_compiled", None)) is not None:
        callback(duration)
