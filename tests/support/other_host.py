"""What makes a program think that it is on another host, with another CPU and one core."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["pretend_other_host"]

_SITE = """
import os, sys
import ejcache.jax_integration.lowering.host_cpu as host_cpu

def other_features():
    return "x86_64 another CPU: avx512f amx_int8"

# A fork has modules already that have imported the function.
for module in list(sys.modules.values()):
    if getattr(module, "cpu_features", None) is host_cpu.cpu_features and module is not host_cpu:
        module.cpu_features = other_features
host_cpu.cpu_features = other_features
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
"""


def pretend_other_host(directory: Path) -> None:
    """Write what a program reads at its start if `directory` is in its PYTHONPATH."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sitecustomize.py").write_text(_SITE)
