"""Describes devices that another process has: targets by name, how one is stored, and how one is saved.

    NAME := the name of a saved target
          | "tpu:" chip ":" shape [":" chips of a host]       tpu:v5e:2x4, tpu:v5e:2x4:2x4

A saved target is what a compiler must know of the devices and the process that will run its programs:

    targets/<name>.json := a JSON object: format, version, and the fields of `DeviceTarget`; topology in base64

Version 1 is the first. Fields that this version does not know are ignored.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax

from ejcache.errors import MALFORMED, EjcacheError, EntryCorruptError, EntryVersionError, NotFoundError, UsageError
from ejcache.jax_integration.activate import current_settings
from ejcache.jax_integration.lowering.host_cpu import cpu_identity
from ejcache.jax_integration.lowering.key import absent_hosts, device_components, environment_components
from ejcache.jax_integration.lowering.native_libraries import native_libraries
from ejcache.jax_integration.ranks.agreement import RankAgreement
from ejcache.jax_integration.seam import topologies
from ejcache.jax_integration.seam.coordination_service import coordination_client
from ejcache.jax_integration.seam.key_parts import jaxlib_version, topology_bytes
from ejcache.keys.accelerators import GPU, canonical_gpu_topology
from ejcache.keys.environment_variables import compile_variables
from ejcache.keys.xla_messages import Field, edit, join, split
from ejcache.settings.environment import all_variables
from ejcache.stores.documents import check_path, open_documents
from ejcache.util.dist_info import installed_packages
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_GPU_MEMORY: Final = (*GPU, 14)
"""Where a topology has the bytes of a GPU's memory."""
_CPU_DEVICES: Final = 1
_CPU_TOPOLOGY: Final = (9, 2)


def device_memory(topology: bytes) -> int:
    """Return the bytes of memory of a GPU, from a serialised topology; 0 if it does not say."""
    message, value = topology, 0
    with contextlib.suppress(ValueError, StopIteration):
        for number in _GPU_MEMORY[:-1]:
            message = next(field.value for field in split(message) if field.number == number)
        encoded = next(field.value for field in split(message) if field.number == _GPU_MEMORY[-1])
        value = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded))
    return value


def gathered_topology(topologies: list[bytes], platform: str) -> bytes:
    """Return one topology of all processes, from what each of them has: on CPU each has its own devices only.

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


_BOUNDS: Final = 3
_HBM: Final = {"v3": 16, "v4": 32, "v5e": 16, "v5p": 95, "v6e": 32}
"""GiB of memory of a TPU device, as Google's documentation has it. The compiler knows how much of it a program gets."""

_current: Final[list[tuple[DeviceTarget, Sequence[Any]]]] = []


