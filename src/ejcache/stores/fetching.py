"""One fetch for all processes of a host: whoever misses first asks the shared tier, the others wait for the outcome.

A fixed number of lock files serves all keys, so that nothing has to be cleaned up; two keys that meet in one file wait
for each other, no more. A lock only saves requests: where it cannot be had in time, one fetches without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import filelock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["STALE_SECONDS", "HostFetches"]

STALE_SECONDS: Final = 0.5
"""Less than the grace for which a lease outlives what it was held for (`leases`): who is told of a miss that is no
longer true still finds the lease held."""

_DIGITS: Final = 3
"""Hexadecimal digits of a key's digest that choose its lock: 4096 files at most."""


class HostFetches:
    """Fetches that processes of one host share. Safe for threads and forks.

    Args:
        directory: for the lock files, on a local file system; None for fetches that nobody shares.
        patience: seconds to wait for somebody else's fetch before making one's own.
    """

    def __init__(self, directory: Path | None, *, patience: float = 10.0) -> None:
        self._directory = directory
        self._patience = patience
        self._stuck: set[str] = set()

    def run(self, key: str, *, again: Callable[[], bytes | None], fetch: Callable[[], bytes | None]) -> bytes | None:
        """What `again` finds, once nobody else is fetching the key, or what `fetch` gives; raises what they raise.

        That somebody else's fetch found nothing meanwhile is an answer too: not older than `STALE_SECONDS` if it was
        begun before this call.

        Args:
            key: what is fetched.
            again: looks where a fetch puts what it has found.
            fetch: asks the other side.
        """
        asked = time.monotonic()
        digest = hashlib.sha256(key.encode()).hexdigest()
        with self._locked(digest[:_DIGITS]) as held:
            if not held:
                return fetch()
            found = again()
            if found is not None:
                return found
            if self._missed_since(digest, asked):
                return None
            started = time.monotonic()
            found = fetch()
            if found is None:
                self._note_miss(digest, started)
            return found

    @contextlib.contextmanager
    def apart(self, key: str) -> Iterator[None]:
        """Keep fetches of `key`, and others that are apart with it, away meanwhile, as far as that can be had."""
        with self._locked(hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]):
            yield

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[bool]:
        if self._directory is None:
            yield False
            return
        lock = filelock.FileLock(self._directory / f"{name}.lock", thread_local=False)
        try:
            # Whoever is in the way of a whole file's keys for longer than that is stopped: nobody waits for it twice.
            lock.acquire(timeout=0 if name in self._stuck else self._patience, poll_interval=0.004)
        except filelock.Timeout:
            self._stuck.add(name)
            held = False
        except (OSError, NotImplementedError):
            held = _made(self._directory) and self._acquired(lock)
        else:
            self._stuck.discard(name)
            held = True
        try:
            yield held
        finally:
            if held:
                lock.release()

    def _acquired(self, lock: filelock.BaseFileLock) -> bool:
        try:
            lock.acquire(timeout=self._patience, poll_interval=0.004)
        except (OSError, NotImplementedError):  # `Timeout` is an OSError
            return False
        return True

    # A note of the last miss lies beside each lock. CLOCK_MONOTONIC is one clock for all processes of a host (POSIX,
    # clock_gettime), so that whoever waited can tell how old the answer was when it asked.

    def _missed_since(self, digest: str, asked: float) -> bool:
        try:
            missed, started, ended = self._note(digest).read_text().split()
            if missed != digest or not asked <= float(ended) <= time.monotonic():
                return False
            return asked - float(started) <= STALE_SECONDS
        except (OSError, ValueError):
            return False

    def _note_miss(self, digest: str, started: float) -> None:
        with contextlib.suppress(OSError):
            self._note(digest).write_text(f"{digest} {started!r} {time.monotonic()!r}")

    def _note(self, digest: str) -> Path:
        return Path(self._directory or "", f"{digest[:_DIGITS]}.miss")


def _made(directory: Path) -> bool:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return True
