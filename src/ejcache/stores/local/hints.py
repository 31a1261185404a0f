"""The changes to a local store that one transaction makes: to files, to the sum, and to the hints at what goes next.

A hint is a row of diskcache whose key is all of it, so that the lowest is the first to read:

    "<turn> <seen> <name>"    by use: the turn is the time of the last use that was known when the hint was written
    b"<turn> <seen> <name>"   by cost: the highest is the first to evict; the value is a number of uses
    "state"                   a checksum, and `State`

`seen` is the file's time then. A use changes the file's time and no hint; who evicts compares the two, and gives an
entry that was used meanwhile its new place. So what is evicted is what was not used for longest, as if each use had
been written here.

By cost, it is GreedyDual-Size-Frequency, with a slow age and uses that count less (Cherkasova, "Improving WWW proxies
performance with Greedy-Dual-Size-Frequency caching policy", HP Labs 1998):

    turn := age + worth * weight        worth: seconds of compiling ÷ bytes; weight: from 1 for a new entry to 3
    age := age + (turn - age) * bytes / limit        of each entry that is evicted

In the published algorithm the age becomes the turn of what was evicted, and the weight is the number of uses. Then one
start of a program that is a little larger than the cache makes everything look old, and after an upgrade of JAX the
old entries, which have many uses, stay for long.

Before the first change to a file, the names and sizes of all of them are written into `touched`, with the number that
the transaction will have. A number there that the state does not have is that of a transaction which did not end: only
the files that it names may differ from the sum, and the next transaction looks at them.

Files that nobody has counted are counted in the order of their directories, some in each transaction, so that nobody
waits. A file in a directory that is not counted yet changes no sum.
"""

from __future__ import annotations

import errno
import heapq
import json
import os
import secrets
import sqlite3
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.stores.local.layout import PAIRS
from ejcache.stores.worth import weight_of_uses
from ejcache.util.files import UnsafeFileError, open_like_directory, read_regular
from ejcache.util.store_keys import key_of_place, place_of_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeVar

    from diskcache import Cache

    from ejcache.stores.local.layout import Layout

    T = TypeVar("T")

Hint = tuple[int, int, str]
"""Turn, seen, and the name of the entry."""
Key = str | bytes
"""Of a hint, by use or by cost."""

LOOKS: Final = 64
"""Entries that were used since, and that one put looks at."""
AT_ONCE: Final = 256
"""Entries that one step of an eviction removes at most."""
USELESS: Final = -2
"""`seen` of a hint at an entry that is of no use while the entry exists that is the value of the hint."""
_FEW: Final = 1_000
"""In a store of at most so many entries, a put looks at all that were used since."""
_SHARE_SECONDS: Final = 0.02
"""Of this thread's time, which one transaction gives to the counting of files."""
_MARK_BYTES: Final = 500
_CLOCK_SLACK: Final = 60 * 10**9
_UNWEIGHED: Final = -1
"""`seen` of a hint by cost of an entry that nobody has weighed."""
_HIGHEST: Final = 10**40
_COST_SCALE: Final = 10**18
_STATE: Final = "state"


