"""Tells of the functions that JAX traces.

Read for this: jax 0.10.2 and 0.12.0.1, `dispatch.py`, `monitoring.py`, `pjit.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax._src import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["watch_traces"]

_watching: list[Callable[[str], None]] = []


def watch_traces(call: Callable[[str], None]) -> None:
    """From now on, call `call` with the name of each function that JAX has traced; again does nothing."""
    if call in _watching:
        return
    if not _watching:
        jax.monitoring.register_event_duration_secs_listener(_note)
    _watching.append(call)


def _note(event: str, duration: float, **about: Any) -> None:
    del duration
    if event == dispatch.JAXPR_TRACE_EVENT:
        for call in tuple(_watching):
            call(str(about.get("fun_name", "")))
