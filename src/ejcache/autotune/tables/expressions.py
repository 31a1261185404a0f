"""Expressions of a template: how a record becomes an entry of another library's table.

The grammar is a small part of Python's. An expression sees the fields of one record and the functions below, and
nothing else: records may come from a store that others can write to.
"""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import MALFORMED, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ejcache.autotune.records.record import Record

__all__ = ["Constructed", "Expression", "fields_of_record"]

_ARRAY: Final = re.compile(r"(\w+)\[([0-9,]*)\]")
_LONGEST: Final = 10_000


@dataclass(frozen=True)
class Constructed:
    """A call of a class that the table's module has, such as `TuningKey(head_dim=128)`; its text is that call."""

    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def __repr__(self) -> str:
        parts = [repr(item) for item in self.args] + [f"{name}={value!r}" for name, value in self.kwargs]
        return f"{self.name}({', '.join(parts)})"


@dataclass(frozen=True)
class _Array:
    """An array argument of a call."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)


class _Fields:
    """Named values, as attributes and as items."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)

    def get(self, name: Any) -> Any:
        if name not in self.values:
            raise UsageError(f"there is no {name!r} among {', '.join(map(str, self.values)) or 'no names'}")
        return self.values[name]


def fields_of_record(record: Record) -> dict[str, Any]:
    """The names that an expression can use for `record`.

    These are `operation`, `version`, `device` and `environment` of the key, `config`, the `seconds` of one execution or
    None, `arguments`, and each argument by its own name. An array has `dtype`, `shape` and `ndim`.

    Raises:
        UsageError: the record's call is not in the form that this version writes.
    """
    try:
        return _fields_of(record)
    except MALFORMED as exc:
        raise UsageError(f"its call is malformed: {str(exc)[:200]}") from exc


def _fields_of(record: Record) -> dict[str, Any]:
    candidate = record.candidate(record.configuration)
    arguments = {name: _value(item) for name, item in dict(record.key.call.get("arguments", {})).items()}
    own: dict[str, Any] = {
        "operation": record.key.operation,
        "version": record.key.version,
        "device": record.key.device,
        "environment": _Fields(record.key.environment),
        "config": _value(record.configuration),
        "seconds": None if candidate is None or candidate.seconds is None else candidate.seconds.p50,
        "arguments": _Fields(arguments),
        "key": _value(record.key.call.get("key")),
    }
    return {**arguments, **own}


def _value(value: Any) -> Any:
    """A value of a call as its description has it, with data types and scalars as what they stand for."""
    if isinstance(value, str) and (match := _ARRAY.fullmatch(value)):
        return _Array(match[1], tuple(int(size) for size in match[2].split(",") if size))
    if isinstance(value, dict):
        if set(value) == {"dtype"}:
            return value["dtype"]
        if set(value) == {"scalar", "value"}:
            return _number(value["value"])
        return _Fields({name: _value(item) for name, item in value.items()})
    return tuple(_value(item) for item in value) if isinstance(value, list) else value


def _number(text: Any) -> Any:
    try:
        return ast.literal_eval(str(text))
    except (SyntaxError, ValueError):
        return text


def _tpu_name(kind: str) -> str:
    """The name of a TPU in tables: `TPU v6 lite` is `TPU v6e` and `TPU7x` is `TPU v7`.

    As `get_device_name` of tpu_inference/utils.py and of sgl_jax/srt/utils/jax_utils.py make it.
    """
    if kind.endswith(" lite"):
        kind = f"{kind.removesuffix(' lite')}e"
    return re.sub(r"^TPU(\d)x?$", r"TPU v\1", kind)


def _tpu_version(kind: str) -> int:
    """The number of a TPU's generation, -1 for another device."""
    match = re.search(r"\d+", kind) if "TPU" in kind else None
    return -1 if match is None else int(match[0])


def _next_power_of_2(number: int) -> int:
    return 1 if number <= 1 else 1 << (number - 1).bit_length()


