"""Where values are found: names in modules and classes, and the source files of modules."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from ejcache.fingerprint.guarding.tokens import DIGEST_SIZE, class_dict, is_plain, nested_codes, short, token

if TYPE_CHECKING:
    from types import CodeType

__all__ = [
    "MISSING",
    "find",
    "is_guarded",
    "is_table",
    "outer_path",
    "source_contains",
    "source_digest",
    "source_file",
]

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
    if "." not in path:
        return loaded.__dict__.get(path, MISSING)
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
    return _is_module_of_fixed(str(kind.__module__))


@functools.cache
def _is_module_of_fixed(module: str) -> bool:
    top = module.partition(".")[0]
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
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # a `Path` takes as long as the reading
            return hashlib.sha256(file.read()).digest()[:DIGEST_SIZE]
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
