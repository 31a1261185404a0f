"""Cuts ejcache's own frames out of tracebacks, as JAX does with its own.

JAX removes from tracebacks the frames of files that were registered with it (`traceback_util`), where an exception
leaves one of its public functions. That leaves two cases to us. JAX filters subclasses of `Exception` only, so an
interrupt during a compilation would show every function between JAX and XLA. And functions such as
`lower(…).compile()` are not filtered at all. So our frames are cut out where an exception leaves our code.

`JAX_TRACEBACK_FILTERING=off` shows all of them. With `tracebackhide` JAX marks its own frames for IPython, and ours are
cut out all the same.

Read for this: jax 0.10.2 and 0.12.0.1, `traceback_util.py`, `source_info_util.py`.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ejcache.jax_integration.seam.parts import Part

PART: Final = Part(
    "errors without frames of ejcache",
    {
        "jax._src.source_info_util": ("register_exclusion",),
        "jax._src.traceback_util": ("register_exclusion",),
    },
)
jax_config = PART.module("jax._src.config")
jax_source_info = PART.module("jax._src.source_info_util")
jax_tracebacks = PART.module("jax._src.traceback_util")

_PACKAGE: Final = str(Path(__file__).parents[2])
"""The directory of ejcache."""


@functools.cache
def register_our_frames() -> None:
    """Tell JAX to remove our frames wherever it removes its own. Does nothing if this JAX cannot be told."""
    with contextlib.suppress(AttributeError):
        jax_tracebacks.register_exclusion(_PACKAGE)
        # Otherwise a module would name our file as the place that calls what is traced.
        jax_source_info.register_exclusion(_PACKAGE)


def cut_our_frames(exc: BaseException) -> None:
    """Remove our frames from the traceback of `exc`; raise it afterwards with a bare `raise`, which adds no frame."""
    if _is_off():
        return
    frames = []
    step = exc.__traceback__
    while step is not None:
        frames.append(step)
        step = step.tb_next
    kept: TracebackType | None = None
    for each in reversed(frames):
        if not each.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    exc.__traceback__ = kept


def without_our_frames(function: Any) -> Any:
    """Return `function`, whose exceptions carry no frames of ours."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except BaseException as exc:
            cut_our_frames(exc)
            raise

    return called


def _is_off() -> bool:
    return getattr(getattr(jax_config, "traceback_filtering", None), "value", None) == "off"
