"""Tells under which versions, and in which state of its host and device, something was measured."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from importlib import import_module
from typing import Any

from ejcache._version import __version__
from ejcache.autotune.key_environment import jaxlib_version
from ejcache.settings.environment import environment_variable
from ejcache.util.cores import cores


def provenance(device: Any) -> dict[str, Any]:
    """Return the host and the versions of a measurement, for people. They are not part of the key."""
    import jax

    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "ejcache": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib_version(),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "platform_version": str(getattr(device.client, "platform_version", "")).replace("\n", " "),
        "xla_flags": environment_variable("XLA_FLAGS") or "",
        "cpus": cores(),
        "load": _load(),
        **_gpu_state(device),
    }


def _load() -> float | None:
    """Return processes that waited for a core in the last minute; None where the system does not say."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _gpu_state(device: Any) -> dict[str, Any]:
    """Return driver, clocks and power limit of an NVIDIA GPU, if the package `nvidia-ml-py` is installed and can read
    them.
    """
    if device.platform not in {"gpu", "cuda"}:
        return {}
    try:
        pynvml = import_module("pynvml")
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(_bus_id(int(device.local_hardware_id)))
            return {
                "driver": str(pynvml.nvmlSystemGetDriverVersion()),
                "clock_mhz": int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
                "memory_clock_mhz": int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
                "power_limit_watts": pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
            }
        finally:
            # It counts its users, and others of the process may be among them.
            pynvml.nvmlShutdown()
    except Exception as exc:
        # No permission, or a driver that does not tell: the record is as good without.
        return {"gpu": f"not read: {type(exc).__name__}: {exc}"}


def _bus_id(number: int) -> bytes:
    """Return the PCI bus of a GPU by its number among those that CUDA shows to this process; NVML counts those of the
    host.
    """
    text = ctypes.create_string_buffer(32)
    if status := ctypes.CDLL("libcuda.so.1").cuDeviceGetPCIBusId(text, len(text), number):
        raise OSError(f"CUDA does not say where GPU {number} is: error {status}")
    return text.value
