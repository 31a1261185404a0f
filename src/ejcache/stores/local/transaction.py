"""Changes a local store in one transaction: files, their sum, and the hints at what is evicted next.

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

A transaction writes what it does into a file of changes (`changes`), and keeps in memory what that means for hints and
sum. So does each other process that reads the file. `Transaction.fold` writes that to diskcache, many changes at once;
a process that dies before loses nothing but what it knew of the uses of entries.

Files that nobody has counted are counted in the order of their directories, some in each transaction, by the background
of one process (`order`), so that nobody waits. A file in a directory that is not counted yet changes no sum.
"""

from __future__ import annotations

import heapq
import itertools
import json
import secrets
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.stores.local.changes import Change, DamageError, decode, decode_base, encode, number_of
from ejcache.stores.local.layout import PAIRS
from ejcache.stores.worth import weight_of_uses
from ejcache.util.store_keys import key_of_place, place_of_key

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import TypeVar

    from diskcache import Cache

    from ejcache.stores.local.changes import ChangeFile
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
"""Of this thread's time, which one transaction gives to the counting of files, besides the writing of their hints."""
_LINES: Final = 128
"""Changes that are written to diskcache at once."""
_READ_AT_ONCE: Final = 101
"""Hints: what diskcache reads by two statements."""
_HINTS: Final = 512
"""Hints that are written to diskcache at once, because entries were used."""
_CLOCK_SLACK: Final = 60 * 10**9
_UNWEIGHED: Final = -1
"""`seen` of a hint by cost of an entry that nobody has weighed."""
_HIGHEST: Final = 10**40
_COST_SCALE: Final = 10**18
_STATE: Final = "state"


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

    def weigh(self, name: str, size: int) -> float:
        """Return what a use of an entry saves for each byte, by its header."""
        return 0.0 if self.worth is None else self.worth(self.layout.start_of(name), size)


@dataclass(slots=True)
class Known:
    """What a process knows of the order: what diskcache had, and the changes since.

    Attributes:
        state: with all changes that were read.
        read: bytes of the file of changes that were read.
        base: how that file begins.
        written: hints that diskcache does not have yet.
        dropped: hints that it still has, and that are void.
        waiting: entries by their turns, whose hints are in `written`.
        lowest: hints that diskcache has, of what is to be evicted first; the first of them is the last here.
        is_read_through: it has no others.
    """

    state: State
    read: int
    base: bytes
    written: dict[Key, int | str] = field(default_factory=dict)
    dropped: set[Key] = field(default_factory=set)
    waiting: list[tuple[int, str, int, Key]] = field(default_factory=list)
    lowest: list[tuple[Hint, Key]] = field(default_factory=list)
    is_read_through: bool = False

    @property
    def is_due(self) -> bool:
        """True if so much is known that diskcache has to have it."""
        return self.state.number - int(self.base) >= _LINES or self.unwritten >= _HINTS

    @property
    def unwritten(self) -> int:
        """Number of hints that diskcache does not have, or has too many."""
        return len(self.written) + len(self.dropped)


