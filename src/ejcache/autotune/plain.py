"""Configurations as JSON values and back: what a record, a per-op file and a person can hold."""

from __future__ import annotations

import dataclasses
import enum
import math
import types
import typing
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ejcache.errors import UsageError

__all__ = ["MAIN_MODULES", "ConfigurationError", "canonical_json", "dtype_name", "module_name", "restored", "to_plain"]

_DTYPE_MODULES: Final = frozenset({"numpy", "ml_dtypes", "jax.numpy", "jax._src.numpy.scalar_types"})


MAIN_MODULES: Final = frozenset({"__main__", "__mp_main__", "__ejcache_main__"})
"""What the program's own file is called: where it runs, in `multiprocessing`'s processes, where it is replayed."""


class ConfigurationError(UsageError):
    """A configuration cannot be written as JSON, or a stored one does not fit the type that is asked for."""


def canonical_json(value: Any) -> str:
    """The one JSON text of a plain value: sorted keys, no spaces, nothing that is not JSON."""
    import json

    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def module_name(value: Any) -> str:
    """The module of a class or function, the same in every process that has it."""
    return "__main__" if value.__module__ in MAIN_MODULES else str(value.__module__)


def dtype_name(value: Any) -> str | None:
    """`float32` for numpy's dtype, numpy's and JAX's scalar classes of it; None for anything else.

    `jnp.float32` and `jnp.bfloat16` are instances of one class, which is all that some keys keep of them.
    """
    dtype = getattr(value, "dtype", None) if isinstance(value, type) or callable(value) else value
    if type(dtype).__module__.startswith("numpy") and hasattr(dtype, "itemsize") and not hasattr(dtype, "ndim"):
        return str(dtype)
    if type(value).__name__ == "_ScalarMeta" and dtype is not None:
        return str(dtype)
    if isinstance(value, type) and value.__module__ in _DTYPE_MODULES:
        return value.__name__
    if _is_numpy_dtype(value):
        return str(value.name)
    return None


def _is_numpy_dtype(value: Any) -> bool:
    return any(cls.__name__ == "dtype" and cls.__module__ == "numpy" for cls in type(value).__mro__)


def to_plain(value: Any) -> Any:
    """`value` as JSON has it: dataclasses, named tuples, models and namespaces as objects, enumerations by value.

    Raises:
        ConfigurationError: something in it has no such form; the message names it.
    """
    if value is None or (isinstance(value, bool | str) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigurationError(f"{value} cannot be written as JSON")
        return float(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return to_plain(value._asdict())
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return to_plain(value.model_dump())
    if isinstance(value, Namespace | types.SimpleNamespace):
        return to_plain(vars(value))
    if isinstance(value, Mapping):
        return {_text(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((to_plain(item) for item in value), key=canonical_json)
    if (name := dtype_name(value)) is not None:
        return name
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return to_plain(value.item())
    raise ConfigurationError(f"{value!r}, of type {type(value).__qualname__}, cannot be written as JSON")


def _text(key: Any) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if not isinstance(key, str):
        raise ConfigurationError(f"the name {key!r} in a configuration is not text")
    return key


def restored(plain: Any, *, like: Any = None, cfg_type: Any = None) -> Any:
    """A stored value as the configuration that it was.

    Args:
        plain: what `to_plain` made of it, read back.
        like: a configuration of the same kind; lists become tuples, and objects become dataclasses, where it has them.
        cfg_type: the type, where there is no such configuration.

    Raises:
        ConfigurationError: it has fields that the type does not have, or the type refuses it.
    """
    try:
        if like is not None:
            return _like(plain, like)
        return plain if cfg_type is None else _typed(plain, cfg_type)
    except ConfigurationError:
        raise
    except Exception as exc:
        raise ConfigurationError(f"the stored configuration {plain!r} cannot be used: {exc}") from exc


def _like(plain: Any, like: Any) -> Any:
    if dataclasses.is_dataclass(like) and not isinstance(like, type):
        _check_fields(plain, {field.name for field in dataclasses.fields(like)}, type(like))
        return type(like)(**{name: _like(item, getattr(like, name)) for name, item in plain.items()})
    if hasattr(like, "_asdict"):
        _check_fields(plain, set(like._fields), type(like))
        return type(like)(**{name: _like(item, getattr(like, name)) for name, item in plain.items()})
    if hasattr(like, "model_validate") and not isinstance(like, type):
        return type(like).model_validate(plain)
    if isinstance(like, enum.Enum):
        return type(like)(plain)
    if isinstance(like, Namespace):
        return Namespace(**plain)
    if isinstance(like, Mapping) and isinstance(plain, dict):
        return {name: _like(item, like.get(name)) for name, item in plain.items()}
    if isinstance(like, tuple) and isinstance(plain, list):
        return tuple(_like(item, like[i] if i < len(like) else None) for i, item in enumerate(plain))
    return plain


def _typed(plain: Any, cfg_type: Any) -> Any:
    origin, arguments = typing.get_origin(cfg_type), typing.get_args(cfg_type)
    if origin in {typing.Union, types.UnionType}:
        return None if plain is None else _typed_by_one(plain, [a for a in arguments if a is not type(None)])
    if origin is tuple and isinstance(plain, list):
        inner = [arguments[0]] * len(plain) if arguments[-1:] == (Ellipsis,) else list(arguments)
        return tuple(_typed(item, kind) for item, kind in zip(plain, inner, strict=True))
    if origin in {list, Sequence} and isinstance(plain, list):
        return [_typed(item, arguments[0]) for item in plain]
    if cfg_type is tuple and isinstance(plain, list):
        return tuple(plain)
    if not isinstance(cfg_type, type):
        return plain
    if dataclasses.is_dataclass(cfg_type):
        if plain is None:
            return None
        _check_fields(plain, {field.name for field in dataclasses.fields(cfg_type) if field.init}, cfg_type)
        hints = _hints(cfg_type)
        return cfg_type(**{name: _typed(item, hints.get(name, Any)) for name, item in plain.items()})
    if issubclass(cfg_type, enum.Enum):
        return cfg_type(plain)
    if hasattr(cfg_type, "model_validate"):
        return cfg_type.model_validate(plain)
    if isinstance(plain, dict) and cfg_type not in {dict, object}:
        return cfg_type(**plain)
    return plain


def _typed_by_one(plain: Any, kinds: list[Any]) -> Any:
    if len(kinds) == 1:
        return _typed(plain, kinds[0])
    for kind in kinds:
        if dataclasses.is_dataclass(kind) and isinstance(plain, dict):
            try:
                return _typed(plain, kind)
            except ConfigurationError:
                continue
    return plain


def _hints(cfg_type: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cfg_type)
    except Exception:
        # Names that exist only for a type checker: then nested values stay as JSON has them.
        return {}


def _check_fields(plain: Any, known: set[str], kind: type) -> None:
    if not isinstance(plain, dict):
        raise ConfigurationError(f"the stored configuration {plain!r} is no {kind.__qualname__}")
    if unknown := sorted(set(plain) - known):
        raise ConfigurationError(f"{kind.__qualname__} has no {', '.join(unknown)}, which the stored configuration has")