@contextlib.contextmanager
def target(name: str) -> Iterator[Sequence[Any]]:
    """Yield the devices of a target, to compile for: `with ejcache.target("v5p-128") as devices:`.

    In the block, `ejcache.warm` stores programs under the keys that a process with these devices will ask for. They
    can be in meshes and shardings; no array can be put on them. `jax.eval_shape` gives the shapes of a training state.
    The block is for one thread. A warning names what differs between this process and the target, such as flags.

    Args:
        name: of a target that `ejcache target save` has written to the cache, or `tpu:v5e:4x4`.

    Raises:
        UsageError: there is no such target, or this installation cannot compile for it.
        StoreError: the cache cannot be read.
        EntryError: the document of the target is damaged, or of a later version.
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
    # The keys of this client's programs are made, in this block, as by the process that will run them.
    absent_hosts[id(client)] = client, version, found.cpu
    _current.append((found, devices))
    try:
        yield devices
    finally:
        _current.pop()
        del absent_hosts[id(client)]


def current_target() -> tuple[DeviceTarget, Sequence[Any]] | None:
    """Return the target whose block this process is in, and its devices."""
    return _current[-1] if _current else None


def find_target(name: str, url: str | None = None) -> DeviceTarget:
    """Read the target of this name from a cache; one with a colon in its name is made from the name alone.

    Args:
        name: of the target.
        url: of the cache where it is saved; by default the one that this process uses.

    Raises:
        UsageError: there is none.
        EntryError: its document cannot be read.
        StoreError: the cache cannot be read.
    """
    if ":" in name:
        return _target_of_name(name)
    with open_documents(url or str(current_settings().dir), read_only=True) as documents:
        data = documents.read(check_path(document_path(name)), max_size=MAX_BYTES)
    if data is None:
        raise NotFoundError(
            f"there is no target {name} in {documents.url}: save one with `ejcache target save {name}` where the "
            "devices are, or name a slice of TPUs as in tpu:v5e:2x4"
        )
    return decode(data)


def _target_of_name(name: str) -> DeviceTarget:
    kind, _, rest = name.partition(":")
    if kind == "tpu" and re.fullmatch(r"[a-z0-9]+:\d+(x\d+)*(:\d+(x\d+)*)?", rest):
        return DeviceTarget(name, "tpu", memory=_HBM.get(rest.partition(":")[0], 0) << 30)
    raise NotFoundError(
        f"there is no target {name}: accepted are tpu:CHIP:SHAPE[:CHIPS OF A HOST] as in tpu:v5e:4x4:2x2, and the name "
        "of one that `ejcache target save NAME` has written where the devices are"
    )


def devices_of(found: DeviceTarget) -> Sequence[Any]:
    """Return the devices of a target, which can be compiled for.

    Raises:
        UsageError: this installation cannot compile for them.
    """
    if found.topology:
        # The plug-in reads it; libtpu is loaded when any topology of it is asked for.
        if found.platform == "tpu":
            devices_of(DeviceTarget("tpu:v5e:2x2", "tpu"))
        return topologies.absent_devices(found.platform, found.topology)
    _, model, shape, *bounds = found.name.split(":")
    numbers = [int(number) for number in bounds[0].split("x")] if bounds else []
    hosts = {"chips_per_host_bounds": (numbers + [1] * _BOUNDS)[:_BOUNDS]} if numbers else {}
    return topologies.tpu_devices(f"{model}:{shape}", hosts)


def components_here(platform: str, *, with_devices: bool = False) -> dict[str, str]:
    """Make the components of keys that describe this process, and its devices."""
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
    """Make the components of keys that describe a target, as far as it is known, and its devices, if they are given."""
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


VERSION: Final = 1
MAX_BYTES: Final = 16 << 20
_FORMAT: Final = "ejcache-target"


class DeviceTarget(NamedTuple):
    """Devices that another process has.

    Attributes:
        name: of the target.
        platform: PJRT platform.
        topology: XLA's serialised topology of the devices of all processes; empty if the name says it all.
        platform_version: what the client of that process says; empty if it is what a client of the topology says.
        cpu: digest of the CPU of that process's host, as keys have it; empty if it is not known.
        jaxlib: version.
        native_libraries: digest, as keys have it; empty if it is not known.
        packages: versions of the packages behind that digest.
        variables: environment variables that keys have, in normal form.
        device_kind: of the devices.
        devices: how many there are.
        processes: how many have them.
        memory: bytes of a device; 0 if it is not known.
        saved: when, in seconds since 1970; 0.0 if it was not saved.
    """

    name: str
    platform: str
    topology: bytes = b""
    platform_version: str = ""
    cpu: str = ""
    jaxlib: str = ""
    native_libraries: str = ""
    packages: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    device_kind: str = ""
    devices: int = 0
    processes: int = 0
    memory: int = 0
    saved: float = 0.0


def document_path(name: str) -> str:
    """Return the path, below a cache, of the target of this name."""
    return f"targets/{name}.json"


def encode(target: DeviceTarget) -> bytes:
    """Return the bytes of a target's document."""
    fields = target._asdict() | {"topology": base64.b64encode(target.topology).decode()}
    return (json.dumps({"format": _FORMAT, "version": VERSION, **fields}, indent=1, sort_keys=True) + "\n").encode()


def decode(data: bytes) -> DeviceTarget:
    """Return the target in a document.

    Raises:
        EntryCorruptError: it is not the document of a target.
        EntryVersionError: it is of a later version.
    """
    try:
        fields = json.loads(data)
        if fields["format"] != _FORMAT:
            raise EntryCorruptError("not the document of a target")
        if fields["version"] != VERSION:
            raise EntryVersionError(f"a target of version {str(fields['version'])[:40]}; this code reads {VERSION}")
        known = {name: fields[name] for name in DeviceTarget._fields if name in fields}
        known["topology"] = base64.b64decode(fields["topology"], validate=True)
        target = DeviceTarget(**known)
    except MALFORMED as exc:
        raise EntryCorruptError("not the document of a target") from exc
    blank = DeviceTarget("", "")
    if any(type(value) is not type(default) for value, default in zip(target, blank, strict=True)):
        raise EntryCorruptError("not the document of a target: a field has another type")
    return target


_PACKAGES: Final = ("jaxlib", "libtpu", "jax-cuda", "jax-rocm", "nvidia-cudnn", "nvidia-cuda-nvcc", "nvidia-cublas")


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
    # An older jaxlib may write a topology that its JAX cannot read, and so cannot compile for.
    own = topology_bytes(devices) if topologies.reads_topologies() else None
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
        with open_documents(url) as documents:
            documents.replace(path, encode(saved))
    return saved


def _packages() -> dict[str, str]:
    return dict(sorted(installed_packages(_PACKAGES)))


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


def environment_for(target: DeviceTarget) -> Mapping[str, str | None]:
    """Return the changes of the environment with which a process compiles for a target; None removes a variable.

    The process gets the flags and variables of the target, and no device of its own.
    """
    flags = {name: " ".join(_quote(flag) for flag in value.split("\n")) for name, value in target.variables.items()}
    others: dict[str, str | None] = {}
    if target.saved:
        # What keys have of the host that compiles is not the target's. An empty value is no value to ejcache, but may
        # be one to a library that reads the variable.
        others = dict.fromkeys(compile_variables(target.platform, all_variables()))
        others |= {"XLA_FLAGS": None, "LIBTPU_INIT_ARGS": None}  # also flags that no key has
    # libtpu lets one process at a time compile, unless it is told that the others have no TPU either; and it asks a
    # server of Google's cloud which TPU there is, unless it is told not to.
    alone = {"JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1"}
    return {**alone, **others, **flags}


def _quote(flag: str) -> str:
    name, equals, value = flag.partition("=")
    return f"{name}{equals}'{value}'" if any(each.isspace() for each in value) else flag
