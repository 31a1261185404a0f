"""What was compiled before a program: the misses of this host, the entries of its cache, and the texts of both.

An earlier compilation counts only if it is of the same function: of the same file and qualified name, or, where a
checkout has moved or an entry names no whole path, if its operations are nearly the same. A function of a library
counts for the file of the user's that calls it, an operation of JAX for the line.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from bisect import bisect_left
from collections import Counter
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from ejcache.cache.counters import Skip
from ejcache.errors import StoreError
from ejcache.history.definitions import definition_of, end_of, qualified_name
from ejcache.history.environment import variant_of
from ejcache.history.known_entries import KnownEntries, stored_text
from ejcache.history.log import recall_programs
from ejcache.history.program import caller_of, defined_by_jax, digest_of
from ejcache.history.text import read_text
from ejcache.journal.line import HIT
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from ejcache.history.definitions import Definition
    from ejcache.history.environment import Difference
    from ejcache.history.text import ProgramText
    from ejcache.journal.line import ProgramRecord
    from ejcache.stores.base import Store

    Fetch = Callable[[Collection[str]], Mapping[str, str]]
    """Returns the texts that are known of these digests."""

_LATEST: Final = 16
"""Earlier programs of a function of this host that a program is compared with."""
_COMPARED: Final = 12
"""Programs whose texts are compared; each text of a bucket costs a request."""
_NEARLY: Final = 0.8
"""The part of two programs' operations that is the same, if they are of one function at two places."""
_MOST: Final = 240
"""Texts that are fetched at once."""
_OF_PROGRAM: Final = frozenset({"computation", "compile_options"})
_OF_TEXTS: Final = 4.0
"""How far apart two programs are that have no operation in common, in components that differ."""
_TIME: Final = attrgetter("time")
_LARGEST: Final = 8_000_000
"""Characters of a text that is read."""


class Texts:
    """The texts of programs by the digests of their computations; each is fetched and read once.

    Args:
        fetch: returns those that this host has.
        budget: characters of all texts that are read; reading 8 million takes one to two seconds.
    """

    def __init__(self, fetch: Fetch = recall_programs, *, budget: float = float("inf")) -> None:
        self._fetch = fetch
        self._left = budget
        self._raw: dict[str, str] = {}
        self._read: dict[str, ProgramText] = {}
        self._names: dict[tuple[str, Definition], str] = {}
        self._asked: set[str] = set()
        self._is_complete = False

    @classmethod
    def none(cls) -> Texts:
        """Make what knows no text."""
        texts = cls()
        texts._is_complete = True
        return texts

    def load(self, programs: Iterable[ProgramRecord], store: Store | None = None) -> None:
        """Fetch the texts of these programs, as far as they are known, those that this host lacks from a store."""
        if self._is_complete:
            return
        wanted = {digest_of(each): each for each in programs if digest_of(each) not in self._asked}
        wanted.pop("", None)
        found = self._fetch(list(wanted)) if wanted else {}
        for digest, program in wanted.items():
            text = found.get(digest)
            if text is None and store is not None and program.module:
                with contextlib.suppress(StoreError):
                    text = stored_text(store, program.module)
            self._asked.add(digest)
            if text and len(text) <= min(_LARGEST, self._left):
                self._left -= len(text)
                self._raw[digest] = text

    @contextlib.contextmanager
    def loaded(self, programs: Iterable[ProgramRecord]) -> Iterator[None]:
        """Fetch the texts of these programs at once; in this block, nothing more is fetched."""
        distinct = {digest_of(each): each for each in programs}
        self.load(itertools.islice(distinct.values(), _MOST))
        self._is_complete = True
        try:
            yield
        finally:
            self._is_complete = False

    def raw(self, program: ProgramRecord) -> str:
        """Return the text of a program; empty if it is not known."""
        return self._raw.get(digest_of(program), "")

    def read(self, program: ProgramRecord) -> ProgramText | None:
        """Read the text of a program; None if it is not known."""
        digest = digest_of(program)
        raw = self._raw.get(digest)
        if raw is None:
            return None
        if digest not in self._read:
            self._read[digest] = read_text(raw)
        return self._read[digest]

    def argument_names(self, program: ProgramRecord) -> list[str]:
        """Return the paths of a program's arguments; empty if they are not known."""
        text = self.read(program)
        return [each.name for each in text.arguments] if text is not None and text.is_named else []

    def qualified_name(self, program: ProgramRecord) -> str:
        """Return the name of the program's function with those around it; empty if it is not known."""
        asked = digest_of(program), definition_of(program.details)
        if asked not in self._names:
            self._names[asked] = qualified_name(self.raw(program), asked[1])
        return self._names[asked]


