"""Python's cyclic garbage collector collects less often while JAX traces and lowers a function.

Tracing makes hundreds of thousands of objects that live on, and the collector walks through them again and again: that
takes 5 to 15 % of the time of tracing and lowering. So its threshold is higher while one of the two functions that
everything passes is running, `_infer_params` (tracing) and `lower_sharding_computation`. It is not switched off: cycles
that a program drops while it is traced are collected after as many new objects as the setting says.

The libraries that a program imports after `enable()` make such objects, too: the first collection after that waits for
as many new objects.

What was made during a trace does not count against the program afterwards, either: if it did, a collection would begin
right after each trace of a small program. The threshold is put back by the next collection, which comes after as many
objects of the program's own as ever, and after as many objects in all as the setting says.

And a program that has imported JAX has 100,000 objects that live on. The first full collection after that walks through
all of them, most often while the program starts, and takes as long as loading sixty small programs. `OldObjects` has it
leave them out.

While a program exits, Python collects three times: before it takes the modules apart, when it has removed them from
`sys.modules`, and at the end. Each walks through all objects, for 60 to 100 ms. The first is left out: the second finds
the same garbage, calls the same finalizers, and closes the same files. This is the exit of every program that has
switched its collector off.

Read for this: jax 0.10.2 and 0.12.0.1, `pjit.py`, `pxla.py`; CPython 3.11 to 3.14, `Py_FinalizeEx`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import operator
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from ejcache._garbage import is_frozen_by_program, watch_collections
from ejcache._tuples import NamedTuple
from ejcache.jax_integration.seam.tracebacks import without_our_frames
from ejcache.util.lifecycle import ExitPhase, at_exit, track_forks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CollectorPatch", "OldObjects"]

_REPLACED: Final = (
    ("jax._src.pjit", "_infer_params"),
    ("jax._src.interpreters.pxla", "lower_sharding_computation"),
)
_OLDEST: Final = 2
_MOST_TIMES: Final = 2
"""When ejcache is enabled, and when the first function is traced: libraries and parameters may come in between."""


class OldObjects:
    """Leaves the objects that exist now out of the next full collection that Python begins by itself.

    They are collected as ever after that one; at `gc.collect()`, before which they are put back; and when the program
    exits. So what is garbage among them waits for one more full collection at most. Twice in a process at most.

    A program that freezes objects itself is left alone until it exits, and so is one that has switched the collector
    off. Python 3.14 has no full collections of its own, so nothing happens there.
    """

    def __init__(self) -> None:
        self._times = 0
        self._later: list[object] | None = None

    def leave_out(self) -> None:
        """Leave out what exists now."""
        if self._times >= _MOST_TIMES or not _is_generational() or not gc.isenabled():
            return
        if is_frozen_by_program() if self._later is None else not _is_collected(self._later):
            return
        self._times += 1
        gc.freeze()
        self._later = []
        watch_collections(self._collecting)

    def put_back(self) -> None:
        """Have all of them collected again."""
        later, self._later = self._later, None
        if later is not None and _is_collected(later):
            _unfreeze()

    def end(self) -> None:
        """The program exits: have all objects collected, even those that the program froze: looking takes longer."""
        if self._later is not None:
            _unfreeze()
        self._later = None

    def _collecting(self, phase: str, about: dict[str, int]) -> None:
        if self._later is not None and about["generation"] == _OLDEST and (phase == "stop" or _is_asked_for()):
            self.put_back()


def _is_collected(later: list[object]) -> bool:
    """Whether what was made later is not frozen; if it is, the program has frozen everything in the meantime."""
    # It is one of the first in the oldest generation, if it has become old at all. No generator: it would be one of the
    # objects that it holds, and so stay until they are collected.
    for number in (_OLDEST, 1, 0):
        if any(map(operator.is_, gc.get_objects(generation=number), itertools.repeat(later))):
            return True
    return False


def _unfreeze() -> None:
    # First freeze what is not: the collector works through its list in order, and needs a tenth longer if objects come
    # before the older ones that refer to them.
    gc.freeze()
    gc.unfreeze()


def _is_generational() -> bool:
    return sys.version_info < (3, 14) and bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def _is_asked_for() -> bool:
    """Whether the full collection that begins is one of `gc.collect()`: Python's own count says so, or the caller."""
    if gc.get_count()[_OLDEST] <= gc.get_threshold()[_OLDEST]:
        return True
    try:
        return "collect" in sys._getframe(2).f_code.co_names
    except ValueError:  # called by no Python code
        return False


