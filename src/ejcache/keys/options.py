"""Serialised compile options and topologies in normal form, and the wire format in which they are read.

The wire format of protocol buffers, for messages whose schema Python does not have.

    message := field*
    field   := tag value;  tag is the varint (number << 3 | kind)
    value   := varint (kind 0) | 8 bytes (kind 1) | varint length and as many bytes (kind 2) | 4 bytes (kind 5)

Source: protobuf.dev, "Encoding". Groups (kinds 3 and 4) are not used by XLA and are refused.

Serialised compile options and topologies, without the fields that do not change the executable.

The flags of `XLA_FLAGS` appear a second time in the options, as fields of `DebugOptions`; `keys.flags` has the numbers.

    CompileOptionsProto: 3 executable_build_options, 7 env_option_overrides
    ExecutableBuildOptionsProto: 3 debug_options
    PjRtTopologyDescriptionProto: 1 fingerprint, 9 platform_specific_topology (Any: 2 value)
    CpuTopologyProto: 1 cpu_devices
    GpuTopologyProto: 9 host_target_machine_options
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from ejcache.keys.flags import CACHE_PATH_FIELDS, FIELDS, Kind
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}


class Field(NamedTuple):
    """One field: its number, its kind on the wire, and its value's bytes (without the length of kind 2)."""

    number: int
    kind: int
    value: bytes


def split(message: bytes) -> list[Field]:
    """The fields of `message`, in their order.

    Raises:
        ValueError: it is not a message.
    """
    found, at = [], 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            end = _varint(message, at)[1]
        elif kind in _FIXED:
            end = at + _FIXED[kind]
        elif kind == _BYTES:
            length, at = _varint(message, at)
            end = at + length
        else:
            raise ValueError(f"a field of kind {kind}")
        if end > len(message) or number == 0:
            raise ValueError("not a message")
        found.append(Field(number, kind, message[at:end]))
        at = end
    return found


def join(fields: Iterable[Field]) -> bytes:
    """The message that `split` took apart."""
    parts = []
    for field in fields:
        parts.append(_encode(field.number << 3 | field.kind))
        if field.kind == _BYTES:
            parts.append(_encode(len(field.value)))
        parts.append(field.value)
    return b"".join(parts)


def edit(message: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """`message` with `change` applied to every message at `path` (field numbers from the top)."""
    if not path:
        return change(message)
    return join(
        Field(field.number, field.kind, edit(field.value, path[1:], change))
        if field.number == path[0] and field.kind == _BYTES
        else field
        for field in split(message)
    )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("not a message")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_DEBUG_OPTIONS: Final = (3, 3)
_ENV_OPTION_OVERRIDES: Final = 7

_REMEMBERED: Final = 32
"""Results to remember: reading options takes half the time of a key. The programs of a process share one topology and
their debug options; the other options differ by the number of arguments and results."""


@functools.lru_cache(maxsize=_REMEMBERED)
def canonical_options(serialized: bytes) -> bytes:
    """The options that count, in a fixed order.

    Args:
        serialized: a `CompileOptionsProto`. Its overrides are left out: they are a component of their own.

    Raises:
        ValueError: it is not such a message.
    """
    rest = join(field for field in split(serialized) if field.number != _ENV_OPTION_OVERRIDES)
    return edit(rest, _DEBUG_OPTIONS, _canonical_debug_options)


@functools.lru_cache(maxsize=_REMEMBERED)
def without_cache_paths(serialized: bytes) -> bytes:
    """A `CompileOptionsProto` without the paths of XLA's own caches, which no executable is loaded by.

    Raises:
        ValueError: it is not such a message.
    """
    return edit(serialized, _DEBUG_OPTIONS, _debug_options_without_cache_paths)


@functools.lru_cache(maxsize=_REMEMBERED)
def canonical_topology(serialized: bytes) -> bytes:
    """The machine that a CPU topology describes (its triple, CPU and features), without this process's devices.

    In a CPU job, the topology of each process names its own devices, so the ranks would have different keys.

    Args:
        serialized: a `PjRtTopologyDescriptionProto`.

    Raises:
        ValueError: it is not such a message.
    """
    rest = join(field for field in split(serialized) if field.number != 1)
    return edit(rest, (9, 2), lambda topology: join(field for field in split(topology) if field.number != 1))


@functools.lru_cache(maxsize=_REMEMBERED)
def canonical_gpu_topology(serialized: bytes) -> bytes:
    """The GPUs that a topology describes and how they are grouped, without the host that the process runs on.

    Args:
        serialized: a `PjRtTopologyDescriptionProto`.

    Raises:
        ValueError: it is not such a message.
    """
    rest = join(field for field in split(serialized) if field.number != 1)
    return edit(rest, (9, 2), lambda topology: join(field for field in split(topology) if field.number != 9))


@functools.lru_cache(maxsize=_REMEMBERED)
def _debug_options_without_cache_paths(serialized: bytes) -> bytes:
    return join(field for field in split(serialized) if field.number not in CACHE_PATH_FIELDS)


@functools.lru_cache(maxsize=_REMEMBERED)
def _canonical_debug_options(serialized: bytes) -> bytes:
    kept = [field for field in split(serialized) if field.number not in FIELDS[Kind.DROPPED]]
    # Neither the order nor the repetition of the names in a set counts, and protobuf writes maps in no fixed order.
    sets = {field for field in kept if field.number in FIELDS[Kind.SET]}
    maps = [field for field in kept if field.number in FIELDS[Kind.MAP]]
    ordered = [field for field in kept if field.number not in FIELDS[Kind.SET] | FIELDS[Kind.MAP]]
    return join([*ordered, *sorted([*sets, *maps], key=lambda field: (field.number, field.value))])
