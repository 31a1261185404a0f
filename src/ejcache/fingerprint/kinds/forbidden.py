"""What user code must not read, because it leads to what a walk cannot see, or never gives the same again.

These are recognised as values, under whatever name a program keeps them. What a trace does by other ways, such as
reading files, is found while it runs.
"""

from __future__ import annotations

import builtins
import datetime as dt
import functools
import gc
import importlib
import inspect
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType

__all__ = ["FORBIDDEN_ATTRIBUTES", "forbidden_member", "forbidden_value", "is_environment"]

FORBIDDEN_ATTRIBUTES: Final = frozenset(
    {
        "__globals__",
        "__builtins__",
        "__subclasses__",
        "co_filename",
        "co_firstlineno",
        "co_lines",
        "co_positions",
        "cr_frame",
        "f_back",
        "f_builtins",
        "f_globals",
        "f_lineno",
        "f_locals",
        "gi_frame",
        "tb_frame",
        "tb_lineno",
    }
)
"""Attributes that lead from a value to what no walk sees."""

_BUILTINS: Final = ("__import__", "eval", "exec", "globals", "id", "input", "open")
_TIME: Final = (
    *("asctime", "ctime", "get_clock_info", "gmtime", "localtime", "monotonic", "monotonic_ns", "perf_counter"),
    *("perf_counter_ns", "process_time", "process_time_ns", "strftime", "thread_time", "thread_time_ns", "time"),
    "time_ns",
)
_OS: Final = ("getpid", "getppid", "urandom")
_SYS: Final = ("_current_frames", "_getframe", "_getframemodulename", "exc_info", "exception", "modules")
_INSPECT: Final = ("currentframe", "stack", "trace")
_IMPORTLIB: Final = ("import_module", "reload")
_GC: Final = ("get_objects", "get_referents", "get_referrers")


def _by_identity(module: ModuleType, names: Collection[str]) -> dict[int, tuple[str, object]]:
    prefix = "" if module is builtins else f"{module.__name__}."
    found = ((name, vars(module).get(name)) for name in names)
    return {id(value): (prefix + name, value) for name, value in found if value is not None}


@functools.cache
def _always() -> dict[int, tuple[str, object]]:
    return {
        **_by_identity(os, _OS),
        **_by_identity(time, _TIME),
        **_by_identity(sys, _SYS),
        **_by_identity(inspect, _INSPECT),
        **_by_identity(importlib, _IMPORTLIB),
        **_by_identity(gc, _GC),
        **_by_identity(builtins, _BUILTINS),
    }


def forbidden_value(value: object) -> str | None:
    """What a value is called if user code must not read it: "time.time"."""
    found = _always().get(id(value))
    if found is not None:
        return found[0]
    owner = getattr(value, "__self__", None) if type(value) in _METHODS else None
    if owner is vars(random).get("_inst"):
        return f"random.{getattr(value, '__name__', '')}"
    return None


_METHODS: Final = (type(random.seed), type(len))

_MEMBERS: Final[tuple[tuple[type, frozenset[str]], ...]] = (
    (dt.datetime, frozenset({"now", "today", "utcnow"})),
    (dt.date, frozenset({"today"})),
    (Path, frozenset({"cwd", "home"})),
)


def forbidden_member(value: object, attribute: str) -> str | None:
    """What an attribute of a class is called if user code must not read it: "datetime.now"."""
    for kind, names in _MEMBERS:
        if value is kind and attribute in names:
            return f"{kind.__name__}.{attribute}"
    return None


def is_environment(value: object) -> bool:
    """Whether a value is the environment of this process: the names that a trace reads there are recorded elsewhere."""
    return value is vars(os)["environ"] or value is vars(os).get("environb")
