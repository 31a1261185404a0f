"""What C code does while a function is recorded, by the interpreter's own report of it: files, sockets, processes.

An audit hook cannot be removed. It is installed once, at the first recording, and does nothing between recordings.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.fingerprint.watching.author import Author, author_of_frame, imports, nearest, short_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["report_to"]

_READS: Final[dict[str, str]] = {"open": "opens", "os.listdir": "lists", "os.scandir": "lists"}
"""Events whose first argument is a path, and that imports and tracebacks cause, too."""

_ALWAYS: Final[dict[str, str]] = {
    "ctypes.dlopen": "loads a native library",
    "glob.glob": "lists files",
    "mmap.__new__": "maps a file",
    "os.chdir": "changes the working directory",
    "os.exec": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.link": "changes files",
    "os.mkdir": "makes a directory",
    "os.posix_spawn": "starts a process",
    "os.putenv": "sets an environment variable",
    "os.remove": "removes a file",
    "os.rename": "renames a file",
    "os.rmdir": "removes a directory",
    "os.symlink": "changes files",
    "os.system": "starts a process",
    "os.truncate": "changes files",
    "os.unsetenv": "removes an environment variable",
    "pty.spawn": "starts a process",
    "shutil.copyfile": "copies files",
    "shutil.rmtree": "removes files",
    "signal.pthread_kill": "sends a signal",
    "socket.__new__": "opens a socket",
    "socket.connect": "connects a socket",
    "socket.getaddrinfo": "looks up a host",
    "socket.gethostbyname": "looks up a host",
    "socket.gethostname": "reads the name of the host",
    "sqlite3.connect": "opens a database",
    "subprocess.Popen": "starts a process",
    "tempfile.mkdtemp": "makes a directory",
    "tempfile.mkstemp": "makes a file",
    "urllib.Request": "sends a request",
}

_WATCHED: Final = frozenset({*_READS, *_ALWAYS, "import"})

_SHOWING: Final = frozenset({"warnings", "_py_warnings", "traceback", "logging"})
"""Modules that read source files in order to show them."""

_FINDING: Final = frozenset({"importlib", "pkgutil"})
"""Modules that read files to find modules: JAX looks for its plug-ins when it makes the first backend."""

_lock = threading.Lock()
_installed = False
_thread = -1
_report: Callable[[str], None] | None = None


def report_to(report: Callable[[str], None] | None, *, thread: int = -1) -> None:
    """From now on, say what code of one thread does that its fingerprint cannot describe. None ends it.

    Args:
        report: takes a sentence: "f opens …/k.txt".
        thread: the identity of the thread.
    """
    global _installed, _thread, _report
    with _lock:
        _thread = -1 if report is None else thread
        _report = report
        if report is not None and not _installed:
            sys.addaudithook(_hook)
            _installed = True


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _thread == -1 or event not in _WATCHED or threading.get_ident() != _thread:
        return
    report = _report
    if report is not None:
        try:
            sentence = _sentence(event, arguments, sys._getframe(1))  # noqa: SLF001  # the documented way to a caller
        except Exception as error:  # an exception here would forbid what the program does
            sentence = f"{event} cannot be examined ({error!r})"
        if sentence is not None:
            report(sentence)


def _sentence(event: str, arguments: tuple[Any, ...], frame: FrameType) -> str | None:
    """What is said of an event, or None if it means nothing."""
    caller = nearest(frame)
    if caller is None or author_of_frame(caller) is Author.OURS:
        return None
    name = _subject(caller)
    if event == "import":
        # Libraries import parts of themselves when they first need them.
        return f"{name} imports {arguments[0]}" if author_of_frame(caller) is Author.USER else None
    if imports(frame):
        return None
    if event in _ALWAYS:
        return f"{name} {_ALWAYS[event]}"
    if _is_harmless(event, frame, caller):
        return None
    path = arguments[0]
    shown = f"…/{Path(os.fsdecode(path)).name}" if isinstance(path, str | bytes) and path else repr(path)
    return f"{name} {_READS[event]} {shown}"


def _subject(frame: FrameType) -> str:
    """The user's function on whose behalf a frame runs, or the function itself."""
    of_user: FrameType | None = frame
    while of_user is not None and author_of_frame(of_user) is not Author.USER:
        of_user = of_user.f_back
    return short_name(frame if of_user is None else of_user)


def _is_harmless(event: str, frame: FrameType, caller: FrameType) -> bool:
    """Whether files are read only to find a library's module, or to show a line of source."""
    of_jax = author_of_frame(caller) is Author.JAX
    if of_jax and event != "open":
        return True
    each: FrameType | None = frame
    while each is not None and each is not caller:
        module = str(each.f_globals.get("__name__")).partition(".")[0]
        if module in _SHOWING or (of_jax and module in _FINDING):
            return True
        each = each.f_back
    return False
