"""Makes the key of a compilation that JAX is about to do.

The components are those of JAX's own key (`jax._src.cache_key.get`), without those that `docs/keys.md` lists as removed
and with those that it lists as added. `python_functions` has the component of what is registered with JAX that acts
when XLA compiles; a program that none of it concerns has no such component. The tool chain is in `native_libraries` and
`host_cpu`.

The programs of a process share most components that do not come from the module, and making them takes longer than
digesting a small module. So they are remembered, each by everything that it is made of. What depends on the content of
a file is made anew every time.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import re
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.jax_integration.lowering.host_cpu import cpu_identity, cpu_threads
from ejcache.jax_integration.lowering.module_digest import digest_module
from ejcache.jax_integration.lowering.native_libraries import native_libraries
from ejcache.jax_integration.seam import key_parts
from ejcache.jax_integration.seam.registered_functions import registered
from ejcache.keys.environment_variables import compile_variables, read_flags_file
from ejcache.keys.key import PGLE, PLAIN, PROFILING, CacheKey
from ejcache.keys.xla_messages import canonical_options, canonical_topology
from ejcache.settings.environment import all_variables, variables_to_compare

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ejcache.jax_integration.compilation import KeyRequest
    from ejcache.settings.table import Settings


KEY_FORMAT: Final = "2"
"""Part of every key; a new number makes every older entry unreachable."""
_OF_THE_API: Final = "PJRT C API\n"
"""What jaxlib 0.10 puts before the version of a plug-in's client, unless the client has no devices."""


absent_hosts: Final[dict[int, tuple[Any, str, str]]] = {}
"""Of clients of devices that are elsewhere, by their identity, because not every object that takes the place of one can
be hashed: the client, what the client of the process that will run its programs says of its version, and the
`cpu_identity` of that host; empty if it is not known."""

_WITHOUT_COMMAND_BUFFERS: Final = ("xla_gpu_enable_command_buffer", "")
"""What JAX appends to the options of a program that is to be profiled (`_resolve_compilation_strategy`)."""
_GPUS: Final = ("gpu", "cuda", "rocm")
_REMEMBERED: Final = 64
_REMEMBERED_BYTES: Final = 1 << 16
"""Longer options hold a profile, which few programs share."""


class OptionComponents(NamedTuple):
    """What a key says of compile options.

    Attributes:
        variant: which variant of the program JAX asks for.
        overrides: the flags among the options, readable.
        options: digest of the others.
        profile: digest of a profile that the program itself gave; empty for PGLE's, which the variant stands for.
    """

    variant: str
    overrides: str
    options: str
    profile: str


class DeviceComponents(NamedTuple):
    """What a key says of devices.

    Attributes:
        layout: see `device_layout`.
        machine: digest of what the compiler knows about the hardware.
        is_one_process: all devices belong to one process.
    """

    layout: str
    machine: str
    is_one_process: bool


class EnvironmentComponents(NamedTuple):
    """What a key says of the process: what changes compiled code, in normal form.

    Attributes:
        settings: environment variables, each as `name=value`; a value may have several lines.
        variables: the same, readable.
        arguments: of the command line, readable.
    """

    settings: tuple[str, ...]
    variables: str
    arguments: str


_options: Final[dict[tuple[bytes, bool], OptionComponents]] = {}
_devices: Final[dict[tuple[int, tuple[int, ...]], tuple[weakref.ref[Any], DeviceComponents]]] = {}
"""By the identity of a client, which is compared, and the numbers of devices: a reference to one of them would keep a
client alive that the program has dropped."""
_environments: Final[dict[tuple[str, ...], tuple[Mapping[str, str], list[str], EnvironmentComponents]]] = {}


def option_components(options: Any, *, profile_sentinel: bytes | None) -> OptionComponents:
    """Make the components of a key that stand for XLA's compile options.

    Args:
        options: as JAX passes them; they are not changed.
        profile_sentinel: what JAX passes when it asks for the key of the optimised variant, otherwise None.
    """
    asked = bytes(options.SerializeAsString()), profile_sentinel is not None
    found = _options.get(asked)
    if found is None:
        named: list[str] = []
        found = _read_options(options, profile_sentinel, functools.partial(_content_digest, named))
        if not named and len(asked[0]) <= _REMEMBERED_BYTES:
            if len(_options) >= _REMEMBERED:
                _options.clear()
            _options[asked] = found
    return found


def _content_digest(named: list[str], path: str) -> str | None:
    """Digest a file that a flag names, and add its path to those that are `named`."""
    named.append(path)
    from ejcache.keys.file_digests import content_digest  # the door to files that have to be read

    return content_digest(path)


