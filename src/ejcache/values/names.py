"""Names classes, functions and other objects by their modules, and finds the object of a name again."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any, Final

import jax


def kind_name(value: object) -> str:
    """Return the type of a value, as messages show it: "an _io.TextIOWrapper"."""
    if isinstance(value, jax.Array):
        return "an array of JAX"
    text = class_name(type(value)).removeprefix("builtins:").removeprefix("__main__:").replace(":", ".")
    return f"{'an' if text.lstrip('_')[:1].lower() in tuple('aeiou') else 'a'} {text}"


def class_name(kind: type) -> str:
    """Return the module and qualified name of a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


MISSING: Final = object()
"""There is no object of this name."""


def named(name: str) -> Any:
    """Return the object of a name that `name_of` gave, or `MISSING`. Nothing is imported."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module, MISSING)
    if found is MISSING:
        return MISSING
    for part in qualified.split("."):
        if not isinstance(found, (type, types.ModuleType)):
            return MISSING
        found = vars(found).get(part, MISSING)
        if isinstance(found, staticmethod):
            found = found.__func__
    return found


def name_of(value: object) -> str | None:
    """Return `module:qualified.name` of a class or a function that is found there; None if it is not."""
    try:
        module, qualified = value.__module__, getattr(value, "__qualname__", None) or value.__name__  # type: ignore[attr-defined]
    except Exception:
        return None  # anything can happen in an attribute of a user's class
    if type(module) is not str or type(qualified) is not str:
        return None
    name = f"{module}:{qualified}"
    return name if named(name) is value else None


def global_name(value: object) -> str | None:
    """Return the name of an object among the globals of the module of its class; None if it is not there."""
    module = sys.modules.get(type(value).__module__)
    if module is None:
        return None
    name = _names_by_identity(module).get(id(value))
    # The global may have been set anew since the names were collected, and another object may have the number.
    return f"{module.__name__}:{name}" if name is not None and vars(module).get(name) is value else None


@functools.lru_cache(maxsize=256)
def _names_by_identity(module: types.ModuleType) -> dict[int, str]:
    return {id(value): name for name, value in vars(module).items()}