class Earlier:
    """The misses of a host, and what else is known.

    Args:
        misses: of any functions, in any order.
        texts: of their programs.
        entries: returns the entries of the cache of a program, None if it has none, or why they cannot be read.
    """

    def __init__(
        self,
        misses: Iterable[ProgramRecord],
        texts: Texts | None = None,
        *,
        entries: Callable[[ProgramRecord], KnownEntries | Exception | None] = lambda _: None,
    ) -> None:
        self.texts = texts if texts is not None else Texts()
        self.entries = entries
        self.differences: dict[tuple[int, int], list[Difference]] = {}
        """What is known to have changed between two programs, by what their records say (`said`)."""
        # What was refused was not compiled, so that nothing is compared with it.
        misses_by_time = sorted(
            (each for each in misses if each.outcome not in {HIT, Skip.FORBIDDEN} and each.components),
            key=_TIME,
        )
        self._by_key: dict[str, list[ProgramRecord]] = {}
        self._by_name: dict[tuple[str, str], list[ProgramRecord]] = {}
        self._facts_by_name: dict[tuple[str, str], list[_Facts]] = {}
        self._by_signature: dict[tuple[str, str, str], list[ProgramRecord]] = {}
        self._comparisons = _Comparisons()
        for each in misses_by_time:
            self._by_key.setdefault(each.key, []).append(each)
            self._by_name.setdefault((each.url, each.name), []).append(each)
            place = each.url, each.signature, definition_of(each.details).file
            self._by_signature.setdefault(place, []).append(each)

    def without_texts(self) -> Earlier:
        """Return the same, where no text is known."""
        other = copy.copy(self)
        other.texts = Texts.none()
        return other

    def of_key(self, program: ProgramRecord) -> list[ProgramRecord]:
        """Return the earlier compilations of the very same program, for any cache, the latest first."""
        began = program.time - program.compile_seconds
        return [each for each in reversed(self._by_key.get(program.key, ())) if each.time < began]

    def of_file(self, program: ProgramRecord) -> list[ProgramRecord]:
        """Return the last programs of other functions of the same file, with equal arguments and results."""
        place = definition_of(program.details)
        if place.is_lambda or place.is_library or not place.file:
            return []
        found: dict[str, ProgramRecord] = {}
        for each in reversed(self._by_signature.get((program.url, program.signature, place.file), ())):
            is_other = each.name != program.name and each.time < program.time and each.key not in found
            if is_other and not definition_of(each.details).is_lambda:
                found[each.key] = each
        return list(found.values())

    def of_function(self, program: ProgramRecord) -> tuple[list[ProgramRecord], str]:
        """Return the programs of the same function before, at most a dozen, the most similar first; and what was not
        read.

        All are ranked by what their records say, and the first ones by their texts.
        """
        of, ours = self._comparisons.of, self._comparisons.of(program)
        candidates: dict[str, _Facts] = {}
        store, note = None, ""
        known = self.entries(program)
        try:
            if isinstance(known, KnownEntries):
                named = (each for each in known.named(program.name) if each.time < program.time and each.components)
                candidates = {each.key: of(each) for each in named if each.key != program.key}
                store = known.store
        except StoreError as exc:
            known = exc
        if isinstance(known, Exception):
            note = f"its cache cannot be read, so it is compared with what this host has compiled: {known}"
        candidates |= self._latest(program)
        same: list[_Facts] = []
        moved: list[_Facts] = []
        for each in candidates.values():
            is_same = self._comparisons.relation(ours, each)
            if is_same is not False:
                (moved if is_same is None else same).append(each)
        for group in filter(None, (same, moved)):
            found = self._ranked(ours, group)
            self.texts.load((program, *found), store)
            if group is same:
                if self.texts.raw(program):
                    found = [each for each in found if self._has_its_name(program, each)]
            else:
                found = [each for each in found if self._is_nearly(program, each)]
            if found:
                return self._nearest_first(program, found), note
        return [], note

    def said(self, program: ProgramRecord) -> int:
        """Return a number that is the same of programs whose records say the same, but for their keys and texts."""
        return self._comparisons.of(program).record

    def first(self, program: ProgramRecord) -> list[ProgramRecord]:
        """Return the programs of which the texts say which is nearest, without reading any."""
        ours, relation = self._comparisons.of(program), self._comparisons.relation
        return self._ranked(
            ours, (each for each in self._latest(program).values() if relation(ours, each) is not False)
        )

    def _latest(self, program: ProgramRecord) -> dict[str, _Facts]:
        name = program.url, program.name
        if name not in self._facts_by_name:
            self._facts_by_name[name] = [*map(self._comparisons.of, self._by_name.get(name, ()))]
        named, key = self._facts_by_name[name], program.key
        found: dict[str, _Facts] = {}
        for place in range(bisect_left(named, program.time, key=_TIME) - 1, -1, -1):
            each = named[place]
            if each.key != key and each.key not in found:
                found[each.key] = each
                if len(found) == _LATEST:
                    break
        return found

    def _ranked(self, ours: _Facts, candidates: Iterable[_Facts]) -> list[ProgramRecord]:
        """Return those of these programs that differ least by what their records say, and of equals the latest."""
        found = sorted(candidates, key=_TIME, reverse=True)
        return [found[number].program for number in self._comparisons.order(ours, found)[:_COMPARED]]

    def _nearest_first(self, program: ProgramRecord, ranked: list[ProgramRecord]) -> list[ProgramRecord]:
        """Return the same programs, of which the first one is the nearest by its text, too.

        To read a text takes ten milliseconds, so one is read only if it could make its program the nearest.
        """
        if len(ranked) < 2 or not self.texts.raw(program):
            return ranked
        of = self._comparisons.of
        nearest, best = ranked[0], (float("inf"), 0.0)
        for least, age, _, each in sorted(self._comparisons.apart(of(program), map(of, ranked), unread=0.0)):
            if (least, age) > best:
                break
            far = least + self._apart_in_text(program, each.program), age
            if far < best:
                nearest, best = each.program, far
        return [nearest, *(each for each in ranked if each is not nearest)]

    def _apart_in_text(self, program: ProgramRecord, other: ProgramRecord) -> float:
        if digest_of(program) == digest_of(other):
            return 0.0
        ours, its = self.texts.read(program), self.texts.read(other)
        return _OF_TEXTS * (1.0 - (its.likeness(ours) if ours is not None and its is not None else 0.5))

    def _has_its_name(self, program: ProgramRecord, other: ProgramRecord) -> bool:
        if not self.texts.raw(other):
            return True
        names = {*map(self.texts.qualified_name, (program, other))} - {""}
        return len(names) < 2

    def _is_nearly(self, program: ProgramRecord, other: ProgramRecord) -> bool:
        if digest_of(program) and digest_of(program) == digest_of(other):
            return True
        one, two = self.texts.read(program), self.texts.read(other)
        return one is not None and two is not None and one.likeness(two) >= _NEARLY


