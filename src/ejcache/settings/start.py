"""How this process was started, noted when ejcache is imported: later, the program may have changed it.

A program may go to another directory, take a variable out of its environment, or run while a link to its files is
changed. What a restart compares is what the process was started with.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Final

_FORKED_AND_NOT_STARTED: Final = 0x40
"""A flag that Linux sets for a process that was forked, and takes away when it starts a program (PF_FORKNOEXEC)."""


def main_file() -> str:
    """Return the path of the main module's file, as Python has it; empty without one."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return path if isinstance(path, str) and not path.startswith("<") else ""  # "<stdin>"


def identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode that tell a file or directory from all others; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 (`import ejcache` comes here, and pathlib takes a third of its time)
        return file.read()


def _directory() -> str:
    """The directory in which this process was started, also where the program has gone to another one before.

    Python makes an absolute path of the main file's as the command line has it.
    """
    main = main_file()
    for word in sys.orig_argv[1:]:
        beginning = main.removesuffix(f"{os.sep}{word}")
        if beginning != main and not word.startswith((os.sep, "-")) and os.path.isdir(beginning):  # noqa: PTH112
            return beginning
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return ""  # it was removed


PID: Final = os.getpid()
DIRECTORY: Final = _directory()
MAIN_AS_GIVEN: Final = main_file()
MAIN: Final = os.path.realpath(MAIN_AS_GIVEN) if MAIN_AS_GIVEN else ""
"""The file of the main module, without links; empty without one."""
IDENTITIES: Final[tuple[tuple[int, int] | None, ...]] = tuple(
    identity(path)
    for path in (MAIN, os.path.dirname(MAIN))  # noqa: PTH120
    if MAIN
)
_VARIABLES: Final = {} if sys.platform == "linux" else dict(os.environ)


@functools.cache
def variables_at_start() -> dict[str, str]:
    """Return the environment that this process was started with, whatever the program has changed since."""
    if sys.platform != "linux":
        return _VARIABLES
    try:
        parts = _read("/proc/self/environ").split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(part).partition("=") for part in parts)
    return {name: value for name, equals, value in pairs if name and equals}


def is_fork() -> bool:
    """True if this process is a copy of another one, which it left in the middle of a program."""
    if os.getpid() != PID:
        return True
    return bool((status_field(6) or 0) & _FORKED_AND_NOT_STARTED)


def status_field(place: int) -> int | None:
    """Return a number that Linux states of this process (`/proc/self/stat`); None if it cannot be read, or elsewhere.

    Args:
        place: of the field, counted from the state of the process, which is 0 and the third of proc(5).
    """
    try:
        # The name of the program, in brackets before them, may hold spaces and brackets.
        return int(_read("/proc/self/stat").rpartition(b")")[2].split()[place])
    except (OSError, ValueError, IndexError):
        return None
