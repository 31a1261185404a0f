"""Loads executables in the background, and hands them over when the program asks for them.

Each planned program is in one state: it waits, it is being loaded, it is loaded, or it is gone (handed over, loaded by
the thread that asked before its turn came, or not to be had). So nothing is loaded twice: a thread that asks for a
program that is being loaded waits until it is, and one that asks for a program that still waits takes it off the list.

XLA releases the GIL while it loads. A load cannot be interrupted: a fork waits until no load is under way, because the
child would inherit XLA's locks as they are, and an exit does, because XLA's threads must not outlive its backend. Both
waits have a deadline.

After each load a thread waits for the interpreter, and each time it gets it costs the program about 0.1 ms, so what is
done here lets go of it as rarely as possible.

`entry_reader` reads their entries, the first small ones ahead.
"""

from __future__ import annotations

import resource
import threading
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ejcache.jax_integration.load_journal import load_journal
from ejcache.jax_integration.preload.entry_reader import EntryReader
from ejcache.jax_integration.seam import backends as seam
from ejcache.util.cores import cores
from ejcache.util.lifecycle import track_forks
from ejcache.util.locks import ForkLock
from ejcache.util.log import log
from ejcache.util.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.cache.reading import CacheReader
    from ejcache.entry import Header
    from ejcache.jax_integration.preload.run_profile import ProgramUse
    from ejcache.settings.table import Settings


_END_PATIENCE: Final = 5.0
"""Seconds that an exit or a fork waits for the loads that are under way."""
IDLE_SECONDS: Final = 300.0
"""After so long without a request for any of them, preloaded executables are released."""
LOADED_BYTES: Final = 1 << 30
"""The most bytes that executables take up which are loaded and not yet asked for."""
_HELD_PER_BYTE: Final = {"cpu": 26}
"""Bytes of memory for each byte of a serialised executable, by platform: XLA:CPU links machine code that it expands.

Measured with jaxlib 0.10.2 and 0.12.0.1: 23 to 26 on CPU.
"""
_HELD_ELSEWHERE: Final = 4
_UNLIMITED_STACK: Final = 2 << 20
"""Bytes that the C library gives a thread where the limit of the stack is `unlimited`."""


class _State(StrEnum):
    WAITING = "waiting"
    LOADING = "loading"
    LOADED = "loaded"
    GONE = "gone"


class PreloadedExecutable:
    """A program that is loaded ahead.

    Attributes:
        use: what the run profile says of it.
        client: the PJRT client.
        state: what has become of it.
        cost: bytes of memory that it takes up, estimated.
        ready: whether its entry can be read without asking another machine.
        done: set when it has been loaded, or could not be.
        executable: as XLA loaded it.
        devices: XLA's list of its devices.
        header: of its entry.
        seconds: what reading and loading took.
    """

    def __init__(self, use: ProgramUse, client: Any, *, cost: int, ready: bool) -> None:
        self.use = use
        self.client = client
        self.state = _State.WAITING
        self.cost = cost
        self.ready = ready
        self.done = threading.Event()
        self.executable: Any = None
        self.devices: Any = None
        self.header: Header | None = None
        self.seconds = 0.0


