"""System calls that fail below a directory, by a small library in C that is preloaded into a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from capabilities import require

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
    require("C compiler", "linux")
    library, source = directory / "failing_calls.so", Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O1", "-w", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}
