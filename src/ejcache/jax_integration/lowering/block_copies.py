"""The copies of one block among a program's operations, and how each operand of the block relates to the copies.

Pure functions: an operation is a `Step`, and what it uses are names that are equal for equal values. A block can be the
body of a loop if each of its operands is, in every copy, made by the same copy, or by the same earlier one, or is the
same value, or comes from outside of all copies, as the parameters of a layer do.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.util.repeated_sequences import run_ends, shortest_period
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

COPIES: Final = 4
"""Copies from which on a block is worth a loop."""
_DISTANCE: Final = 4
"""How many copies a value may be handed on over."""
_TRIES: Final = 100
"""How often another place is tried for an operation of a copy that lacks some."""
_SHIFTS: Final = 200_000
"""Operations that are looked at to find where a block begins."""


class Apart(Exception):  # noqa: N818  # control flow of those who look for copies
    """Copies of a block cannot be one loop; the message says why."""


class Made(NamedTuple):
    """A value that an operation makes: the operation's number and the number of the result."""

    step: int
    result: int


class Step(NamedTuple):
    """One operation.

    Attributes:
        token: equal for operations of one kind, with the same types.
        attributes: what else says what it does.
        uses: its operands: `Made`, or any other value for what no operation here makes.
    """

    token: Hashable
    attributes: Hashable
    uses: tuple[Hashable, ...]


class Own(NamedTuple):
    """An operand that the same copy makes: the place of the operation in the block, and the number of its result."""

    place: int
    result: int


class Carried(NamedTuple):
    """An operand that an earlier copy makes.

    Attributes:
        place: of the operation in the block.
        result: the number of its result.
        first: what the first copies use instead, as many as the copies over which it is handed on; None of one that
            lacks the operation, such as the first term of a sum.
    """

    place: int
    result: int
    first: tuple[Hashable | None, ...]


class Same(NamedTuple):
    """An operand that is one value in all copies."""

    value: Hashable


class Each(NamedTuple):
    """An operand that each copy has from outside; None of a copy that lacks the operation."""

    values: tuple[Hashable | None, ...]


Relation = Own | Carried | Same | Each
R = TypeVar("R", Own, Carried, Same, Each)


class Copies(NamedTuple):
    """The copies of one block.

    Attributes:
        table: of each copy, the numbers of its operations in the order of the block; None where it lacks one.
        relations: of each operand, by the place of its operation in the block and its number.
        apart: the places of operations whose attributes differ; they stay outside of a loop.
    """

    table: tuple[tuple[int | None, ...], ...]
    relations: Mapping[tuple[int, int], Relation]
    apart: frozenset[int]

    @property
    def steps(self) -> list[int]:
        """The numbers of all operations that a loop stands for."""
        return [
            step
            for copy in self.table
            for place, step in enumerate(copy)
            if step is not None and place not in self.apart
        ]

    @property
    def places(self) -> list[int]:
        """The places of the operations that a loop has."""
        return [place for place in range(len(self.table[0])) if place not in self.apart]

    def of_kind(self, kind: type[R]) -> list[R]:
        """The relations of this kind, each once."""
        return list(dict.fromkeys(each for each in self.relations.values() if isinstance(each, kind)))

    @property
    def model(self) -> tuple[int, ...]:
        """The numbers of the operations of a copy that has them all."""
        return next(
            whole for copy in self.table if len(whole := tuple(step for step in copy if step is not None)) == len(copy)
        )


