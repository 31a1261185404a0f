"""The files that are opened, the directories that are listed and the modules that are imported during a recorded trace.

One audit hook sees them. It is installed at the first recording, and does nothing outside of one: CPython cannot remove
it. What is asked of a file without opening it (whether it is there, how large, how old) raises no event, and is not
seen.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Opened", "recorded"]

_WRITING: Final = os.O_WRONLY | os.O_RDWR
_READ_MODES: Final = ("r", "+")
_SYSTEM: Final = ("/proc/", "/sys/")
_EMPTY: Final = ("/dev/null", "/dev/random", "/dev/urandom", "/dev/tty")


class Opened:
    """What a recording saw.

    Attributes:
        files: absolute paths of files that were opened to be read.
        directories: absolute paths of directories that were listed.
        modules: names that were imported.
        unpickled: modules of which something was unpickled.
        refusal: what cannot be compared afterwards; empty if there is nothing.
        paused: something is done that is not the program's trace.
    """

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.directories: dict[str, None] = {}
        self.modules: dict[str, None] = {}
        self.unpickled: dict[str, None] = {}
        self.refusal = ""
        self.paused = False

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an event of Python's audit."""
        if event == "import":
            self.modules[str(arguments[0])] = None
        elif event == "open":
            path, mode, flags = arguments
            reads = any(each in mode for each in _READ_MODES) if isinstance(mode, str) else not flags & os.O_WRONLY
            if reads and not (isinstance(mode, str) and "w" in mode):
                self._add(self.files, path)
        elif event in {"os.listdir", "os.scandir"}:
            self._add(self.directories, "." if arguments[0] is None else arguments[0])
        elif event == "pickle.find_class":
            self.unpickled[str(arguments[0])] = None
        elif event in _UNKNOWN:
            self.refusal = f"tracing starts another program, or asks for this machine's name ({event})"
        elif event in {"sqlite3.connect", "ctypes.dlopen"}:
            self._add(self.files, arguments[0])

    def _add(self, found: dict[str, None], path: Any) -> None:
        if isinstance(path, int) or path is None:
            return  # a descriptor: the file was opened before
        with contextlib.suppress(TypeError, ValueError, OSError):
            absolute = os.path.abspath(os.fsdecode(path))
            if absolute.startswith(_SYSTEM):
                self.refusal = f"tracing reads {absolute}, which is about this machine or process"
            elif not absolute.startswith(_EMPTY):
                found[absolute] = None


class _Recording(threading.local):
    current: Opened | None = None


_here: Final = _Recording()
_installed = False
_lock: Final = threading.Lock()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    opened = _here.current
    if opened is not None and not opened.paused and event in _EVENTS:
        opened.note(event, arguments)


_UNKNOWN: Final = frozenset(
    {"os.exec", "os.fork", "os.posix_spawn", "os.system", "socket.gethostname", "subprocess.Popen"}
)
_EVENTS: Final = _UNKNOWN | {
    *("import", "open", "os.listdir", "os.scandir", "sqlite3.connect", "ctypes.dlopen", "pickle.find_class")
}


@contextlib.contextmanager
def recorded() -> Iterator[Opened]:
    """Within the block, note what this thread opens."""
    global _installed
    with _lock:
        if not _installed:
            sys.addaudithook(_audit)
            _installed = True
    opened, before = Opened(), _here.current
    _here.current = opened
    try:
        yield opened
    finally:
        _here.current = before
