"""The key of a compilation that JAX is about to do.

The components are those of JAX's own key (`jax._src.cache_key.get`), without those that `docs/keys.md` lists as removed
and with those that it lists as added. `python_functions` has the component of what is registered with JAX that
acts when XLA compiles; a program that none of it concerns has no such component.
"""

from __future__ import annotations

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
from ejcache.jax_integration.seam.registries import registered
from ejcache.keys.key import CacheKey

if TYPE_CHECKING:
    from ejcache.jax_integration.lowering.components import DeviceComponents, OptionComponents
    from ejcache.jax_integration.program import KeyRequest
    from ejcache.settings.table import Settings


KEY_FORMAT: Final = "2"
"""Part of every key; a new number makes every older entry unreachable."""
_OF_THE_API: Final = "PJRT C API\n"
"""What jaxlib 0.10 puts before the version of a plug-in's client, unless the client has no devices."""


absent_hosts: Final[dict[int, tuple[Any, str, str]]] = {}
"""Of clients of devices that are elsewhere, by their identity, because not every object that takes the place of one can
be hashed: the client, what the client of the process that will run its programs says of its version, and the
`cpu_identity` of that host; empty if it is not known."""


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
        from ejcache.jax_integration.lowering.python_functions import check_functions  # few programs have one

        check_functions(computation, ignore_partitioning=settings.remove_custom_partitioning_ptr)
    chosen = option_components(request.options, profile_sentinel=request.profile_sentinel)
    participants = device_components(devices.ravel().tolist(), backend)
    readable = _readable(backend, settings, chosen, participants)
    if computation.custom_calls or registered().passes:
        from ejcache.jax_integration.lowering.python_functions import registered_components

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
