"""The key of a compilation that JAX is about to do.

The components are those of JAX's own key (`jax._src.cache_key.get`), without those that `docs/keys.md` lists as removed
and with those that it lists as added. `seam/registries.py` knows what is registered with JAX that acts when XLA
compiles; a program that none of it concerns has no component of it.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any, Final

from ejcache.jax_integration.lowering.components import (
    device_components,
    environment_components,
    option_components,
    text_digest,
)
from ejcache.jax_integration.lowering.module_digest import digest_module
from ejcache.jax_integration.lowering.platform_toolchain import cpu_identity, cpu_threads, native_libraries
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.seam.registries import RegisteredFunctions, own_batch_targets, registered
from ejcache.keys.key import CacheKey
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.cache.counters import Skip
    from ejcache.jax_integration.lowering.components import DeviceComponents, OptionComponents
    from ejcache.jax_integration.lowering.module_digest import ModuleDigest
    from ejcache.jax_integration.program import KeyRequest
    from ejcache.settings.table import Settings


class UnkeyableError(Exception):
    """A Python function takes part in compiling the program, and no key could tell it from another.

    The text says why, as the end of a sentence that begins with the program's name.

    Attributes:
        skip: the kind of function.
    """

    def __init__(self, skip: Skip, reason: str) -> None:
        super().__init__(reason)
        self.skip = skip


def registered_components(computation: ModuleDigest, *, devices: int, ignore_functions: bool) -> dict[str, str]:
    """Make a component, by name, of each kind of function that a program has registered and that acts on this one.

    What JAX's own libraries register does not count.

    Args:
        computation: the program.
        devices: how many it runs on.
        ignore_functions: partitioners in Python do not count (`jax_remove_custom_partitioning_ptr_from_cache_key`).

    Raises:
        UnkeyableError: no key can name a registered function, or it is not known what is registered.
    """
    seen = registered()
    if seen.passes:
        from ejcache.cache.counters import Skip  # only a program without a key needs a reason

        raise UnkeyableError(Skip.HLO_PASS, _PASSES)
    if not computation.custom_calls:
        return {}
    calls = _partitioned_calls(seen, computation, devices, ignore_functions=ignore_functions)
    return {"partitioned_calls": calls} if calls else {}


def _partitioned_calls(
    seen: RegisteredFunctions, computation: ModuleDigest, devices: int, *, ignore_functions: bool
) -> str:
    """Return the program's custom calls that were registered as partitioned by their batch, a line each."""
    if not ignore_functions and (named := computation.custom_calls & seen.partitioned):
        from ejcache.cache.counters import Skip

        raise UnkeyableError(
            Skip.PARTITIONING,
            f"has custom calls that a registered Python function partitions ({', '.join(sorted(named))}), which has no "
            "identity outside this process, so it is compiled anew every time",
        )
    foreign = computation.batched_calls - own_batch_targets()
    if foreign - seen.batched and devices > 1 and not seen.all_calls:
        from ejcache.cache.counters import Skip

        raise UnkeyableError(
            Skip.PARTITIONING,
            f"has custom calls ({', '.join(sorted(foreign))}) that may have been registered as batch partitionable "
            "before ejcache was enabled, so it is compiled anew every time; enable ejcache before JAX makes a backend",
        )
    return "\n".join(sorted(foreign & seen.batched))


KEY_FORMAT: Final = "2"
"""Part of every key; a new number makes every older entry unreachable."""
_PARTITIONING: Final = (
    "uses custom_partitioning, whose Python function has no identity outside this process, so it is compiled anew "
    "every time. If it does not change between runs, set jax_remove_custom_partitioning_ptr_from_cache_key; or use "
    "shard_map instead"
)
_PASSES: Final = (
    "is compiled where a pass over the HLO was registered (jax.extend.xla), a Python function that has no identity "
    "outside this process, so it is compiled anew every time"
)
_INSPECTION: Final = (
    "inspects shardings (jax.debug.inspect_array_sharding, visualize_array_sharding) with a Python function that is "
    "called while it compiles, so it is compiled anew every time; take that out to have it cached"
)
_OF_THE_API: Final = "PJRT C API\n"
"""What jaxlib 0.10 puts before the version of a plug-in's client, unless the client has no devices."""


class AbsentHost(NamedTuple):
    """The host of absent devices, as far as keys say something of it.

    Attributes:
        platform_version: what the client of that process says.
        cpu: `cpu_identity` of its host; empty if it is not known.
    """

    platform_version: str
    cpu: str


_described: Final[dict[int, tuple[Any, AbsentHost]]] = {}
"""Clients, by their identity, because not every object that takes the place of one can be hashed."""


@contextlib.contextmanager
def described(backend: Any, description: AbsentHost) -> Iterator[None]:
    """Make the keys of this client's programs, in this block, as by the process that will run them."""
    _described[id(backend)] = backend, description
    try:
        yield
    finally:
        del _described[id(backend)]


def _platform_version(backend: Any) -> str:
    known = _described.get(id(backend))
    version = known[1].platform_version if known is not None else str(backend.platform_version)
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
    platform, known = str(backend.platform), _described.get(id(backend))
    computation = digest_module(
        request.module,
        metadata=settings.include_metadata_in_key,
        ignore_custom_partitioning=settings.remove_custom_partitioning_ptr,
    )
    if computation.custom_partitionings and not settings.remove_custom_partitioning_ptr:
        from ejcache.cache.counters import Skip

        raise UnkeyableError(Skip.PARTITIONING, _PARTITIONING)
    if computation.inspections:
        from ejcache.cache.counters import Skip

        # No setting excuses this one: a hit would not call the function.
        raise UnkeyableError(Skip.INSPECTION, _INSPECTION)
    chosen = option_components(request.options, profile_sentinel=request.profile_sentinel)
    participants = device_components(devices.ravel().tolist(), backend)
    readable = _readable(backend, settings, chosen, participants)
    readable |= registered_components(
        computation, devices=devices.size, ignore_functions=settings.remove_custom_partitioning_ptr
    )
    cpu = (known[1].cpu if known is not None else "") or cpu_identity()
    components = {
        "format": KEY_FORMAT,
        "computation": computation.digest,
        "compile_options": chosen.options,
        "machine": participants.machine,
        "native_libraries": native_libraries(platform),
        "cpu": cpu if platform == "cpu" or computation.host_code else "",
        "profile": chosen.profile,
        **{name: text_digest(value) for name, value in readable.items()},
    }
    return CacheKey(
        name=seam.module_name(request.module),
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
        "jaxlib": seam.jaxlib_version(),
        "platform_version": _platform_version(backend),
        "custom_hook": seam.custom_hook(),
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
        seam.jaxlib_version(),
        platform,
        _platform_version(backend),
        native_libraries(platform),
        settings.namespace,
        *kinds,
        *environment_components(platform).settings,
    )
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:24]
