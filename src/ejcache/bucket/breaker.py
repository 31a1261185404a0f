"""Breaks the circuit: storage that failed is not asked again for a while, so that a failure costs a program once.

While the breaker is closed, every call goes through. It opens after several failures in a row, or at once after a call
that failed as slowly as a budget, because the next one would take as long. Before that, storage is asked for another
name: one object may fail for ever while all others can be read. It also opens at once if there is no such bucket, or if
it does not know the credentials. While the breaker is open, calls are refused at once.
When the cool-down has passed, one refused call starts a probe in the background: if the probe succeeds, the breaker
closes; if it fails, the breaker stays open for longer.

Failures to read what a program waits for have one allowance in a process, whatever the names are, and whatever the
storage answers about others: what is stored may be unreadable while "not found" comes at once. When it is spent, the
breaker opens, and the probe is one of the reads that failed. If that succeeds, the breaker closes; but what was spent
comes back slowly, so that good and bad objects by turns cost no more.

Until the storage has answered for the first time, all calls of a process together have one budget. It is larger where
the storage has served a process of this host within a day, and smaller where it has failed one shortly before
(`StorageNote`). In the second case one thread asks while the others that a program waits for wait for its answer, one
failure opens the breaker, and the end of a program waits for nothing. Storage that fails costs every process something
and is often an error of the user's, so one line says so.

All clients of one URL in a process share one breaker (`breaker_for`): what one of them has learnt, the others know.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.bucket.retry import RateLimit, ThrottledError
from ejcache.bucket.storage_note import FAILED, SERVED, StorageNote
from ejcache.errors import (
    NoPermissionError,
    StoreError,
    StoreForbiddenError,
    StoreNotAskedError,
    StoreReadOnlyError,
    StoreRefusedError,
    StoreTooSmallError,
    StoreUnavailableError,
)
from ejcache.util.jitter import between
from ejcache.util.lifecycle import is_ending, track_forks
from ejcache.util.locks import ForkLock
from ejcache.util.log import warn_once
from ejcache.util.threads import submit
from ejcache.util.time_budget import Budget, current_budget, is_waited_for

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")

_SLOW_SECONDS: Final = 2.0
"""One failure that took this long opens a breaker."""
_KNOWN_SECONDS: Final = 9.5
_UNKNOWN_SECONDS: Final = 2.5
"""How long calls wait in all for the first answer: of storage that has served this host within a day, and of other."""
_PROBE_SECONDS: Final = 0.5
"""How long storage is asked for another name before the breaker opens."""
_READING_SECONDS: Final = 10.0
_BACK_SECONDS: Final = 1.0
"""What failures to read may take in a process, and how much of it comes back in a minute."""
_KEPT_SECONDS: Final = 3.0
"""A read that fails leaves so much of it, however long it is tried: for others, which may be slow."""
_LEAST_READING: Final = 0.5
"""Less than this is nothing: the breaker opens. A read gets at least so long."""
_LONGEST: Final = 8.0
"""The cool-down grows to at most this many times the first one."""
_ANSWERS: Final = (StoreForbiddenError, StoreReadOnlyError, StoreTooSmallError)
"""Errors that only storage which can be reached gives."""


class CircuitBreaker:
    """Decides whether storage is asked. Safe for threads and forks.

    Args:
        failures: this many failures in a row open it.
        cooldown: seconds until the first probe. They double with each probe that fails, and are varied by a quarter,
            because the processes of a pod fail at the same time and must not all come back at the same time.
        clock: monotonic seconds.
        jitter: `jitter(a, b)` returns a number between the two.

    Attributes:
        pace: how fast this process asks the storage.
    """

    def __init__(
        self,
        *,
        failures: int = 3,
        cooldown: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[float, float], float] = between,
    ) -> None:
        self._failures = failures
        self._first = Budget(_UNKNOWN_SECONDS)
        self._reading = _Allowance(_READING_SECONDS, minute=_BACK_SECONDS, clock=clock)
        self._again: Callable[[], object] | None = None
        self._first_cooldown = cooldown
        self._clock = clock
        self._jitter = jitter
        self.pace = RateLimit()
        self._in_a_row = 0
        self._retry_at: float | None = None
        self._cooldown = cooldown
        self._note: StorageNote | None = None
        self._has_answered = self._was_asked = False
        self._has_failed_lately = False
        self._is_client_missing = False
        self._why: StoreError | None = None
        self._client_seconds = math.inf
        self._inside = threading.local()
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Start with a free lock: a thread of the parent may have held it, or have been asking or probing."""
        self._lock = threading.RLock()
        self._turn = threading.RLock()
        self._first = Budget(self._first.seconds)
        self._probing_until: float | None = None

    @property
    def is_open(self) -> bool:
        """True if calls are refused."""
        return self._retry_at is not None

    @property
    def is_presumed_dead(self) -> bool:
        """True if the storage has failed this host lately, and has not answered this process yet."""
        return self._has_failed_lately

    @property
    def is_probing(self) -> bool:
        """True if this thread asks for another name before the breaker opens: at once, whatever the pace is."""
        return getattr(self._inside, "probing", False)

    @property
    def retry_in(self) -> float:
        """Seconds until a probe may be made; 0 if one may be made now, or if the breaker is closed."""
        retry_at = self._retry_at
        return 0.0 if retry_at is None else max(0.0, retry_at - self._clock())

    @property
    def patience(self) -> float:
        """Seconds that are left to wait for the first answer; no limit once there was one, and for probes."""
        if self._has_answered or self._retry_at is not None:
            return math.inf
        return 0.0 if self._is_client_missing else self._first.left

    def use_note(self, note: StorageNote, *, seconds: float) -> None:
        """Heed and keep the note of this host about the storage.

        Args:
            note: the note.
            seconds: how long to wait for the first answer, if the storage has failed this host shortly before.
        """
        self._note = note
        said = note.said
        if said == SERVED:
            self._first = Budget(_KNOWN_SECONDS)
        elif said == FAILED:
            self._first = Budget(seconds)
            self._client_seconds = seconds
            self._has_failed_lately = not self._has_answered

    def budget(self, seconds: float, *, reads: bool = False) -> Budget:
        """Return the budget of one operation: so many seconds, or those of the look-up that it is a part of.

        They are taken from those for the first answer, too, until there is one, unless no program waits. A probe has a
        small budget of its own.

        Args:
            seconds: of an operation that is part of no look-up.
            reads: what a program waits for: for no longer than failures to read may still take.
        """
        if self.is_probing:
            return Budget(_PROBE_SECONDS)
        look_up = current_budget()
        seconds = seconds if look_up is None else look_up.seconds
        if self.is_open:
            return Budget(seconds, within=() if look_up is None else (look_up,))
        if reads:
            with self._lock:
                left = self._reading.left
            # The wait for a turn, where the storage has asked to slow down, is not the object's.
            most = max(_LEAST_READING, min(left, _KEPT_SECONDS), left - _KEPT_SECONDS)
            seconds = min(seconds, most + self.pace.delay)
        first = self._first if is_waited_for() and not self._has_answered else None
        return Budget(seconds, within=tuple(each for each in (look_up, first) if each is not None))

    def call(
        self,
        url: str,
        function: Callable[[], T],
        *,
        probe: Callable[[], object],
        again: Callable[[], object] | None = None,
        prepare: Callable[[float], None] | None = None,
    ) -> T:
        """Call `function()` and learn from how it went.

        A "not found" answer, a refusal of one object or of a write, or "slow down" means that the storage works, so it
        closes the breaker. A call within a call of the same breaker and thread goes through; only the outer one is
        judged.

        Args:
            url: the storage, for messages.
            function: asks the storage.
            probe: asks the storage something cheap; called in another thread, when a call was refused and the
                cool-down has passed.
            again: asks the same once more, if `function` reads what a program waits for: the probe, once failures to
                read have taken too long.
            prepare: `prepare(make_seconds)` waits until the client can send requests, so long at most. Its time does
                not make a failure slow. Without it, `function` may do without the storage.

        Raises:
            StoreNotAskedError: the breaker is open, or the client is not ready.
            StoreError: `function` raised it.
        """
        asked = partial(self._noting, function if prepare is None else partial(self._ask, function, prepare), again)
        if getattr(self._inside, "active", False):
            return asked()
        if self._asks_alone() and is_waited_for():
            # An answer that takes longer than a failure may is arriving: then it is not waited for.
            is_mine = self._turn.acquire(timeout=self._client_seconds + self._first.seconds + _PROBE_SECONDS)
            try:
                if self._asks_alone():
                    return self._judge(url, asked, probe)
            finally:
                if is_mine:
                    self._turn.release()
        if self._retry_at is not None:
            if not self.retry_in and self.allow_probe():
                submit(partial(self._probe, url, self._again or probe))
            why = "" if self._why is None else f": {self._why}"
            raise StoreNotAskedError(
                f"{url} failed and is not asked for another {self.retry_in:.0f} s{why}"
            ) from self._why
        return self._judge(url, asked, probe)

    def probe(self, url: str, function: Callable[[], object]) -> bool:
        """True if calls go through now; calls `function` first, in this thread, if a probe is due."""
        if self._retry_at is not None and self.allow_probe():
            self._probe(url, self._again or function)
        return self._retry_at is None

    def allow_probe(self) -> bool:
        """True if the caller may ask now: always while the breaker is closed; one caller at a time while it is open.

        A prober that never reports counts as failed after a cool-down.
        """
        with self._lock:
            if self._retry_at is None:
                return True
            now = self._clock()
            if now < self._retry_at or (self._probing_until is not None and now < self._probing_until):
                return False
            self._probing_until = now + self._first_cooldown
            return True

    def succeed(self) -> None:
        """Note that the storage answered; "not found" is an answer too."""
        if self._retry_at is None and not self._in_a_row:
            return  # the common case takes no lock
        with self._lock:
            self._in_a_row = 0
            self._retry_at = self._probing_until = self._why = self._again = None
            self._cooldown = self._first_cooldown

    def fail(self, *, seconds: float = 0.0) -> None:
        """Note that the storage failed, after `seconds`."""
        with self._lock:
            self._in_a_row += 1
            if self._retry_at is not None:
                if self._probing_until is None:
                    return  # this call began before the breaker opened, so its failure says nothing new
                self._cooldown = min(self._cooldown * 2, self._first_cooldown * _LONGEST)
            elif self._in_a_row < self._failures and seconds < _SLOW_SECONDS:
                return
            self._probing_until = None
            self._retry_at = self._clock() + self._cooldown * self._jitter(0.75, 1.25)

    def give_up(self, url: str) -> None:
        """Open, because the program ends while calls are under way, or before storage that is presumed dead answers."""
        self.fail(seconds=math.inf)
        if not self._has_failed_lately:  # otherwise a process has said so
            self._tell(url, StoreNotAskedError("there was no answer until the program ended"))

    def _probe(self, url: str, function: Callable[[], object]) -> None:
        with suppress(StoreError):
            self._judge(url, function, None)

    def _asks_alone(self) -> bool:
        """True if one thread asks, because the storage has failed this host lately and has not answered yet."""
        return self._has_failed_lately and self._retry_at is None

    def _judge(self, url: str, function: Callable[[], T], probe: Callable[[], object] | None) -> T:
        self._inside.active, self._inside.began, self._inside.again = True, self._clock(), None
        try:
            result = function()
        except StoreNotAskedError as exc:
            self._tell(url, exc)
            raise
        except StoreError as exc:
            is_spent = self._is_spent_by(exc)
            if _is_answer(exc) and not is_spent:
                # Storage that may not be read may not be written either, most often: that says nothing new.
                if not (isinstance(exc, StoreReadOnlyError) and isinstance(self._why, NoPermissionError)):
                    self.succeed()
                raise
            took = self._clock() - self._inside.began
            # What is left of the budget for the first answer may be too little for another try.
            is_too_much = self._has_failed_lately or self.patience <= _PROBE_SECONDS
            if is_spent or is_too_much or isinstance(exc, StoreRefusedError):
                took = math.inf
            may_open = took >= _SLOW_SECONDS and self._retry_at is None and self._in_a_row + 1 < self._failures
            is_of_all = is_spent or isinstance(exc, NoPermissionError | StoreRefusedError)
            if may_open and not is_of_all and probe is not None and self._answers(probe):
                took = 0.0
            kind = NoPermissionError if isinstance(exc, NoPermissionError) else StoreUnavailableError
            self._why = kind(str(exc))  # without the frames, which hold a program's values
            self.fail(seconds=took)
            self._tell(url, exc)
            raise
        finally:
            self._inside.active = False
        if self._in_a_row or self._retry_at is not None:
            self.succeed()
        return result

    def _noting(self, function: Callable[[], T], again: Callable[[], object] | None) -> T:
        """Call `function`; the call that is judged knows then which of its requests has failed."""
        try:
            return function()
        except StoreError:
            self._inside.again = again or self._inside.again
            raise

    def _is_spent_by(self, exc: StoreError) -> bool:
        """True if this failure was to read what a program waits for, and nothing is left for another one."""
        again = self._inside.again
        if again is None or isinstance(exc, _ANSWERS) or self._retry_at is not None:
            return False
        with self._lock:
            self._reading.spend(self._inside.began)
            if self._reading.left >= _LEAST_READING:
                return False
            self._again = again
            return True

    def _answers(self, probe: Callable[[], object]) -> bool:
        """True if the storage answers when it is asked for something else: then only one object fails."""
        self._inside.probing = True
        try:
            probe()
        except StoreError as exc:
            return _is_answer(exc)
        finally:
            self._inside.probing = False
        return True

    def _ask(self, function: Callable[[], T], prepare: Callable[[float], None]) -> T:
        try:
            # To make a client is work of this process, which takes long on a busy host: its own limit counts, not the
            # budget for the first answer, unless the storage has failed this host shortly before.
            if not is_waited_for():
                seconds = math.inf
            elif self._has_answered or self._retry_at is not None or not self._is_client_missing:
                seconds = self._client_seconds
            else:
                seconds = 0.0
            prepare(seconds)
        except StoreNotAskedError:
            self._is_client_missing = is_waited_for() and not is_ending()
            raise
        self._is_client_missing = False
        self._was_asked = True
        self._inside.began = self._clock()
        try:
            result = function()
        except _ANSWERS as exc:
            self._has_answered = True
            self._has_failed_lately = self._has_failed_lately and isinstance(exc, NoPermissionError)
            raise
        self._has_answered = True
        self._has_failed_lately = False
        if self._note is not None:
            self._note.leave(SERVED)
        return result

    def _tell(self, url: str, exc: StoreError) -> None:
        """Say, and note for this host, that the storage gives no answer, as soon as it is not waited for."""
        if not (self._is_client_missing or (self.is_open and self._was_asked)):
            return
        if self._note is not None:
            self._note.leave(FAILED)
        if isinstance(exc, NoPermissionError):
            warn_once(("refused", url), "ejcache: %s; the program goes on without it", exc)
            return
        if self._has_answered:
            return  # who asked says what failed
        what = "asks to slow down" if isinstance(exc, ThrottledError) else "cannot be reached"
        warn_once(
            ("unreachable", url),
            "ejcache: %s %s; the program goes on without it, and asks again in the background: %s: %s",
            url,
            what,
            type(exc).__name__,
            exc,
        )


