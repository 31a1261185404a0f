"""Messages of protocol buffers that are taken apart into fields and put together again. A hit on a CPU does without."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ejcache.keys.xla_messages import BYTES, places, varint

if TYPE_CHECKING:
    from collections.abc import Iterable


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
    return [Field(number, message[begin] & 7, message[value:end]) for number, begin, value, end in places(message)]


def join(fields: Iterable[Field]) -> bytes:
    """Return the message that `split` took apart."""
    parts = []
    for field in fields:
        parts.append(varint(field.number << 3 | field.kind))
        if field.kind == BYTES:
            parts.append(varint(len(field.value)))
        parts.append(field.value)
    return b"".join(parts)
