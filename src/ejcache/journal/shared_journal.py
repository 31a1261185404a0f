"""Collects what this process uses and counts of a shared cache, and writes it to journals.

A bucket records no access time, accepts about one write a second to one object, and network file systems have no
reliable locks. So each process collects in memory what it uses and counts, and writes a small journal once a minute
and at its end, which nobody changes; the lines of its start record (`recorder`) go with it. A process that is killed
loses its last minute. One that ends without a client for the storage, or cannot reach it, leaves what it has to the
next process of its host (`unsent`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from ejcache.bucket.base import ABSENT
from ejcache.errors import StoreError, StoreReadOnlyError
from ejcache.journal.format import (
    JOURNALS,
    Folded,
    decode_record_lines,
    decode_sums,
    encode_journal,
    is_journal_name,
    is_records_name,
)
from ejcache.journal.line import MOST_RECORDED, EntryUse, joined_uses
from ejcache.util.lifecycle import AtExit, ExitPhase, track_forks
from ejcache.util.log import log, warn_once
from ejcache.util.threads import in_parallel
from ejcache.util.writer import process_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ejcache.bucket.base import Bucket
    from ejcache.journal.recorder import Recorder
    from ejcache.journal.unsent import UnsentUses


_NEGLIGIBLE: Final = 1e-9
_START: Final = 1 << 16
"""Bytes of a journal that hold its sums."""
_THREADS: Final = 8


class SharedJournal:
    """What this process uses and counts of one shared cache. Safe for threads; a forked child has its own.

    Args:
        bucket: of the cache.
        unsent: of this host, for what cannot be sent; None for nowhere.
        most: entries whose last use is remembered; by default more than a process has programs.
    """

    def __init__(self, bucket: Bucket, *, unsent: UnsentUses | None = None, most: int = 100_000) -> None:
        self._bucket = bucket
        self._most = most
        self._unsent_uses = unsent
        self._recorder: Recorder | None = None
        self.after_fork_in_child()
        _everyone.add(self)
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Leave what was used and counted to the parent, and write journals of another name."""
        self._lock = threading.RLock()
        self._writing = threading.RLock()
        self._name = process_name()
        self._number = 0
        # Only single operations on these two, which the interpreter makes atomic: `note` is on the path of a hit.
        self.last_used: dict[str, float] = {}
        self._used: dict[str, EntryUse] = {}
        self._sums: Counter[str] = Counter()
        self._told = 0
        """So many lines of the recorder are in journals, or left to the next process."""
        self._left: list[bytes] = []
        """Lines of earlier processes of this host, for the next journal."""
        self._unwritten: tuple[str, dict[str, EntryUse], dict[str, float], list[bytes]] | None = None
        self._failed = False
        self._refused = False

    def tell(self, recorder: Recorder) -> None:
        """Write the lines of this recorder, too: those that it makes from now on."""
        recorder.is_shared = True
        self._recorder = recorder

    def note(self, key: str, *, when: float | None = None, times: int = 1, worth: float | None = None) -> None:
        """Note uses, the last of them at `when` seconds since the epoch or now, or with no use what one is worth.

        Of a use that another thread notes at the same moment, perhaps only one is counted.
        """
        before = self._used.get(key)
        if before is not None or len(self._used) < self._most:
            use = EntryUse(time.time() if when is None else when, times, worth)
            self._used[key] = use = use if before is None else use.joined(before)
            if len(self.last_used) >= self._most:
                self.last_used = {}
            if use.when:
                self.last_used[key] = use.when

    def add(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters. Never raises a `StoreError`."""
        if self._unsent_uses is None:
            self._bucket.prepare()  # a program that is ending cannot make a client
        with self._lock:
            self._sums.update(amounts)

    def write(self) -> bool:
        """Write a journal, if anything was used, counted or recorded since the last one. Never raises a `StoreError`.

        Returns:
            False if the storage failed; the next call writes the same journal again, so that one that was written
            although no answer came is there once.
        """
        with self._writing:
            while not self._refused and (self._unwritten is not None or self._begin()):
                name, used, sums, lines = self._unwritten or ("", {}, {}, [])
                try:
                    journal = encode_journal(used, sums=sums, record=lines)
                    self._bucket.write(name, journal, version=ABSENT)
                except StoreReadOnlyError as exc:
                    log.debug("this process may not write usage journals: %s", exc)
                    self._refused = True
                except StoreError as exc:
                    log.debug("a usage journal was not written: %s", exc)
                    self._failed = True
                    return False
                self._unwritten = None
            self._failed = False
            return True

    def _begin(self) -> bool:
        """Begin the next journal; False if it would be empty."""
        used, sums = self._take()
        lines = self._take_lines()
        if used or sums or lines:
            self._unwritten = self._next_name(), used, sums, lines
        return self._unwritten is not None

    def _take_lines(self) -> list[bytes]:
        own = [] if self._recorder is None else self._recorder.lines[self._told :]
        if self._left and sum(map(len, (*self._left, *own))) > MOST_RECORDED:
            own = []  # they are for the next journal
        self._told += len(own)
        left, self._left = self._left, []
        return left + own

    def _take(self) -> tuple[dict[str, EntryUse], dict[str, float]]:
        used: dict[str, EntryUse] = {}
        with contextlib.suppress(KeyError):
            while True:
                key, when = self._used.popitem()
                used[key] = when
        with self._lock:
            sums, self._sums = self._sums, Counter()
        return used, {name: amount for name, amount in sums.items() if amount}

    def _next_name(self) -> str:
        self._number += 1
        return f"{JOURNALS}{time.strftime('%Y-%m-%d', time.gmtime())}/{self._name}-{self._number - 1}"

    def write_or_hand_over(self) -> None:
        """Write the last journal if this process can make a request; else leave it to the next process of this host."""
        breaker = self._bucket.breaker
        is_refused = breaker is not None and breaker.is_open
        # Do not wait, when the program ends, for storage that failed just before.
        if self._bucket.is_prepared and not is_refused and not self._failed and self.write():
            return
        if self._unsent_uses is not None:
            with self._writing:
                unsent, self._unwritten = self._unwritten, None
                used, sums = self._take()
                lines = self._take_lines()
            if unsent is not None:
                amounts = Counter(unsent[2])
                amounts.update(sums)
                used, sums, lines = joined_uses((unsent[1], used)), dict(amounts), unsent[3] + lines
            self._unsent_uses.leave(used, sums, lines)

    def records(self, *, most: int) -> Iterator[bytes]:
        """Read the record lines of processes in the last journals; raises StoreError as they are read.

        A line may come twice: a pass that was killed has left it in a journal, and in what it has folded.
        """
        names = (info.name for info in self._bucket.walk(JOURNALS))
        kept = (name for name in names if is_journal_name(name) or is_records_name(name))
        known = sorted(kept, key=_day, reverse=True)
        for blob in in_parallel(self._bucket.read, known[:most], threads=_THREADS):
            if blob is not None:
                yield from decode_record_lines(blob.data)

    def are_unsent_uses_due(self) -> bool:
        """True if this process should make requests only to send what earlier ones have left."""
        return self._unsent_uses is not None and self._unsent_uses.is_due()

    def take_unsent_uses(self) -> None:
        """Count what earlier processes of this host have left as used and counted by this one, and tell their lines."""
        if self._unsent_uses is not None:
            used, sums, lines = self._unsent_uses.take()
            for key, use in used.items():
                self.note(key, when=use.when, times=use.times, worth=use.worth)
            self.add(sums)
            self._left += lines

    def total(self, *, write: bool = True) -> dict[str, float]:
        """Return the counters of all processes since the last reset, as far as they have written them.

        Args:
            write: what this process has not written counts, too.

        Raises:
            StoreError: the objects cannot be listed or read.
        """
        if write:
            for usage in _everyone:
                if usage._bucket.url == self._bucket.url:  # noqa: SLF001  # other stores of this process
                    usage.write()
        # The snapshot first. A journal that is folded after that is still listed, or is missed in this one read; it is
        # never counted twice.
        folded = Folded.read(self._bucket)
        if folded.is_later:
            what = "what a later version of ejcache has folded is not in these numbers"
            warn_once(("later snapshot", self._bucket.url), "ejcache: %s: %s", self._bucket.url, what)
        names = (info.name for info in self._bucket.walk(JOURNALS))
        journals = [name for name in names if is_journal_name(name) and name not in folded.names]
        sums = Counter(folded.sums)
        for blob in in_parallel(lambda name: self._bucket.read(name, length=_START), journals, threads=_THREADS):
            sums.update(decode_sums(b"" if blob is None else blob.data))
        return {name: amount for name, amount in sums.items() if abs(amount) > _NEGLIGIBLE}

    def reset(self) -> None:
        """Count from zero. Raises StoreError if the storage fails."""
        negated = {name: -amount for name, amount in self.total().items()}
        self._bucket.write(self._next_name(), encode_journal({}, sums=negated), version=ABSENT)


def _day(name: str) -> str:
    return name.removeprefix(JOURNALS).partition("/")[0]


_everyone: Final = AtExit(ExitPhase.COUNTERS, SharedJournal.write_or_hand_over)
