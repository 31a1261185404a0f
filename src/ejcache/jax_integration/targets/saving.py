"""Saves the devices of this process, or of the job that it belongs to, as a target."""

from __future__ import annotations

import base64
import importlib.metadata
import time
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.errors import EjcacheError, UsageError
from ejcache.jax_integration.agreement import RankAgreement
from ejcache.jax_integration.lowering.components import environment_components
from ejcache.jax_integration.lowering.toolchain import cpu_identity, native_libraries
from ejcache.jax_integration.seam.coordination import coordination_client
from ejcache.jax_integration.seam.patch import jaxlib_version, topology_bytes
from ejcache.jax_integration.targets.document import DeviceTarget, document_path, encode
from ejcache.jax_integration.targets.known import device_memory
from ejcache.keys.options import canonical_gpu_topology
from ejcache.keys.protobuf import Field, edit, join, split
from ejcache.stores.documents import check_path, open_documents

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["environment_for", "gathered_topology", "save_target"]

_PACKAGES: Final = ("jaxlib", "libtpu", "jax-cuda", "jax-rocm", "nvidia-cudnn", "nvidia-cuda-nvcc", "nvidia-cublas")
_CPU_DEVICES: Final = 1
_CPU_TOPOLOGY: Final = (9, 2)


def save_target(name: str, url: str) -> DeviceTarget:
    """Write the target; on every rank of a job, of which the lowest writes.

    Args:
        name: of the target.
        url: of the cache.

    Raises:
        UsageError: the name cannot be one, or this JAX cannot save topologies.
        EjcacheError: a rank did not answer, or the ranks have different devices.
        StoreError: the cache cannot be written.
    """
    if ":" in name or "/" in name:
        raise UsageError(f"{name!r} cannot be the name of a target: accepted is a file name without a colon")
    path = check_path(document_path(name))
    devices = jax.devices()
    own = topology_bytes(devices)
    if own is None:
        raise UsageError("this JAX cannot save a topology; JAX 0.11 or later can. TPUs can be named: tpu:v5e:2x4")
    client = devices[0].client
    platform = str(client.platform)
    topology = _gather(own, platform)
    variables = environment_components(platform)
    saved = DeviceTarget(
        name=name,
        platform=platform,
        topology=topology,
        platform_version=str(client.platform_version),
        cpu=cpu_identity(),
        jaxlib=jaxlib_version(),
        native_libraries=native_libraries(platform),
        packages=_packages(),
        variables=dict(pair.split("=", 1) for pair in variables.settings),
        device_kind=str(devices[0].device_kind),
        devices=len(devices),
        processes=len({device.process_index for device in devices}),
        memory=device_memory(topology),
        saved=time.time(),
    )
    if jax.process_index() == 0:
        documents = open_documents(url)
        try:
            documents.replace(path, encode(saved))
        finally:
            documents.close()
    return saved


def _packages() -> dict[str, str]:
    found = ((str(each.metadata["Name"] or "").lower(), each.version) for each in importlib.metadata.distributions())
    return dict(sorted((name, version) for name, version in found if name.startswith(_PACKAGES)))


def _gather(own: bytes, platform: str) -> bytes:
    coordination = coordination_client()
    if coordination is None:
        return own
    ranks = tuple(range(coordination.processes))
    agreement = RankAgreement(coordination)
    decision: Any = agreement.decide(
        agreement.topic("target"),
        participants=ranks,
        mine={"topology": base64.b64encode(own).decode()},
        decide=lambda said: {
            "topologies": [said[rank]["topology"] for rank in sorted(said)] if len(said) == len(ranks) else []
        },
        about="this target",
    )
    if not decision or not decision["topologies"]:
        raise EjcacheError(f"target save: not all of the job's {len(ranks)} ranks have answered; run it on every rank")
    return gathered_topology([base64.b64decode(each) for each in decision["topologies"]], platform)


def gathered_topology(topologies: list[bytes], platform: str) -> bytes:
    """One topology of all processes, from what each of them has: on CPU each has its own devices only.

    Raises:
        EjcacheError: the processes have different kinds of devices.
    """
    first = topologies[0]
    if platform != "cpu":
        if len(set(map(canonical_gpu_topology, topologies))) > 1:
            raise EjcacheError("target save: the ranks of this job have different topologies, which no target can say")
        return first
    devices = [field for topology in topologies for field in _cpu_devices(topology)]
    return edit(
        first,
        _CPU_TOPOLOGY,
        lambda topology: join([*devices, *(field for field in split(topology) if field.number != _CPU_DEVICES)]),
    )


def _cpu_devices(topology: bytes) -> list[Field]:
    message = topology
    for number in _CPU_TOPOLOGY:
        message = next(field.value for field in split(message) if field.number == number)
    return [field for field in split(message) if field.number == _CPU_DEVICES]


def environment_for(target: DeviceTarget) -> Mapping[str, str]:
    """The environment variables with which a process compiles for a target: its flags, and no device of its own."""
    flags = {name: " ".join(_quoted(flag) for flag in value.split("\n")) for name, value in target.variables.items()}
    if target.saved:
        # Flags of the host that compiles are not those of the target.
        flags = {"XLA_FLAGS": "", "LIBTPU_INIT_ARGS": "", **flags}
    # libtpu lets one process at a time compile, unless it is told that the others have no TPU either; and it asks a
    # server of Google's cloud which TPU there is, unless it is told not to.
    return {"JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1", **flags}


def _quoted(flag: str) -> str:
    name, equals, value = flag.partition("=")
    return f"{name}{equals}'{value}'" if any(each.isspace() for each in value) else flag
