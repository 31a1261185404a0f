"""Code objects: the digest of what one does, and what it reads by name.

    code := sha256 of `marshal` of the code object without its constants, and of the constants with their exact types
            and float bits, nested code objects by their digests

File names and line numbers are left out. Bytecode depends on the Python version, which is part of what a record is
stored under. Names come in chains, as the code has them: `jax.numpy.sin`. What a chain leads to is looked up in the
live objects.
"""

from __future__ import annotations

import dis
import hashlib
import os
import re
import struct
import sys
from marshal import dumps
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["Chain", "Reads", "code_digest", "format_names", "identity", "plain_token", "reads_of"]

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


class Chain(NamedTuple):
    """A name, and the attributes that the code reads from it, one after the other.

    Attributes:
        name: of a global, or of a variable of an enclosing function.
        attributes: that follow.
        free: it is a variable of an enclosing function.
        line: where the code reads it.
        follows: the operation behind it.
    """

    name: str
    attributes: tuple[str, ...]
    free: bool
    line: int
    follows: str


_OLD_METHODS: Final = sys.version_info < (3, 12)
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_SUPER: Final = frozenset({"LOAD_SUPER_ATTR"})
_GLOBALS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_FREE: Final = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_WRITES: Final = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_FORMATS: Final = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"})
_UNPACKS: Final = frozenset({"DICT_MERGE", "DICT_UPDATE"})
_ITERATES: Final = frozenset({"dict", "enumerate", "iter", "list", "sorted", "tuple", "zip"})
_MAKES_SET: Final = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE"})
_SKIPPED: Final = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL", "RESUME"})
_COMPUTES: Final = frozenset(
    {"vars", "dir", "asdict", "astuple", "fields", "replace", "copy", "deepcopy", "getmembers"}
    | {"__dict__", "__getattribute__"}
)
_NAMED_ATTRIBUTE: Final = frozenset({"getattr", "hasattr", "attrgetter", "methodcaller"})
_TEXTS: Final = frozenset({"str", "repr", "format", "print"})
_ORDERLESS: Final = frozenset({"sorted", "len", "isinstance", "issubclass", "max", "min", "sum", "any", "all"})
_SETS: Final = frozenset({"set", "frozenset", "hash"})
_NAME_OPERATIONS: Final = frozenset(dis.opname[each] for each in dis.hasname)


def format_names(text: str) -> list[str]:
    """The attributes that `str.format` may read: `k` of "{0.k}"."""
    return _FIELD.findall(text) if "{" in text else []


_FIELD: Final = re.compile(r"\.(\w+)")


class _Step(NamedTuple):
    name: str
    argument: Any
    line: int


def _steps(code: CodeType) -> Iterator[_Step]:
    """The instructions with what they name. `dis` tells the same, and takes six times as long."""
    names, constants, raw = code.co_names, code.co_consts, code.co_code
    free = (*code.co_varnames, *(each for each in code.co_cellvars if each not in code.co_varnames), *code.co_freevars)
    lines = ((start, end, line or 0) for start, end, line in code.co_lines())
    _, end, line = next(lines, (0, 0, 0))
    extended = 0
    for index in range(0, len(raw), 2):
        while index >= end:
            _, end, line = next(lines, (0, len(raw), line))
        name, argument = dis.opname[raw[index]], raw[index + 1] | extended
        extended = argument << 8 if name == "EXTENDED_ARG" else 0
        if name in _SKIPPED:
            continue
        if name == "LOAD_GLOBAL" or (name == "LOAD_ATTR" and not _OLD_METHODS):
            argument >>= 1
        elif name in _SUPER:
            argument >>= 2
        if name in _NAME_OPERATIONS:
            yield _Step(name, names[argument], line)
        elif name in {"LOAD_CONST", "RETURN_CONST"}:
            yield _Step(name, constants[argument], line)
        elif name in _FREE:
            yield _Step(name, free[argument], line)
        else:
            yield _Step(name, argument, line)


_known: Final[dict[int, tuple[CodeType, Reads]]] = {}
"""By identity, with the code objects, for as long as the process lives: equal ones may differ in their constants."""


def reads_of(code: CodeType) -> Reads:
    """What `code` reads. The same code object is analysed once in a process."""
    found = _known.get(identity(code))
    if found is None:
        found = _known[identity(code)] = (code, Reads(code))
    return found[1]


