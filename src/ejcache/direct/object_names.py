"""Objects by the names under which imported modules have them.

Nothing is imported, and no code runs, to find an object: only the namespaces of imported modules and their classes are
looked at. A name counts only if it is the one that the object itself has.
"""

from __future__ import annotations

import sys
from typing import Any, Final

__all__ = ["MISSING", "name_of", "named", "type_name"]

MISSING: Final = object()
"""There is no object of this name."""


def name_of(value: Any) -> str | None:
    """`module:qualified.name` of a class, a function or another named object that is found there; None if it is not."""
    try:
        module = value.__module__
        qualified = getattr(value, "__qualname__", None) or value.__name__  # the latter for ufuncs
    except Exception:
        return None  # anything can happen in an attribute of a user's class
    if type(module) is not str or type(qualified) is not str:
        return None
    name = f"{module}:{qualified}"
    return name if _found(name) is value else None


def named(name: str) -> Any:
    """The object of a name that `name_of` gave, or `MISSING`."""
    found = _found(name)
    return found if found is not MISSING and name_of(found) == name else MISSING


def type_name(value: object) -> str:
    """The name of a value's class, for messages: `flax.nnx.graph:GraphDef`."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _found(name: str) -> Any:
    module, _, qualified = name.partition(":")
    if module not in sys.modules:
        return MISSING
    found: Any = sys.modules[module]
    for part in qualified.split("."):
        # `vars` of what is neither a module nor a class could run code.
        if found is not sys.modules[module] and not isinstance(found, type):
            return MISSING
        found = found.__dict__.get(part, MISSING)
        if isinstance(found, staticmethod):
            found = found.__func__
    return found