class _Facts(NamedTuple):
    """What is compared of a program, taken out of its record once.

    Attributes:
        program: the record.
        key: of it.
        place: the number of where it is defined and of what called it, as its record says that.
        surroundings: the number of its components, besides those of the program itself; many programs have the same.
        record: the number of what its record says, but for its key, its text and its times; many say the same.
        signature: its arguments and results.
        digest: of its text.
        time: when it was ready.
    """

    program: ProgramRecord
    key: str
    place: int
    surroundings: int
    record: int
    signature: str
    digest: str
    time: float


class _Comparisons:
    """What is compared of programs, and what two of them have in common; each is found once."""

    def __init__(self) -> None:
        self._numbers: dict[frozenset[tuple[str, str]], int] = {}
        self._places: dict[tuple[str, str, str], int] = {}
        self._sets: list[dict[str, str]] = []
        self._differing: dict[tuple[int, int], float] = {}
        self._relations: dict[tuple[int, int], bool | None] = {}
        self._records: dict[tuple[object, ...], int] = {}
        self._orders: dict[tuple[int, ...], list[int]] = {}
        self._known: dict[int, _Facts] = {}

    def of(self, program: ProgramRecord) -> _Facts:
        """Return what is compared of this program."""
        known = self._known.get(id(program))
        if known is None:  # it has the program, so that no other one gets its identity
            found = {name: digest for name, digest in program.components.items() if name not in _OF_PROGRAM}
            number = self._numbers.setdefault(frozenset(found.items()), len(self._sets))
            if number == len(self._sets):
                self._sets.append(found)
            place = program.details.get("defined", ""), program.details.get("source", ""), program.caller
            its = self._places.setdefault(place, len(self._places))
            options, details = program.components.get("compile_options"), frozenset(program.details.items())
            said = its, number, options, variant_of(program), program.signature, details
            same = self._records.setdefault(said, len(self._records))
            digest = digest_of(program)
            known = _Facts(program, program.key, its, number, same, program.signature, digest, program.time)
            self._known[id(program)] = known
        return known

    def relation(self, one: _Facts, other: _Facts) -> bool | None:
        """Say whether two programs of one name are of one function, as `relation` does."""
        places = one.place, other.place
        if places not in self._relations:
            self._relations[places] = relation(one.program, other.program)
        return self._relations[places]

    def order(self, ours: _Facts, others: Sequence[_Facts]) -> list[int]:
        """Return the numbers of others, of which the latest is the first, in the order of how much they differ."""
        said = (ours.record, *[each.record for each in others])
        if ours.digest in [each.digest for each in others]:
            return [number for _, _, number, _ in sorted(self.apart(ours, others))]
        if said not in self._orders:
            self._orders[said] = [number for _, _, number, _ in sorted(self.apart(ours, others))]
        return self._orders[said]

    def apart(
        self, ours: _Facts, others: Iterable[_Facts], *, unread: float = 0.5
    ) -> list[tuple[float, float, int, _Facts]]:
        """Return how much others differ from a program; sorted, what differs least is first, and of equals the latest.

        No text is read: of two that differ, this part does.
        """
        found = []
        for number, other in enumerate(others):
            far = 0.0
            if other.surroundings != ours.surroundings:
                far = self._differing_in(ours.surroundings, other.surroundings)
            if other.signature != ours.signature:
                far += 2.0 * (1.0 - _signature_likeness(ours.signature, other.signature))
            if other.digest != ours.digest:
                far += _OF_TEXTS * unread
            found.append((far, -other.time, number, other))
        return found

    def _differing_in(self, one: int, other: int) -> float:
        """Count in how many components two sets differ, given by their numbers."""
        if (one, other) not in self._differing:
            a, b = self._sets[one], self._sets[other]
            self._differing[one, other] = float(sum(a.get(each) != b.get(each) for each in a | b))
        return self._differing[one, other]


