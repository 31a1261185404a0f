"""`ClientBucket` is the base class of all buckets but directories: it makes a client, once and in the background.

It is made in another thread, at the first request or when the bucket is prepared: its library is imported, which takes
half a second on an idle machine and much more while many processes start, and credentials are looked for, in files and
on the network. An operation waits for that before its own deadline begins, so that a slow import is not taken for slow
storage. The import may take a minute: a disk may be slow. After it, the search for credentials has its own deadline.

No client is made while the interpreter ends: a program that is ending can start no thread, and its executors refuse
work, so that most libraries would wait for ever. A client that exists goes on.
"""

from __future__ import annotations

import collections
import math
import threading
import time
import weakref
from abc import abstractmethod
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as futures_wait
from typing import TYPE_CHECKING, Any, Final

from ejcache.bucket.base import Bucket
from ejcache.bucket.retry import TransientError, seconds_of
from ejcache.errors import (
    NoPermissionError,
    StorageCause,
    StoreNotAskedError,
    StoreReadOnlyError,
    StoreRefusedError,
    StoreUnavailableError,
)
from ejcache.util.lifecycle import AtExit, ExitPhase, is_ending, run_exit_phases_first, track_forks
from ejcache.util.threads import submit
from ejcache.util.time_budget import current_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ejcache.bucket.responses import AnswerError
    from ejcache.bucket.retry import RetryPolicy

_ENDING: Final = 5.0
"""Seconds that a program which ends waits for an import of ours at most."""


