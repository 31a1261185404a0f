"""The digest of a code object: what it does, not where it stands.

    code := sha256 of the tokens below, each with its length in front; nested code objects by their digests:
      bytecode without inline caches, constants with their exact types and float bits, names, variables, cells, free
      variables, name, qualified name, flags, counts of arguments, exception table

File names and line numbers are left out. Bytecode depends on the Python version, which is part of what a record is
stored under.
"""

from __future__ import annotations

import hashlib
import struct
from types import CodeType
from typing import Final

__all__ = ["code_digest", "plain_token"]


class _ById:
    """A code object as a key by identity: equal code objects may differ in the types of their constants."""

    __slots__ = ("code",)

    def __init__(self, code: CodeType) -> None:
        self.code = code

    def __hash__(self) -> int:
        return id(self.code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.code is self.code


_digests: Final[dict[_ById, bytes]] = {}
"""Kept for as long as the process lives: code objects are immutable, and few are made while a program runs."""


def code_digest(code: CodeType) -> bytes:
    """32 bytes that are equal for two code objects only if they do the same with the same globals."""
    key = _ById(code)
    found = _digests.get(key)
    if found is None:
        found = _digests[key] = _digest(code)
    return found


def _digest(code: CodeType) -> bytes:
    text = repr(
        (
            *(code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars, code.co_name, code.co_qualname),
            *(code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
            *(len(code.co_exceptiontable), len(code.co_code)),
        )
    )
    hasher = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    hasher.update(code.co_exceptiontable)
    hasher.update(code.co_code)
    for constant in code.co_consts:
        token = repr(constant).encode("utf-8", "surrogatepass") if type(constant) in _SHOWN else plain_token(constant)
        hasher.update(b"%d:" % len(token))
        hasher.update(token)
    return hasher.digest()


_SHOWN: Final = frozenset({type(None), bool, int, str, bytes})
"""Types whose `repr` tells one constant from every other, of whatever type."""


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
