"""Hides our frames in tracebacks, as JAX hides its own, and finds the line of the user's program.

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
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from jax._src import config as jax_config
from jax._src import source_info_util as jax_source_info
from jax._src import traceback_util as jax_tracebacks

_PACKAGE: Final = str(Path(__file__).parents[2])
"""The directory of ejcache."""
_LIBRARIES: Final = frozenset({"site-packages", "dist-packages"})
_STANDARD: Final = str(Path(os.__file__).parent) + os.sep
"""The directory of Python's own modules."""


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
    """`function`, whose exceptions carry no frames of ours."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except BaseException as exc:
            cut_our_frames(exc)
            raise

    return called


def caller() -> str:
    """The line of the user's program that runs now, `/home/me/train.py:31 in main`; empty if there is none.

    A library through which the program calls JAX is not the user's program; it is named if nothing else runs.
    """
    is_user_filename = getattr(jax_source_info, "is_user_filename", None)
    frame = sys._getframe(1)
    library = ""
    while is_user_filename is not None and frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((_PACKAGE, "<frozen")) and is_user_filename(code.co_filename):
            line = f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
            if _LIBRARIES.isdisjoint(Path(code.co_filename).parts) and not code.co_filename.startswith(_STANDARD):
                return line
            library = library or line
        frame = frame.f_back  # type: ignore[assignment]
    return library


def _is_off() -> bool:
    return getattr(getattr(jax_config, "traceback_filtering", None), "value", None) == "off"
