"""Requests to shared storage: repeated (`RetryPolicy`), slowed down (`Pace`) and refused (`CircuitBreaker`).

Retries: several tries of one operation, within one deadline.

The waits between tries are drawn from the whole interval up to an exponentially growing limit ("full jitter", Brooker,
Exponential Backoff and Jitter, AWS Architecture Blog, 2015), because the processes of a pod fail at the same time and
must not all come back at the same time.

Storage that asks to slow down (429, SlowDown, 503) works, and has too much to do: a thousand hosts may be starting. An
operation is then tried for longer than its deadline, and all threads of the process keep to one pace (`Pace`).

A circuit breaker: storage that failed is not asked again for a while, so that a failure costs a program once.

While the breaker is closed, every call goes through. It opens after several failures in a row, or at once after a call
that failed as slowly as a deadline, because the next one would take as long. While it is open, calls are refused at
once. When the cool-down has passed, one refused call starts a probe in the background: if the probe succeeds, the
breaker closes; if it fails, the breaker stays open for longer.

Until the storage has answered for the first time, all calls of a process together wait for `first_seconds`, and for a
shorter time if a process of this host got no answer shortly before (`UnreachableNote`). That costs every process
something and is often an error of the user's, so one line says so.

All clients of one URL in a process share one breaker (`breaker_for`): what one of them has learnt, the others know.
"""

from __future__ import annotations

import functools
import math
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.errors import (
    StoreBusyError,
    StoreError,
    StoreForbiddenError,
    StoreNotAskedError,
    StoreReadOnlyError,
    StoreTooSmallError,
    StoreUnavailableError,
)
from ejcache.util.lifecycle import is_ending, track_forks
from ejcache.util.locks import ForkLock
from ejcache.util.log import warn_once
from ejcache.util.text import plural
from ejcache.util.threads import CallTimeoutError, call_with_timeout, submit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


T = TypeVar("T")

_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 2.0
_UNREACHABLE_TRIES: Final = 3
_PATIENCE: Final = 60.0
"""Storage that asks to slow down is waited for if it has done something for this process within so many seconds."""
_MOST_PATIENCE: Final = 120.0
"""Seconds that one operation is tried, at most."""
_LEAST_INTERVAL: Final = 0.02
_LEAST_TRY: Final = 0.1
_MOST_INTERVAL: Final = 1.0
_RECOVERY: Final = 0.55
_LONGEST_RETRY_AFTER: Final = 30.0


class ThrottledError(StoreBusyError):
    """The storage asked this process to slow down for as long as the operation could wait, and served others."""


