"""The digest of a code object: what it does, not where it stands.

    code := sha256 of `marshal` of the code object without its constants, and of the constants with their exact types
            and float bits, nested code objects by their digests

File names and line numbers are left out. Bytecode depends on the Python version, which is part of what a record is
stored under.
"""

from __future__ import annotations

import hashlib
import struct
from marshal import dumps
from types import CodeType
from typing import Final

__all__ = ["code_digest", "identity", "plain_token"]


identity: Final = object.__hash__
"""A number that no other object has that lives at the same time. `id` tells Python's audit hooks, which some libraries
that JAX imports have, of every call."""

_digests: Final[dict[int, tuple[CodeType, bytes]]] = {}
"""By identity, because equal code objects may differ in the types of their constants. Kept, with the code objects, for
as long as the process lives: they are immutable, and few are made while a program runs."""


def code_digest(code: CodeType) -> bytes:
    """32 bytes that are equal for two code objects only if they do the same with the same globals."""
    place = identity(code)
    found = _digests.get(place)
    if found is None:
        found = _digests[place] = (code, _digest(code))
    return found[1]


def _digest(code: CodeType) -> bytes:
    # Version 2 of the format: later ones write whether two constants are one object, and chance decides that.
    bare = code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=())
    return hashlib.sha256(dumps(bare, 2) + plain_token(code.co_consts)).digest()


def plain_token(value: object) -> bytes:
    """An injective description of a constant: exact type and content.

    Raises:
        TypeError: it is not a constant that the compiler of Python makes.
    """
    kind = type(value)
    if value is None or value is Ellipsis or kind is bool:
        return repr(value).encode()
    if isinstance(value, int) and kind is int:
        return b"int" + hex(value).encode()  # the number of decimal digits is limited
    if isinstance(value, float) and kind is float:
        return b"float" + struct.pack("<d", value)
    if isinstance(value, complex) and kind is complex:
        return b"complex" + struct.pack("<2d", value.real, value.imag)
    if isinstance(value, str) and kind is str:
        return b"str" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes) and kind is bytes:
        return b"bytes" + value
    if isinstance(value, CodeType):
        return b"code" + code_digest(value)
    if isinstance(value, tuple) and kind is tuple:
        return b"tuple" + _joined([plain_token(each) for each in value])
    if isinstance(value, frozenset) and kind is frozenset:
        return b"frozenset" + _joined(sorted(plain_token(each) for each in value))
    if isinstance(value, slice):
        return b"slice" + _joined([plain_token(each) for each in (value.start, value.stop, value.step)])
    raise TypeError(kind.__qualname__)


def _joined(tokens: list[bytes]) -> bytes:
    return struct.pack("<q", len(tokens)) + b"".join(struct.pack("<q", len(token)) + token for token in tokens)