def _read_options(
    options: Any, profile_sentinel: bytes | None, content: Callable[[str], str | None]
) -> OptionComponents:
    profile = bytes(options.executable_build_options.fdo_profile or b"")
    if profile:
        options = copy.deepcopy(options)
        options.executable_build_options.fdo_profile = b""
    variant, overrides = PLAIN, list(options.env_option_overrides)
    if profile_sentinel is not None:
        variant = PGLE
    elif overrides[-1:] == [_WITHOUT_COMMAND_BUFFERS]:
        variant, overrides = PROFILING, overrides[:-1]
    flags: tuple[str, ...] = ()
    if overrides:
        from ejcache.keys.flags import canonical_overrides  # the door to flags

        flags = canonical_overrides(overrides, content=content)
    return OptionComponents(
        variant=variant,
        overrides="\n".join(flags),
        options=_digest(canonical_options(key_parts.serialized_options(options))),
        profile=_digest(profile) if profile and profile_sentinel is None else "",
    )


def device_components(devices: Sequence[Any], backend: Any) -> DeviceComponents:
    """Make the components of a key that stand for the devices of a program.

    Args:
        devices: in the program's order.
        backend: their PJRT client.
    """
    if getattr(devices[0], "client", None) is not backend:
        return _read_devices(devices, backend)
    asked = id(backend), tuple([device.id for device in devices])
    held = _devices.get(asked)
    if held is not None and held[0]() is backend:
        return held[1]
    found = _read_devices(devices, backend)
    if len(_devices) >= _REMEMBERED:
        _devices.clear()
    _devices[asked] = weakref.ref(backend), found
    return found


def _read_devices(devices: Sequence[Any], backend: Any) -> DeviceComponents:
    platform = str(backend.platform)
    topology = key_parts.topology_bytes(devices) if platform in ("cpu", *_GPUS) else None
    machine = _machine(platform, devices, topology)
    layout = device_layout(devices, compiled_in=platform not in _GPUS or topology is None)
    return DeviceComponents(
        layout=layout,
        machine=machine,
        is_one_process=len({device.process_index for device in devices}) == 1,
    )


def device_layout(devices: Sequence[Any], *, compiled_in: bool = True) -> str:
    """Describe which device does which part of the program, in terms that are the same on every rank.

    A line for each logical device, in their order: its kind, the ordinal of its process among those that take part,
    its ordinal among those of its process that take part, its slice, and the physical place where the backend compiles
    it in (`coords`, `core_on_chip` and `slice_index` on TPU): an executable for one position crashes at another,
    jax#38004. Without coordinates, a slice is a number that `jax.distributed` gave to a host or a group of hosts, so
    there the ordinal among the slices that take part counts: a rank on the second host has slice 1, a process alone 0.

    Args:
        devices: in the program's order.
        compiled_in: slices and coordinates count. On GPU nothing is compiled for a place, the topology has the number
            of slices, and a device that is absent says slice 0 whatever its slice is.
    """
    processes = sorted({device.process_index for device in devices})
    slices = sorted({getattr(device, "slice_index", None) or 0 for device in devices})
    own = {process: sorted(device.id for device in devices if device.process_index == process) for process in processes}
    lines = []
    for device in devices:
        parts = [
            str(device.device_kind),
            f"process {processes.index(device.process_index)}",
            f"device {own[device.process_index].index(device.id)}",
        ]
        if not compiled_in:
            lines.append(" ".join(parts))
            continue
        if getattr(device, "coords", None) is None:
            parts.append(f"slice {slices.index(getattr(device, 'slice_index', None) or 0)}")
            lines.append(" ".join(parts))
            continue
        for attribute in ("slice_index", "coords", "core_on_chip"):
            value = getattr(device, attribute, None)
            if value is not None:
                parts.append(f"{attribute} {re.sub(r'[^0-9,-]', '', str(value))}")
        lines.append(" ".join(parts))
    return "\n".join(lines)


def _machine(platform: str, devices: Sequence[Any], topology: bytes | None) -> str:
    if platform in _GPUS and topology is not None:
        from ejcache.keys.accelerators import canonical_gpu_topology  # the door to accelerators

        return _digest(canonical_gpu_topology(topology))
    if platform != "cpu":
        from ejcache.jax_integration.seam.topologies import topology_fingerprint  # the door to accelerators

        return topology_fingerprint(devices)
    # jaxlib 0.10 gives only a fingerprint, which differs from rank to rank; there the component `cpu` and the flags
    # tell machines apart.
    return _digest(canonical_topology(topology)) if topology is not None else ""


def environment_components(platform: str) -> EnvironmentComponents:
    """Make the components of a key that stand for this process as it is now, for a compiler of this PJRT platform."""
    prefixes = ("--xla", *key_parts.extra_flag_prefixes())
    variables = variables_to_compare()
    held = _environments.get((platform, *prefixes))
    if held is not None and held[0] == variables and held[1] == sys.argv:
        return held[2]
    seen = dict(variables), list(sys.argv)
    named: list[str] = []
    content = functools.partial(_content_digest, named)
    text = read_flags_file(all_variables())
    found = compile_variables(platform, all_variables(), flags_files=text, content=content)
    flags: tuple[str, ...] = ()
    if given := [arg for arg in seen[1] if arg.startswith(prefixes)]:
        from ejcache.keys.flags import canonical_flags  # the door to flags

        flags = canonical_flags(given, content=content)
    pairs = tuple(f"{name}={value}" for name, value in found.items())
    components = EnvironmentComponents(pairs, "\n".join(pairs), "\n".join(flags))
    if text is None and not named and seen[0] == variables_to_compare():
        _environments[platform, *prefixes] = *seen, components
    return components


