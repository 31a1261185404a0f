"""What was measured on, as far as it explains a number; nothing that names the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["describe_machine"]

_PACKAGES = ("jax", "jaxlib", "diskcache", "zstandard", "filelock", "ejkernel")


def describe_machine(directory: Path) -> dict[str, Any]:
    """The processor, the versions, and the file system of `directory`, in the order in which they are shown."""
    found: dict[str, Any] = {
        "cpu": _processor(),
        "cores": _cores(),
        "memory_gb": _memory(),
        "system": platform.system(),
        "filesystem": _filesystem(directory),
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    # JAX reads and writes its cache through etils where that is installed, which is slower than pathlib.
    found["etils"] = find_spec("etils") is not None
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)
    except (ValueError, OSError):
        return None


def _filesystem(directory: Path) -> str | None:
    """The type of the file system that holds `directory`, without where it is mounted."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    best, kind = "", None
    resolved = directory.resolve()
    for line in mounts:
        _, point, this_kind, options, *_ = line.split(" ")
        if resolved.is_relative_to(point) and len(point) >= len(best):
            # Freeing blocks then costs what the device makes of it.
            best, kind = point, f"{this_kind} (discard)" if "discard" in options.split(",") else this_kind
    return kind
