"""What the project's code must not read, because it leads to what no description covers.

These are recognised as values, under whatever name a program keeps them.
"""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
import inspect
import os
import sys
from typing import Final

__all__ = ["forbidden_attribute", "forbidden_value"]

_ATTRIBUTES: Final = frozenset(
    {
        *("__globals__", "__builtins__", "__subclasses__", "co_filename", "co_firstlineno", "co_lines", "co_positions"),
        *("cr_frame", "f_back", "f_builtins", "f_globals", "f_lineno", "f_locals", "gi_frame", "tb_frame", "tb_lineno"),
    }
)
_VALUES: Final = (
    (builtins, "", ("__import__", "eval", "exec", "globals", "id", "input")),
    (os, "os.", ("getpid", "getppid")),
    (sys, "sys.", ("_current_frames", "_getframe", "_getframemodulename", "exc_info", "exception", "modules")),
    (inspect, "inspect.", ("currentframe", "stack", "trace")),
    (importlib, "importlib.", ("import_module", "reload")),
    (gc, "gc.", ("get_objects", "get_referents", "get_referrers")),
)


def forbidden_attribute(name: str) -> bool:
    """Whether an attribute leads from a value to what no description covers."""
    return name in _ATTRIBUTES


@functools.cache
def _values() -> dict[int, tuple[str, object]]:
    found = [(prefix + name, vars(module).get(name)) for module, prefix, names in _VALUES for name in names]
    return {id(value): (name, value) for name, value in found if value is not None}


def forbidden_value(value: object, constant: object = None) -> str | None:
    """What a value is called if the project's code must not use it: "globals()".

    Args:
        value: what a name stands for.
        constant: what the code gives it. To import a module by a constant name is to import it.
    """
    found = _values().get(id(value))
    if found is None or (value is importlib.import_module and type(constant) is str):
        return None
    return found[0] if found[0] == "sys.modules" else f"{found[0]}()"
