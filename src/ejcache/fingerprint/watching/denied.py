"""What traced code may not do, because its result depends on more than a fingerprint describes.

Two tables: functions written in C, which are recognised where user or package code calls them; and functions of the
standard library written in Python, which are recognised when they start, and refused for the code that causes the call.
"""

from __future__ import annotations

import functools
import sys
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.watching.author import Author

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CallEffect", "denied_function", "examine_call"]


class CallEffect(NamedTuple):
    """What a call does, as the end of a sentence whose subject is the caller."""

    text: str
    lost_output: bool = False
    warns: bool = False


_ALL_BUT: Final[dict[str, frozenset[str]]] = {
    "time": frozenset({"sleep"}),
    "posix": frozenset({"fspath", "_path_normpath", "_path_splitroot", "_path_splitroot_ex", "register_at_fork"}),
    "nt": frozenset({"fspath", "_path_normpath", "_path_splitroot", "_path_splitroot_ex", "register_at_fork"}),
    **dict.fromkeys(
        (
            *("_ctypes", "_locale", "_multiprocessing", "_posixshmem", "_posixsubprocess", "_socket", "_ssl", "_uuid"),
            *("_winapi", "fcntl", "grp", "mmap", "pwd", "resource", "select", "syslog", "termios", "winreg"),
        ),
        frozenset(),
    ),
}
"""Modules written in C of which every function is refused, but these."""

_SOME: Final[dict[str, frozenset[str]]] = {
    "_io": frozenset({"open", "open_code", "FileIO"}),
    "io": frozenset({"open", "open_code", "FileIO"}),
    "_thread": frozenset({"start_new_thread", "start_joinable_thread"}),
    "gc": frozenset({"get_objects", "get_referrers", "get_referents", "get_count", "get_stats"}),
    "builtins": frozenset({"input", "breakpoint"}),
    "_imp": frozenset({"create_dynamic", "exec_dynamic"}),
}
"""Functions that no code but JAX's and the standard library's may call."""

_SOME_OF_USERS: Final[dict[str, frozenset[str]]] = {
    "_thread": frozenset({"get_ident", "get_native_id"}),
    "builtins": frozenset({"id", "eval", "exec", "compile", "globals", "locals", "__import__"}),
    "gc": frozenset({"collect", "isenabled", "is_tracked", "freeze", "unfreeze", "get_freeze_count"}),
    "sys": frozenset(
        {
            *(
                "_current_exceptions",
                "_current_frames",
                "_getframe",
                "_getframemodulename",
                "exit",
                "getrecursionlimit",
            ),
            *("getallocatedblocks", "getprofile", "getrefcount", "getsizeof", "gettrace", "setprofile", "settrace"),
        }
    ),
}
"""Functions that only the user's code may not call. A library's use of them is guarded, or means nothing."""

_OF_THREAD: Final = frozenset({"active_count", "current_thread", "enumerate", "main_thread"})
"""Functions of `threading`, in Python, that only the user's code may not call: their results differ between threads."""

_NOW: Final = frozenset({"now", "today", "utcnow", "fromtimestamp", "astimezone"})
_READS: Final = frozenset({"read", "readline", "readlines", "readinto", "read1", "readall", "__next__"})
_WRITES: Final = frozenset({"write", "writelines", "truncate"})
_IN_MEMORY: Final = frozenset({"BytesIO", "StringIO"})
_WHOLE: Final = frozenset({"vars", "dir"})

_MODULES: Final = frozenset(
    {
        *("_pydatetime", "concurrent.futures", "fileinput", "genericpath", "getpass", "glob", "http", "locale"),
        *("mailbox", "multiprocessing", "netrc", "platform", "runpy", "sched", "secrets", "selectors", "shelve"),
        *("shutil", "site", "smtplib", "socket", "socketserver", "sqlite3", "ssl", "subprocess", "sysconfig"),
        *("tempfile", "timeit", "tracemalloc", "urllib.request", "webbrowser", "zipfile", "zoneinfo"),
    }
)
"""Modules of the standard library of which no function may run, with their submodules."""

_PURE: Final = frozenset({"commonprefix", "_splitext", "_check_arg_types"})
"""Functions of those modules that only compute."""

_PATHS: Final = frozenset({"abspath", "expanduser", "ismount", "lexists", "realpath", "relpath", "samefile"})

_PATH_METHODS: Final = (
    *("absolute", "chmod", "cwd", "exists", "expanduser", "glob", "group", "hardlink_to", "home", "is_block_device"),
    *("is_dir", "is_file", "is_mount", "is_symlink", "iterdir", "lstat", "mkdir", "open", "owner", "read_bytes"),
    *("read_text", "readlink", "rename", "replace", "resolve", "rglob", "rmdir", "samefile", "stat", "symlink_to"),
    *("touch", "unlink", "walk", "write_bytes", "write_text"),
)

_FUNCTIONS: Final[dict[str, frozenset[str]]] = {
    "asyncio.runners": frozenset({"run", "Runner.run"}),
    "importlib": frozenset({"reload"}),
    "importlib.metadata": frozenset({"Distribution.from_name", "distribution", "entry_points", "metadata", "version"}),
    "importlib.resources": frozenset({"files", "open_binary", "open_text", "read_binary", "read_text"}),
    "inspect": frozenset(
        {
            *("currentframe", "findsource", "getcomments", "getframeinfo", "getinnerframes", "getouterframes"),
            *("getsource", "getsourcefile", "getsourcelines", "stack", "trace"),
        }
    ),
    "linecache": frozenset({"getline", "getlines", "updatecache"}),
    "ntpath": _PATHS,
    "os": frozenset(
        {
            *("_fwalk", "_walk", "fdopen", "fwalk", "get_exec_path", "get_terminal_size", "makedirs", "popen"),
            *("removedirs", "renames", "walk"),
        }
    ),
    "pathlib": frozenset(f"{kind}.{name}" for kind in ("Path", "PathBase") for name in _PATH_METHODS),
    "posixpath": _PATHS,
    "threading": frozenset({"Barrier.wait", "Condition.wait", "Thread.start", "Timer.__init__"}),
    "traceback": frozenset({"StackSummary.extract", "extract_stack", "format_stack", "print_stack", "walk_stack"}),
    "uuid": frozenset({"_random_getnode", "getnode", "uuid1", "uuid4", "uuid6", "uuid7", "uuid8"}),
}
"""Single functions of other modules of the standard library, by qualified name."""