def _is_answer(exc: StoreError) -> bool:
    """True if only storage that works for others gives this answer. If it permits nothing, it is left alone."""
    return (isinstance(exc, _ANSWERS) and not isinstance(exc, NoPermissionError)) or (
        isinstance(exc, ThrottledError) and exc.works
    )


_lock: Final = ForkLock()


def breaker_for(url: str) -> CircuitBreaker:
    """Return the breaker that all clients of `url` in this process share."""
    with _lock:  # without it, two threads at the same moment could get two
        return _breaker_for(url)


@functools.lru_cache(maxsize=256)
def _breaker_for(url: str) -> CircuitBreaker:  # noqa: ARG001  # the cache is keyed by it
    return CircuitBreaker()


def forget_breakers() -> None:
    """Give later clients new, closed breakers: for tests."""
    _breaker_for.cache_clear()


class _Allowance:
    """Seconds that failures may take in all. What was spent comes back slowly. Failures at the same time count once.

    Not safe for threads.

    Args:
        seconds: at the beginning, and at most.
        minute: seconds that come back in a minute.
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float, *, minute: float, clock: Callable[[], float]) -> None:
        self._seconds = self._left = seconds
        self._per_second = minute / 60
        self._clock = clock
        self._counted = self._spent_until = -math.inf

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 if the last failure took longer."""
        now = self._clock()
        self._left = min(self._seconds, self._left + (now - self._counted) * self._per_second)
        self._counted = now
        return self._left

    def spend(self, began: float) -> None:
        """Count the time since `began`, except what another failure took meanwhile."""
        now = self._clock()
        self._left = self.left - max(0.0, now - max(began, self._spent_until))
        self._spent_until = now
