"""Runs what ejcache does when the process exits or forks; no other module uses `atexit` or `register_at_fork`.

At exit, the phases run one after the other:

    WRITE      put what the process has still to write into its stores, which then upload it
    UPLOAD     wait, for a bounded time, until pending entries, tuned records and XLA's files are written
    LEASES     begin to release the leases that are left; a lease is held until the upload of its entry has finished
    COUNTERS   write counters, the uploads' included
    RELEASED   wait, for a bounded time, until leases are released
    CLOSE      close connections, to buckets and to local indexes
    REPORT     write the report of this process (`EJCACHE_REPORT`)

Within a phase, the callback that was registered last runs first, as `atexit` does: a module registers after the modules
that it uses. Since Python 3.12 no thread can be started during exit; `Scheduler.drain` and `threads.submit` then run
the work in the calling thread. `atexit` callbacks that the program registers after importing ejcache run before all
phases; earlier ones run after all phases, and a store that they use opens for one operation at a time.

At a fork, imports that our threads have under way end first: the child would wait for ever for their locks, which
Python does not renew. Then `before_fork` runs for the tracked objects in reverse order of tracking, and after the fork
`after_fork_in_parent` or `after_fork_in_child` in order of tracking. Locks that a fork must not interrupt are
`locks.ForkLock`; other objects replace their locks in the child, because the thread that held one does not exist there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ejcache.util.late_patches import is_patched_late
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol

    class ForkAware(Protocol):
        """An object that must act when the process forks.

        It may also have `before_fork()`, called in the parent, and `after_fork_in_parent()`. Both `after_` methods are
        also called on objects that another thread created between the two, so they must not rely on `before_fork`.
        """

        def after_fork_in_child(self) -> None:
            """Replace locks and drop threads: in the child, only the forking thread exists."""

    T = TypeVar("T", bound=ForkAware)

Thing = TypeVar("Thing")


class ExitPhase(IntEnum):
    """When, during exit, a callback runs; the module's docstring describes the phases."""

    WRITE = 0
    UPLOAD = 1
    LEASES = 2
    COUNTERS = 3
    RELEASED = 4
    CLOSE = 5
    REPORT = 6


_callbacks: Final[list[tuple[ExitPhase, Callable[[], object]]]] = []
_tracked: Final[weakref.WeakValueDictionary[int, ForkAware]] = weakref.WeakValueDictionary()
"""By identity, in order of tracking. What dies after the interpreter has cleared this module dies in silence."""


def at_exit(phase: ExitPhase, callback: Callable[[], object]) -> None:
    """Call `callback` once, in this phase of the program's exit.

    What it raises is logged, and the remaining callbacks run. A callback that is registered during exit runs as well.
    """
    _callbacks.append((phase, callback))


def members(things: weakref.WeakSet[Thing]) -> list[Thing]:
    """Return those of the things that still exist, also while other threads add some."""
    while True:
        with contextlib.suppress(RuntimeError):  # the set has changed during the iteration
            return list(things)


class AtExit(Generic[Thing]):
    """Calls `act` in this phase of the program's exit for each of the things that were added and still exist.

    What it raises for one thing is treated as that of any callback, and the other things have their turn.
    """

    def __init__(self, phase: ExitPhase, act: Callable[[Thing], object]) -> None:
        self._things: weakref.WeakSet[Thing] = weakref.WeakSet()
        self._phase = phase
        self._act = act
        at_exit(phase, self._run)

    def add(self, thing: Thing) -> None:
        """Act on `thing`, too."""
        self._things.add(thing)

    def discard(self, thing: Thing) -> None:
        """Do not act on `thing` any more."""
        self._things.discard(thing)

    def __iter__(self) -> Iterator[Thing]:
        return iter(members(self._things))

    def _run(self) -> None:
        for thing in self:
            at_exit(self._phase, partial(self._act, thing))  # of the same phase, so these are next


def is_ending() -> bool:
    """True if the program has ended and `atexit` callbacks run: what needs a new thread or an executor would fail."""
    return not threading.main_thread().is_alive()


def track_forks(thing: T) -> T:
    """Call the fork methods of `thing` (see `ForkAware`) as long as it exists; returns `thing`."""
    _tracked[id(thing)] = thing
    return thing


def run_exit_phases_first() -> None:
    """Have the phases run before the finalizers (`weakref.finalize`) of the process; call it when there is one.

    All finalizers run at the place that the first one has in `atexit`'s order. Those of fsspec's file systems would
    close their connections before our last uploads. The order of the program's own callbacks stays as it is.
    """
    atexit.unregister(run_exit_phases)
    atexit.register(run_exit_phases)


@atexit.register
def run_exit_phases() -> None:
    """Run all phases, at the end of the process. Called by `atexit`, and by a process that ends without it."""
    if is_patched_late():
        return
    interrupt: BaseException | None = None
    while _callbacks:
        phase = min(phase for phase, _ in _callbacks)
        position = max(index for index, callback in enumerate(_callbacks) if callback[0] == phase)
        _, callback = _callbacks.pop(position)
        try:
            callback()
        except Exception:
            log.warning("ejcache: an exit callback (phase %s) failed", phase.name, exc_info=True)
        except BaseException as exc:
            # Ctrl-C ends one callback, which may be a long upload, and not the short ones after it.
            interrupt = exc
    if interrupt is not None:
        raise interrupt


def _call(method: str, *, backwards: bool = False) -> None:
    alive = [reference() for reference in _tracked.valuerefs()]
    for thing in reversed(alive) if backwards else alive:
        try:
            if hasattr(thing, method):
                getattr(thing, method)()
        except Exception:
            log.warning("ejcache: %s of %r failed", method, thing, exc_info=True)


_IMPORT_SECONDS: Final = 5.0
"""How long a fork waits for imports of our threads: if it is made in an import, they may wait for that one."""
_IMPORTING: Final = "<frozen importlib._bootstrap>"
"""The file of the frames that import."""

_threads: Final[weakref.WeakSet[threading.Thread]] = weakref.WeakSet()
"""Those that we have started."""


def note_thread(thread: threading.Thread) -> None:
    """Have forks wait for what `thread` imports."""
    _threads.add(thread)


def _wait_for_imports() -> None:
    deadline = time.monotonic() + _IMPORT_SECONDS
    while _import_threads() and time.monotonic() < deadline:
        time.sleep(0.001)


def _import_threads() -> list[threading.Thread]:
    """Return our threads that import something now."""
    here = threading.get_ident()
    frames = sys._current_frames()  # noqa: SLF001 (documented, and the only way to see what another thread does)
    found = []
    for thread in members(_threads):
        frame = frames.get(thread.ident or 0) if thread.ident != here else None
        while frame is not None and frame.f_code.co_filename != _IMPORTING:
            frame = frame.f_back
        if frame is not None:
            found.append(thread)
    return found


def _before_fork() -> None:
    _wait_for_imports()
    _call("before_fork", backwards=True)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _call("after_fork_in_parent"),
    after_in_child=lambda: _call("after_fork_in_child"),
)
