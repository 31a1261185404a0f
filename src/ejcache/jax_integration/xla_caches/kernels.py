"""XLA's kernel cache, which is one file for all kernels: what two processes wrote becomes one file with both.

    CompilationCacheProto: 1 entries (a map: 1 the kernel's name, 2 the entry), 2 compatibility_version
    CompilationCacheEntryProto: 1 fingerprint

XLA refuses a file in which two kernels have one fingerprint, and keeps one kernel for each name, so neither may occur
twice. Source: openxla/xla, xla/service/gpu/kernel_reuse_cache.proto and .cc.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ejcache.keys.protobuf import join, split

if TYPE_CHECKING:
    from ejcache.keys.protobuf import Field

__all__ = ["merge_kernels"]

_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class _Kernels:
    fields: dict[tuple[bytes, bytes], Field]
    others: list[Field]


def merge_kernels(stored: bytes | None, ours: bytes) -> bytes | None:
    """The file with the kernels of both, or None if there is nothing to add to what is stored.

    Of two kernels with the same name or fingerprint, the stored one stays. A stored file that cannot be read, or that
    has another version of the format, is replaced. If our own file cannot be read, there is nothing to add.
    """
    new = _read(ours)
    if new is None:
        return None
    old = _read(stored) if stored is not None else None
    if old is None or old.others != new.others:
        return ours
    names = {name for name, _ in old.fields}
    fingerprints = {fingerprint for _, fingerprint in old.fields}
    added = []
    for (name, fingerprint), field in new.fields.items():
        if name not in names and fingerprint not in fingerprints:
            added.append(field)
            names.add(name)
            fingerprints.add(fingerprint)
    return join([*old.fields.values(), *added, *old.others]) if added else None


def _read(data: bytes) -> _Kernels | None:
    """The kernels by name and fingerprint, and the other fields; None if this is not such a file."""
    kernels: dict[tuple[bytes, bytes], Field] = {}
    others = []
    try:
        for field in split(data):
            if field.number != 1:
                others.append(field)
                continue
            pair = {part.number: part.value for part in split(field.value) if part.kind == _BYTES}
            entry = {part.number: part.value for part in split(pair.get(2, b"")) if part.kind == _BYTES}
            kernels[pair.get(1, b""), entry.get(1, b"")] = field
    except ValueError:
        return None
    return _Kernels(kernels, others)
