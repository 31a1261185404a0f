"""Describes the values of a call, the same in every process, for the key of its record.

Values with different meanings have different descriptions. A data type is described by its name, and a function by its
code and the values that it closes over, never by its file, line or address. A call with a value that has no description
is unhashable: it is neither looked up nor stored, because two such calls would share one configuration.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import itertools
import math
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.records.json_values import canonical_json
from ejcache.autotune.value_kinds import ValueKind, is_array, is_scalar, module_name, one_level, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable

MAPPED: Final = "vmap"
"""The part of a call's key with the result of `mapped_arguments`. Calls without it are not under `jax.vmap`."""

_CODE_DIGITS: Final = 20

NAMED: Final = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, enum.Enum)
"""Values that are described by their name or their code, and are the same object in each call."""

DEEPEST: Final = 30
_VALUES: Final = 20_000
"""At most so many values of one call are described. A graph can have exponentially many paths."""


def array_text(value: Any) -> str | None:
    """Return `float32[8,128]` for an array of JAX or numpy or a stand-in for one; None for any other value.

    A value that merely has a shape and a dtype, such as a quantised weight, has more parts than these two.
    """
    if not is_array(value):
        return None
    return f"{getattr(value.dtype, 'name', None) or value.dtype}[{','.join(str(size) for size in value.shape)}]"


def code_digest(function: Any) -> str:
    """Return 20 hexadecimal digits of a function's code and the values that it closes over; empty if these have none.

    The functions of its module that it names, such as the body of a Pallas kernel, count with it. Each minor version of
    Python compiles a function to other code.
    """
    describer = _CodeDescriber(function)
    text = canonical_json(describer.describe(function))
    return "" if describer.unhashable else hashlib.sha256(text.encode()).hexdigest()[:_CODE_DIGITS]


