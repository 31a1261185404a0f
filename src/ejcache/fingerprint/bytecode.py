"""What a code object reads by name: globals, closure variables and imports, with the attributes that follow each.

The code objects inside it (functions, classes and comprehensions that it makes) read the same globals, and count as
parts of it.
"""

from __future__ import annotations

import dis
from types import CodeType
from typing import Final

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.steps import steps_of

__all__ = ["Chain", "Reads", "reads_of"]


class Chain(NamedTuple):
    """A name and the attributes that the bytecode reads from it, one after the other: `jax.numpy.sin`."""

    root: str
    """"global", "free" (a variable of an enclosing function), or "import"."""
    name: str
    """The name, or for an import the module."""
    attributes: tuple[str, ...]
    level: int = 0
    """Of an import: how many dots."""
    member: bool = False
    """It is asked only whether it contains something, so the order of a set does not matter."""

    def text(self) -> str:
        return ".".join((self.name, *self.attributes))


class Reads(NamedTuple):
    """What a code object and the ones inside it read."""

    chains: tuple[Chain, ...]
    imports: tuple[tuple[str, int], ...]
    """Modules that are imported when it runs, with their dots."""
    writes: tuple[str, ...]
    """Globals that are set or deleted."""
    attributes: frozenset[str]
    """Every attribute that is read by name, and every string constant that could be the name of one."""
    hash_order: bool
    """Its result may depend on the order of a set, and so on the hash seed."""
    views: bool
    """It keeps or passes on the keys or items of a dictionary, which operators make a set of."""
    view_operators: bool
    """It uses an operator that makes a set of the keys of a dictionary."""
    identity: bool
    """It asks whether two values are the same object, and neither of them is a constant."""
    codes: tuple[CodeType, ...]
    """It and the code objects inside it."""