def _cdiv(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _short(array: Any) -> str:
    """An array as tokamax writes it: `bf16[8,128]`."""
    if not isinstance(array, _Array):
        raise UsageError(f"short() takes an array, not {array!r}")
    dtype = re.sub(r"^(bfloat|float|uint|int|complex)(?=\d)", lambda match: _SHORT[match[1]], array.dtype)
    return f"{dtype}[{','.join(map(str, array.shape))}]"


_SHORT: Final = {"bfloat": "bf", "float": "f", "uint": "u", "int": "i", "complex": "c"}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "abs": abs,
    "align_to": lambda number, multiple: _cdiv(number, multiple) * multiple,
    "cdiv": _cdiv,
    "float": float,
    "int": int,
    "len": len,
    "max": max,
    "min": min,
    "next_power_of_2": _next_power_of_2,
    "short": _short,
    "str": str,
    "tpu_name": _tpu_name,
    "tpu_version": _tpu_version,
}
_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, held: item in held,
    ast.NotIn: lambda item, held: item not in held,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


class Expression:
    """One expression of a template.

    Args:
        text: the expression, such as `(q.dtype, next_power_of_2(q.shape[0]))`.

    Raises:
        UsageError: it is not an expression, or uses what the grammar does not have.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._tree = ast.parse(text.strip()[:_LONGEST], mode="eval").body
        except (SyntaxError, ValueError, RecursionError) as exc:
            raise UsageError(f"{text!r} is not an expression: {exc}") from exc

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def value(self, fields: Mapping[str, Any]) -> Any:
        """The value for one record; raises `UsageError` if it has none."""
        try:
            return _Evaluation(fields).of(self._tree)
        except UsageError as exc:
            raise UsageError(f"{self.text}: {exc}") from exc
        except Exception as exc:
            # The arithmetic of another record's values can fail in any way, such as None + 1.
            raise UsageError(f"{self.text}: {type(exc).__name__}: {exc}") from exc


class _Evaluation:
    """The evaluation of an expression for one record, by kinds of nodes."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = _Fields(fields)

    def of(self, node: ast.AST) -> Any:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise UsageError(f"a template has no {type(node).__name__}")
        return method(node)

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        return self.fields.get(node.id)

    def _tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.of(item) for item in node.elts)

    def _list(self, node: ast.List) -> Any:
        return [self.of(item) for item in node.elts]

    def _dict(self, node: ast.Dict) -> Any:
        return {self.of(name): self.of(item) for name, item in zip(node.keys, node.values, strict=True) if name}

    def _attribute(self, node: ast.Attribute) -> Any:
        held = self.of(node.value)
        if isinstance(held, _Fields):
            return held.get(node.attr)
        if isinstance(held, _Array) and node.attr in {"dtype", "shape", "ndim"}:
            return getattr(held, node.attr)
        raise UsageError(f"{held!r} has no {node.attr}")

    def _subscript(self, node: ast.Subscript) -> Any:
        held, index = self.of(node.value), self.of(node.slice)
        return held.get(index) if isinstance(held, _Fields) else held[index]

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        return self._operator(node.op)(self.of(node.operand))

    def _binop(self, node: ast.BinOp) -> Any:
        return self._operator(node.op)(self.of(node.left), self.of(node.right))

    def _compare(self, node: ast.Compare) -> Any:
        left = self.of(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.of(right_node)
            if not self._operator(op)(left, right):
                return False
            left = right
        return True

    def _boolop(self, node: ast.BoolOp) -> Any:
        wanted = isinstance(node.op, ast.Or)
        value: Any = None
        for item in node.values:
            value = self.of(item)
            if bool(value) is wanted:
                break
        return value

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.of(node.body if self.of(node.test) else node.orelse)

    def _joinedstr(self, node: ast.JoinedStr) -> Any:
        return "".join(str(self.of(item)) for item in node.values)

    def _formattedvalue(self, node: ast.FormattedValue) -> Any:
        if node.format_spec is not None or node.conversion != -1:
            raise UsageError("a template has no format specifications")
        return self.of(node.value)

    def _call(self, node: ast.Call) -> Any:
        if not isinstance(node.func, ast.Name):
            raise UsageError("only functions that have a name can be called")
        name = node.func.id
        args = tuple(self.of(item) for item in node.args)
        kwargs = tuple((item.arg or "**", self.of(item.value)) for item in node.keywords)
        if name in _FUNCTIONS and not kwargs:
            return _FUNCTIONS[name](*args)
        if name[:1].isupper() and "**" not in dict(kwargs):
            return Constructed(name, args, kwargs)
        raise UsageError(f"there is no function {name}")

    @staticmethod
    def _operator(node: ast.AST) -> Callable[..., Any]:
        found = _OPERATORS.get(type(node))
        if found is None:
            raise UsageError(f"a template has no {type(node).__name__}")
        return found
