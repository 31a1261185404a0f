"""Describes topologies as a key has them, with devices that may be elsewhere and the memory that a program needs.

A part of the seam.

Read for this: jax 0.10.2 and 0.12.0.1, `cache_key.py`, `jax/experimental/topologies.py` and `xla_bridge.py`.
"""

from __future__ import annotations

import hashlib
import inspect
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ejcache.errors import UsageError
from ejcache.jax_integration.seam.parts import Part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


PART: Final = Part(
    "keys of programs on a TPU, and programs for devices that are elsewhere",
    {
        "jax._src.cache_key": ("_hash_accelerator_config",),
        "jax._src.xla_bridge": ("_discover_and_register_pjrt_plugins",),
    },
)
jax_cache_key = PART.module("jax._src.cache_key")
xla_bridge = PART.module("jax._src.xla_bridge")


def topology_fingerprint(devices: Sequence[Any]) -> str:
    """Return the topology as JAX's own key has it."""
    hasher = hashlib.sha256()
    given: list[Any] = [np.array(devices, dtype=object)]
    if "backend" in inspect.signature(jax_cache_key._hash_accelerator_config).parameters:  # before JAX 0.7
        given.append(devices[0].client)
    jax_cache_key._hash_accelerator_config(hasher, *given)
    return hasher.hexdigest()


def reads_topologies() -> bool:
    """True if this JAX can read a saved topology (0.11 and later can)."""
    from jax.experimental import topologies

    return hasattr(topologies.TopologyDescription, "deserialize")


def absent_devices(platform: str, topology: bytes) -> Sequence[Any]:
    """Return the devices of a serialised topology.

    Raises:
        UsageError: this JAX cannot read one, or has no compiler for its platform.
    """
    from jax.experimental import topologies

    if not reads_topologies():
        raise UsageError("this JAX cannot read a saved topology; JAX 0.11 or later can")
    try:
        if platform not in {"cpu", "tpu"}:
            xla_bridge._discover_and_register_pjrt_plugins()  # the plug-in of a GPU reads the topology
        return list(topologies.TopologyDescription.deserialize(topology).devices)
    except Exception as exc:
        raise UsageError(f"this JAX has no compiler for a topology of {platform}: {exc}") from exc


def tpu_devices(name: str, options: Mapping[str, Any]) -> Sequence[Any]:
    """Return the devices of a slice that libtpu knows by name.

    Raises:
        UsageError: there is no such topology, or no plug-in.
    """
    from jax.experimental import topologies

    try:
        return list(topologies.get_topology_desc(name, "tpu", **options).devices)
    except Exception as exc:
        raise UsageError(f"this installation does not know the topology {name} of tpu: {exc}") from exc


def peak_memory(executable: Any) -> int:
    """Return the bytes of a device's memory that a run of the executable needs at its peak; 0 if XLA does not say."""
    stats = executable.get_compiled_memory_stats()
    peak = int(getattr(stats, "peak_memory_in_bytes", 0) or 0)
    whole = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    return peak or int(whole - stats.alias_size_in_bytes)