class BackgroundLoader:
    """Executables that were loaded before anybody asked. Safe for threads; a forked child has none of them.

    Args:
        cache_reader: of the cache.
        settings: those that hold for reading it.
    """

    def __init__(self, cache_reader: CacheReader, settings: Settings) -> None:
        self._cache_reader = cache_reader
        self._epoch = cache_reader.epoch
        self._reader = EntryReader(cache_reader, settings)
        self._count = cache_reader.tally.add
        self._threads = max(1, cores() // 2)
        self._planned: dict[str, PreloadedExecutable] = {}
        self._waiting: dict[str, PreloadedExecutable] = {}
        # XLA descends through a program while it loads it: by less than half a byte of stack for each of its bytes,
        # measured with jaxlib 0.12.0.1 and chains of 100 to 2,500 products. The main thread loads what is larger.
        stack = _smaller_stack()
        self._largest = float("inf") if stack is None else stack
        self._held = 0
        self._working = 0
        self._beginning = 0  # of these, threads that have taken no program yet
        self._used_at = time.monotonic()
        self._closed = False
        self._paused = False
        self._inherited: object = None
        self._lock = ForkLock()
        self._scheduler = Scheduler(threads=self._threads, name="ejcache-preload")
        track_forks(self)

    @property
    def held(self) -> int:
        """Bytes of memory that loaded executables, and those being loaded, take up by our estimate."""
        return self._held

    def plan(self, client: Any, uses: Sequence[ProgramUse], *, ready: bool) -> None:
        """Have these programs loaded for `client` in the background, in this order, as far as the memory allows.

        Args:
            client: the PJRT client.
            uses: what to load.
            ready: whether their entries can be read at once; otherwise `now_ready` tells when.

        Raises:
            StoreError: the storage failed.
        """
        if not uses:
            return
        load_journal.open()  # in the thread that has the interpreter: one of ours would wait for it after each call
        if ready:
            self._reader.read_ahead([use.key for use in uses])
        factor = _HELD_PER_BYTE.get(str(client.platform), _HELD_ELSEWHERE)
        with self._lock:
            for use in () if self._closed else uses:
                cost = use.size * factor
                fits = use.size <= self._largest and cost <= LOADED_BYTES
                if fits and use.key not in self._planned:
                    self._planned[use.key] = self._waiting[use.key] = PreloadedExecutable(
                        use, client, cost=cost, ready=ready
                    )
            self._used_at = time.monotonic()
        self._wake()
        self._scheduler.later(IDLE_SECONDS, self._release_if_idle)

    def now_ready(self, key: str, *, found: bool) -> None:
        """Note that the entry under `key` can be read without asking another machine, or there is none."""
        with self._lock:
            planned = self._planned.get(key)
            if planned is None:
                return
            if found:
                planned.ready = True
            elif planned.state is _State.WAITING:
                self._remove(planned)
        self._wake()

    @property
    def is_current(self) -> bool:
        """False once the cache is at another place than when this was made: what was loaded is recalled."""
        return self._cache_reader.epoch == self._epoch

    def is_wanted(self, key: str) -> bool:
        """True if `key` still waits to be loaded."""
        return key in self._waiting

    def take(self, key: str) -> PreloadedExecutable | None:
        """Hand over the executable of `key`, waiting while it is being loaded; None if the caller must load it."""
        with self._lock:
            planned = self._planned.get(key)
            if planned is None:
                return None
            self._used_at = time.monotonic()
            if planned.state is _State.WAITING:
                self._remove(planned)
                return None
        # As long as it takes: the same load, begun anew, would take longer.
        planned.done.wait()
        with self._lock:
            loaded = planned.state is _State.LOADED
            self._remove(planned)
        self._wake()
        return planned if loaded else None

    def drain(self, limit: float) -> bool:
        """Wait until what can be loaded is loaded; False if `limit` seconds are not enough."""
        return self._scheduler.drain(patience=limit, limit=limit)

    def close(self) -> None:
        """Load nothing more, wait for loads that are under way, and release what was loaded."""
        with self._lock:
            self._closed = True
        self._await_loads()
        self._release()
        self._scheduler.stop()

    # -- loading ---------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Have as many threads as may run, and not more than programs wait for them."""
        if not self._waiting or self._working >= self._threads:
            return
        with self._lock:
            waiting = sum(planned.ready for planned in self._waiting.values()) if self._next() is not None else 0
            for _ in range(min(self._threads - self._working, waiting - self._beginning)):
                begun = self._scheduler.submit(self._work)
                self._working += begun
                self._beginning += begun

    def _work(self) -> None:
        begins = True
        while True:
            with self._lock:
                self._beginning -= begins
                begins = False
                planned = self._next()
                if planned is None:
                    self._working -= 1
                    return
                del self._waiting[planned.use.key]
                planned.state = _State.LOADING
                self._held += planned.cost
            try:
                self._load_one(planned)
            except Exception as exc:
                log.debug("ejcache: %s was not loaded in the background: %s", planned.use.key, exc)
            finally:
                self._finish(planned)  # the program may wait for it
            del planned

    def _next(self) -> PreloadedExecutable | None:
        """Return the first program that waits, if there is memory for it. With the lock held."""
        if self._closed or self._paused:
            return None
        for planned in self._waiting.values():
            if planned.ready:
                return planned if self._held + planned.cost <= LOADED_BYTES else None
        return None

    def _load_one(self, planned: PreloadedExecutable) -> None:
        started = time.monotonic()
        found, use = self._reader.read(planned.use.key), planned.use
        if found is None or not self._fits(planned, len(found.raw)):
            return
        if load_journal.is_suspected(found.header):
            return  # the request for it says so, and has it replaced
        loaded, place = None, load_journal.begin(found.header)
        try:
            loaded = seam.load_ahead(planned.client, found.raw, use.options, use.devices)
        finally:
            load_journal.end(place, found.header, is_loaded=loaded is not None)
        if loaded is None:
            return
        planned.executable, planned.devices = loaded
        planned.header = found.header
        planned.seconds = time.monotonic() - started

    def _fits(self, planned: PreloadedExecutable, size: int) -> bool:
        """Correct the cost, now that the size is known; whether there is memory for it."""
        cost = size * _HELD_PER_BYTE.get(str(planned.client.platform), _HELD_ELSEWHERE)
        with self._lock:
            if self._closed or planned.state is not _State.LOADING or size > self._largest:
                return False
            if self._held + cost - planned.cost > LOADED_BYTES:
                return False
            self._held += cost - planned.cost
            planned.cost = cost
        return True

    def _finish(self, planned: PreloadedExecutable) -> None:
        with self._lock:
            if planned.state is _State.LOADING and planned.header is not None and not self._closed:
                planned.state = _State.LOADED
                self._count(preload_loaded=1, preload_bytes=planned.header.raw_size)
            else:
                # It cannot be had, or the program has stopped waiting for it.
                self._held -= planned.cost if planned.state is _State.LOADING else 0
                planned.state = _State.GONE
                self._planned.pop(planned.use.key, None)
                planned.executable = None
        planned.done.set()

    # -- releasing -------------------------------------------------------------------------------------------------

    def _remove(self, planned: PreloadedExecutable) -> None:
        """Take a program off the list. With the lock held."""
        if planned.state in {_State.LOADING, _State.LOADED}:
            self._held -= planned.cost
        planned.state = _State.GONE
        self._planned.pop(planned.use.key, None)
        self._waiting.pop(planned.use.key, None)

    def _release(self) -> None:
        with self._lock:
            unused = [planned for planned in self._planned.values() if planned.state is _State.LOADED]
            for planned in list(self._planned.values()):
                if planned.state is not _State.LOADING:
                    self._remove(planned)
        if unused:
            self._count(preload_unused=len(unused))

    def _release_if_idle(self) -> None:
        left = self._used_at + IDLE_SECONDS - time.monotonic()
        if left > 0 or self._working:
            # Only what is loaded can be released, so a load that is under way is waited for.
            self._scheduler.later(left if left > 0 else IDLE_SECONDS, self._release_if_idle)
            return
        self._release()
        self._scheduler.stop()

    def _await_loads(self) -> None:
        end = time.monotonic() + _END_PATIENCE
        for planned in list(self._planned.values()):
            if planned.state is _State.LOADING:
                planned.done.wait(max(0.0, end - time.monotonic()))

    # -- forks -----------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Let no load be under way."""
        with self._lock:
            self._paused = True
        self._await_loads()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        with self._lock:
            self._paused = False
        self._wake()

    def after_fork_in_child(self) -> None:
        """Have nothing: what the parent loaded belongs to XLA's threads, which do not exist here.

        It is kept, because releasing it would call into XLA.
        """
        self._inherited = self._planned
        self._planned = {}
        self._waiting = {}
        self._closed = True
        self._held = 0


def _smaller_stack() -> int | None:
    """Return the bytes of stack that a new thread has, if the main thread may have more; None if both have the same.

    Python can change the size only for all threads of the process, so ours have the program's.
    """
    limit, size = resource.getrlimit(resource.RLIMIT_STACK)[0], threading.stack_size()
    if limit == resource.RLIM_INFINITY:
        return size or _UNLIMITED_STACK
    return size if 0 < size < limit else None