@functools.lru_cache(maxsize=_REMEMBERED)
def _text_digest(text: str) -> str:
    """Digest (hex) of a readable component; the environment and the command line may have bytes that are no text."""
    return _digest(text.encode("utf-8", "surrogatepass"))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- the key -------------------------------------------------------------------------------------------------------


def _platform_version(backend: Any) -> str:
    known = absent_hosts.get(id(backend))
    version = known[1] if known is not None else str(backend.platform_version)
    return version.removeprefix(_OF_THE_API)


def make_key(request: KeyRequest, settings: Settings) -> CacheKey:
    """Return the key of one compilation.

    The variants of a program share everything but the variant. So a profile that PGLE collected is not a component (in
    JAX's key a sentinel replaces it), and neither is the override that JAX appends when it compiles a program to be
    profiled: the variant says both.

    Args:
        request: what JAX hands over.
        settings: what counts.

    Raises:
        UnkeyableError: a Python function takes part in compiling it that a key cannot name, and the settings do not say
            to ignore that.
    """
    backend, devices = request.backend, request.devices
    platform, known = str(backend.platform), absent_hosts.get(id(backend))
    computation = digest_module(
        request.module,
        metadata=settings.include_metadata_in_key,
        ignore_custom_partitioning=settings.remove_custom_partitioning_ptr,
    )
    if computation.custom_partitionings or computation.inspections:
        from ejcache.jax_integration.lowering.python_functions import check_functions  # the door to Python functions

        check_functions(computation, ignore_partitioning=settings.remove_custom_partitioning_ptr)
    chosen = option_components(request.options, profile_sentinel=request.profile_sentinel)
    participants = device_components(devices.ravel().tolist(), backend)
    readable = _readable(backend, settings, chosen, participants)
    if computation.custom_calls or registered().passes:
        from ejcache.jax_integration.lowering.python_functions import (  # the door to Python functions
            registered_components,
        )

        readable |= registered_components(
            computation, devices=devices.size, ignore_functions=settings.remove_custom_partitioning_ptr
        )
    cpu = (known[2] if known is not None else "") or cpu_identity()
    components = {
        "format": KEY_FORMAT,
        "computation": computation.digest,
        "compile_options": chosen.options,
        "machine": participants.machine,
        "native_libraries": native_libraries(platform),
        "cpu": cpu if platform == "cpu" or computation.host_code else "",
        "profile": chosen.profile,
        **{name: _text_digest(value) for name, value in readable.items()},
    }
    return CacheKey(
        name=key_parts.module_name(request.module),
        platform=platform,
        variant=chosen.variant,
        components=components,
        details={name: _encodable(value) for name, value in readable.items()},
        size=computation.size,
    )


def _encodable(text: str) -> str:
    r"""Spell out what UTF-8 cannot encode: `\udcff` for a byte of an environment variable that is no text."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _readable(
    backend: Any, settings: Settings, chosen: OptionComponents, participants: DeviceComponents
) -> dict[str, str]:
    """Return the components that are kept as text, for the explanation of a miss."""
    platform = str(backend.platform)
    environment = environment_components(platform)
    readable = {
        "overrides": chosen.overrides,
        "variables": environment.variables,
        "arguments": environment.arguments,
        "devices": participants.layout,
        "namespace": settings.namespace,
        "jaxlib": key_parts.jaxlib_version(),
        "platform_version": _platform_version(backend),
        "custom_hook": key_parts.custom_hook(),
    }
    # Not of a program that spans processes: its ranks must have one key, whatever cores each of them has.
    if platform == "cpu" and participants.is_one_process and cpu_threads():
        readable["threads"] = cpu_threads()
    return readable


def alternative_key(text: str, backend: Any) -> str:
    """Make the key under which hosts like this one store an executable if XLA refuses to load the entry of `text` here.

    Hosts that cannot load each other's entries would otherwise replace them for ever.
    """
    kinds = ",".join(sorted({str(device.device_kind) for device in backend.devices()}))
    host = "|".join((cpu_identity(), native_libraries(str(backend.platform)), str(backend.platform_version), kinds))
    return f"{text}~{short_digest(host)}"


def short_digest(text: str) -> str:
    """Return 16 hex digits that stand for `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compiler_environment(backend: Any, settings: Settings) -> str:
    """Digest of the compiler, the kinds of devices and the flags: names the directory of XLA's own caches."""
    platform = str(backend.platform)
    kinds = sorted({str(device.device_kind) for device in backend.devices()})
    parts = (
        KEY_FORMAT,
        key_parts.jaxlib_version(),
        platform,
        _platform_version(backend),
        native_libraries(platform),
        settings.namespace,
        *kinds,
        *environment_components(platform).settings,
    )
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:24]
