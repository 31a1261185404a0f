"""From a compilation that JAX is about to do to its `CacheKey`.

The components are those of JAX's own key (`jax._src.cache_key.get`), less what `docs/keys.md` lists as removed, plus
what it lists as added.
"""

from __future__ import annotations

import copy
import hashlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache import settings as settings_module
from ejcache.jaxside import seam
from ejcache.jaxside.modules import digest_module
from ejcache.jaxside.toolchain import cpu_identity, cpu_threads, native_libraries
from ejcache.keys.canonical import canonical_flags, canonical_overrides, compile_variables
from ejcache.keys.environment import content_digest
from ejcache.keys.key import PGLE, PLAIN, PROFILING, CacheKey
from ejcache.keys.options import canonical_options, canonical_topology
from ejcache.statistics import Skip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.settings import Settings

__all__ = ["KEY_FORMAT", "KeyText", "PointerError", "compiler_environment", "device_layout", "make_key"]

KEY_FORMAT: Final = "2"
"""Part of every key; a new number disowns all keys made before."""


_WITHOUT_COMMAND_BUFFERS: Final = ("xla_gpu_enable_command_buffer", "")
"""What JAX appends to the options of a program that is to be profiled (`_resolve_compilation_strategy`)."""


class PointerError(Exception):
    """The program holds the address of a Python function, so that no key of it means anything elsewhere.

    Attributes:
        skip: what function it is.
    """

    def __init__(self, skip: Skip) -> None:
        super().__init__(skip.value)
        self.skip = skip


class KeyText(str):
    """A key's text, which JAX carries from the key to the read and the write, with the key itself.

    Attributes:
        key: the key.
        devices: ids of the program's devices, in their order.
        processes: the processes that take part in the program, ascending.
    """

    __slots__ = ("devices", "key", "processes")

    key: CacheKey
    devices: tuple[int, ...]
    processes: tuple[int, ...]

    @classmethod
    def of(cls, key: CacheKey, *, devices: Sequence[Any] = ()) -> KeyText:
        text = cls(key.text)
        text.key = key
        text.devices = tuple(device.id for device in devices)
        text.processes = tuple(sorted({device.process_index for device in devices}))
        return text

    def of_variant(self, variant: str) -> KeyText:
        """The key of another variant of this program."""
        key = self.key.of_variant(variant)
        text = type(self)(key.text)
        text.key, text.devices, text.processes = key, self.devices, self.processes
        return text


def make_key(
    *, module: Any, devices: Any, options: Any, backend: Any, profile_sentinel: bytes | None, settings: Settings
) -> KeyText:
    """The key of one compilation.

    Raises:
        PointerError: the program holds a pointer, and the settings do not say to ignore it.

    The variants of a program share everything but the variant. So a profile that PGLE collected is no component (as in
    JAX, where a sentinel stands for it), and neither is the override that JAX appends when it compiles a program to be
    profiled: the variant says both.
    """
    platform = str(backend.platform)
    computation = digest_module(
        module,
        metadata=settings.include_metadata_in_key,
        ignore_custom_partitioning=settings.remove_custom_partitioning_ptr,
    )
    if computation.custom_partitionings and not settings.remove_custom_partitioning_ptr:
        raise PointerError(Skip.PARTITIONING)
    if computation.inspections:
        # No setting excuses this one: a hit would not call the function.
        raise PointerError(Skip.INSPECTION)
    profile = bytes(options.executable_build_options.fdo_profile or b"")
    if profile:
        options = copy.deepcopy(options)
        options.executable_build_options.fdo_profile = b""
    variant, overrides = PGLE, list(options.env_option_overrides)
    if profile_sentinel is None:
        variant = PLAIN
        if overrides[-1:] == [_WITHOUT_COMMAND_BUFFERS]:
            variant = PROFILING
            del overrides[-1]
    variables = compile_variables(
        platform, settings_module.environment(), flags_files=_flags_file(), content=content_digest
    )
    prefixes = ("--xla", *seam.extra_flag_prefixes())
    readable = {
        "overrides": "\n".join(canonical_overrides(overrides, content=content_digest)),
        "variables": "\n".join(f"{name}={value}" for name, value in variables.items()),
        "arguments": "\n".join(
            canonical_flags((arg for arg in sys.argv if arg.startswith(prefixes)), content=content_digest)
        ),
        "devices": device_layout(list(devices.flat)),
        "namespace": settings.namespace,
        "jaxlib": seam.jaxlib_version(),
        "platform_version": str(backend.platform_version),
        "custom_hook": seam.custom_hook(),
    }
    # Not of a program that spans processes: its ranks must have one key, whatever cores each of them has.
    if platform == "cpu" and cpu_threads() and len({device.process_index for device in devices.flat}) == 1:
        readable["threads"] = cpu_threads()
    components = {
        "format": KEY_FORMAT,
        "computation": computation.digest,
        "compile_options": _digest(canonical_options(seam.serialized_options(options))),
        "machine": _machine(platform, devices),
        "native_libraries": native_libraries(platform),
        "cpu": cpu_identity() if platform == "cpu" or computation.host_code else "",
        "profile": _digest(profile) if profile and profile_sentinel is None else "",
        **{name: _digest(value.encode()) for name, value in readable.items()},
    }
    return KeyText.of(
        CacheKey(
            name=seam.module_name(module),
            platform=platform,
            variant=variant,
            components=components,
            details=readable,
            signature=seam.signature(module),
            size=computation.size,
        ),
        devices=list(devices.flat),
    )


