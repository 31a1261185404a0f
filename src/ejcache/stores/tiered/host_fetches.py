"""Fetches once for all processes of a host: the first that misses asks the shared tier, the others wait.

A process that deletes an entry locks out the fetches and the uploads of the others meanwhile, because each of them has
read the entry in one tier and is about to write it to the other.

A fixed number of lock files serves all keys, so that nothing has to be cleaned up; two keys that share a file wait for
each other. No lock is waited for longer than `patience`: then the process goes on without it.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreBusyError
from ejcache.util import locks
from ejcache.util.files import make_below, write_atomically
from ejcache.util.store_keys import key_digest
from ejcache.util.time_budget import current_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


STALE_SECONDS: Final = 0.5
"""A miss that another process found counts for this one if its request was begun at most so many seconds before this
one asked. Shorter than the grace period for which a lease outlives the work it was held for (`coordination`), so that a
process that acts on a stale miss still finds the lease held, and waits."""

_DIGITS: Final = 3
"""Hexadecimal digits of a key's digest that choose its lock: 4096 files at most."""
_MANY: Final = "many"
"""Chooses the lock of those who fetch many entries at once; no digest is spelt so."""
_POLL_SECONDS: Final = 0.004


class HostFetches:
    """Fetches that the processes of one host share. Safe for threads and forks.

    Args:
        directory: for the lock files, on a local file system; None for fetches that are not shared.
        patience: seconds to wait for another process's fetch before making one's own.
    """

    def __init__(self, directory: Path | None, *, patience: float = 10.0) -> None:
        self._directory = directory
        self._patience = patience
        self._stuck: set[str] = set()

    def run(self, key: str, *, again: Callable[[], bytes | None], fetch: Callable[[], bytes | None]) -> bytes | None:
        """Return the result of `again`, once no process is fetching the key, or else of `fetch`; raises what they do.

        If another process's fetch has just found nothing, neither does this one.

        Args:
            key: the entry.
            again: looks where a fetch puts what it has found.
            fetch: asks the shared tier.
        """
        asked = time.monotonic()
        digest = key_digest(key)
        with self._lock(digest[:_DIGITS]) as held:
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
    def exclusive(self, key: str) -> Iterator[None]:
        """Keep other processes that fetch or upload `key` waiting, unless a lock cannot be had in time."""
        with self.uploading(key), self._lock(key_digest(key, _DIGITS)):
            yield

    @contextlib.contextmanager
    def uploading(self, key: str) -> Iterator[None]:
        """Wait for a process that has `key` to itself (`exclusive`), and keep one waiting meanwhile.

        Fetches have a lock of their own: they go on while an upload of a key with the same lock file takes its time.
        """
        with self._lock(f"{key_digest(key, _DIGITS)}-upload"):
            yield

    @contextlib.contextmanager
    def many(self) -> Iterator[bool]:
        """Fetch many entries at once: one process of a host at a time, or one that has waited for its patience.

        Yields:
            Whether no other process of this host does; without a directory for locks, nobody knows of others.
        """
        with self._lock(_MANY) as held:
            yield held or self._directory is None

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[bool]:
        with contextlib.ExitStack() as stack:
            yield self._directory is not None and self._acquire(self._directory, name, stack)

    def _acquire(self, directory: Path, name: str, stack: contextlib.ExitStack) -> bool:
        """Take a lock for as long as `stack` is open; False if it is not free in time, or if it has no file."""
        # A process that holds a lock for longer is stopped, and would keep each key of that file waiting once more.
        budget = current_budget()
        patience = self._patience if budget is None else min(self._patience, budget.time_left)
        deadline = time.monotonic() + (0 if name in self._stuck else patience)
        for _ in range(2):
            try:
                stack.enter_context(locks.exclusive(directory / f"{name}.lock", deadline=deadline, poll=_POLL_SECONDS))
            except StoreBusyError:
                self._stuck.add(name)
                return False
            except FileNotFoundError:
                with contextlib.suppress(OSError):
                    make_below(directory)
            except OSError:
                return False
            else:
                self._stuck.discard(name)
                return True
        return False

    # A note of the last miss lies beside each lock. CLOCK_MONOTONIC is one clock for all processes of a host (POSIX,
    # clock_gettime), so that a process that waited can tell how old the answer was when it asked.

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
            write_atomically(self._note(digest), f"{digest} {started!r} {time.monotonic()!r}".encode())

    def _note(self, digest: str) -> Path:
        return Path(self._directory or "", f"{digest[:_DIGITS]}.miss")
