"""Finds operations that JAX compiles one at a time, because nobody put them under a `jit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.history.findings import SINGLE_OPERATIONS, Advice, shown_path
from ejcache.history.recorded_program import caller_of, function_of, is_of_jax, read_maker, spent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.journal.line import ProgramRecord

_OPERATIONS: Final = 8
"""Programs of one operation from which on they are a finding."""


def single_operations(asks: Sequence[ProgramRecord]) -> Iterator[Advice]:
    """Say how many programs that JAX itself defines one process asked for, what they took, and which lines took most.

    These are the lines of one function of the user's, or the one that makes or calls an object whose methods they are
    in.
    """
    places: dict[tuple[str, str, int], list[ProgramRecord]] = {}
    every = [each for each in asks if is_of_jax(each) and caller_of(each).file and not caller_of(each).is_library]
    for each in every:
        caller, maker = caller_of(each), read_maker(each.caller)
        place = (maker.file, maker.function, maker.line) if maker.file else (caller.file, caller.function, 0)
        places.setdefault(place, []).append(each)
    programs = len({each.key for each in every})
    if programs < _OPERATIONS:
        return
    (file, function, maker_line), most = max(places.items(), key=lambda pair: sum(map(spent, pair[1])))
    lines = [maker_line] if maker_line else sorted({caller_of(each).line for each in most})
    end = f" to {lines[-1]}" if len(lines) > 1 else ""
    names = list(dict.fromkeys(function_of(each) for each in every))
    shown = ", ".join(names[:4]) + ", \N{HORIZONTAL ELLIPSIS}" * (len(names) > 4)
    seconds, of_most = (sum(map(spent, group)) for group in (every, most))
    yield Advice(
        SINGLE_OPERATIONS,
        function,
        file,
        lines[0],
        programs=programs,
        calls=len(every),
        seconds=seconds,
        sentence=f"{programs} programs outside of any jit ({shown}) took {seconds:.2f} s, most, {of_most:.2f} s, from "
        f"{shown_path(file)}:{lines[0]}{end}",
        what_to_do="call what runs there in one function under jax.jit, if it can be traced (of a model: "
        "jax.jit(model.init), nnx.jit or eqx.filter_jit of what makes it), or compute it with NumPy; the function has "
        "to be compiled, too, so that at most these seconds are saved",
    )
