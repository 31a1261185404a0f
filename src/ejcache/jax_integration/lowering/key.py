"""The `CacheKey` of a compilation that JAX is about to do.

The components are those of JAX's own key (`jax._src.cache_key.get`), without those that `docs/keys.md` lists as removed
and with those that it lists as added.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.counters import Skip
from ejcache.jax_integration.lowering.components import (
    cpu_identity,
    cpu_threads,
    device_components,
    environment_components,
    former_native_libraries,
    native_libraries,
    option_components,
    text_digest,
)
from ejcache.jax_integration.lowering.modules import digest_module
from ejcache.jax_integration.lowering.registered import (
    UnkeyableError,
    registered_components,
    registrations,
)
from ejcache.jax_integration.seam import patch as seam
from ejcache.keys.key import CacheKey
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.jax_integration.lowering.components import DeviceComponents, OptionComponents
    from ejcache.settings.table import Settings

KEY_FORMAT: Final = "2"
"""Part of every key; a new number makes every older entry unreachable."""
_PARTITIONING: Final = (
    "uses custom_partitioning, whose Python function has no identity outside this process, so it is compiled anew "
    "every time. If it does not change between runs, set jax_remove_custom_partitioning_ptr_from_cache_key; or use "
    "shard_map instead"
)
_INSPECTION: Final = (
    "inspects shardings (jax.debug.inspect_array_sharding, visualize_array_sharding) with a Python function that is "
    "called while it compiles, so it is compiled anew every time; take that out to have it cached"
)
_OF_THE_API: Final = "PJRT C API\n"
"""What jaxlib 0.10 puts before the version of a plug-in's client, unless the client has no devices."""


class Described(NamedTuple):
    """What a client of absent devices cannot say of the process that will have them.

    Attributes:
        platform_version: what the client of that process says.
        cpu: `cpu_identity` of its host; empty if it is not known.
    """

    platform_version: str
    cpu: str


_described: Final[dict[int, tuple[Any, Described]]] = {}
"""Clients, by their identity, because not every object that takes the place of one can be hashed."""


@contextlib.contextmanager
def described(backend: Any, description: Described) -> Iterator[None]:
    """In this block, the keys of this client's programs are made as by the process that will run them."""
    _described[id(backend)] = backend, description
    try:
        yield
    finally:
        del _described[id(backend)]


def _description(backend: Any) -> Described | None:
    return _described.get(id(backend), (None, None))[1]


def _platform_version(backend: Any) -> str:
    known = _description(backend)
    return (known.platform_version if known else str(backend.platform_version)).removeprefix(_OF_THE_API)


def _cpu(backend: Any) -> str:
    known = _description(backend)
    return (known.cpu if known else "") or cpu_identity()


def make_key(
    *, module: Any, devices: Any, options: Any, backend: Any, profile_sentinel: bytes | None, settings: Settings
) -> CacheKey:
    """The key of one compilation.

    The variants of a program share everything but the variant. So a profile that PGLE collected is not a component (in
    JAX's key a sentinel replaces it), and neither is the override that JAX appends when it compiles a program to be
    profiled: the variant says both.

    Args:
        module: the MLIR module.
        devices: JAX's array of devices.
        options: XLA's compile options.
        backend: the PJRT client.
        profile_sentinel: what JAX passes when it asks for the key of the optimised variant, otherwise None.
        settings: what counts.

    Raises:
        UnkeyableError: a Python function takes part in compiling it that a key cannot name, and the settings do not say
            to ignore that.
    """
    platform = str(backend.platform)
    computation = digest_module(
        module,
        metadata=settings.include_metadata_in_key,
        ignore_custom_partitioning=settings.remove_custom_partitioning_ptr,
    )
    if computation.custom_partitionings and not settings.remove_custom_partitioning_ptr:
        raise UnkeyableError(Skip.PARTITIONING, _PARTITIONING)
    if computation.inspections:
        # No setting excuses this one: a hit would not call the function.
        raise UnkeyableError(Skip.INSPECTION, _INSPECTION)
    chosen = option_components(options, profile_sentinel=profile_sentinel)
    participants = device_components(devices.ravel().tolist(), backend)
    readable = _readable(backend, settings, chosen, participants)
    readable |= registered_components(
        computation, devices=devices.size, ignore_functions=settings.remove_custom_partitioning_ptr
    )
    components = {
        "format": KEY_FORMAT,
        "computation": computation.digest,
        "compile_options": chosen.options,
        "machine": participants.machine,
        "native_libraries": native_libraries(platform),
        "cpu": _cpu(backend) if platform == "cpu" or computation.host_code else "",
        "profile": chosen.profile,
        **{name: text_digest(value) for name, value in readable.items()},
    }
    return CacheKey(
        name=seam.module_name(module),
        platform=platform,
        variant=chosen.variant,
        components=components,
        details=readable,
        size=computation.size,
        former=_former(backend, participants) if platform != "cpu" and _description(backend) is None else {},
    )


