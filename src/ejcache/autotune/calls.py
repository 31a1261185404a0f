"""Calls as JSON documents, without their data: what it takes to make a call like it again in another process.

    {"ejcache": "autotune call", "schema": 1, "operation": …, "key": text, "digest": …,
     "how": {"kind": "autotuned", "object": "module:name"}, "args": […], "kwargs": {…}, …}

Arrays are shapes and data types. Functions, classes and enumerations are names that are imported again, and what has
no such name cannot be recorded. Replaying a document imports the modules that it names: replay only what you trust.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any, Final

from ejcache.autotune.describe import array_text
from ejcache.autotune.measure_inputs import is_scalar
from ejcache.autotune.plain import MAIN_MODULES, dtype_name
from ejcache.errors import EntryCorruptError, EntryVersionError, UsageError

__all__ = ["UnrecordableError", "decode_call", "encode_call", "encode_value", "import_path", "imported"]

KIND: Final = "autotune call"
SCHEMA: Final = 1
_MAIN: Final = "__ejcache_main__"


class UnrecordableError(UsageError):
    """Something in a call has no form that another process could make it from again."""


def encode_call(call: dict[str, Any]) -> bytes:
    """The document of a call."""
    body = {"ejcache": KIND, "schema": SCHEMA, **call}
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def decode_call(data: bytes) -> dict[str, Any]:
    """The call in a document.

    Raises:
        EntryCorruptError: it is no such document.
        EntryVersionError: it is one of a later schema.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise EntryCorruptError(f"the recorded call is no JSON: {exc}") from exc
    if not isinstance(body, dict) or body.get("ejcache") != KIND:
        raise EntryCorruptError("the document is no recorded call")
    if body.get("schema") != SCHEMA:
        raise EntryVersionError(f"the recorded call is of schema {body.get('schema')!r}, and this reads {SCHEMA}")
    for name, kind in (("operation", str), ("how", dict), ("args", list), ("kwargs", dict)):
        if not isinstance(body.get(name), kind):
            raise EntryCorruptError(f"the recorded call has no {name}")
    return body


def encode_value(value: Any, *, name: str = "an argument") -> Any:
    """`value` as JSON that `measure_calls.decode_value` reads.

    Raises:
        UnrecordableError: it has no such form; the message says what has none.
    """
    if isinstance(value, enum.Enum):
        return {"enum": import_path(type(value), name=name), "name": value.name}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if array_text(value) is not None:
        return {"array": str(getattr(value.dtype, "name", None) or value.dtype), "shape": list(value.shape)}
    if is_scalar(value) and isinstance(value.item(), bool | int | float):
        return {"scalar": str(value.dtype), "value": encode_value(value.item(), name=name)}
    if (text := dtype_name(value)) is not None:
        return {"dtype": text, "class": callable(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: encode_value(getattr(value, f.name), name=f"{name}.{f.name}") for f in _init_fields(value)}
        return {"object": import_path(type(value), name=name), "fields": fields}
    if hasattr(value, "_asdict"):
        fields = {key: encode_value(item, name=f"{name}.{key}") for key, item in value._asdict().items()}
        return {"object": import_path(type(value), name=name), "fields": fields}
    if isinstance(value, tuple):
        return {"tuple": [encode_value(item, name=f"{name}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, list):
        return {"list": [encode_value(item, name=f"{name}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise UnrecordableError(f"{name} has names that are not text")
        return {"dict": {key: encode_value(item, name=f"{name}.{key}") for key, item in value.items()}}
    if callable(value):
        return {"import": import_path(value, name=name)}
    raise UnrecordableError(f"{name}, of type {type(value).__qualname__}, cannot be recorded")


def _init_fields(value: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(value) if field.init]


def import_path(value: Any, *, name: str = "an argument") -> str:
    """`module:qualified.name` under which `value` can be imported again; `file.py:name` if that is the program itself.

    Raises:
        UnrecordableError: it cannot, as a local function cannot.
    """
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not qualname or "<" in qualname:
        raise UnrecordableError(f"{name} is {value!r}, which cannot be imported by name")
    held: Any = sys.modules.get(module)
    for part in qualname.split("."):
        held = getattr(held, part, None)
    if held is not value:
        raise UnrecordableError(f"{name} is {module}.{qualname}, which is another object there")
    if module in MAIN_MODULES:
        file = getattr(sys.modules[module], "__file__", None)
        if file is None:
            raise UnrecordableError(f"{name} is defined in an interactive session")
        module = str(Path(file).resolve())
    return f"{module}:{qualname}"


def imported(path: str) -> Any:
    """The object at `module:qualified.name` or `file.py:name`.

    Raises:
        UsageError: there is none.
    """
    where, _, qualname = path.rpartition(":")
    try:
        held: Any = _module_of_file(where) if where.endswith(".py") else importlib.import_module(where)
        for part in qualname.split("."):
            held = getattr(held, part)
    except (ImportError, AttributeError, OSError, SyntaxError) as exc:
        raise UsageError(f"{path} cannot be imported: {exc}") from exc
    return held


def _module_of_file(path: str) -> Any:
    """A program's file as a module, as `multiprocessing` does: its `if __name__ == "__main__"` part does not run."""
    main = sys.modules.get("__main__")
    if getattr(main, "__file__", None) and Path(main.__file__).resolve() == Path(path):  # type: ignore[union-attr, arg-type]
        return main
    held = sys.modules.get(_MAIN)
    if held is not None and held.__file__ == path:
        return held
    spec = importlib.util.spec_from_file_location(_MAIN, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MAIN] = module
    spec.loader.exec_module(module)
    return module