class Reads:
    """What a code object reads, with the code objects inside it.

    Attributes:
        chains: its names with their attributes, each once.
        imports: modules that it imports, with the number of dots and the names that it takes from them.
        writes: globals that it sets or deletes.
        names: each attribute that it reads or a constant names, and the first line that does.
        constants: its texts.
        computed: it reads attributes whose names it computes.
        formats: it makes texts of objects.
        identity: it asks whether two values are the same object, and neither of them is a constant.
        hash_order: its result may depend on the order of a set that it makes, and so on the hash seed.
    """

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._steps = list(_steps(code))
        self.chains: dict[tuple[str, tuple[str, ...], bool], Chain] = {}
        self.imports: dict[tuple[str, int, tuple[str, ...]], None] = {}
        self.writes: dict[str, None] = {}
        self.names: dict[str, int] = {}
        self.constants: set[str] = set()
        self.computed = self.formats = self.identity = self.hash_order = False
        for index in range(len(self._steps)):
            self._read(index)
        for constant in code.co_consts:
            self._read_constant(constant, code)

    def _read(self, index: int) -> None:
        name, argument, line = self._steps[index]
        if name in _GLOBALS or name in _FREE:
            self._add_chain(index)
        elif name in _ATTRIBUTES or name in _SUPER:
            self._name(argument, line)
            self.hash_order |= argument == "__hash__"
        elif name == "IMPORT_NAME":
            before = self._steps[max(index - 2, 0) : index]
            level = before[0].argument if len(before) == 2 and isinstance(before[0].argument, int) else 0
            taken = before[-1].argument if before and type(before[-1].argument) is tuple else ()
            self.imports[argument, level, taken] = None
            for each in taken:
                self._name(each, line)
        elif name in _WRITES:
            self.writes[argument] = None
        elif name in _UNPACKS:
            self.names.setdefault("keys", line)
        elif name in _FORMATS:
            self.formats = True
        elif name == "IS_OP":
            self.identity |= self._steps[index - 1].name != "LOAD_CONST"
        elif name in _MAKES_SET:
            self.hash_order = True
        elif name == "LOAD_CONST" and isinstance(argument, frozenset):
            self.hash_order |= self._after(index + 1).name != "CONTAINS_OP"

    def _name(self, name: str, line: int) -> None:
        self.names.setdefault(name, line)
        self.computed |= name in _COMPUTES

    def _after(self, index: int) -> _Step:
        return self._steps[index] if index < len(self._steps) else _Step("", None, 0)

    def _add_chain(self, index: int) -> None:
        operation, name, line = self._steps[index]
        attributes: list[str] = []
        following = self._after(index + 1)
        while following.name in _ATTRIBUTES:
            attributes.append(following.argument)
            following = self._after(index + 1 + len(attributes))
        free = operation in _FREE
        chain = Chain(name, tuple(attributes), free, line, following.name)
        key = (name, chain.attributes, free)
        known = self.chains.get(key)
        # What follows at one place must not hide what follows at another.
        if known is None or known.follows == "CONTAINS_OP":
            self.chains[key] = chain
        if free:
            return
        last = attributes[-1] if attributes else name
        self.computed |= last in _COMPUTES or (last in _NAMED_ATTRIBUTE and not self._is_constant(index, attributes))
        self.formats |= name in _TEXTS
        self.hash_order |= name in _SETS and not self._is_harmless(index)
        if name in _ITERATES:
            self.names.setdefault(name, line)

    def _is_constant(self, index: int, attributes: list[str]) -> bool:
        """Whether the attribute that `getattr` is asked for at `index` is a constant."""
        for at in range(index + 1 + len(attributes), min(index + 12, len(self._steps))):
            name, argument, _ = self._steps[at]
            if name == "CALL":
                place = at - 1 if argument == 2 or attributes or self._steps[index].argument == "attrgetter" else at - 2
                return self._steps[place].name == "LOAD_CONST" and isinstance(self._steps[place].argument, str)
        return False

    def _is_harmless(self, index: int) -> bool:
        """Whether the order does not matter of what this name makes: `sorted(set(x))`, `isinstance(x, set)`."""
        if self._code.co_name == "__hash__":
            return True  # a hash is asked for to find things; what iterates a set says so itself
        before = [each.argument for each in self._steps[max(0, index - 3) : index] if each.name in _GLOBALS]
        return not _ORDERLESS.isdisjoint(before)

    def _read_constant(self, constant: object, code: CodeType) -> None:
        if isinstance(constant, bytes):
            self.constants.add(os.fsdecode(constant))  # as `os.environb` names a variable
        elif isinstance(constant, str):
            self.constants.add(constant)
            for name in [constant] if constant.isidentifier() else format_names(constant):
                self.names.setdefault(name, code.co_firstlineno)
        elif isinstance(constant, tuple):
            for each in constant:
                self._read_constant(each, code)
        elif isinstance(constant, CodeType):
            inside = reads_of(constant)
            for chain in inside.chains.values():
                if not chain.free or chain.name in code.co_freevars:
                    self.chains.setdefault((chain.name, chain.attributes, chain.free), chain)
            self.imports |= inside.imports
            self.writes |= inside.writes
            self.names = inside.names | self.names
            self.constants |= inside.constants
            self.computed |= inside.computed
            self.formats |= inside.formats
            self.identity |= inside.identity
            self.hash_order |= inside.hash_order