_FUNCTIONS_OF_USERS: Final[dict[str, frozenset[str]]] = {"importlib": frozenset({"import_module"})}
"""Functions that only the user's code may not cause: what they return is in no name that the code reads."""

_OF_USERS: Final = frozenset({Author.USER})
_OF_ALL: Final = frozenset({Author.USER, Author.PACKAGE})


def denied_function(module: str, qualname: str, arguments: Mapping[str, object]) -> frozenset[Author] | None:
    """Whose code may not cause a start of this function of the standard library. None: everybody's may.

    Args:
        module: where the function is, which is written in Python.
        qualname: its qualified name.
        arguments: what it is called with.
    """
    if qualname == "<module>":
        return None
    if qualname in _FUNCTIONS_OF_USERS.get(module, ()):
        return _OF_USERS
    if module == "random":
        return _OF_ALL if _is_denied_random(qualname, arguments) else None
    while module:
        if module in _MODULES:
            return None if qualname in _PURE else _OF_ALL
        if qualname in _FUNCTIONS.get(module, ()):
            return _OF_ALL
        module = module.rpartition(".")[0]
    return None


def _is_denied_random(qualname: str, arguments: Mapping[str, object]) -> bool:
    """A generator of the program's own is walked before and after the trace, so it may draw, but not seed itself."""
    if _is_shared_random(arguments.get("self")):
        return True
    return qualname == "Random.seed" and arguments.get("a") is None


def examine_call(called: Any, first: object, *, of_user: bool) -> CallEffect | None:
    """What a call of C code does that a recording must know, or None.

    Args:
        called: what is called.
        first: its first argument, or what stands for none.
        of_user: whether user code calls it, and not the code of an installed package.
    """
    while type(called) is functools.partial:
        first, called = (called.args[0] if called.args else first), called.func
    if type(called) is MethodType:
        first, called = called.__self__, called.__func__
    kind = type(called)
    if kind is FunctionType:
        of_thread = of_user and called.__module__ == "threading" and called.__name__ in _OF_THREAD
        return CallEffect(f"calls threading.{called.__name__}()") if of_thread else None
    if kind is BuiltinFunctionType:
        owner = called.__self__
        if owner is None or isinstance(owner, ModuleType):
            return _examine_function(called.__module__ or "", called.__name__, first, of_user=of_user)
        return _examine_method(owner, called.__name__)
    if kind is MethodDescriptorType:
        return _examine_method(first, called.__name__)
    if kind.__name__ == "cython_function_or_method":
        return _examine_method(getattr(called, "__self__", None), called.__name__)
    if isinstance(called, type):
        if called.__name__ == "datetime64" and first in ("now", "today"):
            return CallEffect(f"calls datetime64({first!r})")
        return _examine_function(called.__module__, called.__name__, first, of_user=of_user)
    return None


def _examine_function(module: object, name: str, first: object, *, of_user: bool) -> CallEffect | None:
    if not isinstance(module, str):
        return None
    if module == "builtins":
        if name == "print":
            return CallEffect("prints", lost_output=True)
        if name in _WHOLE and of_user and (isinstance(first, ModuleType) or _is_missing(first)):
            return CallEffect(f"calls {name}()" if _is_missing(first) else f"calls {name}() of a module")
    if module == "_warnings" and name in ("warn", "warn_explicit"):
        return CallEffect("warns", lost_output=True, warns=True)
    kept = _ALL_BUT.get(module)
    refused = (
        (kept is not None and name not in kept)
        or name in _SOME.get(module, ())
        or (of_user and name in _SOME_OF_USERS.get(module, ()))
    )
    if not refused:
        return None
    shown = {"posix": "os.", "nt": "os.", "builtins": "", "_io": "", "io": ""}.get(module, f"{module.lstrip('_')}.")
    return CallEffect(f"calls {shown}{name}()")


def _is_missing(first: object) -> bool:
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and first is monitoring.MISSING


def _examine_method(owner: object, name: str) -> CallEffect | None:
    kind = owner if isinstance(owner, type) else type(owner)
    module = kind.__module__
    if module == "datetime" and name in _NOW and isinstance(owner, type):
        return CallEffect(f"calls {kind.__name__}.{name}()")
    of_io = [each.__name__ for each in kind.__mro__ if each.__module__ == "_io"]
    if of_io and not _IN_MEMORY.intersection(of_io):
        if name in _WRITES:
            standard = any(owner is each for each in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__))
            return CallEffect("prints", lost_output=True) if standard else CallEffect("writes to a file")
        if name in _READS:
            return CallEffect("reads a file")
    if _is_shared_random(owner):
        return CallEffect(f"calls random numbers of {module.partition('.')[0]}")
    return None


def _is_shared_random(owner: object) -> bool:
    """Whether a generator of random numbers is the one that a module shares, or is seeded by the system."""
    shared = getattr(sys.modules.get("random"), "_inst", None)
    of_numpy = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    if owner is None:
        return False
    return owner is shared or owner is of_numpy or type(owner).__name__ == "SystemRandom"
