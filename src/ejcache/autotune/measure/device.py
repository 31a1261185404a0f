"""The device of a call, the environment part of its key, and the provenance of a measurement."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import socket
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ejcache._version import __version__
from ejcache.autotune.ejkernel_variables import kernel_limits
from ejcache.autotune.measure.inputs import is_array
from ejcache.keys.environment_variables import compile_variables
from ejcache.settings.environment import all_variables, environment_variable
from ejcache.util.processes import cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def device_of(leaves: Iterable[Any]) -> Any:
    """Return the device of the first array among the leaves that has one, or JAX's default device."""
    import jax

    for leaf in leaves:
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            devices = leaf.devices()
            return min(devices, key=lambda device: device.id)
    configured = jax.config.jax_default_device
    if configured is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=configured)[0] if isinstance(configured, str) else configured


def device_and_environment(leaves: Sequence[Any]) -> tuple[str, dict[str, str]]:
    """Return the kind of device that a call with these leaves runs on, and the environment part of its key."""
    device = device_of(leaf for leaf in leaves if is_array(leaf))
    return str(device.device_kind), {**dict(environment_of(device)), **kernel_limits()}


@cache
def environment_of(device: Any) -> tuple[tuple[str, str], ...]:
    """Return the environment part of a key: the platform, its toolchain, and the compiler's flags.

    A CPU's has its model and the number of cores that the process may use: XLA makes one thread for each.

    Versions are cut after the minor number, because a patch release rarely changes which configuration is best. A
    record of another version is still used where measuring is forbidden.
    """
    version = str(getattr(device.client, "platform_version", ""))
    toolkit = re.search(r"(cuda|rocm|libtpu|neuron\w*)\D{0,20}(\d+(?:\.\d+)?)", version, re.IGNORECASE)
    found = {
        "platform": toolkit[1].lower() if toolkit and device.platform in {"gpu", "cuda", "rocm"} else device.platform,
        "jaxlib": ".".join(_jaxlib_version().split(".")[:2]),
    }
    if toolkit:
        found["toolkit"] = f"{toolkit[1].lower()} {toolkit[2]}"
    if device.platform == "cpu":
        found["cpu"] = _cpu_model()
        found["cores"] = str(cores())
    # Left out where none is set, so that keys from before they counted stay valid.
    found |= compile_variables(device.platform, all_variables())
    return tuple(sorted(found.items()))


def _jaxlib_version() -> str:
    import jax

    return str(jax.lib.__version__)  # type: ignore[attr-defined]  # it comes from jaxlib, which has no types


@cache
def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    names = ("model name", "hardware", "cpu model")
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in names and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def provenance(device: Any) -> dict[str, Any]:
    """Return the host and the versions of a measurement, for people. They are not part of the key."""
    import jax

    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "ejcache": __version__,
        "jax": jax.__version__,
        "jaxlib": _jaxlib_version(),
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