def compiler_environment(backend: Any, settings: Settings) -> str:
    """Digest of what compiles, for which devices and with which flags: for what is kept of parts of programs."""
    platform = str(backend.platform)
    variables = compile_variables(
        platform, settings_module.environment(), flags_files=_flags_file(), content=content_digest
    )
    kinds = sorted({str(device.device_kind) for device in backend.devices()})
    parts = (
        KEY_FORMAT,
        seam.jaxlib_version(),
        platform,
        str(backend.platform_version),
        native_libraries(platform),
        settings.namespace,
        *kinds,
        *(f"{name}={value}" for name, value in variables.items()),
    )
    return _digest("\0".join(parts).encode())[:24]


def device_layout(devices: Sequence[Any]) -> str:
    """Which device does which part of the program, in terms that are the same on every rank.

    A line for each logical device, in their order: its kind, the ordinal of its process among those that take part,
    its ordinal among those of its process that take part, its slice, and the physical place where the backend compiles
    it in (`coords`, `core_on_chip` and `slice_index` on TPU): an executable for one place crashes on another,
    jax#38004. A slice without places in it is a number that `jax.distributed` gave to a host or a group of them, so
    there the ordinal among those that take part counts: a rank on the second host has slice 1, a process alone none.
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
        if getattr(device, "coords", None) is None:
            parts.append(f"slice {slices.index(getattr(device, 'slice_index', None) or 0)}")
            lines.append(" ".join(parts))
            continue
        for attribute in ("slice_index", "coords", "core_on_chip"):
            place = getattr(device, attribute, None)
            if place is not None:
                parts.append(f"{attribute} {re.sub(r'[^0-9,-]', '', str(place))}")
        lines.append(" ".join(parts))
    return "\n".join(lines)


def _flags_file() -> dict[str, str]:
    """The text of the file that XLA_FLAGS names, where it names one instead of flags."""
    path = settings_module.environment().get("XLA_FLAGS", "")
    if not path.strip() or path.lstrip().startswith("-"):
        return {}
    try:
        return {path: Path(path).read_text(encoding="utf-8")}
    except (OSError, ValueError):
        return {}


def _machine(platform: str, devices: Any) -> str:
    if platform != "cpu":
        return seam.topology_fingerprint(devices)
    topology = seam.topology_bytes(devices)
    # jaxlib 0.10 gives no more than a fingerprint, which differs from rank to rank; there `cpu` and the flags tell
    # machines apart.
    return _digest(canonical_topology(topology)) if topology is not None else ""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
