"""Finds the line of the user's program that runs now. A part of the seam."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.jax_integration.seam.parts import Part

if TYPE_CHECKING:
    from types import FrameType

PART: Final = Part("the lines of a program that compile", {"jax._src.source_info_util": ("is_user_filename",)})
jax_source_info = PART.module("jax._src.source_info_util")

_PACKAGE: Final = str(Path(__file__).parents[2])
"""The directory of ejcache."""
_LIBRARIES: Final = ("site-packages", "dist-packages")

_STANDARD: Final = str(Path(os.__file__).parent) + os.sep
"""The directory of Python's own modules."""

_OF_MODELS: Final = ("__init__", "__call__", "setup")
"""Methods that run because a line elsewhere makes or calls an object."""

_RUNNERS: Final = (
    *("IPython", "_pytest", "absl", "click", "execnet", "fire", "gradio", "hydra", "ipykernel", "pluggy", "pytest"),
    *("ray", "streamlit", "typer", "tyro", "xdist"),
)
"""Libraries that run programs: what they call is nobody's callback."""


def caller() -> str:
    """Return the line of the user's program that runs now, `/home/me/train.py:31 in main`; empty if there is none.

    Of a line in a method that makes or calls an object, or in a function that a library calls back, the line that does
    so follows: `/home/me/net.py:7 in Net.__init__, from /home/me/train.py:31 in main`. A library through which the
    program calls JAX is not the user's program; it is named last, `…, via optax`, and its line if nothing else runs.
    """
    frame: FrameType | None = sys._getframe(1)
    library = via = inner = outer = ""
    is_called_back = False
    while frame is not None:
        code = frame.f_code
        whose = _whose(code.co_filename)
        if whose == "user":
            if outer:
                break
            line = f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
            if code.co_qualname.partition(".<locals>")[0].rpartition(".")[2] in _OF_MODELS:
                inner = inner or line
            else:
                outer = line
        elif whose and not (inner or outer):
            library = library or f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
            via = via or whose.strip("/")
        elif whose and outer and not whose.startswith("/") and not is_called_back:
            # Once: a library further out, such as one that runs the whole program, says nothing of this line.
            inner, outer, is_called_back = inner or outer, "", True
        frame = frame.f_back
    said = f"{inner}, from {outer}" if inner and outer else inner or outer
    return f"{said}, via {via}" if said and via else said or library


@functools.cache
def _whose(filename: str) -> str:
    """Return "user" for a file of the user's, else the name of its library, or "" for JAX and ours. Each hit asks this.

    Python's own modules and libraries that run programs begin with "/": "/" and "/pytest".
    """
    is_user_filename = getattr(jax_source_info, "is_user_filename", None)
    if is_user_filename is None or filename.startswith((_PACKAGE, "<frozen")) or not is_user_filename(filename):
        return ""
    parts = Path(filename).parts
    installed = next((place for place, part in enumerate(parts) if part in _LIBRARIES), None)
    if installed is None:
        return "/" if filename.startswith(_STANDARD) else "user"
    name = Path(parts[installed + 1]).stem
    return f"/{name}" if name in _RUNNERS else name
