"""`Bucket` is the base class of storage that hosts share: objects with names, versions and conditions on them.

A backend implements one try of each operation (the methods with an underscore). Deadlines, retries, the circuit breaker
and what a lost answer means are the same for all backends, and are implemented here.
"""

from __future__ import annotations

import itertools
import math
import time
import weakref
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.bucket.breaker import CircuitBreaker, breaker_for
from ejcache.bucket.object_names import is_plausible_entry, max_size, may_hold_up
from ejcache.bucket.retry import RetryPolicy, TransientError
from ejcache.errors import NoPermissionError, StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError
from ejcache.util.closing import Closing
from ejcache.util.jitter import between
from ejcache.util.threads import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


T = TypeVar("T")

ABSENT: Final = "absent"
"""The version of an object that does not exist."""

_MOST_PAGES: Final = 100_000
"""Of one listing: a hundred million objects."""
_BATCH: Final = 100
_REREADS: Final = 3


class VersionGoneError(Exception):
    """The object no longer has the version that was asked for. Only backends raise it, and only `Bucket` sees it."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes of an object, its version, and its size in bytes, which is larger if only a part was read."""

    data: bytes
    version: str
    size: int


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """An object without its bytes.

    Attributes:
        name: relative to the bucket's root.
        size: bytes.
        created: seconds since the epoch, by the storage's clock.
        version: changes with every write.
    """

    name: str
    size: int
    created: float
    version: str