class Transaction:
    """What may be done to the files of a store, and to the order, while nobody else changes them.

    Args:
        rules: of the store.
        known: what is known of the order; None if it has to be read.
        cache: of diskcache.
        file: of changes.
        begun: begins a transaction of diskcache.
    """

    def __init__(
        self,
        rules: EvictionRules,
        known: Known | None,
        cache: Cache,
        file: ChangeFile,
        begun: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.rules = rules
        self.layout = rules.layout
        self.scanned: list[tuple[str, os.stat_result]] = []
        self.is_stale = self.is_void = False
        self._by_cost = rules.worth is not None
        self._cache = cache
        self._file = file
        self._begun = begun
        if known is None or not file.data.startswith(known.base) or len(file.data) < known.read:
            known = self._read_all()
        self.known = known
        self.state = known.state
        if self._by_cost and self.state.weighed is None:
            self.state.weighed = 0  # before any hint is made: each gets one by cost, too
        self._read_on()

    def _read_all(self) -> Known:
        with self._begun():
            kept = self._cache.get(_STATE)
            if kept is None:
                state = State(secrets.randbits(40))
                self._file.begin(state.number)
                self._cache.set(_STATE, state.encode())
            else:
                state = State.decode(kept)
        data, number = self._file.data, decode_base(self._file.data)
        base = data[: data.index(b"\n") + 1]
        missing = state.number - number
        lines = data[len(base) :].splitlines(keepends=True)
        if lines and number_of(lines[0]) <= number:  # a process died while it began the file anew
            self._file.begin(number)
            lines = []
        if not 0 <= missing <= len(lines):
            raise DamageError("it is older than the last change to a file, or newer")
        return Known(state, len(base) + sum(len(line) for line in lines[:missing]), base)

    def _read_on(self) -> None:
        """Learn what other processes have changed, and look whether the last of them did what it said."""
        known = self.known
        if known.read == len(self._file.data):
            return
        found = decode(self._file.data[known.read :], after=self.state.number)
        for age, changes in found:
            self.state.age = max(self.state.age, age)
            self._apply(changes)
        known.read = len(self._file.data)
        wrong = {}
        for name, (_, after, _, _) in found[-1][1].items():
            about = self.layout.look_at(name)
            size = None if about is None else about.st_size
            if size != after:
                seen = 0 if about is None else about.st_mtime_ns
                wrong[name] = Change(after, size, seen, seen)
        if wrong:
            self.note(wrong)

    # -- files -----------------------------------------------------------------------------------------------------

    def note(self, changes: Mapping[str, Change], *, worth: float | None = None) -> None:
        """Note which files are made, replaced or removed, before the first of them is.

        Args:
            changes: of each name.
            worth: what one use of the entry that is made saves for each byte, if it is known.

        Raises:
            OSError: that cannot be written; nothing may be changed.
        """
        line = encode(self.state.number + 1, self.state.age, changes)
        try:
            self._file.append(line)
        except OSError:
            self.fold()  # the disk may be full: the next line is where the first was
            self._file.append(line)
        self._apply(changes, worth=worth)
        self.known.read += len(line)

    def note_removals(self, files: Mapping[str, os.stat_result]) -> None:
        """Note that these files are removed; raises as `note` does."""
        times = {name: about.st_mtime_ns for name, about in files.items()}
        self.note({name: Change(about.st_size, None, times[name], times[name]) for name, about in files.items()})

    def _apply(self, changes: Mapping[str, Change], *, worth: float | None = None) -> None:
        self.state.number += 1
        for name, (before, after, seen, turn) in changes.items():
            self.count(name, (after or 0) - (before or 0), (after is not None) - (before is not None))
            if after is None:
                self.drop(self._hint_key((turn, seen, name)))
            else:
                self._hint(name, seen, turn=turn, worth=worth)

    def remove(self, victim: Victim) -> bool:
        """Remove a file that was noted; False if that is not possible: then others have their turn before it."""
        if victim.key:
            self.drop(victim.key)
        try:
            return self.delete(victim.name, victim.about, turn=time.time_ns())
        except OSError:
            return False

    def delete(self, name: str, about: os.stat_result, *, turn: int) -> bool:
        """Remove a file that was noted; False if that was not done, most often because it is gone.

        Raises:
            OSError: it cannot be removed; that is noted, too, with this turn.
        """
        back = Change(None, about.st_size, about.st_mtime_ns, turn)
        try:
            gone = self.layout.remove(name)
        except OSError:
            self.note({name: back})
            raise
        if not gone and self.layout.look_at(name) is not None:
            self.note({name: back})
        return gone

    def count(self, name: str, size: int, number: int) -> None:
        """Add to the sum, if the directory of the file is counted."""
        if int(name[:2], 16) < self.state.sized:
            self.state.total += size
            self.state.count += number

    def do(self, action: Callable[[Transaction], T]) -> T:
        """Call `action`, after the order was written, if that is due, and a few files were counted."""
        if self.state.latest > time.time_ns() + _CLOCK_SLACK:
            raise DamageError("the clock was ahead when it was written")
        if not self.state.is_complete and (self.state.sized == 0 or self.state.count <= _FEW):
            self.count_share()
        elif self.known.is_due:
            self.fold()
        return action(self)

    def fold(self) -> None:
        """Write what is known to diskcache, and begin the file of changes anew."""
        known, cache = self.known, self._cache
        with self._begun():
            for key in known.dropped:
                cache.delete(key)
            for key, value in known.written.items():
                cache.set(key, value)
            cache.set(_STATE, self.state.encode())
        self._file.begin(self.state.number)
        known.read, known.base = len(self._file.data), self._file.data
        known.written, known.dropped, known.waiting = {}, set(), []
        known.lowest, known.is_read_through = [], False

    # -- hints -----------------------------------------------------------------------------------------------------

    def _hint(self, name: str, seen: int, *, turn: int, worth: float | None) -> None:
        """Note the place of an entry by its last use, and by what it saves, too, where anybody asks for that.

        Args:
            name: of the entry.
            seen: the time of its file.
            turn: that time, or a later one.
            worth: what one use saves for each byte; None if it is not known.
        """
        by_use = self._hint_by_use(name, seen, turn)
        by_cost = by_use if self.state.weighed is None else self._hint_by_cost(name, seen, worth)
        self.wait(by_cost if self._by_cost else by_use)
        self._hint_useless(name)

    def _hint_by_use(self, name: str, seen: int, turn: int) -> Key:
        turn = max(0, min(turn, time.time_ns()))
        self.state.latest = max(self.state.latest, turn)
        return self._write(self._hint_key((turn, seen, name)), 0)

    def _hint_by_cost(self, name: str, seen: int, worth: float | None, *, uses: int = 0) -> Key:
        if worth is None:
            seen, worth, uses = _UNWEIGHED, 0.0, -1
        turn = int((self.state.age + worth * weight_of_uses(max(uses, 0))) * _COST_SCALE)
        return self._write(self._hint_key((turn, seen, name), by_cost=True), uses)

    def _hint_useless(self, name: str) -> None:
        """Have what is of no use while this entry exists evicted before any other."""
        for other in self.useless_beside(name):
            if self.layout.look_at(other) is not None:
                for by_cost in (False, True)[: 1 + (self.state.weighed is not None)]:
                    key = self._write(self._hint_key((0, USELESS, other), by_cost=by_cost), name)
                    if by_cost is self._by_cost:
                        self.wait(key)

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

    def _hint_of(self, key: Key) -> Hint:
        text = key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
        try:
            turn, seen, name = text.split(" ", 2)
            number = int(turn)
            int(name[:2], 16)
            return _HIGHEST - number if isinstance(key, bytes) else number, int(seen), name
        except ValueError as exc:
            raise DamageError(f"a hint that ejcache does not write: {exc}") from exc

    def _write(self, key: Key, value: int | str) -> Key:
        self.known.written[key] = value
        self.known.dropped.discard(key)
        return key

    def wait(self, key: Key) -> None:
        """Have an eviction look at the entry of a hint that diskcache does not have yet."""
        turn, seen, name = self._hint_of(key)
        heapq.heappush(self.known.waiting, (turn, name, seen, key))

    def drop(self, key: Key) -> None:
        """Forget a hint."""
        self.known.written.pop(key, None)
        self.known.dropped.add(key)

    def _value(self, key: Key) -> object:
        value = self.known.written.get(key)
        return self._cache.get(key) if value is None else value

    def hints(self) -> Iterator[tuple[Hint, Key]]:
        """Yield the hints that diskcache has, and their keys, what is to be evicted first at first."""
        for key in self._cache.iterkeys(reverse=self._by_cost):
            if self._by_cost is not isinstance(key, bytes) or key == _STATE:
                return
            if key not in self.known.dropped:
                yield self._hint_of(key), key

    def lowest(self) -> tuple[Hint, Key] | None:
        """Return the first hint that diskcache has, which is not void; None if it has none."""
        known = self.known
        while True:
            while known.lowest and known.lowest[-1][1] in known.dropped:
                known.lowest.pop()
            if known.lowest or known.is_read_through:
                return known.lowest[-1] if known.lowest else None
            known.lowest = list(itertools.islice(self.hints(), _READ_AT_ONCE))[::-1]
            known.is_read_through = len(known.lowest) < _READ_AT_ONCE

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
                chooser.end()
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
                self.fold()
                chooser.begin()

    def free(self, size: int, number: int) -> int:
        """Remove what was not used for longest, or saves least, until so many bytes and entries are gone."""
        chooser, gone = _Chooser(self, kept=""), 0
        while got := self._evict(chooser, size - gone, number):
            gone += got
            if gone >= size:
                break
        chooser.end()
        return gone

    def _evict(self, chooser: _Chooser, excess: int, least: int) -> int:
        """Remove the next entries; returns their bytes, at least 1 if there was any."""
        while chosen := chooser.choose(excess, least):
            self.note_removals({victim.name: victim.about for victim in chosen})
            gone = [victim for victim in chosen if self.remove(victim)]
            for victim in gone:
                chooser.note_removed(victim)
            if gone:
                return max(1, sum(victim.about.st_size for victim in gone))
        return 0

    def use_since(self, name: str, key: Key, about: os.stat_result) -> Key:
        """Replace the hint at an entry that was used since it was written; returns the new one's key."""
        uses = self._value(key) if self._by_cost else None
        self.drop(key)
        if not self._by_cost:
            return self._hint_by_use(name, about.st_mtime_ns, about.st_mtime_ns)
        uses = uses + 1 if isinstance(uses, int) else 0
        return self._hint_by_cost(name, about.st_mtime_ns, self.rules.weigh(name, about.st_size), uses=uses)

    @property
    def is_long(self) -> bool:
        """True if who comes next should not have to write what this has changed."""
        return self.known.unwritten >= 4 * _HINTS

    def turn_of(self, key: Key) -> int:
        """Return the turn in a hint."""
        return self._hint_of(key)[0]

    def is_useless(self, key: Key) -> bool:
        """True if the entry still exists for which the entry of this hint is of no use."""
        better = self._value(key)
        return isinstance(better, str) and self.layout.look_at(better) is not None

    # -- counting --------------------------------------------------------------------------------------------------

    def count_share(self) -> State:
        """Count files for a moment, and write that."""
        self.count_files(_SHARE_SECONDS)
        self.fold()
        return self.state

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
                    self._hint_by_use(name, about.st_mtime_ns, about.st_mtime_ns)
                    self._hint_useless(name)
                state.hinted += 1
            elif state.weighed is not None:
                for name, about in self.layout.walk([PAIRS[state.weighed]]):
                    worth = None if self.rules.worth is None else self.rules.weigh(name, about.st_size)
                    self._hint_by_cost(name, about.st_mtime_ns, worth)
                state.weighed += 1
            is_small = state.sized == len(PAIRS) and state.count <= _FEW
            if (time.thread_time() > until or self.known.unwritten >= _HINTS) and not is_small:
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
        """Begin at the lowest hint, and with what was just counted and has none yet."""
        change = self._change
        self._used: list[tuple[int, str, Victim]] = []
        if change.state.hinted == 0:
            turns = ((0 if self._by_cost else about.st_mtime_ns, name, about) for name, about in change.scanned)
            self._used = [(turn, name, Victim(name, about, turn, "")) for turn, name, about in turns]
            heapq.heapify(self._used)

    def end(self) -> None:
        """Leave what was looked at, and not removed, to the next transaction."""
        for _, name, victim in self._used:
            if victim.key and name not in self._passed:
                self._change.wait(victim.key)

    def choose(self, excess: int, least: int) -> list[Victim]:
        """Return the next entries to remove, as many as it takes; none if there are none."""
        chosen: list[Victim] = []
        while (excess > 0 or least > 0) and len(chosen) < AT_ONCE:
            found = self._one()
            if found is None:
                break
            for victim in (*self._useless_beside(found), found):
                if victim.name in self._passed:
                    continue
                if excess > 0 or least > 0:
                    self._passed.add(victim.name)
                    chosen.append(victim)
                    excess -= victim.about.st_size
                    least -= 1
                else:
                    heapq.heappush(self._used, (victim.turn, victim.name, victim))
        return chosen

    def _useless_beside(self, found: Victim) -> Iterator[Victim]:
        for name in self._change.useless_beside(found.name):
            about = self._change.layout.look_at(name)
            if about is not None:
                yield Victim(name, about, found.turn, "")

    def _one(self) -> Victim | None:
        change, waiting = self._change, self._change.known.waiting
        while True:
            lowest = change.lowest()
            is_waiting = bool(waiting) and (lowest is None or waiting[0][0] <= lowest[0][0])
            first = waiting[0][0] if is_waiting else None if lowest is None else lowest[0][0]
            if self._used and (self._looks <= 0 or first is None or self._used[0][0] <= first):
                victim = heapq.heappop(self._used)[2]
                if victim.name not in self._passed:
                    return victim
                continue
            if is_waiting:
                turn, name, seen, key = heapq.heappop(waiting)
                if key in change.known.dropped:
                    continue
            elif lowest is not None:
                (turn, seen, name), key = lowest
                change.known.lowest.pop()
            else:
                return None
            if name in self._passed:
                change.drop(key)
                continue
            about = change.layout.look_at(name)
            if about is None or (seen == USELESS and not change.is_useless(key)):
                change.drop(key)
            elif seen in (USELESS, about.st_mtime_ns):
                return Victim(name, about, turn, key)
            else:
                self._looks -= 1
                change.is_stale = change.is_stale or self._looks <= 0
                key = change.use_since(name, key, about)
                turn = change.turn_of(key)
                heapq.heappush(self._used, (turn, name, Victim(name, about, turn, key)))

    def note_removed(self, victim: Victim) -> None:
        """Note that an entry was removed: by cost, that makes the others older."""
        if self._by_cost:
            state, limit = self._change.state, max(self._change.rules.max_size, 1)
            part = min(victim.about.st_size / limit, 1.0)
            state.age += max(victim.turn / _COST_SCALE - state.age, 0.0) * part
