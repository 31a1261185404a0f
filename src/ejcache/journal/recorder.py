"""Records what this process compiles and loads, in lines of its start record, and tells it to `on_event`.

The path of a hit only appends to a queue. Lines are made in the background, and when the process ends: that takes as
long as to store a small executable. A killed process loses what it compiled last. Each line goes to the
log of this host, and with the next journal to each shared cache that the process uses (`shared_journal`).
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache._version import __version__
from ejcache.events import CacheTrouble, ProgramCompiled, ProgramLoaded, ProgramStored
from ejcache.journal.appended_log import AppendedLog
from ejcache.journal.line import HIT, MOST_RECORDED, STORED, encode_line, saved_seconds
from ejcache.util.git_commit import commit_of
from ejcache.util.lifecycle import ExitPhase, at_exit, track_forks
from ejcache.util.log import warn_once
from ejcache.util.scheduler import short_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeVar

    from ejcache.events import Event
    from ejcache.journal.line import ProgramRecord, ReuseNote

    T = TypeVar("T")

START_LOG: Final = AppendedLog("starts", limit=8_000_000)
_SECONDS: Final = 60.0
_PARENT: Final = os.getpid()


def _is_pool_worker() -> bool:
    """True if this is a child of `multiprocessing`: `with Pool()` ends it by a signal, which runs no exit handlers."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


