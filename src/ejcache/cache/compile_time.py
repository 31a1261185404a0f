"""Adds up how long a process compiled, and how much shorter hits made it, although threads do both at once.

Within a thread the seconds add up. Over threads the length of their union counts: eight threads that compile for ten
seconds at the same time keep the program waiting for ten seconds, not for eighty. So each hit is put where its
compilation would have been without the cache: later by what the hits before it have saved. Before it are those of its
own thread, and those of others that began and ended while its thread compiled nothing, or was not there yet, such as
those of a thread that was waited for. Threads that were once at work at the same time do not wait for each other, nor
for what those were at work with.

What is saved is the length of the union of these compilations, less that of what happened in their place.
"""

from __future__ import annotations

import collections
import math
import os
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.util.lifecycle import track_forks

if TYPE_CHECKING:
    from collections.abc import Callable

_RECENT: Final = 256
"""Programs that a program of another thread may have come after, and those of a start that may be put elsewhere."""
_INTERVALS: Final = 4096
"""What is further back than so many intervals is forgotten: nothing begins there any more."""
_STARTED: Final = 19
"""The place of a field in `/proc/self/task/<thread>/stat`, counted from the thread's state, the third of proc(5)."""


class _Union:
    """Intervals of seconds that are joined where they overlap."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []

    def add(self, begin: float, end: float) -> float:
        """Add an interval; returns by how much the union became longer."""
        begins, ends = self._begins, self._ends
        first, last = bisect_left(ends, begin), bisect_right(begins, end)
        covered = 0.0
        if first < last:
            covered = sum(ends[first:last]) - sum(begins[first:last])
            begin, end = min(begin, begins[first]), max(end, ends[last - 1])
        begins[first:last], ends[first:last] = [begin], [end]
        if len(begins) > _INTERVALS:
            del begins[: _INTERVALS // 2], ends[: _INTERVALS // 2]
        return end - begin - covered


def _age_of_thread() -> float:
    """Return for how many seconds this thread has run; 0.0 if nobody says it."""
    if sys.platform != "linux":
        return 0.0
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/stat", "rb") as file:  # noqa: PTH123 (on the way of a hit)
            # The tick may have begun before the thread: a thread that ended just then came before this one.
            ticks = int(file.read().rpartition(b")")[2].split()[_STARTED]) + 1
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


class _Program(NamedTuple):
    """When a thread began with a program and had it, and the seconds that it took and would have taken."""

    thread: int
    began: float
    ended: float
    spent: float
    without: float


class CompileTime:
    """Adds up, over the threads of a process, what hits save and what compilations take. Safe for threads and forks.

    Args:
        clock: monotonic seconds.
        thread: returns a number of the calling thread that no later one gets soon.
        age: returns for how many seconds the calling thread has run, 0.0 if that is unknown.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        thread: Callable[[], int] = threading.get_native_id,
        age: Callable[[], float] = _age_of_thread,
    ) -> None:
        self._clock = clock
        self._thread = thread
        self._age = age
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Begin anew: what the parent has saved is counted there."""
        self._lock = threading.RLock()
        self._compiled = _Union()
        self._groups: dict[int, int] = {}  # of threads that were at work at the same time
        self._programs: list[_Program] = []
        self._saved = 0.0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._without = _Union()  # when programs would have been compiled without the cache
        self._spent = _Union()  # when they were loaded or compiled
        self._threads: dict[int, tuple[float, float]] = {}  # when its last program was ready, and what is saved by then
        self._recent: collections.deque[tuple[_Program, float]] = collections.deque(maxlen=_RECENT)

    def hit(self, compile_seconds: float, load_seconds: float, *, since: float = 0.0) -> float:
        """Count a program that was just loaded by this thread; returns by how many seconds more is saved now.

        That is less than 0 if another thread turned out to compile meanwhile, which the program had to wait for anyway.

        Args:
            compile_seconds: that its compilation has taken once.
            load_seconds: that it took to get it.
            since: seconds ago when its thread began with it, the trace included; at least `load_seconds`.
        """
        with self._lock:
            return self._count(load_seconds, max(compile_seconds, load_seconds), max(since, load_seconds))[0]

    def miss(self, compile_seconds: float) -> tuple[float, float]:
        """Count a program that this thread has just compiled.

        Returns:
            By how many seconds more is saved now (see `hit`), and by how many more of compiling there were.
        """
        with self._lock:
            saved, ended = self._count(compile_seconds, compile_seconds, compile_seconds)
            return saved, self._compiled.add(ended - compile_seconds, ended)

    def _count(self, spent: float, without: float, since: float) -> tuple[float, float]:
        thread = self._thread()
        if len(self._threads) > _INTERVALS:
            self._threads.clear()  # of a server that has a thread for each request
            self._groups.clear()
        if self._threads and thread not in self._threads:
            # Before the clock is read: a thread that is preempted in between would seem to have begun too early.
            since = max(since, self._age())
        ended = self._clock()
        program = _Program(thread, ended - since, ended, spent, without)
        before = self._saved
        if len(self._programs) < _RECENT:
            self._programs.append(program)
        if self._joins_groups(program) and len(self._programs) < _RECENT:
            # Only now it is known that some of the programs before did not wait for each other.
            self._begin_anew()
            self._saved = sum(map(self._place, self._programs))
        else:
            self._saved += self._place(program)
        return self._saved - before, ended

    def _place(self, program: _Program) -> float:
        """Put a program behind those that came before it; returns by how many seconds more is saved then."""
        thread, began, ended, spent, without = program
        before, saved = self._threads.get(thread, (-math.inf, 0.0))
        if len(self._threads) > (thread in self._threads):
            group = self._group_of(thread)
            earlier = (
                saved_then
                for other, saved_then in self._recent
                if before <= other.began and other.ended <= began and self._group_of(other.thread) != group
            )
            saved = max(saved, *earlier, 0.0)
        begin = ended - spent
        more = self._without.add(begin + saved, begin + saved + without) - self._spent.add(begin, ended)
        self._threads[thread] = ended, saved + without - spent
        self._recent.append((program, saved + without - spent))
        return more

    def _joins_groups(self, program: _Program) -> bool:
        """True if the program shows that threads of different groups work at the same time; then they are one group."""
        if len(self._threads) <= (program.thread in self._threads):
            return False
        at_work = {self._group_of(other.thread) for other, _ in self._recent if other.ended > program.began}
        at_work.add(self._group_of(program.thread))
        self._groups.update({each: program.thread for each, group in self._groups.items() if group in at_work})
        return len(at_work) > 1

    def _group_of(self, thread: int) -> int:
        return self._groups.setdefault(thread, thread)


compile_time: Final = CompileTime()
"""Of this process, for all its caches."""