class _ById:
    __slots__ = ("code",)

    def __init__(self, code: CodeType) -> None:
        self.code = code

    def __hash__(self) -> int:
        return id(self.code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.code is self.code


_found: Final[dict[_ById, Reads]] = {}
"""Kept for as long as the process lives, as the digests of code objects are."""


def reads_of(code: CodeType) -> Reads:
    """What `code` reads by name. The same code object is analysed once in a process."""
    key = _ById(code)
    found = _found.get(key)
    if found is None:
        found = _found[key] = _Reader(code).reads()
    return found


_BETWEEN_IMPORTS: Final = frozenset({"IMPORT_FROM", "SWAP", "POP_TOP"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_FREE: Final = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_NAMES: Final = frozenset({"LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_GLOBAL_WRITES: Final = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_SET_OPERATIONS: Final = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE"})
_SET_BUILTINS: Final = frozenset({"set", "frozenset", "hash"})
_VIEWS: Final = frozenset({"keys", "items"})
_VIEW_OPERATORS: Final = frozenset({"&", "|", "^", "-", "&=", "|=", "^=", "-="})
_VIEW_READERS: Final = frozenset({"GET_ITER", "CONTAINS_OP", "LIST_EXTEND", "POP_TOP"})
"""Instructions that take a view of a dictionary in the order of the dictionary."""
_VIEW_FUNCTIONS: Final = frozenset(
    {"all", "any", "dict", "enumerate", "iter", "join", "len", "list", "max", "min", "next", "reversed", "sorted"}
    | {"sum", "tuple", "zip"}
)
"""Functions that do so, too."""


class _Reader:
    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._steps = steps_of(code)
        self._chains: dict[tuple[str, str, tuple[str, ...], int], bool] = {}
        self._imports: dict[tuple[str, int], None] = {}
        self._writes: dict[str, None] = {}
        self._attributes: set[str] = set()
        self._hash_order = False
        self._views = False
        self._view_operators = False
        self._identity = False
        self._codes: list[CodeType] = [code]
        self._bound: dict[str, list[tuple[str, int, tuple[str, ...]]]] = {}
        """Variables that hold an imported module or something imported from one."""

    def reads(self) -> Reads:
        self._bind_imports()
        self._read_steps()
        self._read_constants()
        chains = tuple(Chain(*key, member=member) for key, member in self._chains.items())
        return Reads(
            chains,
            tuple(self._imports),
            tuple(self._writes),
            frozenset(self._attributes),
            self._hash_order,
            self._views,
            self._view_operators,
            self._identity,
            tuple(self._codes),
        )

    def _bind_imports(self) -> None:
        steps = self._steps
        for index, (operation, argument) in enumerate(steps):
            if operation != "IMPORT_NAME":
                continue
            module = str(argument)
            level = steps[index - 2].argument if index >= 2 else 0
            level = level if isinstance(level, int) else 0
            names = steps[index - 1].argument if index else None
            self._imports[module, level] = None
            following = index + 1
            if names is None:
                path: tuple[str, ...] = ()
                while following < len(steps) and steps[following].operation in _BETWEEN_IMPORTS:
                    if steps[following].operation == "IMPORT_FROM":
                        path = (*path, str(steps[following].argument))
                    following += 1
                self._bind(following, module if path or level else module.partition(".")[0], level, path)
                continue
            while following < len(steps) and steps[following].operation == "IMPORT_FROM":
                self._bind(following + 1, module, level, (str(steps[following].argument),))
                following += 2

    def _bind(self, index: int, module: str, level: int, path: tuple[str, ...]) -> None:
        """Note that the instruction at `index` stores this import in a variable."""
        if index >= len(self._steps):
            return
        operation, argument = self._steps[index]
        if not operation.startswith("STORE_"):
            self._add("import", module, path, level, member=False)
            return
        # `import a.b as m` reads `b` from the package `a`, but imports the module `a.b`.
        top = module.partition(".")[0] if path and len(path) == module.count(".") and not level else module
        self._bound.setdefault(str(argument), []).append((top, level, path))

    def _read_steps(self) -> None:
        steps = self._steps
        cells = {*self._code.co_cellvars, *self._code.co_freevars}
        for index, (operation, argument) in enumerate(steps):
            following = steps[index + 1].operation if index + 1 < len(steps) else ""
            if operation == "LOAD_GLOBAL":
                self._read("global", str(argument), index)
            elif operation in _NAMES:
                name = str(argument)
                self._read_bound(name, index) if name in self._bound else self._read("global", name, index)
            elif operation in _FREE:
                name = str(argument)
                if name in self._bound:
                    self._read_bound(name, index)
                if name in self._code.co_freevars:
                    self._read("free", name, index)
            elif operation.startswith("LOAD_FAST"):
                name = str(argument)
                if name in self._bound and name not in cells:
                    self._read_bound(name, index)
            elif operation in _ATTRIBUTES or operation.startswith("LOAD_SUPER_ATTR"):
                self._attributes.add(str(argument))
                self._views |= argument in _VIEWS and not self._is_read_at_once(index)
                self._hash_order |= argument == "__hash__"
            elif operation in _GLOBAL_WRITES:
                self._writes[str(argument)] = None
            elif operation in _SET_OPERATIONS:
                self._hash_order = True
            elif operation == "BINARY_OP":
                self._view_operators |= _operator(argument) in _VIEW_OPERATORS
            elif operation == "IS_OP":
                self._identity |= not index or steps[index - 1].operation != "LOAD_CONST"
            elif operation == "LOAD_CONST" and isinstance(argument, frozenset):
                self._hash_order |= following != "CONTAINS_OP"

    def _is_read_at_once(self, index: int) -> bool:
        """Whether the keys that are asked for at `index` go where their order is that of the dictionary."""
        for operation, argument in self._steps[index + 2 : index + _FAR]:
            if operation == "CALL" and argument:
                before = self._steps[max(0, index - _FAR) : index]
                names = [name for verb, name in before if verb in {"LOAD_GLOBAL", "LOAD_METHOD"}]
                return bool(_VIEW_FUNCTIONS.intersection(map(str, names)))
            if operation in _VIEW_READERS:
                return True
            if not operation.startswith(("LOAD", "CALL")):
                return False
        return False

    def _read(self, root: str, name: str, index: int) -> None:
        attributes, member = self._attributes_after(index)
        if root == "global" and name in _SET_BUILTINS:
            self._hash_order |= not self._is_harmless(name, index)
        self._add(root, name, attributes, 0, member=member)

    def _read_bound(self, name: str, index: int) -> None:
        attributes, member = self._attributes_after(index)
        for module, level, path in self._bound[name]:
            self._add("import", module, (*path, *attributes), level, member=member)

    def _attributes_after(self, index: int) -> tuple[tuple[str, ...], bool]:
        attributes: list[str] = []
        for operation, argument in self._steps[index + 1 :]:
            if operation not in _ATTRIBUTES:
                return tuple(attributes), operation == "CONTAINS_OP"
            attributes.append(str(argument))
        return tuple(attributes), False

    def _is_harmless(self, name: str, index: int) -> bool:
        """Whether the order of what this name makes does not matter: `sorted(set(x))`, `isinstance(x, set)`."""
        if name == "hash" and self._code.co_name == "__hash__":
            return True  # A hash is asked for to find things; what iterates a set says so itself.
        before = self._steps[:index][-6:]
        if before[-1:] == [("LOAD_GLOBAL", "sorted")]:
            return not any(type(each) is tuple and "key" in each for each in self._code.co_consts)
        if before[-1:] == [("LOAD_GLOBAL", "len")]:
            return True
        return self._is_asked_for_a_type(index)

    def _is_asked_for_a_type(self, index: int) -> bool:
        """Whether the name at `index` is in the second argument of `isinstance`, whose first is a plain variable."""
        steps = self._steps
        first = index
        while first and steps[first] != ("LOAD_GLOBAL", "isinstance"):
            first -= 1
            if index - first > _FAR:
                return False
        at = first + 2
        if not steps[first + 1].operation.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL")):
            return False
        while steps[at].operation == "LOAD_ATTR":
            at += 1
        types = at
        while at < len(steps) and steps[at].operation == "LOAD_GLOBAL":
            at += 1
        count = at - types
        if count > 1:
            if at >= len(steps) or steps[at] != ("BUILD_TUPLE", count):
                return False
            at += 1
        return types <= index < at < len(steps) and steps[at] == ("CALL", 2)

    def _add(self, root: str, name: str, attributes: tuple[str, ...], level: int, *, member: bool) -> None:
        key = (root, name, attributes, level)
        self._chains[key] = self._chains.get(key, member) and member

    def _read_constants(self) -> None:
        for constant in self._code.co_consts:
            if isinstance(constant, str) and constant.isidentifier():
                self._attributes.add(constant)
            elif isinstance(constant, CodeType):
                self._read_inside(constant)

    def _read_inside(self, code: CodeType) -> None:
        inside = reads_of(code)
        for chain in inside.chains:
            if chain.root != "free":
                self._add(chain.root, chain.name, chain.attributes, chain.level, member=chain.member)
                continue
            if chain.name in self._code.co_freevars:
                self._add("free", chain.name, chain.attributes, 0, member=chain.member)
            for module, level, path in self._bound.get(chain.name, ()):
                self._add("import", module, (*path, *chain.attributes), level, member=chain.member)
        self._imports.update(dict.fromkeys(inside.imports))
        self._writes.update(dict.fromkeys(inside.writes))
        self._attributes |= inside.attributes
        self._hash_order |= inside.hash_order
        self._views |= inside.views
        self._view_operators |= inside.view_operators
        self._identity |= inside.identity
        self._codes += inside.codes


_FAR: Final = 12
"""Instructions between `isinstance` and a type that it is asked about."""
_BINARY_OPERATORS: Final[tuple[str, ...]] = tuple(symbol for _, symbol in getattr(dis, "_nb_ops", ()))


def _operator(argument: object) -> str:
    if isinstance(argument, int) and argument < len(_BINARY_OPERATORS):
        return _BINARY_OPERATORS[argument]
    return str(argument)
