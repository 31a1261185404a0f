"""What user code must not read, because its result is not part of what a walk can see: clocks, files, frames, tables of
the interpreter.

Most of these are recognised as values, under whatever name a program keeps them.
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
_OS: Final = (
    *("access", "cpu_count", "fstat", "getcwd", "getcwdb", "getloadavg", "getlogin", "getpgid", "getpgrp", "getpid"),
    *("getppid", "getrandom", "getuid", "listdir", "lstat", "open", "popen", "process_cpu_count", "read", "readlink"),
    *("scandir", "sched_getaffinity", "stat", "statvfs", "system", "times", "uname", "urandom", "walk"),
)
_OS_PATH: Final = (
    *("abspath", "exists", "expanduser", "getatime", "getctime", "getmtime", "getsize", "isdir", "isfile", "islink"),
    *("ismount", "lexists", "realpath", "samefile"),
)
_SYS: Final = (
    *("_current_frames", "_getframe", "_getframemodulename", "exc_info", "exception", "getrefcount", "getsizeof"),
    *("gettrace", "getprofile", "modules", "meta_path", "path_hooks", "path_importer_cache"),
)
_INSPECT: Final = (
    *("currentframe", "getfile", "getframeinfo", "getinnerframes", "getouterframes", "getsource", "getsourcefile"),
    *("getsourcelines", "stack", "trace"),
)
_IMPORTLIB: Final = ("import_module", "reload", "invalidate_caches")
_GC: Final = ("get_objects", "get_referents", "get_referrers", "get_stats", "get_count")
_LATER: Final = {
    "uuid": ("getnode", "uuid1", "uuid4"),
    "secrets": ("choice", "randbelow", "randbits", "token_bytes", "token_hex", "token_urlsafe"),
    "socket": ("create_connection", "getaddrinfo", "getfqdn", "gethostbyname", "gethostname", "socket"),
    "subprocess": ("Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "run"),
    "tempfile": ("NamedTemporaryFile", "TemporaryDirectory", "TemporaryFile", "gettempdir", "mkdtemp", "mkstemp"),
    "platform": ("node", "uname", "processor", "release", "version", "platform"),
    "traceback": ("extract_stack", "format_exc", "format_stack", "print_exc", "print_stack"),
}
"""Of modules that are looked at only once something has imported them."""


def _by_identity(module: ModuleType, names: Collection[str]) -> dict[int, tuple[str, object]]:
    prefix = "" if module is builtins else f"{module.__name__.replace('posixpath', 'os.path')}."
    found = ((name, vars(module).get(name)) for name in names)
    return {id(value): (prefix + name, value) for name, value in found if value is not None}


@functools.cache
def _always() -> dict[int, tuple[str, object]]:
    return {
        **_by_identity(os.path, _OS_PATH),
        **_by_identity(os, _OS),
        **_by_identity(time, _TIME),
        **_by_identity(sys, _SYS),
        **_by_identity(inspect, _INSPECT),
        **_by_identity(importlib, _IMPORTLIB),
        **_by_identity(gc, _GC),
        **_by_identity(builtins, _BUILTINS),
    }


@functools.cache
def _of_module(name: str) -> dict[int, tuple[str, object]]:
    return _by_identity(sys.modules[name], _LATER[name])


def forbidden_value(value: object) -> str | None:
    """What a value is called if user code must not read it: "time.time"."""
    found = _always().get(id(value))
    if found is None:
        for name in _LATER:
            if name in sys.modules and (found := _of_module(name).get(id(value))) is not None:
                break
    if found is not None and found[1] is value:
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