def relation(one: ProgramRecord, other: ProgramRecord) -> bool | None:
    """Say whether two programs of one name are of one function; None if so where their operations are nearly the same.

    Their qualified names are in their texts.
    """
    return _relation(definition_of(one.details), caller_of(one)[:2], definition_of(other.details), caller_of(other)[:2])


@functools.lru_cache(65536)
def _relation(a: Definition, calling: tuple[str, int], b: Definition, other: tuple[str, int]) -> bool | None:
    if not (a.file and b.file):
        return not (a.is_lambda or b.is_lambda)
    if a.name != b.name:
        return False
    are_known = bool(calling[0] and other[0])
    if defined_by_jax(a) or defined_by_jax(b):
        return are_known and calling == other
    if a.is_library or b.is_library:
        if a.is_lambda or end_of(a.file) != end_of(b.file):
            return False
        return True if are_known and calling[0] == other[0] else None
    if a.is_lambda:
        is_there = end_of(a.file) == end_of(b.file)
        return is_there and (a.line == b.line or bool(a.source and a.source == b.source))
    if a.file == b.file:
        return True
    return None if PurePath(a.file).name == PurePath(b.file).name else False


@functools.lru_cache(4096)
def _counted(signature: str) -> Counter[str]:
    return Counter(signature.split(", "))


@functools.lru_cache(4096)
def _signature_likeness(one: str, other: str) -> float:
    a, b = _counted(one), _counted(other)
    longest = max(a.total(), b.total())
    return (a & b).total() / longest if longest else 1.0
