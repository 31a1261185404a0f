"""This process: the cores that it may use, and the processes that it has started, which must not outlive it."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `ejcache run` waits for this module before the program starts
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

_SIGKILL: Final = 9
_PR_SET_PDEATHSIG: Final = 1
_QUOTA = "/sys/fs/cgroup/cpu.max"
"""Of a container with Kubernetes' or Docker's limit, which sees its own group there (cgroup v2)."""


def cores() -> int:
    """Return cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def has_second_core() -> bool:
    """True if a thread beside the main one has a core of its own: two cores, and a quota of two or more."""
    return cores() > 1 and _quota() >= 2


def _quota() -> float:
    """Return the cores that a container may keep busy on average; infinite if nothing limits them."""
    try:
        with open(_QUOTA, "rb") as file:  # noqa: PTH123 (each start waits for it)
            given, period = file.read(64).split()
        return int(given) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # there is no such file, or it says "max"
        return float("inf")


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
