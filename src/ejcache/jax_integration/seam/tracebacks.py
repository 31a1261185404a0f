"""Our frames in tracebacks, which nobody sees, and the line of the program that runs now."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from pathlib import Path
from types import FrameType, TracebackType
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


_OF_MODELS: Final = frozenset({"__init__", "__call__", "setup"})
"""Methods that run because a line elsewhere makes or calls an object."""
_NESTED: Final = re.compile(r"(\.<locals>\.<\w+>)+$")


def caller() -> str:
    """The line of the user's program that runs now, `/home/me/train.py:31 in main`; empty if there is none.

    Of a line in a method that makes or calls an object, the line that does so follows: `/home/me/net.py:7 in
    Net.__init__, from /home/me/train.py:31 in main`. A library through which the program calls JAX is not the user's
    program; it is named if nothing else runs.
    """
    frame: FrameType | None = sys._getframe(1)
    library = method = ""
    while frame is not None:
        code = frame.f_code
        whose = _whose(code.co_filename)
        if whose:
            line = f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
            if whose == "user":
                if _NESTED.sub("", code.co_qualname).rpartition(".")[2] not in _OF_MODELS:
                    return f"{method}, from {line}" if method else line
                method = method or line
            library = library or line
        frame = frame.f_back
    return method or library


@functools.cache
def _whose(filename: str) -> str:
    """Whether a file is of the "user", of a "library", or of neither (JAX and ours). Each hit asks about a stack."""
    is_user_filename = getattr(jax_source_info, "is_user_filename", None)
    if is_user_filename is None or filename.startswith((_PACKAGE, "<frozen")) or not is_user_filename(filename):
        return ""
    return "user" if _LIBRARIES.isdisjoint(Path(filename).parts) and not filename.startswith(_STANDARD) else "library"


def _is_off() -> bool:
    return getattr(getattr(jax_config, "traceback_filtering", None), "value", None) == "off"
