"""Where values are found: names in modules and classes, entries of tables, attributes of objects, files of modules."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.fingerprint.guarding.tokens import (
    DIGEST_SIZE,
    class_dict,
    instance_items,
    is_plain,
    nested_codes,
    short,
    token,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

__all__ = [
    "MISSING",
    "OPERATORS",
    "PATH_SIZE",
    "Leaf",
    "attribute_name",
    "class_shape",
    "find",
    "is_guarded",
    "is_table",
    "leaves",
    "outer_path",
    "source_contains",
    "source_digest",
    "source_file",
]

PATH_SIZE: Final = 4
"""Bytes that tell an entry of one table from the others."""

MISSING: Final = object()
"""There is nothing at a place."""

_OPAQUE: Final = frozenset(
    {"_contextvars", "_thread", "_weakref", "flax.ids", "jax._src.config", "logging", "threading", "weakref"}
)
"""Modules whose objects hold what differs between processes, or what other parts of a record describe.

Flax counts the modules that it makes, to tell them apart: the count depends on how many functions were traced before.
"""


_LEFT_OUT: Final = frozenset(
    {"_warnings", "encodings", "gc", "importlib", "io", "jax._src.config", "jax._src.monitoring"}
    | {"jax._src.source_info_util", "jax._src.traceback_util", "linecache", "logging", "os", "posix", "re"}
    | {"site", "threading", "time", "tokenize", "traceback", "warnings", "weakref", "zipimport"}
)
"""Modules, with those below them, of which only functions and classes count: their other values are the process's."""

_OF_SYS: Final = frozenset({"argv", "byteorder", "flags", "maxsize", "platform"})


_LOOP_VARIABLES: Final = frozenset({("jax._src.lax.lax", "t")})
"""Names that a loop over a set has left in a module: no function reads them, and attributes have such names."""


def is_guarded(module: str, name: str) -> bool:
    """Whether the value of a name tells anything about a library."""
    if name.startswith("__") and name.endswith("__"):
        return False
    if module == "sys":
        return name in _OF_SYS
    if (module, name) in _LOOP_VARIABLES:
        return False
    return not _is_left_out(module) or isinstance(find(module, name), type | FunctionType | BuiltinFunctionType)


@functools.cache
def _is_left_out(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in _LEFT_OUT)


def outer_path(code: CodeType) -> str | None:
    """The dotted path, in its module, of the function that a code object is or is nested in. None: it has no name."""
    path = code.co_qualname.partition(".<locals>")[0]
    return None if "<" in path else path


