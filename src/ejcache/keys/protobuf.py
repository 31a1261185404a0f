"""The wire format of protocol buffers, for messages whose schema Python does not have.

    message := field*
    field   := tag value;  tag is the varint (number << 3 | kind)
    value   := varint (kind 0) | 8 bytes (kind 1) | varint length and as many bytes (kind 2) | 4 bytes (kind 5)

Source: protobuf.dev, "Encoding". Groups (kinds 3 and 4) are not used by XLA and are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


BYTES: Final = 2
"""The kind of a field with a length: bytes, a text, or a message."""

_FIXED: Final = {1: 8, 5: 4}


class Field(NamedTuple):
    """One field: its number, its kind on the wire, and its value's bytes (without the length of kind 2)."""

    number: int
    kind: int
    value: bytes


def split(message: bytes) -> list[Field]:
    """Return the fields of `message`, in their order.

    Raises:
        ValueError: it is not a message.
    """
    found: list[Field] = []
    at, size = 0, len(message)
    while at < size:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            end = at + 1 if at < size and message[at] < 0x80 else _varint(message, at)[1]
        elif kind in _FIXED:
            end = at + _FIXED[kind]
        elif kind == BYTES:
            length, at = _varint(message, at)
            end = at + length
        else:
            raise ValueError(f"a field of kind {kind}")
        if end > size or number == 0:
            raise ValueError("not a message")
        found.append(Field(number, kind, message[at:end]))
        at = end
    return found


def join(fields: Iterable[Field]) -> bytes:
    """Return the message that `split` took apart."""
    parts = []
    for field in fields:
        parts.append(_encode(field.number << 3 | field.kind))
        if field.kind == BYTES:
            parts.append(_encode(len(field.value)))
        parts.append(field.value)
    return b"".join(parts)


def edit(message: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """Return `message` with `change` applied to every message at `path` (field numbers from the top)."""
    if not path:
        return change(message)
    return join(
        Field(field.number, field.kind, edit(field.value, path[1:], change))
        if field.number == path[0] and field.kind == BYTES
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
    if value <= 0x7F:  # as most lengths are
        return bytes((value,))
    if value <= 0x3FFF:  # as most tags are
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
