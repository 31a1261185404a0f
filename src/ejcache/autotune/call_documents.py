"""Calls as JSON documents without their data, from which another process can make a similar call.

    {"ejcache": "autotune call", "schema": 1, "operation": …, "key": text, "digest": …,
     "how": {"kind": "autotuned", "object": "module:name"}, "args": […], "kwargs": {…}, …}

An array is recorded as its shape and data type. Functions, classes and enumerations are recorded by a name under which
they can be imported. A value without such a name cannot be recorded.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import importlib.util
import math
import operator
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.descriptions import array_text
from ejcache.autotune.records.document_frame import decode_document, encode_document
from ejcache.autotune.value_kinds import MAIN_MODULES, ValueKind, dtype_name, is_scalar, parts_of
from ejcache.errors import MALFORMED, EjcacheError, EntryCorruptError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


KIND: Final = "autotune call"
MAX_CALL_BYTES: Final = 2**20
SCHEMA: Final = 1
_MAIN: Final = "__ejcache_main__"


class UnrecordableError(UsageError):
    """A part of a call has no form from which another process could make it again."""


def encode_call(call: dict[str, Any]) -> bytes:
    """Return the document of a call."""
    return encode_document(call, kind=KIND, schema=SCHEMA, checksum=False)


def decode_call(data: bytes) -> dict[str, Any]:
    """Return the call in a document.

    Raises:
        EntryCorruptError: the document is not a recorded call.
        EntryVersionError: it is of a later schema.
    """
    body = decode_document(data, kind=KIND, schema=SCHEMA, max_size=MAX_CALL_BYTES)
    for name, kind in (("operation", str), ("how", dict), ("args", list), ("kwargs", dict)):
        if not isinstance(body.get(name), kind):
            raise EntryCorruptError(f"the recorded call has no {name}")
    if not body["operation"].isprintable():
        raise EntryCorruptError("the recorded call has an operation with control characters")
    return body


def encode_value(value: Any, *, name: str = "an argument") -> Any:
    """Return `value` as JSON that `decode_value` reads.

    Raises:
        UnrecordableError: a part of it has no such form; the message names that part.
    """
    kind, parts = parts_of(value)
    match kind:
        case ValueKind.PLAIN:
            return parts
        case ValueKind.FLOAT:
            return parts if math.isfinite(parts) else {"float": str(parts)}
        case ValueKind.ENUM:
            return {"enum": import_path(type(value), name=name), "name": value.name}
        case ValueKind.DTYPE:
            return {"dtype": parts, "class": callable(value)}
        case ValueKind.OBJECT | ValueKind.NAMED_TUPLE:
            made = (
                {field.name for field in dataclasses.fields(value) if field.init} if kind is ValueKind.OBJECT else parts
            )
            fields = {field: encode_value(parts[field], name=f"{name}.{field}") for field in parts if field in made}
            return {"object": import_path(type(value), name=name), "fields": fields}
        case ValueKind.LIST:
            items = [encode_value(item, name=f"{name}[{i}]") for i, item in enumerate(parts)]
            return {"tuple" if isinstance(value, tuple) else "list": items}
        case ValueKind.MAPPING if isinstance(value, dict):
            if not all(isinstance(key, str) for key in parts):
                raise UnrecordableError(f"{name} has names that are not text")
            return {"dict": {key: encode_value(item, name=f"{name}.{key}") for key, item in parts.items()}}
    if array_text(value) is not None:
        return {"array": str(getattr(value.dtype, "name", None) or value.dtype), "shape": list(value.shape)}
    if is_scalar(value) and isinstance(value.item(), bool | int | float):
        return {"scalar": str(value.dtype), "value": encode_value(value.item(), name=name)}
    if callable(value):
        return {"import": import_path(value, name=name)}
    raise UnrecordableError(f"{name}, of type {type(value).__qualname__}, cannot be recorded")


class RecordedNames:
    """Finds the objects that a recorded call names, as far as the caller trusts them.

    A person who can write to a store can put any name into a recorded call. So no name in it makes a module be
    imported, and what is made or called for an argument is what a named module has.

    Args:
        modules: modules that the caller trusts, by name, or by path for a file that ends in `.py`, which may import
            what is beside it. They are imported now. Operations are found in these, and in modules that are loaded
            already. None trusts all names, which is right only for a call that this program recorded itself.

    Raises:
        UsageError: a module cannot be imported.
    """

    def __init__(self, modules: Iterable[str] | None) -> None:
        self._modules: dict[str, Any] | None = None
        if modules is not None:
            paths = [str(Path(name).resolve()) if name.endswith(".py") else name for name in modules]
            self._modules = {path: _imported(path) for path in paths}

    def find(self, path: str) -> Any:
        """Return the object at `module:qualified.name` or `file.py:name`.

        Raises:
            UsageError: it does not exist, or its module is neither named nor loaded.
        """
        where, _, qualname = path.rpartition(":")
        named = _imported(where) if self._modules is None else self._named(where)
        held = named or sys.modules.get(where) or _main_module(where)
        if held is None:
            raise UsageError(f"{path} is not used: nobody named its module. If you trust it, add --module {where}")
        try:
            for part in qualname.split("."):
                held = _own_part(held, part) if named is None else getattr(held, part)
        except AttributeError as exc:
            raise UsageError(f"{path} does not exist: {exc}") from exc
        return held

    def find_trusted(self, path: str) -> Any:
        """Return the object at `path`, which a named module must have; raises as `find` does."""
        found, modules = self.find(path), self._modules
        if modules is None or self._named(path.rpartition(":")[0]) is not None:
            return found
        if any(found is held for module in modules.values() for held in vars(module).values()):
            return found
        raise UsageError(f"{path} is not used: no named module has it. If you trust one that has, add it with --module")

    def _named(self, where: str) -> Any:
        """Return the named module; a file also under the name by which a program imported it."""
        held, parts = self._modules or {}, tuple(where.split("."))
        files = (path for path in held if path.endswith(".py"))
        same = (path for path in files if Path(path).with_suffix("").parts[-len(parts) :] == parts)
        return held.get(where) or held.get(next(same, ""))


def _own_part(held: Any, name: str) -> Any:
    """Look a name up in a module or class itself; `getattr` would have some modules import another one."""
    try:
        return vars(held)[name]
    except (KeyError, TypeError) as exc:
        raise AttributeError(f"{held!r} has no {name}") from exc


def arguments_of(call: dict[str, Any], names: RecordedNames) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return `(args, kwargs)` of a call, with `jax.ShapeDtypeStruct`s for arrays.

    Raises:
        UsageError: `names` does not find or trust an object.
        EntryCorruptError: a value is malformed.
    """
    args = tuple(decode_value(item, names) for item in call["args"])
    return args, {name: decode_value(item, names) for name, item in call["kwargs"].items()}


