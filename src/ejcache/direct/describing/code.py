"""The digest of a code object: what it does, not where it stands.

    code := sha256 of `marshal` of the fields below; nested code objects by their digests, with their places:
      bytecode without inline caches, names, variables, cells, free variables, name, qualified name, flags, counts of
      arguments, exception table, constants with their exact types and float bits

File names and line numbers are left out. Bytecode depends on the Python version, which is part of what a record is
stored under.
"""

from __future__ import annotations

import hashlib
import struct
from marshal import dumps
from operator import attrgetter
from types import CodeType
from typing import Any, Final

__all__ = ["code_digest", "identity", "injective_bytes", "plain_token"]


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


_FIELDS: Final = attrgetter(
    *("co_code", "co_names", "co_varnames", "co_cellvars", "co_freevars", "co_name", "co_qualname", "co_flags"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_exceptiontable"),
)

_VERSION: Final = 2
"""Of marshal's format. Later ones write whether two constants are one object and whether a text is interned, and
chance decides that."""

_SIMPLE: Final = frozenset({type(None), type(Ellipsis), bool, int, float, complex, str, bytes})
"""Types whose values `marshal` writes injectively, with their types."""


def injective_bytes(value: Any) -> bytes:
    """The bytes of plain values and tuples of such: other bytes for every other value or type.

    Raises:
        ValueError: there is something else in it.
    """
    return dumps(value, _VERSION)


def _digest(code: CodeType) -> bytes:
    constants = code.co_consts
    nested: tuple[int, ...] = ()
    if not _SIMPLE.issuperset(map(type, constants)):
        nested = tuple(place for place, each in enumerate(constants) if type(each) is CodeType)
        described = [code_digest(each) if type(each) is CodeType else each for each in constants]
        for place, each in enumerate(described):
            if not _is_simple(each):
                # `marshal` takes more for bytes than bytes; what the compiler of Python does not make is described.
                described[place] = plain_token(each)
                nested += (~place,)
        constants = tuple(described)
    return hashlib.sha256(dumps((_FIELDS(code), constants, nested), _VERSION)).digest()


def _is_simple(constant: object) -> bool:
    if type(constant) is tuple or type(constant) is frozenset:
        return all(map(_is_simple, constant))
    return type(constant) in _SIMPLE


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