def _former(backend: Any, participants: DeviceComponents) -> dict[str, str]:
    """The components that the version before made in another way; the next version needs them no more."""
    return {
        "machine": participants.former_machine,
        "devices": text_digest(participants.former_layout),
        "platform_version": text_digest(str(backend.platform_version)),
        "native_libraries": former_native_libraries(),
    }


def _readable(
    backend: Any, settings: Settings, chosen: OptionComponents, participants: DeviceComponents
) -> dict[str, str]:
    """The components that are kept as text, for the explanation of a miss."""
    platform = str(backend.platform)
    environment = environment_components(platform)
    readable = {
        "overrides": chosen.overrides,
        "variables": environment.variables,
        "arguments": environment.arguments,
        "devices": participants.layout,
        "namespace": settings.namespace,
        "jaxlib": seam.jaxlib_version(),
        "platform_version": _platform_version(backend),
        "custom_hook": seam.custom_hook(),
    }
    # Not of a program that spans processes: its ranks must have one key, whatever cores each of them has.
    if platform == "cpu" and participants.is_one_process and cpu_threads():
        readable["threads"] = cpu_threads()
    return readable


def alternative_key(text: str, backend: Any) -> str:
    """Where hosts like this one store an executable if XLA refuses to load the entry under `text` on them.

    Hosts that cannot load each other's entries would otherwise replace them for ever.
    """
    kinds = ",".join(sorted({str(device.device_kind) for device in backend.devices()}))
    host = "|".join((cpu_identity(), native_libraries(str(backend.platform)), str(backend.platform_version), kinds))
    return f"{text}~{short_digest(host)}"


def short_digest(text: str) -> str:
    """16 hex digits that stand for `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compiler_environment(backend: Any, settings: Settings) -> str:
    """Digest of the compiler, the kinds of devices and the flags: names the directory of XLA's own caches."""
    platform = str(backend.platform)
    kinds = sorted({str(device.device_kind) for device in backend.devices()})
    parts = (
        KEY_FORMAT,
        seam.jaxlib_version(),
        platform,
        _platform_version(backend),
        native_libraries(platform),
        settings.namespace,
        *kinds,
        *environment_components(platform).settings,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def program_independent_parts(backend: Any, settings: Settings) -> tuple[str, ...]:
    """Texts that change whenever a part of keys changes that the program, its options and its devices do not decide.

    What leads to a key without lowering the program holds only where these are the same. They are stricter than a key:
    the host's CPU counts for every platform.

    Raises:
        UnkeyableError: a Python function takes part in every compilation that no key could name.
    """
    participants = device_components(list(backend.devices()), backend)
    return (
        compiler_environment(backend, settings),
        participants.layout,
        participants.machine,
        cpu_identity(),
        cpu_threads(),
        environment_components(str(backend.platform)).arguments,
        seam.custom_hook(),
        f"{settings.include_metadata_in_key} {settings.remove_custom_partitioning_ptr} {settings.source_file_regex}",
        *registrations(),
    )
