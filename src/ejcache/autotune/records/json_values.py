"""Turns configurations into JSON values and back."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ejcache.autotune.log import warn_once
from ejcache.autotune.value_kinds import FIELD_KINDS, ValueKind, parts_of
from ejcache.errors import UsageError


class ConfigurationError(UsageError):
    """A configuration cannot be written as JSON, or a stored configuration does not have the expected type."""


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
"""Made once: a search writes thousands of texts."""


def canonical_json(value: Any) -> str:
    """Write the one JSON text of a JSON value: keys are sorted, without spaces; NaN and infinity are refused."""
    return _CANONICAL.encode(value)


def json_digest(value: Any) -> str:
    """Return the 64 hexadecimal digits of the one JSON text of a JSON value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def parse_json(data: bytes, *, max_size: int) -> Any:
    """Return the value of a JSON text, which other people may have written.

    Args:
        data: the text.
        max_size: bytes; a longer text is refused.

    Raises:
        ValueError: the text is too long, too deep, or not JSON. Python would read NaN, infinity and 1e999.
    """
    if len(data) > max_size:
        raise ValueError(f"it has more than {max_size} bytes")
    try:
        return json.loads(data, parse_constant=finite, parse_float=finite)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


def finite(value: Any) -> float:
    """Make `value` a finite number; raises `ValueError` or `TypeError` if it is none, `OverflowError` if too large."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a finite number")
    return number


def to_json(value: Any) -> Any:
    """Make `value` a JSON value: dataclasses, named tuples, models and namespaces as objects, enumerations by value.

    Raises:
        ConfigurationError: a part of it has no such form; the message names that part.
    """
    kind, parts = parts_of(value)
    if kind in FIELD_KINDS:
        return {_field_name(name): to_json(item) for name, item in parts.items()}
    match kind:
        case ValueKind.ENUM:
            return to_json(value.value)
        case ValueKind.LIST:
            return [to_json(item) for item in parts]
        case ValueKind.SET:
            return sorted((to_json(item) for item in parts), key=canonical_json)
        case ValueKind.OTHER if hasattr(value, "item") and getattr(value, "shape", None) == ():
            return to_json(value.item())
        case ValueKind.OTHER:
            raise ConfigurationError(f"{value!r}, of type {type(value).__qualname__}, cannot be written as JSON")
        case ValueKind.FLOAT if not math.isfinite(parts):
            raise ConfigurationError(f"{value} cannot be written as JSON")
    return parts


def json_or_repr(value: Any) -> Any:
    """Return `to_json(value)`, or the `repr` of a value that has no such form."""
    try:
        return to_json(value)
    except ConfigurationError:
        return repr(value)


def _field_name(key: Any) -> str:
    name = key.value if isinstance(key, enum.Enum) else key
    if not isinstance(name, str):
        raise ConfigurationError(f"the name {name!r} in a configuration is not text")
    return name


def from_json(stored: Any, *, like: Any = None, cfg_type: Any = object) -> Any:
    """Return the configuration that `to_json` wrote as `stored`.

    Args:
        stored: the JSON value.
        like: a configuration of the same kind. Where it has tuples and dataclasses, the result has them, too.
        cfg_type: the type, if there is no such configuration.

    Raises:
        ConfigurationError: `stored` has a field that the type does not have, or the type refuses a value.
    """
    try:
        return _restored(stored, cfg_type, like)
    except ConfigurationError:
        raise
    except Exception as exc:
        raise ConfigurationError(f"the stored configuration {stored!r} cannot be used: {exc}") from exc


def _restored(stored: Any, kind: Any, like: Any = None) -> Any:
    """Make `stored` a value like another one, or else one of this type; a field has the type of its annotation."""
    if like is not None:
        kind = type(like)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        return None if stored is None else _typed_by_one(stored, [a for a in arguments if a is not type(None)])
    if origin is tuple and isinstance(stored, list):
        inner = [arguments[0]] * len(stored) if arguments[-1:] == (Ellipsis,) else list(arguments)
        return tuple(_restored(item, kind) for item, kind in zip(stored, inner, strict=True))
    if origin in {list, Sequence} and isinstance(stored, list):
        return [_restored(item, arguments[0]) for item in stored]
    if kind is tuple and isinstance(stored, list):
        examples = [*(like or ()), *[None] * len(stored)]
        return tuple(_restored(item, object, example) for item, example in zip(stored, examples, strict=False))
    if isinstance(like, Mapping) and isinstance(stored, dict):
        return {name: _restored(item, object, like.get(name)) for name, item in stored.items()}
    if not isinstance(kind, type) or kind in {Any, object, dict}:
        return stored
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return None if stored is None and like is None else _with_fields(stored, kind, like)
    if issubclass(kind, enum.Enum):
        return kind(stored)
    if hasattr(kind, "model_validate"):
        return kind.model_validate(stored)
    return kind(**stored) if isinstance(stored, dict) else stored


def _with_fields(stored: Any, kind: Any, like: Any) -> Any:
    """Return a dataclass or a named tuple."""
    known = getattr(kind, "_fields", None) or [field.name for field in dataclasses.fields(kind) if field.init]
    if not isinstance(stored, dict):
        raise ConfigurationError(f"the stored configuration {stored!r} is not a {kind.__qualname__}")
    if unknown := sorted(set(stored) - set(known)):
        raise ConfigurationError(f"{kind.__qualname__} has no {', '.join(unknown)}, which the stored configuration has")
    try:
        hints = typing.get_type_hints(kind)
    except Exception as exc:
        # A hint may name a type that is imported for type checkers only.
        hints = {}
        if any(isinstance(item, dict) for item in stored.values()):
            said = "the types of the fields of %s are not known, so nested values of a configuration stay as JSON: %s"
            warn_once(f"hints {kind.__qualname__}", said, kind.__qualname__, exc)
    values = {
        name: _restored(item, hints.get(name, object), getattr(like, name, None)) for name, item in stored.items()
    }
    return kind(**values)


def _typed_by_one(stored: Any, kinds: list[Any]) -> Any:
    if len(kinds) == 1:
        return _restored(stored, kinds[0])
    for kind in kinds:
        if dataclasses.is_dataclass(kind) and isinstance(stored, dict):
            try:
                return _restored(stored, kind)
            except ConfigurationError:
                continue
    return stored