def copies_at(steps: Sequence[Step], start: int, period: int, *, first: int = 0) -> Copies:
    """The copies in the run around `start`, wherever in it the block begins best; raises `Apart`.

    Args:
        steps: the operations of a program.
        start: the number of one in the first copy.
        period: how many the block has, or a multiple of that.
        first: the number of the first operation that may belong to it.
    """
    tokens = [step.token for step in steps]
    start = max(start, first)
    end = run_ends(tokens, start, period)
    period = shortest_period(tokens[start:end], period)
    while start > first and tokens[start - 1] == tokens[start - 1 + period]:
        start -= 1
    best: Copies | None = None
    reason: Apart | None = None
    tries = max(1, min(period, _SHIFTS // max(1, end - start)))
    for shift in range(tries):
        count = (end - start - shift) // period
        if count < COPIES or (best is not None and count * period < max(map(len, best.table)) * (len(best.table) - 1)):
            break
        table = [tuple(range(start + shift + n * period, start + shift + (n + 1) * period)) for n in range(count)]
        try:
            found = _extended(steps, table, first)
        except Apart as exc:
            reason = reason or exc
            continue
        if best is None or _worth(found) > _worth(best):
            best = found
    if best is None:
        raise reason or Apart(f"fewer than {COPIES} copies")
    return best


def _worth(copies: Copies) -> tuple[int, int]:
    """The more operations become a loop the better, and the fewer values it hands on."""
    return len(copies.steps), -len(copies.of_kind(Carried))


def _extended(steps: Sequence[Step], full: Sequence[tuple[int, ...]], first: int) -> Copies:
    """These copies, and one before and after them that lacks operations, such as that of the first layer backwards."""
    best = related(steps, full)
    for is_after in (True, False):
        partial = _after(steps, full, best) if is_after else _before(steps, full, best, first)
        if sum(step is not None for step in partial) * 2 < len(full[0]):
            continue
        extended = [*best.table, partial] if is_after else [partial, *best.table]
        # What looks like a copy may use other values.
        with contextlib.suppress(Apart):
            best = related(steps, extended)
    return best


def _after(steps: Sequence[Step], full: Sequence[tuple[int, ...]], copies: Copies) -> tuple[int | None, ...]:
    """The operations after these copies that are those of the block, in its order; None where one lacks."""
    begin = full[-1][-1] + 1
    return _aligned(steps, range(begin, min(len(steps), begin + len(full[0]))), full, copies)[0]


def _before(
    steps: Sequence[Step], full: Sequence[tuple[int, ...]], copies: Copies, first: int
) -> tuple[int | None, ...]:
    """The operations before these copies that are those of the block, as many as possible; None where one lacks."""
    end = full[0][0]
    for begin in range(max(first, end - len(full[0])), end):
        found, is_all = _aligned(steps, range(begin, end), full, copies)
        if is_all:
            return found
    return (None,) * len(full[0])


def _aligned(
    steps: Sequence[Step], numbers: range, full: Sequence[tuple[int, ...]], copies: Copies
) -> tuple[tuple[int | None, ...], bool]:
    """The operations with these numbers by their places in the block, up to one that is not in it; and if all are.

    Of places that fit an operation the first one is taken, and the next if those that follow fit nowhere then.
    """
    found: list[int | None] = [None] * len(full[0])
    best = tuple(found), 0
    taken: list[int] = []
    place = 0
    tries = _TRIES
    while len(taken) < len(numbers):
        number = numbers[len(taken)]
        step = steps[number]
        for at in range(place, len(found)):
            if steps[full[0][at]].token == step.token and _fits(step, at, found, copies):
                found[at] = number
                taken.append(at)
                place = at + 1
                break
        else:
            if len(taken) > best[1]:
                best = tuple(found), len(taken)
            tries -= 1
            if not (tries and taken):
                return best[0], False
            last = taken.pop()
            found[last] = None
            place = last + 1
    return tuple(found), True


def _fits(step: Step, place: int, found: Sequence[int | None], copies: Copies) -> bool:
    """True if the operands that the same copy makes are those of the block."""
    for slot, used in enumerate(step.uses):
        relation = copies.relations.get((place, slot))
        if isinstance(relation, Own):
            if used != (found[relation.place], relation.result):
                return False
        elif (isinstance(used, Made) and used.step in found) or (isinstance(relation, Same) and used != relation.value):
            return False
    return True


def related(steps: Sequence[Step], table: Sequence[tuple[int | None, ...]]) -> Copies:
    """Relate the operands of these copies; raises `Apart` if they are not the same in all."""
    period = len(table[0])
    apart = frozenset(
        place
        for place in range(period)
        if len({steps[copy[place]].attributes for copy in table if copy[place] is not None}) > 1  # type: ignore[index]  # not None
    )
    located = {
        step: (number, place)
        for number, copy in enumerate(table)
        for place, step in enumerate(copy)
        if step is not None and place not in apart
    }
    sums = _sums(steps, table, located)
    relations: dict[tuple[int, int], Relation] = {}
    for place in range(period):
        present = [(number, steps[step]) for number, copy in enumerate(table) if (step := copy[place]) is not None]
        for slot in range(len(present[0][1].uses)):
            used = {number: step.uses[slot] for number, step in present}
            relation = _relation(used, located, sums, len(table))
            if place in apart:
                if isinstance(relation, Own | Carried):
                    raise Apart("operations that differ use what the block makes")
                continue
            relations[place, slot] = relation
    return Copies(tuple(table), relations, apart)


def _sums(
    steps: Sequence[Step], table: Sequence[tuple[int | None, ...]], located: Mapping[int, tuple[int, int]]
) -> dict[Made, int]:
    """Find what stands for operations that a copy lacks, each with its place: the one own value that it would use.

    The first term of a sum over all copies is what the others add to the sum.
    """
    whole = next(number for number, copy in enumerate(table) if None not in copy)
    found: dict[Made, int] = {}
    for copy in table:
        for place, step in enumerate(copy):
            if step is not None:
                continue
            uses = steps[table[whole][place] or 0].uses
            own = [each for each in uses if isinstance(each, Made) and located.get(each.step, (None,))[0] == whole]
            made = copy[located[own[0].step][1]] if len(own) == 1 else None
            if made is not None and len(uses) > 1:
                found[Made(made, own[0].result)] = place
    return found


def _relation(
    used: Mapping[int, Hashable], located: Mapping[int, tuple[int, int]], sums: Mapping[Made, int], count: int
) -> Relation:
    """The relation of one operand, by the numbers of the copies that have it."""
    inner = {
        number: (number - located[value.step][0], located[value.step][1], value.result)
        for number, value in used.items()
        if isinstance(value, Made) and value.step in located
    }
    if not inner:
        if len(set(used.values())) == 1:
            return Same(next(iter(used.values())))
        return Each(tuple(used.get(number) for number in range(count)))
    for number in inner if len(set(inner.values())) == 2 else ():
        value = used[number]
        if isinstance(value, Made) and value in sums:
            other = number - located[value.step][0], sums[value], 0
            inner[number] = other if other in inner.values() else inner[number]
    if len(set(inner.values())) > 1:
        raise Apart("copies use values of other copies that are not always equally far apart")
    distance, place, result = next(iter(inner.values()))
    outer = [number for number in used if number not in inner]
    if distance == 0 and not outer:
        return Own(place, result)
    if 0 < distance <= _DISTANCE and outer == [number for number in range(distance) if number in used]:
        return Carried(place, result, tuple(used.get(number) for number in range(distance)))
    raise Apart("copies use values of other copies and of the outside in turns")
