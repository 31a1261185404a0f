"""Findings about programs of one function whose arguments differ: in a size, or in a type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.advice.evidence import Type, argument_types, first_asks
from ejcache.advice.findings import COUNTED, MEASURED, SHAPE_VARIES, WEAK_TYPE, Advice
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.advice.evidence import Ask, Texts

_SHAPES: Final = 3
"""Programs of a function with other sizes from which on buckets are advised."""
_DIMENSIONS: Final = 2
_PADDING: Final = 1.3
"""How much larger than the sizes that were seen buckets may be, on the average."""
_SHOWN: Final = 6


def shape_varies(group: Sequence[Ask], texts: Texts) -> Iterator[Advice]:
    """Programs of one function whose arguments differ in one or two dimensions."""
    if group[0].is_of_jax or not group[0].caller.file:
        return
    asks = first_asks(group)
    types = [argument_types(ask.signature) for ask in asks]
    kept = [(ask, each) for ask, each in zip(asks, types, strict=True) if each and _alike(each, types[-1])]
    if len(kept) < _SHAPES:
        return
    columns = _varying([each for _, each in kept])
    if not 1 <= len(set(columns.values())) <= _DIMENSIONS:
        return
    (argument, axis), sizes = next(iter(columns.items()))
    if len(set(sizes)) < _SHAPES:
        return
    asks = [ask for ask, _ in kept]
    bounds = buckets(sizes)
    chosen = [min(bound for bound in bounds if bound >= size) for size in sizes]
    after = len(dict.fromkeys(chosen))
    padding = sum(chosen) / max(1, sum(sizes)) - 1
    seconds = sum(ask.seconds for ask in asks)
    names = texts.argument_names(asks[0])
    name = names[argument] if argument < len(names) else f"argument {argument}"
    code = names[argument] if argument < len(names) else "x"
    seen = ", ".join(map(str, sorted(set(sizes))[:_SHOWN])) + ", \N{HORIZONTAL ELLIPSIS}" * (len(set(sizes)) > _SHOWN)
    listed = ", ".join(map(str, bounds))
    caller = asks[-1].caller
    function = asks[0].function
    yield Advice(
        SHAPE_VARIES,
        function,
        caller.file,
        caller.line,
        programs=len(asks),
        calls=len(group),
        seconds=seconds,
        saves=seconds * (1 - after / len(asks)),
        basis=COUNTED,
        message=f"pad dimension {axis} of {name} to {listed}: {plural(after, 'program')} instead of {len(asks)} for "
        f"the sizes {seen}, with {padding:.0%} of padding",
        before=f"{function}({code})",
        after=f"size = next(each for each in [{listed}] if each >= {code}.shape[{axis}])\n"
        f"width = [(0, 0)] * {code}.ndim\nwidth[{axis}] = 0, size - {code}.shape[{axis}]  # and mask what was added\n"
        f"{function}(jnp.pad({code}, width))",
    )


def _alike(one: Sequence[Type], other: Sequence[Type]) -> bool:
    """True if arguments differ in sizes only."""
    return [(each.dtype, len(each.shape)) for each in one] == [(each.dtype, len(each.shape)) for each in other]


def _varying(types: Sequence[Sequence[Type]]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return the sizes of each dimension that varies, by number of the argument and axis; the first argument first."""
    found = {}
    for argument, each in enumerate(types[0]):
        for axis in range(len(each.shape)):
            sizes = tuple(others[argument].shape[axis] for others in types)
            if len(set(sizes)) > 1:
                found[argument, axis] = sizes
    return found


def buckets(sizes: Sequence[int]) -> list[int]:
    """Choose the sizes to pad to: as few as possible with so much padding on the average, at most half of all."""
    distinct = sorted(set(sizes))
    for count in range(1, max(2, len(distinct) // 2) + 1):
        step = len(distinct) / count
        bounds = sorted({_round(distinct[min(len(distinct), round(step * (n + 1))) - 1]) for n in range(count)})
        padded = sum(min(bound for bound in bounds if bound >= size) for size in sizes)
        if padded <= _PADDING * sum(sizes):
            return bounds
    return bounds


def _round(size: int) -> int:
    """Return the next multiple of 8, or of 64 above 512, which hardware likes; small sizes are rounded less."""
    unit = 64 if size > 512 else 8 if size > 64 else 4 if size > 8 else 1
    return -(-size // unit) * unit


def weak_type(group: Sequence[Ask], texts: Texts) -> Iterator[Advice]:
    """Programs of one function whose arguments differ in their dtypes or weak types only."""
    if group[0].is_of_jax:
        return
    asks = first_asks(group)
    if len(asks) < 2:
        return
    first = asks[0]
    types = argument_types(first.signature)
    for second in asks[1:]:
        other = argument_types(second.signature)
        if [each.shape for each in types] != [each.shape for each in other] or not second.caller.file:
            continue
        names = texts.argument_names(second)
        retyped = [
            (names[place] if place < len(names) else f"argument {place}", a.dtype, b.dtype)
            for place, (a, b) in enumerate(zip(types, other, strict=True))
            if a.dtype != b.dtype
        ]
        known = first.weak is not None and second.weak is not None
        weak = sorted((first.weak or frozenset()) ^ (second.weak or frozenset())) if known else []
        weak = [name for name in weak if name in names or not names]
        if retyped:
            name, was, now = retyped[0]
            what = f"{name} is {was} in one call and {now} in another"
            cast = f"jnp.asarray(value, {now!r})"
        elif weak:
            name = weak[0]
            is_weak = "weakly typed, as Python numbers are," if name in (first.weak or ()) else "strongly typed"
            what = f"{name} is {is_weak} in one call and not in another"
            cast = "jnp.asarray(value, dtype)"
        else:
            continue
        spent = [ask for ask in group if ask.program.key == second.program.key]
        yield Advice(
            WEAK_TYPE,
            first.function,
            second.caller.file,
            second.caller.line,
            programs=len(asks),
            calls=len(group),
            seconds=sum(ask.seconds for ask in group),
            saves=sum(ask.seconds for ask in spent),
            basis=MEASURED,
            message=f"give {name} one dtype in every call: {what}",
            before=f"{first.function}(…)  # {name}: {what}",
            after=f"value = {cast}  # for {name}, before the first call\n{first.function}(…)",
        )
        return
