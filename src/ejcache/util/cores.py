"""Counts the cores that this process may use."""

from __future__ import annotations

import os

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