def find(module: str, path: str) -> object:
    """The value at a dotted path in a loaded module, without asking a metaclass or a `__getattr__`."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return MISSING
    first, *rest = path.split(".")
    value = loaded.__dict__.get(first, MISSING)
    for name in rest:
        if not isinstance(value, type):
            return MISSING
        inner = f"_{value.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
        value = class_dict(value).get(inner, MISSING)
    return value


_tables: Final[dict[type[Any], bool]] = {}


def is_table(value: object) -> bool:
    """Whether what a value holds is described entry by entry."""
    kind = type(value)
    if isinstance(value, type):
        return not _is_fixed(value)
    if kind is list or kind is set:
        return not (value and all(is_plain(each) for each in value))  # type: ignore[attr-defined]
    if kind is tuple:
        # Libraries replace a tuple of classes by a longer one.
        return any(isinstance(each, type) for each in value)  # type: ignore[attr-defined]
    found = _tables.get(kind)
    if found is None:
        found = _tables[kind] = _is_table_type(kind)
    return found


def _is_fixed(kind: type[Any]) -> bool:
    """Whether a class only holds what its own code has put there: the standard library's, and NumPy's."""
    top = str(kind.__module__).partition(".")[0]
    return top in ("numpy", "jaxlib") or top in sys.stdlib_module_names


def _is_table_type(kind: type[Any]) -> bool:
    if issubclass(kind, dict):
        return True
    if issubclass(kind, type | ModuleType | FunctionType | tuple | list | set | frozenset | Enum):
        return False
    if str(kind.__module__) in _OPAQUE:
        return False
    if _is_fixed(kind):
        return False
    return any("__dict__" in class_dict(each) or "__slots__" in class_dict(each) for each in kind.__mro__[:-1])


class Leaf(NamedTuple):
    """An entry of a table, an element of a sequence, or an attribute of an object or a class."""

    name: bytes
    """The digest of what leads to it."""
    value: object
    plain: bool
    """Whether its key is plain: one that the user may use, too."""
    attribute: str
    """The attribute that it is or is in; empty if there is none."""
    nested: bool
    """Whether it is in a table that an attribute holds."""


def leaves(value: object) -> Iterator[Leaf]:
    """What a table, a sequence, an object or a class holds, with the entries of tables in it."""
    if isinstance(value, dict):
        yield from _entries(value, (), "")
    elif isinstance(value, list | set | tuple):
        for each in list(value):
            yield Leaf(_short(("#", _key(each) or token(each))), each, is_plain(each), "", False)
    else:
        of_class = isinstance(value, type)
        memos = _memos(value if isinstance(value, type) else type(value))
        for attribute, each in _class_items(value) if isinstance(value, type) else instance_items(value):
            if attribute in memos and not of_class:
                continue
            yield Leaf(attribute_name(attribute), each, False, attribute, False)
            if isinstance(each, dict):
                yield from _entries(each, (attribute,), attribute)


def _short(path: object) -> bytes:
    return short(path)[:PATH_SIZE]


@functools.cache
def attribute_name(name: str) -> bytes:
    return _short((".", name))


def _class_items(kind: type[Any]) -> Iterator[tuple[str, object]]:
    """The attributes of a class and of those it inherits from, as an instance would find them."""
    seen: set[str] = set()
    for each in kind.__mro__[:-1]:
        if not each.__flags__ & _HEAP_TYPE:
            continue  # a class in C, which cannot be changed
        own = class_dict(each)
        for name, value in list(own.items()):
            if name not in seen and (name[:2] != "__" or name in OPERATORS):
                yield name, value
        seen |= own.keys()


def class_shape(kind: type[Any]) -> str:
    """Which class defines each method and property of a class."""
    seen: set[str] = set()
    found: list[str] = []
    for each in kind.__mro__[:-1]:
        if not each.__flags__ & _HEAP_TYPE:
            continue
        own = class_dict(each)
        for name, value in list(own.items()):
            if name not in seen and callable(getattr(type(value), "__get__", None)):
                found.append(f"{name} {each.__qualname__} {type(value).__name__}")
        seen |= own.keys()
    found.sort()
    return "\n".join(found)


_HEAP_TYPE: Final = 1 << 9

OPERATORS: Final = frozenset(name for name in dir(int) + dir(list) + dir(dict) if name.startswith("__")) - {
    *("__class__", "__doc__", "__getattribute__", "__init_subclass__", "__subclasshook__", "__dir__")
} | {
    "__bool__",
    "__call__",
    "__enter__",
    "__exit__",
    "__get__",
    "__getattr__",
    "__array__",
    "__jax_array__",
    "__matmul__",
}
"""Methods that Python calls without a name."""

_memos_of: Final[dict[type[Any], frozenset[str]]] = {}


def _memos(kind: type[Any]) -> frozenset[str]:
    """The attributes that only keep what a method has computed."""
    found = _memos_of.get(kind)
    if found is None:
        found = _memos_of[kind] = frozenset(
            name
            for each in kind.__mro__
            for name, value in class_dict(each).items()
            if "cached_property" in type(value).__name__
        )
    return found


def _entries(table: dict[Any, Any], before: tuple[object, ...], attribute: str) -> Iterator[Leaf]:
    for key, value in list(dict.items(table)):
        name = _key(key)
        if name is None:
            continue
        path = (*before, "/", name)
        yield Leaf(_short(path), value, is_plain(key), attribute, bool(before))
        if isinstance(value, dict):
            for inner, deeper in list(dict.items(value)):
                second = _key(inner)
                if second is not None:
                    yield Leaf(
                        _short((*path, "/", second)), deeper, is_plain(key) and is_plain(inner), attribute, bool(before)
                    )


def _key(key: object) -> object | None:
    """What names a key in every process, or None."""
    if is_plain(key):
        return ("plain", key)
    if type(key) is tuple:
        return key if all(is_plain(each) for each in key) else None
    if isinstance(key, type | Enum):
        return token(key)
    if isinstance(key, FunctionType):
        return ("function", key.__module__, key.__qualname__)
    kind = type(key)
    try:
        name = object.__getattribute__(key, "name")
    except AttributeError:
        return None
    return ("named", str(kind.__module__), kind.__qualname__, name) if type(name) is str else None


def source_file(module: str) -> str | None:
    """The source file of a module, which need not be loaded, but one of its parents must be."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        path = loaded.__dict__.get("__file__")
        return path if isinstance(path, str) and path.endswith(".py") else None
    parent, _, rest = module.rpartition(".")
    tail = [rest]
    while parent and parent not in sys.modules:
        parent, _, rest = parent.rpartition(".")
        tail.insert(0, rest)
    if not parent:
        return None
    for directory in list(getattr(sys.modules[parent], "__path__", ())):
        for path in (Path(directory, *tail).with_suffix(".py"), Path(directory, *tail, "__init__.py")):
            if path.is_file():
                return str(path)
    return None


def source_digest(path: str) -> bytes | None:
    """The digest of a source file, or None if it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()[:DIGEST_SIZE]
    except OSError:
        return None


def source_contains(module: str, path: str, codes: list[CodeType]) -> bool:
    """Whether a file is what a module was loaded from, so far as these code objects tell."""
    try:
        if Path(path).stat().st_ctime < _started():
            return True
        spec = sys.modules[module].__spec__
        whole = None if spec is None or spec.loader is None else spec.loader.get_code(module)  # type: ignore[attr-defined]
    except (OSError, ImportError, AttributeError, SyntaxError, KeyError):
        return False
    if whole is None:
        return False
    there = {(each.co_qualname, short(token(each))) for each in nested_codes(whole)}
    return all((each.co_qualname, short(token(each))) in there for each in codes)


_started_at: list[float] = []


def _started() -> float:
    """When this process started, by the clock of the file system; 0 if the system does not say."""
    if not _started_at:
        try:
            # The fields after the name of the program, which may hold spaces; 22 is the start, in ticks since boot.
            fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
            booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
            _started_at.append(float(booted.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK"))
        except (OSError, ValueError, IndexError, StopIteration):
            _started_at.append(0.0)
    return _started_at[0]
