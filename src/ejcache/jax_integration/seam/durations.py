"""Measures how long JAX traces and lowers the programs of each thread. A part of the seam.

JAX tells listeners (`jax.monitoring`) how long it traced and lowered a program, in the thread that does it, after it
has done it. A program that removes all listeners loses the two numbers.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Final

import jax
from jax._src import monitoring as jax_monitoring

_PHASES: Final = {
    "/jax/core/compile/jaxpr_trace_duration": "traced",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowered",
}

_here: Final = threading.local()
"""What this thread has measured since its last program, `seconds`."""


def listen() -> None:
    """Measure from now on."""
    jax.monitoring.register_event_duration_secs_listener(_note_duration)


def stop() -> None:
    """Measure nothing any more."""
    own = getattr(jax_monitoring, "unregister_event_duration_listener", None) or getattr(
        jax_monitoring,
        "_unregister_event_duration_listener_by_callback",
        None,  # before JAX 0.8
    )
    with contextlib.suppress(AssertionError, ValueError):  # the program has removed all listeners
        if own is not None:
            own(_note_duration)


def take_durations() -> dict[str, float]:
    """Take the seconds in which this thread last traced and lowered a program."""
    found: dict[str, float] = vars(_here).pop("seconds", {})
    return found


def _note_duration(event: str, duration: float, **_: Any) -> None:
    phase = _PHASES.get(event)
    if phase is not None:
        vars(_here).setdefault("seconds", {})[phase] = duration
