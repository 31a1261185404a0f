"""Finds the program with which another one is compared: the nearest of earlier starts, or of the same process.

*Why was it compiled again since the last start?* is asked of earlier starts of the same script, the last five of them
(`Earlier.of_function`). *Why was it compiled more than once in this process?* is asked of what the same process asked
for before (`Earlier.beside`). In both, the nearest is the program with the fewest differences: each component of the
key, each argument and each constant is one; of equals it is that of the latest start.

A program counts only if it is of the same function: of the same file and qualified name, or, where a checkout has moved
or an entry names no whole path, if its operations are nearly the same. A function of a library counts for the file of
the user's that calls it, an operation of JAX for the line.
"""

from __future__ import annotations

import copy
import functools
import re
from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.cache.reasons import Skip
from ejcache.errors import StoreError
from ejcache.history.definitions import definition_of, end_of
from ejcache.history.environment_difference import variant_of
from ejcache.history.known_entries import KnownEntries
from ejcache.history.known_texts import Texts
from ejcache.history.recorded_program import argument_types, caller_of, defined_by_jax, digest_of, with_facts
from ejcache.journal.line import HIT
from ejcache.journal.start_records import in_starts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ejcache.history.definitions import Definition
    from ejcache.history.environment_difference import Difference
    from ejcache.journal.line import ProgramRecord
    from ejcache.journal.start_records import StartRecord

_STARTS: Final = 5
"""Earlier starts of a script that a program is compared with."""
_OF_START: Final = 24
"""Programs of a function of one start that are looked at: those that were asked for at the same place of the order."""
_COMPARED: Final = 12
"""Programs whose texts are compared; each text of a bucket costs a request."""
_NEARLY: Final = 0.8
"""The part of two programs' operations that is the same, if they are of one function at two places."""
_OF_PROGRAM: Final = frozenset({"computation", "compile_options"})
_UNREAD: Final = 3.0
"""In how many things two programs differ of which a text is not known."""
_CELL: Final = re.compile(r"/ipykernel_\d+/\d+\.py$|^<ipython-input-|^<stdin>$")
"""The file of what was typed into a notebook or a prompt; of a notebook, each version of a cell has its own."""


class Neighbours(NamedTuple):
    """What a program is compared with.

    Attributes:
        programs: of the same function, the nearest first.
        equal: another one that is as near, and there is no third; None if there is none.
        began: when the start of the nearest began, in seconds since the epoch; None for one of the same process, or if
            no record says that.
        is_sibling: True if the same start asked for the nearest.
        note: what could not be read, and why; empty if everything was.
        lost_before: nothing is known, because the records of this host begin at this time; None if they are whole.
    """

    programs: Sequence[ProgramRecord] = ()
    equal: ProgramRecord | None = None
    began: float | None = None
    is_sibling: bool = False
    note: str = ""
    lost_before: float | None = None


class _Asked(NamedTuple):
    """A program that a process compiled or loaded.

    Attributes:
        facts: of it; of one that was loaded, those of the compilation that stored it.
        start: the number of its start; the latest has the highest.
        order: its number among the programs of that function in its start.
    """

    facts: _Facts
    start: int
    order: int