def decode_value(value: Any, names: RecordedNames) -> Any:
    """Return the value that `encode_value` was given; raises as `arguments_of` does."""
    try:
        return _decoded(value, names)
    except EjcacheError:
        raise
    except MALFORMED as exc:
        raise EntryCorruptError(f"the recorded value {str(value)[:200]} cannot be made again: {exc!r}") from exc


def _decoded(value: Any, names: RecordedNames) -> Any:
    import jax

    if not isinstance(value, dict):
        return value
    match next(iter(value), "import"):
        case "array":
            return jax.ShapeDtypeStruct(tuple(operator.index(size) for size in value["shape"]), _dtype(value["array"]))
        case "scalar":
            return _dtype(value["scalar"]).type(_decoded(value["value"], names))
        case "float":
            return float(value["float"])
        case "dtype":
            return _scalar_class(value["dtype"]) if value.get("class") else _dtype(value["dtype"])
        case "enum":
            return _enumeration(value["enum"], names)[value["name"]]
        case "object":
            fields = {name: _decoded(item, names) for name, item in value["fields"].items()}
            return _made_of_fields(value["object"], names)(**fields)
        case "tuple":
            return tuple(_decoded(item, names) for item in value["tuple"])
        case "list":
            return [_decoded(item, names) for item in value["list"]]
        case "dict":
            return {name: _decoded(item, names) for name, item in value["dict"].items()}
    return names.find_trusted(value["import"])


def _enumeration(path: str, names: RecordedNames) -> Any:
    """Return the enumeration at `path`, of any loaded module: a member of one is looked up, and nothing is called."""
    found = names.find(path)
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return found
    raise UsageError(f"{path} is not an enumeration")


def _made_of_fields(path: str, names: RecordedNames) -> Any:
    """Return the dataclass or named tuple at `path`; other classes may do anything when they are made."""
    found = names.find_trusted(path)
    is_named_tuple = isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")
    if is_named_tuple or (isinstance(found, type) and dataclasses.is_dataclass(found)):
        return found
    raise UsageError(f"{path} is not a dataclass or a named tuple")


def _dtype(name: str) -> Any:
    import jax
    import jax.numpy as jnp

    return jax.random.key(0).dtype if name.startswith("key<") else jnp.dtype(name)


def _scalar_class(name: str) -> Any:
    import jax.numpy as jnp

    found = getattr(jnp, name)
    if dtype_name(found) != name:
        raise ValueError(f"jax.numpy.{name} is not a data type")
    return found


def import_path(value: Any, *, name: str = "an argument") -> str:
    """Return `module:qualified.name` under which `value` can be imported; `file.py:name` if the program's own file
    defines it.

    Raises:
        UnrecordableError: it has no such name; a local function, for example, has none.
    """
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not qualname or "<" in qualname:
        raise UnrecordableError(f"{name} is {value!r}, which cannot be imported by name")
    held: Any = sys.modules.get(module)
    for part in qualname.split("."):
        held = getattr(held, part, None)
    if held is not value:
        raise UnrecordableError(f"{name} is not the object that {module}.{qualname} names")
    if module in MAIN_MODULES:
        file = getattr(sys.modules[module], "__file__", None)
        if file is None:
            raise UnrecordableError(f"{name} is defined in an interactive session")
        module = str(Path(file).resolve())
    return f"{module}:{qualname}"


def _imported(name: str) -> Any:
    try:
        return _module_of_file(name) if name.endswith(".py") else importlib.import_module(name)
    except (ImportError, OSError, SyntaxError, ValueError) as exc:
        raise UsageError(f"{name} cannot be imported: {exc}") from exc


def _main_module(path: str) -> Any:
    """Return the program's main module if it was made from the file at `path`, or else None."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    return main if file and Path(file).resolve() == Path(path) else None


def _module_of_file(path: str) -> Any:
    """Return a program's file as a module. As under `multiprocessing`, its `if __name__ == "__main__"` part does not
    run.
    """
    if (main := _main_module(path)) is not None:
        return main
    held = sys.modules.get(_MAIN)
    if held is not None and held.__file__ == path:
        return held
    if (beside := str(Path(path).parent)) not in sys.path:
        sys.path.insert(0, beside)  # as Python does for a script
    spec = importlib.util.spec_from_file_location(_MAIN, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MAIN] = module
    spec.loader.exec_module(module)
    return module
