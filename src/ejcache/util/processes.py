"""Ends the processes that this one has started, so that none of them outlives it."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `ejcache run` waits for this module before the program starts
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

_SIGKILL: Final = 9
_PR_SET_PDEATHSIG: Final = 1


def following(parent: int) -> Callable[[], None]:
    """Make what has the process that calls it killed when its parent, the process `parent`, ends; on Linux only.

    It is made before a fork, because a forked child may not load libraries.
    """
    prctl: Callable[[int, int], object] | None = None
    if sys.platform == "linux":
        import ctypes

        prctl = ctypes.CDLL(None).prctl

    def follow() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, _SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

    return follow


def kill_descendants() -> None:
    """Kill the processes that this one has started, those that they have started, and so on; on Linux only."""
    import contextlib
    from pathlib import Path

    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name of a process, in parentheses, may hold anything.
            parent = int((place / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(place.name))
    found, last = [], [os.getpid()]
    while last:
        last = [child for each in last for child in children.get(each, ())]
        found += last
    for each in found:
        with contextlib.suppress(OSError):
            os.kill(each, _SIGKILL)