class DamageError(sqlite3.DatabaseError):
    """The order is damaged, or was not made by this."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


@dataclass(slots=True)
class State:
    """What the order knows of all entries.

    Attributes:
        number: of the last transaction that changed something.
        total: bytes of the entries that are counted.
        count: their number.
        sized, hinted, weighed: of how many of the 256 directories the files are in the sum, have hints by use, and
            hints by cost; None where nobody evicts by cost.
        age: by cost, how far the turns of new entries are ahead of the first ones'.
        latest: the highest turn by use.
    """

    number: int
    total: int = 0
    count: int = 0
    sized: int = 0
    hinted: int = 0
    weighed: int | None = None
    age: float = 0.0
    latest: int = 0

    @property
    def is_sized(self) -> bool:
        """True if the sum has all files."""
        return self.sized >= len(PAIRS)

    @property
    def is_complete(self) -> bool:
        """True if all files are counted."""
        return min(self.sized, self.hinted, 256 if self.weighed is None else self.weighed) >= len(PAIRS)

    def encode(self) -> str:
        """Return the state as a row has it."""
        text = json.dumps([getattr(self, name) for name in self.__slots__])
        return f"{zlib.crc32(text.encode())} {text}"

    @staticmethod
    def decode(row: object) -> State:
        """Return the state in a row; raises `DamageError`."""
        try:
            said, _, text = row.partition(" ") if isinstance(row, str) else ("", "", "")
            if int(said) == zlib.crc32(text.encode()):
                return State(*json.loads(text))
        except (ValueError, TypeError, UnicodeError) as exc:
            raise DamageError(f"its sum cannot be read: {exc}") from exc
        raise DamageError("its sum is damaged")


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """By what a store evicts.

    Attributes:
        layout: of the store.
        max_size: bytes of all entries; -1 for no limit.
        evict_before: the keys of entries that are of no use while the entry of a key exists.
        worth: what an entry is worth for each byte, by its beginning and its size, if what is worth least is evicted
            first; None if what was not used for longest is.
    """

    layout: Layout
    max_size: int
    evict_before: Callable[[str], Iterable[str]] | None = None
    worth: Callable[[bytes, int], float] | None = None

    @property
    def mark(self) -> str:
        """The file that says which files the last transaction changes."""
        return f"{self.layout.local}/touched"

    def weigh(self, name: str, size: int) -> float:
        """Return what a use of an entry saves for each byte, by its header."""
        return 0.0 if self.worth is None else self.worth(self.layout.start_of(name), size)


class Transaction:
    """What may be done to the files of a store, and to the order, while nobody else changes them."""

    def __init__(self, rules: EvictionRules, cache: Cache) -> None:
        self._kept = kept = cache.get(_STATE)
        self.state = state = State(secrets.randbits(40)) if kept is None else State.decode(kept)
        self.scanned: list[tuple[str, os.stat_result]] = []
        self.is_stale = False
        self.undo: Callable[[], object] | None = None
        self.rules = rules
        self.layout = rules.layout
        self._cache = cache
        self._number = state.number
        self._touched: dict[str, int | None] = {}

    # -- files -----------------------------------------------------------------------------------------------------

    def touch(self, sizes: Mapping[str, int | None]) -> None:
        """Say which files may be made, replaced or removed, before the first of them is.

        Args:
            sizes: of each name, the bytes of the file that is there now; None if there is none.

        Raises:
            OSError: that cannot be written; nothing may be changed.
        """
        self._touched = {**sizes, **self._touched}
        body = json.dumps([self._number + 1, self._touched]).encode()
        body = body.ljust(_MARK_BYTES)  # to make a file shorter takes longer than to write it
        # Of one width: the second mark of a transaction must be no shorter than the first, whose last bytes would
        # follow it until the file is made shorter, and nobody could read what was changed already.
        self._write_mark(b"%010d\n" % zlib.crc32(body) + body)

    def _write_mark(self, data: bytes) -> None:
        how = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = open_like_directory(self.rules.mark, how)
        except OSError as exc:
            if exc.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            Path(self.rules.mark).unlink()  # a link or a pipe that somebody has put there
            fd = open_like_directory(self.rules.mark, how)
        try:
            done = os.pwrite(fd, data, 0)
            if done != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.rules.mark)
            if os.fstat(fd).st_size > len(data):
                os.ftruncate(fd, len(data))
        finally:
            os.close(fd)

    def remove(self, victim: Victim) -> bool:
        """Remove a file that was touched; False if that is not possible: then others have their turn before it."""
        try:
            self.delete(victim.name, victim.about)
        except OSError:
            if isinstance(victim.key, str):
                self.drop(victim.key)
                self._cache.set(self._hint_key((time.time_ns(), victim.about.st_mtime_ns, victim.name)), 0)
            return False
        self.drop(victim.key)
        return True

    def delete(self, name: str, about: os.stat_result) -> bool:
        """Remove a file that was touched, and the hint that it has if it was not used; False if it is gone.

        Raises:
            OSError: it cannot be removed.
        """
        gone = self.layout.remove(name)
        if gone:
            self.count(name, -about.st_size, -1)
        self._cache.delete(self._hint_key((about.st_mtime_ns, about.st_mtime_ns, name)))
        return gone

    def count(self, name: str, size: int, number: int) -> None:
        """Add to the sum, if the directory of the file is counted."""
        if int(name[:2], 16) < self.state.sized:
            self.state.total += size
            self.state.count += number

    def recover(self) -> bool:
        """Look at the files that a transaction touched which did not end; False if there is none."""
        try:
            said, _, body = read_regular(self.rules.mark, max_size=1 << 30).partition(b"\n")
            number, touched = json.loads(body) if int(said) == zlib.crc32(body) else (self._number, {})
        except (FileNotFoundError, UnsafeFileError, ValueError):
            return False  # nothing was changed before all of it was written
        if number == self._number:
            return False
        if number != self._number + 1:
            raise DamageError("it is older than the last change to a file")
        for name, before in touched.items():
            about = self.layout.look_at(name)
            size = None if about is None else about.st_size
            self.count(name, (size or 0) - (before or 0), (size is not None) - (before is not None))
            if about is not None:
                self.hint(name, about)
        self.state.number = number
        self._cache.set(_STATE, self.state.encode())
        return True

    def do(self, action: Callable[[Transaction], T]) -> T:
        """Count what is left to count, call `action`, and write the state if that has changed it."""
        if self.state.latest > time.time_ns() + _CLOCK_SLACK:
            raise DamageError("the clock was ahead when it was written")
        if self.rules.worth is not None and self.state.weighed is None:
            self.state.weighed = 0
        if not self.state.is_complete:
            self.count_files(_SHARE_SECONDS)
        done = action(self)
        if self._touched:
            self.state.number = self._number + 1
        if (now := self.state.encode()) != self._kept:
            self._cache.set(_STATE, now)
        return done

    # -- hints -----------------------------------------------------------------------------------------------------

    def hint(self, name: str, about: os.stat_result, *, worth: float | None = None) -> None:
        """Note the place of an entry by its last use, and by what it saves, too, where anybody asks for that.

        Args:
            name: of the entry.
            about: the status of its file.
            worth: what one use saves for each byte; None if it is not known.
        """
        self._hint_by_use(name, about.st_mtime_ns)
        if self.state.weighed is not None:
            self._hint_by_cost(name, about.st_mtime_ns, worth)
        self._hint_useless(name)

    def _hint_by_use(self, name: str, seen: int) -> tuple[int, Key]:
        turn = max(0, min(seen, time.time_ns()))
        self.state.latest = max(self.state.latest, turn)
        key = self._hint_key((turn, seen, name))
        self._cache.set(key, 0)
        return turn, key

    def _hint_by_cost(self, name: str, seen: int, worth: float | None, *, uses: int = 0) -> tuple[int, Key]:
        if worth is None:
            seen, worth, uses = _UNWEIGHED, 0.0, -1
        turn = int((self.state.age + worth * weight_of_uses(max(uses, 0))) * _COST_SCALE)
        key = self._hint_key((turn, seen, name), by_cost=True)
        self._cache.set(key, uses)
        return turn, key

    def _hint_useless(self, name: str) -> None:
        """Have what is of no use while this entry exists evicted before any other."""
        for other in self.useless_beside(name):
            if self.layout.look_at(other) is not None:
                for by_cost in (False, True)[: 1 + (self.state.weighed is not None)]:
                    self._cache.set(self._hint_key((0, USELESS, other), by_cost=by_cost), name)

    def useless_beside(self, name: str) -> list[str]:
        if self.rules.evict_before is None:
            return []
        key = key_of_place(name)
        return [] if key is None else [place_of_key(other) for other in self.rules.evict_before(key)]

    def _hint_key(self, hint: Hint, *, by_cost: bool = False) -> Key:
        turn, seen, name = hint
        if not by_cost:
            return f"{turn:020d} {seen} {name}"
        return f"{max(0, _HIGHEST - turn):041d} {seen} {name}".encode("utf-8", "surrogateescape")

    def hints(self, *, by_cost: bool = False) -> Iterator[tuple[Hint, Key]]:
        """Yield the hints, and their keys, what is to be evicted first at first."""
        for key in self._cache.iterkeys(reverse=by_cost):
            if by_cost is not isinstance(key, bytes) or key == _STATE:
                return
            text = key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
            try:
                turn, seen, name = text.split(" ", 2)
                number = int(turn)
                int(name[:2], 16)
                yield (_HIGHEST - number if by_cost else number, int(seen), name), key
            except ValueError as exc:
                raise DamageError(f"a hint that ejcache does not write: {exc}") from exc

    # -- eviction --------------------------------------------------------------------------------------------------

    def fit(self, size: int, *, before: int, kept: str) -> bool:
        """Evict until an entry of this size fits in place of one of `before` bytes; False if it cannot."""
        state, limit = self.state, self.rules.max_size
        if limit < 0 or (state.sized >= len(PAIRS) and state.total + size - before <= limit):
            return True
        chooser, is_counted = _Chooser(self, kept=kept), False
        freed = 0
        while True:
            excess = state.total + size - before - limit
            if state.sized < len(PAIRS):
                excess = max(excess, size - freed)  # it may be full
            if excess <= 0:
                return True
            got = self._evict(chooser, excess, 1)
            freed += got
            if not got:
                if state.is_complete:
                    if is_counted:
                        return False
                    self.recount()
                    is_counted, chooser = True, _Chooser(self, kept=kept)
                self.count_files(0.0)
                chooser.begin()

    def free(self, size: int, number: int) -> int:
        """Remove what was not used for longest, or saves least, until so many bytes and entries are gone."""
        chooser, gone = _Chooser(self, kept=""), 0
        while got := self._evict(chooser, size - gone, number):
            gone += got
            if gone >= size:
                break
        return gone

    def _evict(self, chooser: _Chooser, excess: int, least: int) -> int:
        """Remove the next entries; returns their bytes, at least 1 if there was any."""
        while chosen := chooser.choose(excess, least):
            self.touch({victim.name: victim.about.st_size for victim in chosen})
            gone = [victim for victim in chosen if self.remove(victim)]
            for victim in gone:
                chooser.note_removed(victim)
            if gone:
                return max(1, sum(victim.about.st_size for victim in gone))
        return 0

    def use_since(self, hint: Hint, key: Key, about: os.stat_result, *, by_cost: bool) -> tuple[int, Key]:
        """Replace the hint at an entry that was used since it was written; returns the turn and the new key."""
        seen, name = about.st_mtime_ns, hint[2]
        uses = self._cache.get(key) if by_cost else None
        self.drop(key)
        if not by_cost:
            return self._hint_by_use(name, seen)
        uses = uses + 1 if isinstance(uses, int) else 0
        return self._hint_by_cost(name, seen, self.rules.weigh(name, about.st_size), uses=uses)

    def is_useless(self, key: Key) -> bool:
        """True if the entry still exists for which the entry of this hint is of no use."""
        better = self._cache.get(key)
        return isinstance(better, str) and self.layout.look_at(better) is not None

    def drop(self, key: Key) -> None:
        """Forget a hint."""
        self._cache.delete(key)

    # -- counting --------------------------------------------------------------------------------------------------

    def count_files(self, seconds: float) -> None:
        """Count for so many seconds of this thread, a directory at least, and all of a small store."""
        state = self.state
        until = time.thread_time() + seconds
        while not state.is_complete:
            if state.sized < len(PAIRS):
                for name, about in self.layout.walk([PAIRS[state.sized]]):
                    state.total += about.st_size
                    state.count += 1
                    self.scanned.append((name, about))
                state.sized += 1
            elif state.hinted < len(PAIRS):
                for name, about in self.layout.walk([PAIRS[state.hinted]]):
                    self._hint_by_use(name, about.st_mtime_ns)
                    self._hint_useless(name)
                state.hinted += 1
            elif state.weighed is not None:
                for name, about in self.layout.walk([PAIRS[state.weighed]]):
                    worth = None if self.rules.worth is None else self.rules.weigh(name, about.st_size)
                    self._hint_by_cost(name, about.st_mtime_ns, worth)
                state.weighed += 1
            is_small = state.sized == len(PAIRS) and state.count <= _FEW
            if time.thread_time() > until and not is_small:
                return

    def recount(self) -> None:
        """Count all files again, from the next transaction on."""
        self.state.total = self.state.count = self.state.sized = self.state.hinted = 0
        self.state.weighed = None if self.state.weighed is None else 0


class Victim(NamedTuple):
    """An entry to evict: its name, the status of its file, its turn, and the key of its hint."""

    name: str
    about: os.stat_result
    turn: int
    key: Key


class _Chooser:
    """What a transaction evicts: the lowest hints, compared with the times of the files."""

    def __init__(self, change: Transaction, *, kept: str) -> None:
        self._change = change
        self._by_cost = change.rules.worth is not None
        self._passed = {kept}
        self._looks = _FEW if change.state.count <= _FEW else LOOKS
        self.begin()

    def begin(self) -> None:
        """Read the hints from the lowest on, and what was just counted and has none yet."""
        change = self._change
        self._hints = change.hints(by_cost=self._by_cost)
        self._next: tuple[Hint, Key] | None = None
        self._is_read = False
        self._used: list[tuple[int, str, Victim]] = []
        if change.state.hinted == 0:
            turns = ((0 if self._by_cost else about.st_mtime_ns, name, about) for name, about in change.scanned)
            self._used = [(turn, name, Victim(name, about, turn, "")) for turn, name, about in turns]
            heapq.heapify(self._used)

    def choose(self, excess: int, least: int) -> list[Victim]:
        """Return the next entries to remove, as many as it takes; none if there are none."""
        chosen: list[Victim] = []
        while (excess > 0 or least > 0) and len(chosen) < AT_ONCE:
            found = self._one()
            if found is None:
                break
            for victim in (*self._useless_beside(found), found):
                if victim.name not in self._passed and (excess > 0 or least > 0):
                    self._passed.add(victim.name)
                    chosen.append(victim)
                    excess -= victim.about.st_size
                    least -= 1
        return chosen

    def _useless_beside(self, found: Victim) -> Iterator[Victim]:
        for name in self._change.useless_beside(found.name):
            about = self._change.layout.look_at(name)
            if about is not None:
                yield Victim(name, about, found.turn, "")

    def _one(self) -> Victim | None:
        change = self._change
        while True:
            if not self._is_read:  # only when it is needed: diskcache reads the second one together with a hundred
                self._next, self._is_read = next(self._hints, None), True
            if self._used and (self._next is None or self._looks <= 0 or self._used[0][0] <= self._next[0][0]):
                victim = heapq.heappop(self._used)[2]
                if victim.name not in self._passed:
                    return victim
                continue
            if self._next is None:
                return None
            (turn, seen, name), key = self._next
            self._is_read = False
            if name in self._passed:
                continue
            about = change.layout.look_at(name)
            if about is None or (seen == USELESS and not change.is_useless(key)):
                change.drop(key)
            elif seen in (USELESS, about.st_mtime_ns):
                return Victim(name, about, turn, key)
            else:
                self._looks -= 1
                change.is_stale = change.is_stale or self._looks <= 0
                now, key = change.use_since((turn, seen, name), key, about, by_cost=self._by_cost)
                heapq.heappush(self._used, (now, name, Victim(name, about, now, key)))

    def note_removed(self, victim: Victim) -> None:
        """Note that an entry was removed: by cost, that makes the others older."""
        if self._by_cost:
            state, limit = self._change.state, max(self._change.rules.max_size, 1)
            part = min(victim.about.st_size / limit, 1.0)
            state.age += max(victim.turn / _COST_SCALE - state.age, 0.0) * part