class TransientError(Exception):
    """One try failed, and the next one may succeed. Only backends raise it, and only `RetryPolicy` sees it.

    Attributes:
        ambiguous: the storage may have carried out the request although no answer came.
        busy: the storage asked to slow down, or did not answer in time.
        unreachable: no connection could be made. That seldom passes within a deadline, so it is not waited for.
        throttled: the storage asked to slow down. A 503, which is ambiguous, may also mean that it is broken.
        retry_after: seconds after which the storage wants to be asked again (`Retry-After`).
    """

    def __init__(
        self,
        message: str,
        *,
        ambiguous: bool = False,
        busy: bool = False,
        unreachable: bool = False,
        throttled: bool = False,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.throttled = throttled
        self.retry_after = retry_after
        self.ambiguous = ambiguous
        self.busy = busy
        self.unreachable = unreachable

    @property
    def is_alive(self) -> bool:
        """Whether storage that asked to slow down works for certain: a 503 alone may be of storage that is broken."""
        return not self.ambiguous or self.retry_after > 0


def try_within(what: str, function: Callable[[], T], seconds: float) -> T:
    """Make one try in another thread, which is left behind after `seconds`.

    Raises:
        TransientError: it did not return in time; it may still be running, and may still succeed.
    """
    try:
        return call_with_timeout(what, function, seconds)
    except CallTimeoutError as exc:
        raise TransientError(str(exc), ambiguous=True, busy=True) from exc


def _between(least: float, most: float) -> float:
    return random.uniform(least, most)  # noqa: S311 (jitter)


def seconds_of(retry_after: object) -> float:
    """The seconds of a `Retry-After` header (RFC 9110, 10.2.3); 0 without one, and for a date."""
    text = str(retry_after or "")
    return min(float(text), _LONGEST_RETRY_AFTER) if text.isdecimal() and len(text) < 9 else 0.0


class Pace:
    """How fast this process asks one storage: as fast as it likes, until the storage asks it to slow down.

    Each "slow down" doubles the time between two requests, each success shortens it, and soon it is gone. Safe for
    threads, which all keep to it: two of them that take the same turn do no harm.
    """

    def __init__(self) -> None:
        self._interval = self._next = 0.0
        self._slowed_at = self._moved_at = -math.inf

    @property
    def is_moving(self) -> bool:
        """Whether the storage has done something for this process a short while ago."""
        return time.monotonic() - self._moved_at < _PATIENCE

    def has_moved_since(self, moment: float) -> bool:
        """Whether the storage has done something for this process since `moment`, by the monotonic clock."""
        return self._moved_at >= moment

    def wait(self, most: float) -> float:
        """Wait for a turn, for `most` seconds; returns when the request begins, by the monotonic clock."""
        now = time.monotonic()
        turn = max(now, self._next)
        if self._interval:
            self._next = turn + self._interval * _between(0.5, 1.5)
        if turn > now:
            time.sleep(min(turn - now, most))
        return time.monotonic()

    def succeed(self) -> None:
        """Note that the storage did what it was asked for."""
        self._moved_at = time.monotonic()
        if self._interval:
            shorter = self._interval * _RECOVERY
            self._interval = shorter if shorter >= _LEAST_INTERVAL else 0.0

    def slow_down(self, began: float, *, after: float = 0.0, is_alive: bool = True) -> float:
        """Note that the storage asked to slow down.

        Args:
            began: when the request began: those that were under way at the same time count once.
            after: seconds for which it does not want to be asked.
            is_alive: the storage works, whatever it did before.

        Returns:
            The time, by the monotonic clock, until which it is worth waiting.
        """
        now = time.monotonic()
        if is_alive and self._moved_at == -math.inf:
            self._moved_at = now
        if began >= self._slowed_at:
            self._slowed_at = now
            self._interval = min(max(2 * self._interval, 2 * _LEAST_INTERVAL), _MOST_INTERVAL)
        pause = max(after * _between(1.0, 1.5), self._interval * _between(0.0, 1.0))
        self._next = max(self._next, now + pause)
        return self._moved_at + _PATIENCE


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long one operation may take, retries included.

    Attributes:
        deadline: seconds.
        bytes_per_second: the slowest upload that is accepted: a large body gets the time that it takes at this speed.
    """

    deadline: float = 10.0
    bytes_per_second: float = 4e6

    def run(
        self,
        what: str,
        attempt: Callable[[float], T],
        *,
        size: int = 0,
        most: float = math.inf,
        pace: Pace | None = None,
    ) -> T:
        """Call `attempt(seconds it may take)` until it does not raise `TransientError`.

        Args:
            what: the operation and its object, with which the message of an error begins.
            attempt: raises `TransientError` for another try; any other error reaches the caller.
            size: bytes to be sent, which extend the deadline, and `most` if it is not 0.
            most: seconds for this operation, if that is less.
            pace: of the storage. An operation that the storage asks to slow down takes longer than its deadline, up to
                two minutes, if the storage does something for this process meanwhile. A 503 without a `Retry-After`
                may come from storage that is broken, and makes no operation longer.

        Raises:
            ThrottledError: the storage asked to slow down, but works.
            StoreBusyError: the deadline passed while the storage was slow or asked to slow down.
            StoreUnavailableError: the storage failed, or could not be reached, until the deadline.
        """
        extra = size / self.bytes_per_second
        pace = pace or Pace()
        started = time.monotonic()
        # A first answer that is due in 5 s may come later if it is to a large upload, which is no sign of dead storage.
        end = started + min(self.deadline, most) + (extra if most > 0 else 0)
        failure = TransientError("no time was given", busy=True)
        tries, is_alive = 0, False
        while (left := end - time.monotonic()) > 0:
            tries += 1
            began = pace.wait(left)
            left = end - time.monotonic()
            try:
                # Half of the time at most: a connection that went silent must leave time for another one.
                result = attempt(min(max(left, _LEAST_TRY), self.deadline / 2 + extra))
            except TransientError as exc:
                failure = exc
            else:
                pace.succeed()
                return result
            if failure.throttled:
                patient = pace.slow_down(began, after=failure.retry_after, is_alive=failure.is_alive)
                if failure.is_alive:
                    is_alive = True
                    end = max(end, min(patient, started + _MOST_PATIENCE))
                continue
            if failure.unreachable and tries >= _UNREACHABLE_TRIES:
                break
            pause = _between(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**tries))
            if time.monotonic() + pause >= end:
                break
            time.sleep(pause)
        # A 503 alone, while nothing is done for any thread of this process, is broken storage: the breaker opens.
        works = failure.throttled and (pace.is_moving if is_alive else pace.has_moved_since(started))
        kind = ThrottledError if works else StoreBusyError if failure.busy else StoreUnavailableError
        raise kind(f"{what}: {failure} ({plural(tries, 'try', 'tries')} within {end - started:.3g} s)") from failure


_SLOW_SECONDS: Final = 2.0
"""One failure that took this long opens a breaker."""
_FIRST_SECONDS: Final = 5.0
"""How long calls wait in all for the first answer."""
_LONGEST: Final = 8.0
"""The cool-down grows to at most this many times the first one."""
_EXPIRY_SECONDS: Final = 3600.0
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
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._failures = failures
        self._first_seconds = _FIRST_SECONDS
        self._first_cooldown = cooldown
        self._clock = clock
        self._jitter = jitter
        self.pace = Pace()
        self._in_a_row = 0
        self._retry_at: float | None = None
        self._cooldown = cooldown
        self._note: UnreachableNote | None = None
        self._has_answered = False
        self._client_patience = math.inf
        self._is_client_missing = False
        self._waited = 0.0
        self._inside = threading.local()
        self.after_fork_in_child()
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Start with a free lock: a thread of the parent may have held it, or have been asking or probing."""
        self._lock = threading.Lock()
        self._asking = 0
        self._asking_since = 0.0
        self._probing_until: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether calls are refused."""
        return self._retry_at is not None

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
        if self._is_client_missing:
            return 0.0
        asking = self._clock() - self._asking_since if self._asking else 0.0
        return max(0.0, self._first_seconds - self._waited - asking)

    def use_note(self, note: UnreachableNote, *, seconds: float) -> None:
        """Heed and keep the note of this host about the storage.

        Args:
            note: the note.
            seconds: how long to wait for the first answer, or for a client that makes no progress, if this host got no
                answer before.
        """
        self._note = note
        if note.is_recent:
            self._first_seconds = self._client_patience = seconds

    def call(
        self,
        url: str,
        function: Callable[[], T],
        *,
        probe: Callable[[], object],
        prepare: Callable[[float], None] | None = None,
    ) -> T:
        """Return what `function()` returns, and learn from how it went.

        A "not found" answer, a refusal of one object or of a write, or "slow down" means that the storage works, so it
        closes the breaker. A call within a call of the same breaker and thread goes through; only the outer one is
        judged.

        Args:
            url: the storage, for messages.
            function: asks the storage.
            probe: asks the storage something cheap; called in another thread, when a call was refused and the
                cool-down has passed.
            prepare: `prepare(make_seconds)` waits until the client can send requests, so long at most. Its time does
                not make a failure slow. Without it, `function` may do without the storage.

        Raises:
            StoreNotAskedError: the breaker is open, or the client is not ready.
            StoreError: `function` raised it.
        """
        asked = function if prepare is None else partial(self._ask, function, prepare)
        if getattr(self._inside, "active", False):
            return asked()
        if self._retry_at is not None:
            if not self.retry_in and self.allow_probe():
                submit(lambda: self._probe(url, probe))
            raise StoreNotAskedError(f"{url} failed and is not asked for another {self.retry_in:.0f} s")
        return self._judged(url, asked)

    def probe(self, url: str, function: Callable[[], object]) -> bool:
        """Whether calls go through now; calls `function` first, in this thread, if a probe is due."""
        if self._retry_at is not None and self.allow_probe():
            self._probe(url, function)
        return self._retry_at is None

    def allow_probe(self) -> bool:
        """Whether the caller may ask now: always while the breaker is closed; one caller at a time while it is open.

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
            self._retry_at = self._probing_until = None
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
        """Open, because the program ends while calls are under way."""
        self.fail(seconds=math.inf)
        self._tell(url, StoreNotAskedError("there was no answer until the program ended"))

    def _probe(self, url: str, function: Callable[[], object]) -> None:
        with suppress(StoreError):
            self._judged(url, function)

    def _judged(self, url: str, function: Callable[[], T]) -> T:
        self._inside.active, self._inside.began = True, self._clock()
        try:
            result = function()
        except (*_ANSWERS, ThrottledError):
            self.succeed()
            raise
        except StoreNotAskedError as exc:
            self._tell(url, exc)
            raise
        except StoreError as exc:
            took = self._clock() - self._inside.began
            self.fail(seconds=took if self.patience else math.inf)
            self._tell(url, exc)
            raise
        finally:
            self._inside.active = False
        self.succeed()
        return result

    def _ask(self, function: Callable[[], T], prepare: Callable[[float], None]) -> T:
        try:
            prepare(self._client_patience)
        except StoreNotAskedError:
            self._is_client_missing = not is_ending()
            raise
        self._is_client_missing = False
        self._inside.began = self._clock()
        if self._has_answered:
            return function()
        self._begin_asking()
        try:
            result = function()
        except _ANSWERS:
            self.note_answer()
            raise
        finally:
            self._end_asking()
        self.note_answer()
        return result

    def _begin_asking(self) -> None:
        with self._lock:
            if not self._asking:
                self._asking_since = self._clock()
            self._asking += 1

    def _end_asking(self) -> None:
        with self._lock:
            self._asking -= 1
            if not self._asking:
                self._waited += self._clock() - self._asking_since

    def note_answer(self) -> None:
        """Note that the storage can be reached: it is waited for without a limit from now on."""
        self._has_answered = True
        if self._note is not None:
            self._note.clear()

    def _tell(self, url: str, exc: StoreError) -> None:
        """Say, and note for this host, that the storage gives no answer, as soon as it is not waited for."""
        was_asked = self._asking or self._waited or self._client_patience < math.inf
        if self._has_answered or not (self._is_client_missing or (self.is_open and was_asked)):
            return
        warn_once(
            ("unreachable", url),
            "ejcache: %s cannot be reached; the program goes on without it, and asks again in the background: %s: %s",
            url,
            type(exc).__name__,
            exc,
        )
        if self._note is not None:
            self._note.leave()


class UnreachableNote:
    """A note of this host: a bucket gave a process no answer, so the next ones wait for it for a shorter time.

    An empty file; the time of its last change is when the first of these processes gave up. A process that gets an
    answer deletes it. Those that wait for the shorter time do not renew it: after an hour one process waits as long as
    the first one did, because the storage may only have been slow. Errors of the disk are ignored.

    Args:
        path: of the file, on a local file system.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def is_recent(self) -> bool:
        """Whether the bucket gave no answer within the last hour, and none since."""
        try:
            return 0 <= time.time() - self._path.stat().st_mtime < _EXPIRY_SECONDS
        except OSError:
            return False

    def leave(self) -> None:
        """Note that the bucket gave no answer, unless a recent note says so."""
        with suppress(OSError):
            if not self.is_recent:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._path.touch(mode=0o600)

    def clear(self) -> None:
        """Note that the bucket has answered."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


_lock: Final = ForkLock()


def breaker_for(url: str) -> CircuitBreaker:
    """The breaker that all clients of `url` in this process share."""
    with _lock:  # without it, two threads at the same moment could get two
        return _breaker_for(url)


@functools.lru_cache(maxsize=256)
def _breaker_for(url: str) -> CircuitBreaker:  # noqa: ARG001  # the cache is keyed by it
    return CircuitBreaker()


def forget_breakers() -> None:
    """Give later clients new, closed breakers: for tests."""
    _breaker_for.cache_clear()