class ClientBucket(Bucket):
    """Objects that a client of this process asks for. Safe for threads and forks.

    Args:
        url: the root that names are relative to.
        policy: how long an operation may take.
        options: arguments of what provides the client.
    """

    make_seconds: float = 5.0
    """Operations wait for `_make` for so long,"""
    most_seconds: float = 60.0
    """and for `_load` and `_make` until this long after their beginning."""

    def __init__(
        self, url: str, *, policy: RetryPolicy | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(url, policy=policy)
        self._options = dict(options or {})
        self._made: ClientStartup | None = None
        self._closer: weakref.finalize[[Any, Any], ClientBucket] | None = None
        self._lock = threading.RLock()
        _clients.add(self)
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Make another client: the parent's connections are not ours. Keep it, because its end would be noisy."""
        abandoned.append(self._made)
        if self._closer is not None:
            self._closer.detach()
        self._lock = threading.RLock()
        self._made = self._closer = None

    def prepare(self, *, wait: float = 0.0) -> None:
        """Begin to import the client's library and to look for credentials, unless the program is ending.

        Args:
            wait: seconds to wait for both.
        """
        making = self._start()
        if making is not None and wait:
            futures_wait([making.future], wait)

    @property
    def is_prepared(self) -> bool:
        """True if this process has begun to make the client."""
        return self._made is not None

    def close(self) -> None:
        """Close the connections, if there are any; the next use makes them again."""
        with self._lock:
            made, self._made = self._made, None
            closer, self._closer = self._closer, None
        if closer is not None:
            closer.detach()  # and not called: while a program ends, finalizers do nothing
        if made is not None:
            _release_made(made.future, self._release)

    @abstractmethod
    def _load(self) -> Any:
        """Import the library. Called in another thread."""

    @abstractmethod
    def _make(self) -> Any:
        """Make the client, and what its first request needs; in the same thread."""

    @classmethod
    @abstractmethod
    def _release(cls, client: Any) -> None:
        """Close the connections of the client."""

    def _cause_of(self, exc: Exception) -> StorageCause | None:  # noqa: ARG002 (what fsspec opens has no errors of its own)
        """Return what is behind an error of the client's library."""
        return None

    def _startup(self) -> ClientStartup | None:
        """Begin to make the client, as the only thread that does; None if that cannot be begun any more."""
        return ClientStartup(self._load, self._make)

    def _start(self) -> ClientStartup | None:
        """Begin to make the client, without waiting for it; None if the program is ending and has none."""
        with self._lock:
            made = self._startup() if self._made is None and not is_ending() else None
            if made is not None:
                self._made = made
                # A store that is dropped without being closed must not leave open connections, which Python and
                # aiohttp report.
                self._closer = weakref.finalize(self, _release_made, made.future, self._release)
                self._closer.atexit = False
                run_exit_phases_first()
            return self._made

    def _prepare(self, make_seconds: float = math.inf) -> Any:
        """Return the client; see `Bucket._prepare`. If it cannot be made, the next call tries again."""
        making = self._start()
        if making is None:
            raise StoreNotAskedError(f"{self.url} was not asked: the program is ending, and has made no client")
        budget = current_budget()
        # The other ranks of a program wait for an import of this one, too.
        left = self.most_seconds if budget is None else min(self.most_seconds, budget.time_left)
        if not making.wait(min(make_seconds, self.make_seconds), self.most_seconds, left):
            raise StoreNotAskedError(
                f"{self.url} was not asked: after {time.monotonic() - making.started:.0f} s its library is still "
                f"loading, or its credentials were not found"
            )
        try:
            return making.future.result()
        except Exception as exc:
            self._forget(making)
            if isinstance(exc, StoreUnavailableError):
                raise
            raise StoreUnavailableError(f"{self.url} cannot be opened: {exc}").because(self._cause_of(exc)) from exc

    def _forget(self, making: ClientStartup) -> None:
        """Have the next call make what could not be made."""
        with self._lock:
            if self._made is making:
                self._made = None
                if self._closer is not None:
                    self._closer.detach()

    def _refusal(
        self, status: int, said: str, *, writing: bool, retry_after: object = None, throttled: bool = False
    ) -> Exception:
        """Return the error for an answer of HTTP that says that a request was not carried out.

        Args:
            status: of the answer.
            said: by the storage, of the reason.
            writing: the request would have changed an object.
            retry_after: a header of the answer.
            throttled: the storage asks to slow down, whatever the status.
        """
        after = seconds_of(retry_after)
        if status == 429 or throttled:
            return TransientError(f"{status} {said}", busy=True, throttled=True, retry_after=after)
        if status == 408 or status >= 500:
            return TransientError(f"{status} {said}", ambiguous=True, throttled=status == 503, retry_after=after)
        if status == 401:
            return StoreRefusedError(f"{self.url} refuses the credentials: {said}").because(StorageCause.CREDENTIALS)
        if status == 403 and writing:
            return StoreReadOnlyError(f"these credentials may not write to {self.url}: {said}")
        if status == 403:
            return NoPermissionError(
                f"these credentials may not read {self.url}, or may not list it (s3:ListBucket, storage.objects.list), "
                f"and storage then answers so for what is absent: {said}"
            )
        return StoreUnavailableError(f"{self.url} answers {status}: {said}")

    def _foreign(self, exc: AnswerError) -> StoreUnavailableError:
        """Return the error for an answer that no storage gives."""
        return StoreUnavailableError(f"{self.url}: {exc}").because(StorageCause.PORTAL)

    def _not_an_answer_of(self, service: str, why: object) -> StoreUnavailableError:
        """Return the error for an answer that lacks what this service says."""
        said = f"{self.url}: the answer is not one of {service}, perhaps of a proxy or a login page: {why}"
        return StoreUnavailableError(said).because(StorageCause.PORTAL)

    def _body_seconds(self) -> float:
        """Return for how many seconds an answer that has begun to arrive may go on."""
        budget, most = current_budget(), self.policy.deadline / 2
        return most if budget is None else min(most, budget.time_left)


class ClientStartup:
    """A client while another thread imports and connects it.

    Args:
        load: imports the library.
        make: makes the client.
    """

    def __init__(self, load: Callable[[], object], make: Callable[[], Any]) -> None:
        self.started = time.monotonic()
        self._loaded_at: Future[float] = Future()
        self.future: Future[Any] = submit(lambda: self._run(load, make))
        track_forks(self)
        _loading.add(self)

    def after_fork_in_child(self) -> None:
        """Do not wait for it when the child ends: the thread that imports does not exist here."""
        _loading.discard(self)

    def _run(self, load: Callable[[], object], make: Callable[[], Any]) -> Any:
        load()
        self._loaded_at.set_result(time.monotonic())
        return make()

    def wait(self, make_seconds: float, most_seconds: float, left: float) -> bool:
        """True if it is made, or failed, in time: two times from its beginning, so that later callers wait less, and
        `left` seconds from now.
        """
        last = min(self.started + most_seconds, time.monotonic() + left)
        futures_wait([self.future, self._loaded_at], _until(last), FIRST_COMPLETED)
        if self._loaded_at.done():
            futures_wait([self.future], _until(min(last, self._loaded_at.result() + make_seconds)))
        return self.future.done()

    def wait_for_import(self) -> None:
        """Wait until the library is imported, or cannot be.

        Python ends daemon threads when a program ends. One that is in the middle of an import may just collect JAX's
        back end as garbage; the C++ runtime then aborts the process ("exception not rethrown").
        """
        futures_wait([self.future, self._loaded_at], _ENDING, FIRST_COMPLETED)


def _until(moment: float) -> float:
    return max(0.0, moment - time.monotonic())


def _release_made(made: Future[Any], release: Callable[[Any], None]) -> None:
    """Close what was made, if anything was, or as soon as it is."""
    if not made.done():
        made.add_done_callback(lambda made: _release_made(made, release))
    elif not made.cancelled() and made.exception() is None:
        release(made.result())


_clients: Final = AtExit(ExitPhase.CLOSE, ClientBucket.close)
_loading: Final[AtExit[ClientStartup]] = AtExit(ExitPhase.CLOSE, ClientStartup.wait_for_import)
abandoned: Final[collections.deque[object]] = collections.deque(maxlen=64)
"""What must not be closed, nor collected: clients of the process that this one was forked from."""
