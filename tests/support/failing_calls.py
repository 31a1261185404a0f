"""System calls that fail below a directory, by a small library in C that is preloaded into a process of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["PRELUDE", "failing_calls"]

PRELUDE = """
import ctypes
_library = ctypes.CDLL(None)
_library.fail_calls.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_ulong, ctypes.c_int]
_failed = ctypes.c_long.in_dll(_library, "failed_calls")

def fail_calls(below, percent, number=0, seed=0, memory=False):
    _library.fail_calls(str(below).encode(), percent, number, seed, memory)
"""
"""Code before a program: `fail_calls(below, percent, number, seed)` has calls on files below a directory fail.

So many of a hundred fail, with this error; 0 ends it. With `memory`, requests of SQLite for memory fail as well.
`_failed.value` is how many have failed since.
"""


def failing_calls(directory: Path) -> dict[str, str]:
    """The variables that preload the library, which is compiled into `directory`; skips the test without a compiler."""
    compiler = next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = directory / "failing_calls.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_suffix(".c")), "-ldl"]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("the library that has calls fail is for Linux with glibc")
    return {"LD_PRELOAD": str(library)}