class Bucket(Closing):
    """Named objects that threads, processes and hosts share. Absence is None or False, a failure is a `StoreError`.

    Args:
        url: the root that names are relative to.
        policy: how long an operation may take.

    Attributes:
        breaker: of the URL; None lets every operation through, which is what a command in the foreground wants.
        entries_only: objects with the names of entries are entries. A large one is then read to its end only if its
            header states its size.
        pace: how fast this process asks for objects below the URL.
        failed_tries: how often one try of a request was throttled, failed or got no answer.
        refusal: why the storage has refused to create an object; None while it has not. From then on, nothing is sent
            that it would refuse, too.
    """

    local: bool = False
    """Reads ask no other machine."""
    conditional: bool = True
    """The storage itself compares versions. Without it, `write` and `delete` compare a moment before they act."""
    one_identity: bool = True
    """Credentials may write all objects or none, unlike a user who may write to some directories."""
    part_size: int = 32 << 20
    """Bytes that one request reads: a larger object takes several requests, each with a deadline of its own."""
    least_part: int = 1 << 20
    """Parts that do not arrive in time are made smaller, down to this."""

    def __init__(self, url: str, *, policy: RetryPolicy | None = None) -> None:
        self.url = url.rstrip("/")
        self.policy = policy or RetryPolicy()
        breaker = breaker_for(self.url)
        self.breaker: CircuitBreaker | None = breaker
        self.pace = breaker.pace
        self.entries_only = False
        self.failed_tries = 0
        self.refusal: StoreReadOnlyError | None = None
        # From then on, a 403 stands for an absent object: these credentials may read, and perhaps not list.
        self._has_read = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def now(self, name: str) -> float | None:
        """Ask the storage's clock, in seconds since the epoch, by an object of this name, which is made and deleted.

        Returns:
            None if the storage does not say when an object was made.

        Raises:
            StoreError: the storage failed, or this process may not write.
        """
        self.write(name, b"ejcache")
        info = self.stat(name)
        with suppress(StoreError):  # what stays is swept as a leftover
            self.delete(name)
        return None if info is None else info.created

    def prepare(self, *, wait: float = 0.0) -> None:
        """Begin in the background what the first request needs, such as the import of a client's library.

        Args:
            wait: seconds to wait for it.
        """

    @property
    def is_prepared(self) -> bool:
        """True if what the first request needs is there, or is being made."""
        return True

    def read(self, name: str, *, length: int | None = None) -> Blob | None:
        """Return the object, or its first `length` bytes, or None; one request unless it is larger than `part_size`.

        An object that is larger than objects of its name can be (`max_size`) is returned cut off, so that what
        decodes it finds it damaged.
        """
        if length == 0:
            info = self.stat(name)
            return None if info is None else Blob(b"", info.version, info.size)
        for _ in range(_REREADS):
            try:
                return self._read_parts(name, length)
            except VersionGoneError:
                continue  # replaced between two parts
        raise StoreBusyError(f"{self.url}/{name} was replaced {_REREADS} times while it was read")

    def is_damaged_on_the_way(self, blob: Blob) -> bool:  # noqa: ARG002
        """True if what the storage says of the object shows that other bytes than these are stored."""
        return False

    def read_pieces(self, name: str, *, size: int) -> Iterator[Blob]:
        """Yield the object in pieces of `size` bytes, one request each; nothing if it is absent.

        Raises:
            StoreBusyError: it was replaced meanwhile; the pieces so far are of the version before.
        """
        try:
            yield from self._parts(name, size, math.inf)
        except VersionGoneError as exc:
            raise StoreBusyError(f"{self.url}/{name} was replaced while it was read") from exc

    def _parts(self, name: str, size: int, most: float) -> Iterator[Blob]:
        """Yield at most `most` bytes of the object, in parts of `size`; raises VersionGoneError if it is replaced."""
        start, version = 0, None
        again = self._again(name, lambda bucket: bucket.read(name))

        def attempt(timeout: float) -> Blob | None:
            nonlocal size
            try:
                blob = self._read(name, start, int(min(size, most - start)), version, timeout)
                self._has_read = self._has_read or blob is not None
                return blob
            except TransientError as exc:
                if exc.busy:
                    # Perhaps the link is slow and not the storage: then a part of what came arrives in time.
                    exc.asks_for_less = self.least_part <= exc.arrived and self.least_part < size
                    size = max(self.least_part, min(size // 4, exc.arrived or size))
                raise
            except NoPermissionError:
                if start or not self._has_read:
                    raise
                return None

        while True:
            blob = self._ask(f"reading {self.url}/{name}", attempt, again=again)
            if blob is None and version is None:
                return
            if blob is None or (not blob.data and start < blob.size):
                raise VersionGoneError
            yield blob
            start, version = start + len(blob.data), blob.version
            if start >= min(blob.size, most):
                return

    def _read_parts(self, name: str, length: int | None) -> Blob | None:
        most = max_size(name) + 1 if length is None else length
        parts: list[bytes] = []
        blob = None
        for blob in self._parts(name, self.part_size, most):
            if length is None and not parts:
                is_doubtful = self.entries_only and not is_plausible_entry(name, blob.data, blob.size)
                if is_doubtful or blob.size >= most:
                    return blob
            parts.append(blob.data)
        return None if blob is None else Blob(b"".join(parts), blob.version, blob.size)

    def stat(self, name: str) -> BlobInfo | None:
        """Return the object without its bytes, or None; one request."""

        def attempt(timeout: float) -> BlobInfo | None:
            try:
                return self._stat(name, timeout)
            except NoPermissionError:
                if not self._has_read:
                    raise
                return None

        again = self._again(name, lambda bucket: bucket.stat(name))
        return self._ask(f"looking for {self.url}/{name}", attempt, again=again)

    def create(self, name: str, data: bytes) -> bool:
        """Write the object if there is none; False if there is one. Of several writers exactly one gets True."""
        return self.write(name, data, version=ABSENT) is not None

    def write(self, name: str, data: bytes, *, version: str | None = None) -> str | None:
        """Write the object, whether or not there is one; with `version`, only if it still has that version.

        If the answer to one try was lost and the next try finds the condition broken, the object may be our own. It is
        read then, and counts as our own if it has the same bytes.

        Returns:
            The new version, or None if the condition did not hold.
        """
        if self.refusal is not None:
            raise StoreReadOnlyError(str(self.refusal))

        def attempt(timeout: float, *, lost: bool) -> str | None:
            written = self._write(name, data, version, timeout)
            if written is None and lost:
                found = self._read(name, 0, len(data) + 1, None, timeout)
                return None if found is None or found.data != data else found.version
            return written

        try:
            return self._change(f"writing {self.url}/{name}", attempt, size=len(data))
        except StoreReadOnlyError as exc:
            if version == ABSENT and self.one_identity:
                self.refusal = exc
            raise

    def delete(self, name: str, *, version: str | None = None) -> bool:
        """Delete the object; with `version`, only if it still has that version. False if nothing was deleted."""

        def attempt(timeout: float, *, lost: bool) -> bool:
            # If the answer to an earlier try was lost, that try has most likely deleted it.
            return self._delete(name, version, timeout) or (lost and self._stat(name, timeout) is None)

        return self._change(f"deleting {self.url}/{name}", attempt)

    def delete_many(self, wanted: Iterable[tuple[str, str | None]]) -> Iterator[str]:
        """Delete many objects, each under its condition as `delete` does, in as few requests as the storage allows.

        Yields:
            The names of those that were deleted. What is gone after an answer was lost counts as deleted by this call.
        """
        source = iter(wanted)
        while batch := list(itertools.islice(source, _BATCH)):
            yield from self._delete_batch(batch)

    def _delete_batch(self, batch: list[tuple[str, str | None]]) -> list[str]:
        """Delete each object by a request of its own, for storage that has no request for many."""
        deleted = in_parallel(lambda item: self.delete(item[0], version=item[1]), batch)
        return [name for (name, _), gone in zip(batch, deleted, strict=True) if gone]

    def walk(self, prefix: str, *, deep: bool = True) -> Iterator[BlobInfo]:
        """Yield every object whose name begins with `prefix`, in no particular order, page by page.

        Args:
            prefix: may end within a name.
            deep: also objects with a slash after the prefix. Without it, a folder costs nothing, whatever it holds.
        """
        waiting: list[str | None] = [None]
        seen: set[str] = set()
        again = self._again(prefix, lambda bucket: next(bucket.walk(prefix, deep=deep), None))
        while waiting:
            page = partial(self._page, prefix, waiting.pop(), deep=deep)
            infos, more = self._ask(f"listing {self.url}/{prefix}", page, again=again)
            yield from infos
            if not seen.isdisjoint(more) or len(seen) > _MOST_PAGES:
                raise StoreUnavailableError(f"the listing of {self.url}/{prefix} does not end: it begins again")
            seen.update(more)
            waiting += more

    def update(self, name: str, change: Callable[[bytes | None], bytes | None], *, timeout: float = 10.0) -> None:
        """Replace the object by what `change` makes of its bytes (None: absent); a `change` to None leaves it.

        `change` may be called several times, each time with the bytes as they are then. A process that is killed
        meanwhile has changed everything or nothing.

        Args:
            name: of the object.
            change: from the bytes that are there to those that shall be.
            timeout: seconds to compete with other processes.

        Raises:
            StoreBusyError: other processes kept changing it, or kept it locked, until then.
            StoreError: the storage failed.
        """
        deadline = time.monotonic() + timeout
        attempt = 0
        while time.monotonic() < deadline:
            blob = self.read(name)
            data = change(None if blob is None else blob.data)
            if data is None or self.write(name, data, version=ABSENT if blob is None else blob.version):
                return
            attempt += 1
            # A bucket takes about one write a second to one object: those that lost a round must spread out.
            time.sleep(between(0, min(1.0, 0.02 * 2.0**attempt)))
        raise StoreBusyError(f"other processes kept changing {self.url}/{name}")

    def _change(self, what: str, attempt: Callable[..., T], *, size: int = 0) -> T:
        """Return `_ask` for a change: `attempt(timeout, lost=…)` gets `lost`: whether an earlier answer was lost."""
        lost = False

        def noted(timeout: float) -> T:
            nonlocal lost
            try:
                return attempt(timeout, lost=lost)
            except TransientError as exc:
                lost = lost or exc.ambiguous
                raise

        return self._ask(what, noted, size=size)

    def _again(self, name: str, ask: Callable[[Bucket], object]) -> Callable[[], object] | None:
        """Return what asks again, for the breaker; None if no program waits for what is there."""
        return partial(_ask_again, weakref.ref(self), ask) if may_hold_up(name) else None

    def _ask(
        self,
        what: str,
        attempt: Callable[[float], T],
        *,
        size: int = 0,
        again: Callable[[], object] | None = None,
    ) -> T:
        """Make one operation: all of them pass here. The breaker decides whether, the policy how long and how often.

        Args:
            what: the operation and its object.
            attempt: makes one try, of so many seconds.
            size: bytes to be sent.
            again: asks the same once more, for the breaker.
        """

        def counted(timeout: float) -> T:
            try:
                return attempt(timeout)
            except TransientError:
                self.failed_tries += 1
                raise

        def operation() -> T:
            if self.breaker is None:
                return self.policy.run(what, counted, size=size, pace=self.pace)
            budget = self.breaker.budget(self.policy.deadline, reads=again is not None)
            pace = None if self.breaker.is_probing else self.pace
            return self.policy.run(what, counted, size=size, budget=budget, pace=pace)

        if self.breaker is None:
            self._prepare(math.inf)
            return operation()
        return self.breaker.call(
            self.url, operation, prepare=self._prepare, probe=lambda: self.stat("ejcache-probe"), again=again
        )

    def _prepare(self, make_seconds: float) -> None:  # not every storage has a client
        """Wait until the client can send requests; this time does not count as the storage's.

        Args:
            make_seconds: a client that takes longer, after its library's import, is not waited for.

        Raises:
            StoreNotAskedError: it is not ready yet, or the program is ending and has made none.
            StoreUnavailableError: it cannot be made.
        """

    def close(self) -> None:
        """Release connections; the next use opens them again."""

    # One try each, of at most `timeout` seconds; `TransientError` asks for another try.

    @abstractmethod
    def _read(self, name: str, start: int, length: int, version: str | None, timeout: float) -> Blob | None:
        """Return at most `length` bytes from `start` on; raises `VersionGoneError` if it no longer has `version`."""

    @abstractmethod
    def _stat(self, name: str, timeout: float) -> BlobInfo | None: ...

    @abstractmethod
    def _write(self, name: str, data: bytes, version: str | None, timeout: float) -> str | None:
        """Return the new version, or None if the condition did not hold."""

    @abstractmethod
    def _delete(self, name: str, version: str | None, timeout: float) -> bool: ...

    @abstractmethod
    def _page(
        self, prefix: str, token: str | None, timeout: float, *, deep: bool = True
    ) -> tuple[list[BlobInfo], list[str]]:
        """List one page (without a token, the first); returns it with the tokens of pages still to be listed."""


def _ask_again(reference: weakref.ref[Bucket], ask: Callable[[Bucket], object]) -> object:
    bucket = reference()
    return None if bucket is None else ask(bucket)
