"""The device that a call runs on, what else decides which configuration is best there, and what a record says of it."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ejcache._version import __version__
from ejcache.settings import environment, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["default_device", "device_of", "environment_of", "legacy_fingerprint", "provenance"]


def default_device() -> Any:
    """Where JAX puts what says nothing of its place."""
    import jax

    configured = jax.config.jax_default_device
    if configured is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=configured)[0] if isinstance(configured, str) else configured


def device_of(leaves: Iterable[Any]) -> Any:
    """The device of the first array that has one, else the default one."""
    import jax

    for leaf in leaves:
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            devices = leaf.devices()
            return min(devices, key=lambda device: device.id)
    return default_device()


def environment_of(device: Any) -> dict[str, str]:
    """Names and texts that are part of a record's identity: the platform, its toolchain, and what limits candidates.

    The toolchain counts down to its minor version: builds of the same one rarely change which configuration is best,
    and a record of another one still serves where nothing may be measured.
    """
    settings = resolve()
    found = dict(_environment(device))
    if settings.autotune_smem_limit is not None:
        found["triton_smem_limit"] = str(settings.autotune_smem_limit)
    if settings.autotune_rda_candidates is not None:
        found["rda_max_candidates"] = str(settings.autotune_rda_candidates)
    return found


@cache
def _environment(device: Any) -> tuple[tuple[str, str], ...]:
    import jax

    version = str(getattr(device.client, "platform_version", ""))
    toolkit = re.search(r"(cuda|rocm|libtpu|neuron\w*)\D{0,20}(\d+(?:\.\d+)?)", version, re.IGNORECASE)
    found = {
        "platform": toolkit[1].lower() if toolkit and device.platform in {"gpu", "cuda", "rocm"} else device.platform,
        "jaxlib": ".".join(_jaxlib_version().split(".")[:2]) or jax.__version__,
    }
    if toolkit:
        found["toolkit"] = f"{toolkit[1].lower()} {toolkit[2]}"
    if device.platform == "cpu":
        found["cpu"] = _cpu_model()
    return tuple(sorted(found.items()))


def legacy_fingerprint(device: Any) -> str:
    """The device as ejkernel's keys have it: `<kind>|<version of the platform>`."""
    return f"{device.device_kind}|{getattr(device.client, 'platform_version', '')}"


@cache
def _jaxlib_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("jaxlib")
    except PackageNotFoundError:
        return ""


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
    """Where and with what something was measured, for people; no part of any identity."""
    import jax

    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "ejcache": __version__,
        "jax": jax.__version__,
        "jaxlib": _jaxlib_version(),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "platform_version": str(getattr(device.client, "platform_version", "")).replace("\n", " "),
        "xla_flags": environment().get("XLA_FLAGS", ""),
        "cpus": os.cpu_count(),
    }