class Describer:
    """Describes the values of one call, and lists those that it could not describe.

    Attributes:
        unhashable: a line for each value that has no description.
        ambiguous: a line for each value that ejkernel's call keys do not tell apart from others.
    """

    def __init__(self) -> None:
        self.unhashable: list[str] = []
        self.ambiguous: list[str] = []
        self._open: list[int] = []
        self._left = _VALUES

    def describe(self, value: Any, *, name: str = "a value", depth: int = 0) -> Any:
        """Return the description of `value`, a JSON value.

        Args:
            value: anything.
            name: its name in `unhashable` and `ambiguous`.
            depth: in how many other values it is nested.
        """
        self._left -= 1
        if self._left < 0:
            return self._too_many(name)
        if depth > DEEPEST:
            return self._undescribable(value, name)
        if id(value) in self._open:
            # The distance to the enclosing value is the same in each process; an address is not.
            return {"cycle": len(self._open) - self._open.index(id(value))}
        self._open.append(id(value))
        try:
            return self._described(value, name, depth)
        finally:
            self._open.pop()

    def _described(self, value: Any, name: str, depth: int) -> Any:
        kind, parts = parts_of(value)
        match kind:
            case ValueKind.PLAIN:
                return parts
            case ValueKind.FLOAT:
                return parts if math.isfinite(parts) else {"float": str(parts)}
            case ValueKind.ENUM:
                return f"{type(value).__qualname__}.{value.name}"
            case ValueKind.DTYPE:
                if callable(value):
                    self.ambiguous.append(f"{name} is the data type {parts}")
                return {"dtype": parts}
            case ValueKind.LIST:
                return [self.describe(item, name=f"{name}[{i}]", depth=depth + 1) for i, item in enumerate(parts)]
            case ValueKind.SET:
                return sorted((self.describe(item, name=name, depth=depth + 1) for item in parts), key=canonical_json)
            case ValueKind.MAPPING | ValueKind.NAMESPACE | ValueKind.NAMED_TUPLE:
                return self._fields(parts, name, depth)
            case ValueKind.OBJECT | ValueKind.MODEL:
                return {"is": type(value).__qualname__} | self._fields(parts, name, depth)
        return self._other(value, name, depth)

    def _other(self, value: Any, name: str, depth: int) -> Any:
        if isinstance(value, complex):
            return {"complex": str(value)}
        if is_reference(value):
            self.unhashable.append(f"{name} is a jax.Ref, which a measurement would change")
            return {"opaque": "jax.Ref"}
        if (text := array_text(value)) is not None:
            return text
        if is_scalar(value):
            return {"scalar": str(value.dtype), "value": str(value)}
        if hasattr(value, "axis_names") and hasattr(value, "shape"):
            return self._mesh(value)
        if type(value).__name__ in {"PartitionSpec", "NamedSharding", "SingleDeviceSharding", "AxisType"}:
            return str(value)
        if not isinstance(value, functools.partial) and (parts := one_level(value)) is not None:
            held = {"leaves": parts[0], "static": parts[1]}
            return {"is": type(value).__qualname__} | self._fields(held, name, depth)
        if isinstance(value, type):
            return {"class": f"{module_name(value)}.{value.__qualname__}"}
        if callable(value):
            self.ambiguous.append(f"{name} is the function {getattr(value, '__qualname__', type(value).__qualname__)}")
            return self._callable(value, name, depth)
        if hasattr(value, "__dict__") and not any("__repr__" in kind.__dict__ for kind in type(value).__mro__[:-1]):
            return {"is": type(value).__qualname__} | self._fields(vars(value), name, depth)
        text = repr(value)
        if " at 0x" in text:
            return self._undescribable(value, name)
        return {"is": type(value).__qualname__, "text": text}

    def _undescribable(self, value: Any, name: str) -> Any:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        self.unhashable.append(f"{name} is of type {kind}, which has no description")
        self.ambiguous.append(f"{name} is of type {kind}")
        return {"opaque": kind}

    def _too_many(self, name: str) -> Any:
        if self._left == -1:
            self.unhashable.append(f"{name} is beyond the {_VALUES} values of a call that are described")
            self.ambiguous.append(f"{name} is one value too many")
        return {"opaque": "one value too many"}

    def _fields(self, fields: Mapping[Any, Any], name: str, depth: int) -> dict[str, Any]:
        if not all(isinstance(key, str) for key in fields):
            pairs = [self.describe(list(pair), name=f"{name}.{pair[0]}", depth=depth + 1) for pair in fields.items()]
            return {"items": sorted(pairs, key=canonical_json)}
        return {key: self.describe(item, name=f"{name}.{key}", depth=depth + 1) for key, item in fields.items()}

    def _mesh(self, mesh: Any) -> Any:
        shape = mesh.shape
        sizes = shape.items() if isinstance(shape, Mapping) else zip(mesh.axis_names, shape, strict=False)
        return {"mesh": {str(axis): int(size) for axis, size in sizes}}

    def _callable(self, value: Any, name: str, depth: int) -> Any:
        if isinstance(value, functools.partial):
            return {
                "partial": self.describe(value.func, name=name, depth=depth + 1),
                "arguments": self.describe([*value.args, dict(value.keywords)], name=name, depth=depth + 1),
            }
        if isinstance(value, types.MethodType):
            owner = self.describe(value.__self__, name=name, depth=depth + 1)
            return {"method": self._callable(value.__func__, name, depth + 1), "of": owner}
        if isinstance(value, types.FunctionType):
            return {"function": value.__qualname__, "code": self._code(value, name, depth)}
        if isinstance(value, types.BuiltinFunctionType):
            return {"function": f"{module_name(value)}.{value.__qualname__}"}
        # A function that jit or custom_jvp wraps decides which configuration is best; the wrapper does not.
        for attribute in ("__wrapped__", "fun", "func"):
            inner = getattr(value, attribute, None)
            if callable(inner) and inner is not value:
                return {"is": type(value).__qualname__, "of": self.describe(inner, name=name, depth=depth + 1)}
        state = getattr(value, "__dict__", None)
        if state is not None and (state or type(value).__call__ is not None):
            described = self._fields(state, name, depth)
            call = type(value).__dict__.get("__call__")
            code = self._code(call, name, depth) if isinstance(call, types.FunctionType) else ""
            if code or described:
                return {"is": f"{module_name(type(value))}.{type(value).__qualname__}", "code": code} | described
        return self._undescribable(value, name)

    def _code(self, function: types.FunctionType, name: str, depth: int) -> str:
        closed: dict[str, Any] = {}
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                held = cell.cell_contents
            except ValueError:
                held = None
            if held is function:
                continue
            closed[variable] = self.describe(held, name=f"{name}'s {variable}", depth=depth + 1)
        for variable in self._names(function.__code__):
            held = function.__globals__.get(variable)
            if isinstance(held, bool | int | float | str) or self._is_followed(held):
                closed[f"global {variable}"] = self.describe(held, name=variable, depth=depth + 1)
        defaults = self.describe(
            [list(function.__defaults__ or ()), function.__kwdefaults__ or {}],
            name=f"{name}'s defaults",
            depth=depth + 1,
        )
        text = canonical_json([_code_text(function.__code__), closed, defaults])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _names(self, code: types.CodeType) -> Iterable[str]:
        """Return the names whose globals may be a part of the code."""
        return code.co_names

    def _is_followed(self, held: Any) -> bool:  # noqa: ARG002
        """True if a global that the code names is a part of it, beside numbers and texts."""
        return False


class _CodeDescriber(Describer):
    """Describes a function with the functions of its module that it, or one of these, names; each of them once."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._module = getattr(inspect.unwrap(function), "__module__", None)
        self._followed: set[int] = set()

    def _names(self, code: types.CodeType) -> Iterable[str]:
        inner = (self._names(each) for each in code.co_consts if isinstance(each, types.CodeType))
        return sorted({*code.co_names, *itertools.chain.from_iterable(inner)})

    def _is_followed(self, held: Any) -> bool:
        function = inspect.unwrap(held) if callable(held) else None
        if not isinstance(function, types.FunctionType) or function.__module__ != self._module:
            return False
        is_new = id(function) not in self._followed
        self._followed.add(id(function))
        return is_new


def is_reference(value: Any) -> bool:
    import jax

    return isinstance(value, getattr(jax, "Ref", ()))  # JAX before 0.8 has none in public


def _code_text(code: types.CodeType) -> str:
    """Return the code without its file and line numbers."""
    constants = [_constant_text(item) for item in code.co_consts]
    return repr((code.co_name, code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars))


def _constant_text(value: Any) -> str:
    """Return `repr`, but with sorted sets: the order of a set depends on the hash seed, which differs between
    processes.
    """
    if isinstance(value, types.CodeType):
        return _code_text(value)
    if isinstance(value, frozenset):
        return f"frozenset({{{', '.join(sorted(_constant_text(item) for item in value))}}})"
    if isinstance(value, tuple):
        return f"({', '.join(_constant_text(item) for item in value)}{',' if len(value) == 1 else ''})"
    return repr(value)