class Earlier:
    """What the processes of a host have compiled and loaded, and what else is known.

    Args:
        records: start records of any programs, in any order.
        texts: of their programs.
        entries: returns the entries of the cache of a program, None if it has none, or why they cannot be read.
        process: the id of the process of programs that no record has.
        lost_before: the time before which records of this host are lost, in seconds since the epoch; None if none are.
    """

    def __init__(
        self,
        records: Iterable[StartRecord],
        texts: Texts | None = None,
        *,
        entries: Callable[[ProgramRecord], KnownEntries | Exception | None] = lambda _: None,
        process: str = "",
        lost_before: float | None = None,
    ) -> None:
        self.texts = texts if texts is not None else Texts()
        self.entries = entries
        self.differences: dict[tuple[int, int], list[Difference]] = {}
        """What is known to have changed between two programs, by what their records say (`said`)."""
        self._lost_before = lost_before
        self._starts = in_starts(record for record in records if record.programs)
        self._comparisons = _Comparisons()
        self._start_of = {
            (program.key, program.time): number
            for number, start in enumerate(self._starts)
            for record in start
            for program in record.programs
        }
        ids = {record.process.id: number for number, start in enumerate(self._starts) for record in start}
        self._this = ids.get(process, len(self._starts)) if process else None
        self._by_key: dict[str, list[ProgramRecord]] = {}
        self._first_of_key: dict[str, ProgramRecord] = {}
        self._by_signature: dict[tuple[str, str, str], list[ProgramRecord]] = {}
        self._programs: dict[tuple[str, str], list[tuple[int, ProgramRecord]]] = {}
        self._asked: dict[tuple[str, str], dict[int, list[_Asked]]] = {}
        self._related_to: dict[tuple[str, str, int], dict[int, list[_Asked]]] = {}
        self._orders: dict[tuple[str, float], int] = {}
        self._unknown: dict[tuple[str, str], list[float]] = {}
        every = ((number, each) for number, start in enumerate(self._starts) for one in start for each in one.programs)
        for number, each in sorted(every, key=lambda pair: pair[1].time):
            # What was refused was not compiled, so that nothing is compared with it.
            if each.outcome == Skip.FORBIDDEN:
                continue
            self._programs.setdefault((each.url, each.name), []).append((number, each))
            if each.outcome != HIT and each.components:
                self._by_key.setdefault(each.key, []).append(each)
                self._first_of_key.setdefault(each.key, each)
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

    def of_function(self, program: ProgramRecord) -> Neighbours:
        """Return the programs that say why one was compiled again: those of earlier starts, at most a dozen.

        They are of the last five starts of the same script that had the function, or else of any script; or else what
        the cache has of it. Only if nobody had it before, they are of the same start. What was typed into a notebook or
        a prompt is first compared with its last version there.

        All are ranked by what their records say, and the first ones by their texts.
        """
        ours, start = self._comparisons.of(program), self._start(program)
        related = self._related((program.url, program.name), ours)
        siblings = self._before(ours, related, [start] if start is not None else [])
        if _is_cell(program) and siblings:
            return self._nearest(program, ours, siblings, is_sibling=True)
        found = self._nearest(program, ours, self._before(ours, related, self._latest(related, start)))
        if found.programs:
            return found
        known, note = self._entries_of(program, {each.facts.key for each in siblings})
        found = self._nearest(program, ours, known)
        if found.programs:
            return found._replace(note=note)
        if self._is_lost(program, start):
            return Neighbours(note=note, lost_before=self._lost_before)
        return self._nearest(program, ours, siblings, is_sibling=True)._replace(note=note)

    def beside(self, program: ProgramRecord, asked: Sequence[ProgramRecord]) -> Neighbours:
        """Return the programs that say why one process needed another one: those that it `asked` for before."""
        ours = self._comparisons.of(program)
        siblings = {each.key: each for each in asked if each.key != program.key and each.components}
        found = [_Asked(self._comparisons.of(each), 0, number) for number, each in enumerate(siblings.values())]
        return self._nearest(program, ours, found, is_sibling=True)

    def said(self, program: ProgramRecord) -> int:
        """Return a number that is the same of programs whose records say the same, but for their keys and texts."""
        return self._comparisons.of(program).record

    def first(self, program: ProgramRecord) -> list[ProgramRecord]:
        """Return the programs of which the texts say which is nearest, without reading any."""
        return list(self.without_texts().of_function(program).programs)

    def _start(self, program: ProgramRecord) -> int | None:
        """Return the number of the start that asked for a program; None for an entry that some host stored."""
        return self._start_of.get((program.key, program.time), self._this)

    def _script(self, start: int | None) -> str | None:
        """Return the name of what a start ran; None if no record says that."""
        return self._starts[start][0].process.program if start is not None and start < len(self._starts) else None

    def _latest(self, related: dict[int, list[_Asked]], start: int | None) -> list[int]:
        """Return the numbers of the last five starts before this one that had a function, of the same script or any."""
        script = self._script(start)
        same: list[int] = []
        others: list[int] = []
        for number in reversed(related):
            if start is not None and number >= start:
                continue
            of_script = script is not None and self._script(number) == script
            if len(same if of_script else others) < _STARTS:
                (same if of_script else others).append(number)
            if len(same) == _STARTS:
                break
        return same or others

    @staticmethod
    def _before(ours: _Facts, related: Mapping[int, list[_Asked]], starts: Iterable[int]) -> list[_Asked]:
        """Return what these starts asked for before a program."""
        every = (each for start in starts for each in related.get(start, ()))
        return [each for each in every if each.facts.time < ours.time and each.facts.key != ours.key]

    def _related(self, name: tuple[str, str], ours: _Facts) -> dict[int, list[_Asked]]:
        """Return the programs of this name that may be of the same function, by the number of their start."""
        same = (*name, ours.place)
        if same not in self._related_to:
            found: dict[int, list[_Asked]] = {}
            for asked in self._asked_for(name).values():
                if self._comparisons.relation(ours, asked[0].facts) is not False:
                    for each in asked:
                        found.setdefault(each.start, []).append(each)
            self._related_to[same] = dict(sorted(found.items()))
        return self._related_to[same]

    def _asked_for(self, name: tuple[str, str]) -> dict[int, list[_Asked]]:
        """Return the programs of this name that were asked for, as far as it is known what they are, by their place."""
        if name not in self._asked:
            found: dict[int, list[_Asked]] = {}
            orders: Counter[int] = Counter()
            for number, each in self._programs.get(name, ()):
                (known,) = with_facts([each], self._first_of_key)
                if not known.components:
                    self._unknown.setdefault(name, []).append(each.time)
                    continue
                facts = self._comparisons.of(known)
                found.setdefault(facts.place, []).append(_Asked(facts, number, orders[number]))
                self._orders.setdefault((each.key, each.time), orders[number])
                orders[number] += 1
            self._asked[name] = found
        return self._asked[name]

    def _is_lost(self, program: ProgramRecord, start: int | None) -> bool:
        """True if an earlier start may have had the function, and this host does not know it any more."""
        if start is None or self._lost_before is None:
            return False
        unknown = self._unknown.get((program.url, program.name), ())
        known = {each[0].process.program for each in self._starts[:start]}
        return self._script(start) not in known or any(time < program.time for time in unknown)

    def _entries_of(self, program: ProgramRecord, apart: Collection[str]) -> tuple[list[_Asked], str]:
        """Return the entries of its function in its cache, without those of these keys; and what was not read."""
        known = self.entries(program)
        try:
            if isinstance(known, KnownEntries):
                named = known.named(program.name)
                found = [each for each in named if each.time < program.time and each.components]
                return [
                    _Asked(self._comparisons.of(each), -1, 0)
                    for each in found
                    if each.key != program.key and each.key not in apart
                ], ""
        except StoreError as exc:
            known = exc
        if isinstance(known, Exception):
            return [], f"its cache cannot be read, so it is compared with what this host has compiled: {known}"
        return [], ""

    def _nearest(
        self, program: ProgramRecord, ours: _Facts, candidates: Iterable[_Asked], *, is_sibling: bool = False
    ) -> Neighbours:
        """Return those of these that are of the same function, the nearest first."""
        same: list[_Asked] = []
        moved: list[_Asked] = []
        for each in candidates:
            is_same = self._comparisons.relation(ours, each.facts)
            if is_same is None and is_sibling and _is_cell(program) and _is_cell(each.facts.program):
                is_same = True
            if is_same is not False:
                (moved if is_same is None else same).append(each)
        for group in filter(None, (same, moved)):
            ranked = self._ranked(ours, group)
            store = self.entries(program) if group[0].start < 0 else None
            of_cache = store.store if isinstance(store, KnownEntries) else None
            self.texts.load((program, *(each.facts.program for each in ranked)), of_cache)
            if group is moved:
                ranked = [each for each in ranked if self._is_nearly(program, each.facts.program)]
            elif self.texts.raw(program):
                ranked = [each for each in ranked if self._has_its_name(program, each.facts.program)]
            if ranked:
                return self._compared(program, ours, ranked, is_sibling=is_sibling)
        return Neighbours()

    def _ranked(self, ours: _Facts, candidates: Sequence[_Asked]) -> list[_Asked]:
        """Return those that differ least by what their records say; of equals those of the latest start, and of these
        the one that was asked for at the same place of the order.
        """
        order = self._order_of(ours)
        by_start: dict[int, dict[str, _Asked]] = {}
        for each in candidates:
            by_start.setdefault(each.start, {})[each.facts.key] = each
        near: dict[str, _Asked] = {}
        for _, of_start in sorted(by_start.items()):
            nearest = sorted(of_start.values(), key=lambda each: (abs(each.order - order), -each.facts.time))
            near |= {each.facts.key: each for each in nearest[:_OF_START]}
        apart = self._comparisons.apart
        ranked = sorted(
            near.values(),
            key=lambda each: (apart(ours, each.facts), -each.start, abs(each.order - order), -each.facts.time),
        )
        return ranked[:_COMPARED]

    def _order_of(self, ours: _Facts) -> int:
        return self._orders.get((ours.key, ours.time), 0)

    def _compared(
        self, program: ProgramRecord, ours: _Facts, ranked: Sequence[_Asked], *, is_sibling: bool
    ) -> Neighbours:
        """Return the same programs, of which the first one is the nearest by its text, too.

        To read a text takes ten milliseconds, so one is read only if it could make its program the nearest.
        """
        order = self._order_of(ours)
        far: dict[str, float] = {}
        best = float("inf")
        least = self._comparisons.apart
        for each in sorted(ranked, key=lambda each: least(ours, each.facts, unread=1.0)):
            if least(ours, each.facts, unread=1.0) > best:
                break
            its = each.facts
            far[its.key] = least(ours, its, unread=0.0) + self._apart_in_text(program, its.program)
            best = min(best, far[its.key])
        # Of those asked for in one process, the last one is the call before it.
        nearest = sorted(
            (each for each in ranked if each.facts.key in far),
            key=lambda each: (
                far[each.facts.key],
                -each.start,
                0 if is_sibling else abs(each.order - order),
                -each.facts.time,
            ),
        )
        first = nearest[0]
        as_near = [each for each in nearest[1:] if far[each.facts.key] == best and each.start == first.start]
        others = [each.facts.program for each in ranked if each is not first]
        began = None if is_sibling or first.start < 0 else self._starts[first.start][0].process.began
        return Neighbours(
            [first.facts.program, *others],
            as_near[0].facts.program if len(as_near) == 1 and not is_sibling else None,
            began,
            is_sibling,
        )

    def _apart_in_text(self, program: ProgramRecord, other: ProgramRecord) -> float:
        if digest_of(program) == digest_of(other):
            return 0.0
        ours, its = self.texts.read(program), self.texts.read(other)
        return its.apart(ours) if ours is not None and its is not None else _UNREAD

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


