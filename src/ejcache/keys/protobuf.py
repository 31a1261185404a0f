"""The wire format of protocol buffers, for messages whose schema Python does not have.

    message := field*
    field   := tag value;  tag is the varint (number << 3 | kind)
    value   := varint (kind 0) | 8 bytes (kind 1) | varint length and as many bytes (kind 2) | 4 bytes (kind 5)

Source: protobuf.dev, "Encoding". Groups (kinds 3 and 4) are not used by XLA and are refused.

A hit leaves most of a message as it is, so fields are found by their places. `protobuf_fields` takes messages apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Container


BYTES: Final = 2
"""The kind of a field with a length: bytes, a text, or a message."""


def places(message: bytes) -> list[tuple[int, int, int, int]]:
    """Return of each field its number, and where it, its value and the next field begin.

    The value is without the length of kind 2.

    Raises:
        ValueError: it is not a message.
    """
    found = []
    begin, size = 0, len(message)
    while begin < size:
        # The options have hundreds of fields, most of them with a tag of two bytes and a value of one.
        if begin + 2 < size and message[begin] >= 0x80 > message[begin + 1]:
            tag, value = message[begin] & 0x7F | message[begin + 1] << 7, begin + 2
        else:
            tag, value = _varint(message, begin)
        kind = tag & 7
        if kind == 0:
            end = value + 1 if value < size and message[value] < 0x80 else _varint(message, value)[1]
        elif kind == BYTES:
            length, value = _varint(message, value)
            end = value + length
        elif kind == 5:
            end = value + 4
        elif kind == 1:
            end = value + 8
        else:
            raise ValueError(f"a field of kind {kind}")
        if end > size or tag < 8:
            raise ValueError("not a message")
        found.append((tag >> 3, begin, value, end))
        begin = end
    return found


def without(message: bytes, numbers: Container[int]) -> bytes:
    """Return `message` without its fields of these numbers.

    Raises:
        ValueError: it is not a message.
    """
    return b"".join([message[begin:end] for number, begin, _, end in places(message) if number not in numbers])


def edit(message: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """Return `message` with `change` applied to every message at `path` (field numbers from the top).

    Raises:
        ValueError: it is not a message.
    """
    if not path:
        return change(message)
    parts: list[bytes] = []
    for number, begin, value, end in places(message):
        if number == path[0] and message[begin] & 7 == BYTES:
            changed = edit(message[value:end], path[1:], change)
            parts += varint(number << 3 | BYTES), varint(len(changed)), changed
        else:
            parts.append(message[begin:end])
    return b"".join(parts)


def varint(value: int) -> bytes:
    """Encode a number that is not negative."""
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
