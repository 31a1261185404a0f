"""Targets by name: those that were saved with a cache, and those that need no saving.

NAME := the name of a saved target
| "tpu:" chip ":" shape [":" chips of a host]       tpu:v5e:2x4, tpu:v5e:2x4:2x4
| "gpu:" model ":" [hosts "x"] GPUs of a host       gpu:h100:8, gpu:h100:2x8; assumed
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.errors import UsageError
from ejcache.jax_integration.activate import current_settings
from ejcache.jax_integration.lowering.components import device_components, environment_components
from ejcache.jax_integration.lowering.key import Described, described
from ejcache.jax_integration.lowering.toolchain import cpu_identity, native_libraries
from ejcache.jax_integration.seam import topologies
from ejcache.jax_integration.seam.patch import jaxlib_version
from ejcache.jax_integration.targets.document import MAX_BYTES, DeviceTarget, decode, document_path
from ejcache.jax_integration.targets.gpus import GPUS, target_config
from ejcache.keys.protobuf import split
from ejcache.stores.documents import check_path, open_documents
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["components_here", "components_of", "current_target", "device_memory", "devices_of", "find_target", "target"]

_GPU_MEMORY: Final = (9, 2, 8, 1, 14)
"""Where a topology has the bytes of a GPU: topology, its value, target configuration, device, its memory."""
_BOUNDS: Final = 3
_HBM: Final = {"v3": 16, "v4": 32, "v5e": 16, "v5p": 95, "v6e": 32}
"""GiB of memory of a TPU device, as Google's documentation has it. The compiler knows how much of it a program gets."""

_current: Final[list[tuple[DeviceTarget, Sequence[Any]]]] = []


@contextlib.contextmanager
def target(name: str) -> Iterator[Sequence[Any]]:
    """The devices of a target, to compile for: `with ejcache.target("v5p-128") as devices:`.

    In the block, `ejcache.warm` stores programs under the keys that a process with these devices will ask for. They
    can be in meshes and shardings; no array can be put on them. `jax.eval_shape` gives the shapes of a training state.
    The block is for one thread. A warning names what differs between this process and the target, such as flags.

    Args:
        name: of a target that `ejcache target save` has written to the cache, or `tpu:v5e:4x4`, `gpu:h100:8`.

    Raises:
        UsageError: there is no such target, or this installation cannot compile for it.
        StoreError: the cache cannot be read.
    """
    found = find_target(name)
    devices = devices_of(found)
    for component, here in components_here(found.platform).items():
        there = components_of(found).get(component, here)
        if there != here:
            log.warning(
                "ejcache: %s differs between this process and the target %s, so programs compiled here have other "
                "keys: %r here, %r there",
                component,
                name,
                here,
                there,
            )
    client = devices[0].client
    version = found.platform_version or str(client.platform_version)
    with described(client, Described(version, found.cpu)):
        _current.append((found, devices))
        try:
            yield devices
        finally:
            _current.pop()


def current_target() -> tuple[DeviceTarget, Sequence[Any]] | None:
    """The target whose block this process is in, and its devices."""
    return _current[-1] if _current else None


def find_target(name: str, url: str | None = None) -> DeviceTarget:
    """The target of this name.

    Args:
        name: of the target.
        url: of the cache where it is saved; by default the one that this process uses.

    Raises:
        UsageError: there is none.
        EntryError: its document cannot be read.
        StoreError: the cache cannot be read.
    """
    if ":" in name:
        return _named(name)
    documents = open_documents(url or str(current_settings().cache_dir), read_only=True)
    try:
        data = documents.read(check_path(document_path(name)), max_size=MAX_BYTES)
    finally:
        documents.close()
    if data is None:
        raise UsageError(
            f"there is no target {name} in {documents.url}: save one with `ejcache target save {name}` where the "
            "devices are, or name one as in tpu:v5e:2x4 or gpu:h100:8"
        )
    return decode(data)