class Recorder:
    """Safe for threads and forks; a forked child has a record of its own.

    Args:
        most: programs of one process that are recorded; the others are counted.

    Attributes:
        describe: returns what this process is, as far as JAX knows: fields of `start_records.Process`.
        id: names this process among all processes of all hosts.
        tell, tell_trouble: tell listeners of a program that is ready, and of a warning, if there are any.
        watchers: called with each program, in the thread that wanted it; a miss may be added later (`watch`).
        is_shared: whether the lines are kept for journals; set by the first one that wants them.
        lines: those that were written since then, a megabyte at most.
    """

    def __init__(self, *, most: int = 10_000) -> None:
        self._most = most
        self.describe: Callable[[], Mapping[str, Any]] = dict
        self.is_shared = False
        self.tell: Callable[[ProgramRecord], object] | None = None
        self.tell_trouble: Callable[[str, str], object] | None = None
        self.watchers: tuple[Callable[[ProgramRecord], object], ...] = ()
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Begin another record: the parent's is the parent's."""
        # Only single operations on these, which the interpreter makes atomic.
        self._programs: collections.deque[ProgramRecord] = collections.deque()
        self._trouble: collections.deque[str] = collections.deque()
        self._reuse: collections.deque[ReuseNote] = collections.deque()
        self.lines: list[bytes] = []
        self._keeping = threading.RLock()
        self._kept = 0
        self._began = time.time()
        self.id = f"{int(self._began * 1000):x}-{os.urandom(6).hex()}"
        self._count = 0
        self._planned = False
        self._is_fork = os.getpid() != _PARENT

    def add(self, program: ProgramRecord) -> None:
        """Record a program that is ready, and tell the listeners."""
        self._count += 1
        if self._count <= self._most:
            self._programs.append(program)
            if not self._planned:
                self._write_soon()
        if self.tell is not None:
            self.tell(program)

    def _write_soon(self) -> None:
        # Asked only now: a spawned worker imports the program's main module before it knows that it has a parent.
        if self._is_fork or _is_pool_worker():
            self.write()  # it may end without exit handlers: a forked child by `os._exit`
        elif not self._planned:
            self._planned = True
            short_tasks.later(_SECONDS, self._write_planned)

    def add_reuse(self, note: ReuseNote) -> None:
        """Record what reuse did with a function."""
        self._reuse.append(note)
        self._write_soon()

    def add_trouble(self, kind: str, message: str) -> None:
        """Record a warning."""
        self._trouble.append(kind)
        if self._count:
            self._write_soon()
        if self.tell_trouble is not None:
            self.tell_trouble(kind, message)

    def write(self) -> None:
        """Append what was recorded since the last line to the log of this host, and keep the line for journals."""
        programs, reuse = list(_take(self._programs)), list(_take(self._reuse))
        trouble: dict[
            str, int
        ] = {}  # a `Counter` asks whether the queue is a mapping, which takes longer than the rest
        for kind in _take(self._trouble):
            trouble[kind] = trouble.get(kind, 0) + 1
        if programs or reuse or (trouble and self._count):
            dropped, self._count = max(0, self._count - self._most), min(self._count, self._most)
            line = encode_line(self._process(), programs, trouble, dropped, reuse)
            START_LOG.append(line)
            with self._keeping:
                if self.is_shared and self._kept + len(line) <= MOST_RECORDED:
                    self._kept += len(line)
                    self.lines.append(line)

    def _write_planned(self) -> None:
        self._planned = False
        self.write()

    def _process(self) -> dict[str, Any]:
        process = self.describe()

        versions = {"python": sys.version.split()[0], "ejcache": __version__, **process.get("versions", {})}
        with contextlib.suppress(OSError):  # the working directory may be gone
            if commit := commit_of(_directory_of_program()):
                versions["commit"] = commit
        return {
            "id": self.id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **process,
            "program": Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python",
            "began": self._began,
            "versions": versions,
        }


recorder: Final = Recorder()
"""The record of this process."""


def _directory_of_program() -> str:
    """Return the directory of the program that this process runs; for one without a file, the working directory."""
    path = sys.argv[0] if sys.argv else ""
    # As a text, because a process ends here; and a link stays as it is.
    return os.path.abspath(os.path.dirname(path) if os.path.isfile(path) else ".")  # noqa: PTH100, PTH113, PTH120


def _take(queue: collections.deque[T]) -> Iterator[T]:
    while queue:
        try:
            yield queue.popleft()
        except IndexError:  # another thread took it
            return


# Before the last journals are written, which have the last line.
at_exit(ExitPhase.LEASES, recorder.write)


_listeners: tuple[Callable[[Event], object], ...] = ()


def on_event(callback: Callable[[Event], object]) -> Callable[[], None]:
    """Call `callback` with each event from now on: programs that this process loads, compiles or stores, and trouble.

    The events are those of `ejcache.events`. The callback runs in the thread that loads a program, or in one of
    ejcache's own; what it raises is logged once, and never reaches the program. It should return at once.

    Returns:
        A function that ends this; to call it again does nothing.
    """

    def heard(event: Event) -> None:
        callback(event)

    heard.__qualname__ = getattr(callback, "__qualname__", repr(callback))
    global _listeners
    _listeners = (*_listeners, heard)
    recorder.tell, recorder.tell_trouble = _tell, _tell_trouble

    def end() -> None:
        global _listeners
        _listeners = tuple(each for each in _listeners if each is not heard)

    return end


def watch(watcher: Callable[[ProgramRecord], object]) -> Callable[[], None]:
    """Call `watcher` with each program from now on, in its own thread; returns a function that ends this."""

    def watching(program: ProgramRecord) -> None:
        _call(watcher, program, "warn_recompiles")

    recorder.watchers = (*recorder.watchers, watching)

    def end() -> None:
        recorder.watchers = tuple(each for each in recorder.watchers if each is not watching)

    return end


def _tell(program: ProgramRecord) -> None:
    for event in _events(program) if _listeners else ():
        for each in _listeners:
            _call(each, event, "on_event")


def _tell_trouble(kind: str, message: str) -> None:
    event = CacheTrouble(kind, message)
    for each in _listeners:
        _call(each, event, "on_event")


def _events(program: ProgramRecord) -> Iterator[Event]:
    seconds = dict(program.seconds)
    if program.outcome == HIT:
        yield ProgramLoaded(program.name, program.key, seconds, saved_seconds(program), program.preloaded)
        return
    yield ProgramCompiled(program.name, program.key, seconds, program.compile_seconds, program.reason, program.outcome)
    if program.outcome == STORED:
        yield ProgramStored(program.name, program.key)


def _call(function: Callable[[T], object], value: T, by: str) -> None:
    """Call a function of the program; what it raises is logged once for each function."""
    try:
        function(value)
    except Exception as exc:
        warn_once(
            ("listener", id(function)),
            "ejcache: %s, which %s was given, raises %s: %s",
            getattr(function, "__qualname__", repr(function)),
            by,
            type(exc).__name__,
            exc,
        )