def _is_cell(program: ProgramRecord) -> bool:
    """True if the function was typed into a notebook or a prompt."""
    return _CELL.search(definition_of(program.details).file) is not None


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
        noted: the arguments that are weakly typed, and those that are committed to devices.
        time: when it was ready.
    """

    program: ProgramRecord
    key: str
    place: int
    surroundings: int
    record: int
    signature: str
    digest: str
    noted: tuple[str, ...]
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
            noted = tuple(program.details.get(name, "") for name in _NOTED)
            known = _Facts(program, program.key, its, number, same, program.signature, digest, noted, program.time)
            self._known[id(program)] = known
        return known

    def relation(self, one: _Facts, other: _Facts) -> bool | None:
        """Say whether two programs of one name are of one function, as `relation` does."""
        places = one.place, other.place
        if places not in self._relations:
            self._relations[places] = relation(one.program, other.program)
        return self._relations[places]

    def apart(self, ours: _Facts, other: _Facts, *, unread: float = _UNREAD) -> float:
        """Count in how many things two programs differ by their records; texts that differ are so many."""
        far = 0.0
        if other.surroundings != ours.surroundings:
            far = self._differing_in(ours.surroundings, other.surroundings)
        if other.record != ours.record:
            far += _signatures_apart(ours.signature, other.signature)
            far += sum(ours.noted[n] != other.noted[n] for n in range(len(_NOTED)))
        return far + (unread if other.digest != ours.digest else 0.0)

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
        if not are_known:
            return None
        # Called from a script that never ran, it is new there.
        return calling[0] == other[0] or (None if PurePath(calling[0]).name == PurePath(other[0]).name else False)
    if a.is_lambda:
        is_there = end_of(a.file) == end_of(b.file)
        return is_there and (a.line == b.line or bool(a.source and a.source == b.source))
    if a.file == b.file:
        return True
    cells = _CELL.search(a.file), _CELL.search(b.file)
    if any(cells):
        return None if all(cells) else False
    if PurePath(a.file).name != PurePath(b.file).name:
        return False
    # What one checkout has compiled is loaded in another one.
    return True if are_known and calling[0] == other[0] else None


_NOTED: Final = ("weak", "committed")


@functools.lru_cache(4096)
def _signatures_apart(one: str, other: str) -> float:
    """Count the arguments that differ, or else say whether the results do."""
    if one == other:
        return 0.0
    a, b = (Counter((str(each.shape), each.dtype) for each in argument_types(text)) for text in (one, other))
    return float(max((a - b).total(), (b - a).total())) or 1.0
