"""Makes the part of a tuned record's key that describes the device, its toolchain and the flags."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ejcache.autotune.ejkernel_variables import kernel_limits
from ejcache.autotune.value_kinds import is_array
from ejcache.keys.environment_variables import compile_variables
from ejcache.settings.environment import all_variables
from ejcache.util.cores import cores

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
        "jaxlib": ".".join(jaxlib_version().split(".")[:2]),
    }
    if toolkit:
        found["toolkit"] = f"{toolkit[1].lower()} {toolkit[2]}"
    if device.platform == "cpu":
        found["cpu"] = _cpu_model()
        found["cores"] = str(cores())
    # Left out where none is set, so that keys from before they counted stay valid.
    found |= compile_variables(device.platform, all_variables())
    return tuple(sorted(found.items()))


def jaxlib_version() -> str:
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