def _named(name: str) -> DeviceTarget:
    kind, _, rest = name.partition(":")
    if kind == "tpu" and re.fullmatch(r"[a-z0-9]+:\d+(x\d+)*(:\d+(x\d+)*)?", rest):
        return DeviceTarget(name, "tpu", memory=_HBM.get(rest.partition(":")[0], 0) << 30)
    model, _, shape = rest.partition(":")
    if kind == "gpu" and model in GPUS and re.fullmatch(r"(\d+x)?\d+", shape):
        runtime = topologies.runtime_version()
        return DeviceTarget(name, "gpu", platform_version=f"cuda {runtime}", memory=GPUS[model].memory, assumed=True)
    raise UsageError(
        f"there is no target {name}: accepted are saved ones, tpu:CHIP:SHAPE[:CHIPS OF A HOST] as in tpu:v5e:4x4:2x2, "
        f"and gpu:MODEL:[HOSTSx]GPUS as in gpu:h100:2x8, with a model of {', '.join(GPUS)}"
    )


def devices_of(found: DeviceTarget) -> Sequence[Any]:
    """The devices of a target, which can be compiled for.

    Raises:
        UsageError: this installation cannot compile for them.
    """
    if found.topology:
        # The plug-in reads it, and asking for any topology loads the plug-in.
        if found.platform == "tpu":
            devices_of(DeviceTarget("tpu:v5e:2x2", "tpu"))
        elif found.platform != "cpu":
            devices_of(DeviceTarget("gpu:h100:1", "gpu"))
        return topologies.absent_devices(found.platform, found.topology)
    _, model, shape, *bounds = found.name.split(":")
    if found.platform == "tpu":
        numbers = [int(number) for number in bounds[0].split("x")] if bounds else []
        hosts = {"chips_per_host_bounds": (numbers + [1] * _BOUNDS)[:_BOUNDS]} if numbers else {}
        return topologies.named_devices("tpu", f"{model}:{shape}", hosts)
    config = target_config(GPUS[model], runtime=topologies.runtime_version())
    grid = "x".join(f"1x1x{shape}".split("x")[-3:])
    return topologies.named_devices("cuda", model, {"topology": grid, "target_config": config})


def components_here(platform: str, *, with_devices: bool = False) -> dict[str, str]:
    """What keys say of this process, and of its devices."""
    found = {
        "jaxlib": jaxlib_version(),
        "native_libraries": native_libraries(platform),
        "variables": environment_components(platform).variables,
    }
    if with_devices:
        devices = jax.devices()
        found |= _components(devices, str(devices[0].client.platform_version), cpu_identity())
    return found


def components_of(found: DeviceTarget, devices: Sequence[Any] = ()) -> dict[str, str]:
    """What keys say of a target, as far as it is known, and of its devices, if they are given."""
    said: dict[str, str] = {}
    if found.saved:
        lines = (f"{name}={value}" for name, value in found.variables.items())
        said = {
            "jaxlib": found.jaxlib,
            "native_libraries": found.native_libraries,
            "variables": "\n".join(lines),
        }
    if devices:
        said |= _components(devices, found.platform_version or str(devices[0].client.platform_version), found.cpu)
    return said


def _components(devices: Sequence[Any], version: str, cpu: str) -> dict[str, str]:
    made = device_components(devices, devices[0].client)
    found = {"machine": made.machine, "devices": made.layout, "platform_version": version}
    return found | ({"cpu": cpu} if cpu and devices[0].platform == "cpu" else {})


def device_memory(topology: bytes) -> int:
    """Bytes of memory of a GPU, from a serialised topology; 0 if it does not say."""
    message, value = topology, 0
    with contextlib.suppress(ValueError, StopIteration):
        for number in _GPU_MEMORY[:-1]:
            message = next(field.value for field in split(message) if field.number == number)
        encoded = next(field.value for field in split(message) if field.number == _GPU_MEMORY[-1])
        value = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded))
    return value