old_objects: Final = OldObjects()


class _Later(NamedTuple):
    """A threshold that holds until the next collection, and the program's own."""

    threshold: tuple[int, int, int]
    before: tuple[int, int, int]


class CollectorPatch:
    """Raises the collector's threshold while JAX traces and lowers; the next collection after that puts it back.

    Only the outermost of nested calls, and one of several threads, changes the threshold. A threshold that the program
    has set higher, a collector that it has switched off, and a change that it makes meanwhile are left alone. If JAX
    does not have the two functions, nothing happens.

    Args:
        threshold: how many new objects may wait for a collection; 0 leaves the collector alone.
    """

    def __init__(self, threshold: Callable[[], int]) -> None:
        self._threshold = threshold
        self._originals: list[tuple[Any, str, Any]] = []
        self._before: tuple[int, int, int] | None = None
        self._raised: tuple[int, int, int] | None = None
        self._later: _Later | None = None
        self._is_free = threading.Lock()
        self._has_traced = False
        track_forks(self)

    def is_in_use(self) -> bool:
        """Whether the setting does not have it leave the collector alone."""
        return self._threshold() > 0

    def settle(self) -> None:
        """Have the objects that exist now left out of the next full collection, unless the setting is 0."""
        if self.is_in_use():
            old_objects.leave_out()

    def postpone(self) -> None:
        """Have the next collection wait for as many new objects as the setting says.

        Programs import their libraries after `enable()`. Those make a hundred thousand objects that live on.
        """
        if self._is_free.acquire(blocking=False):
            try:
                self._raise(self._threshold())
                if self._before is not None and self._raised is not None:
                    self._later = _Later(self._raised, self._before)
                    self._before = None
            finally:
                self._is_free.release()

    def install(self) -> None:
        """Replace the two functions."""
        for place, name in _REPLACED:
            with contextlib.suppress(ImportError, AttributeError):
                module = importlib.import_module(place)
                original = getattr(module, name)
                self._originals.append((module, name, original))
                setattr(module, name, self._wrapped(original))
        watch_collections(_collection)
        _installed.append(self)

    def uninstall(self) -> None:
        """Put JAX's functions and all objects back."""
        while self._originals:
            module, name, original = self._originals.pop()
            setattr(module, name, original)
        if self in _installed:
            _installed.remove(self)
        self.put_back()
        old_objects.put_back()

    def after_fork_in_child(self) -> None:
        """The thread that raised the threshold may not exist here."""
        self._is_free = threading.Lock()
        self._restore()
        self.put_back()

    def _wrapped(self, original: Any) -> Any:
        @functools.wraps(original)
        def called(*arguments: Any, **named: Any) -> Any:
            free = self._is_free
            if not free.acquire(blocking=False):
                return original(*arguments, **named)
            try:
                if not self._has_traced:
                    self._has_traced = True
                    self.settle()
                self._raise(self._threshold())
                return original(*arguments, **named)
            finally:
                self._restore()
                free.release()

        return without_our_frames(called)

    def _raise(self, threshold: int) -> None:
        now = gc.get_threshold()
        before = self._later.before if self._later is not None and now == self._later.threshold else now
        if 0 < before[0] < threshold and gc.isenabled():
            self._before = before
            self._raised = (threshold, *before[1:])
            gc.set_threshold(*self._raised)

    def _restore(self) -> None:
        before, self._before = self._before, None
        if before is None or gc.get_threshold() != self._raised:
            return
        allowed = min(self._raised[0], gc.get_count()[0] + before[0]) if _is_generational() else before[0]
        self._later = _Later((allowed, *before[1:]), before)
        gc.set_threshold(*self._later.threshold)

    def put_back(self) -> None:
        """Put the program's threshold back, if a trace has left another one and the program has not changed it."""
        later = self._later
        if later is not None and gc.get_threshold() == later.threshold:
            self._later = None
            gc.set_threshold(*later.before)


_installed: Final[list[CollectorPatch]] = []


def _collection(phase: str, _: dict[str, int]) -> None:
    if phase == "start":
        for patch in _installed:
            patch.put_back()


def _exit() -> None:
    old_objects.end()
    # Switched off, it leaves out the first collection of the exit only: the others come in any case.
    if any(patch.is_in_use() for patch in _installed):
        gc.disable()


at_exit(ExitPhase.REPORT, _exit)
