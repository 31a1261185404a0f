"""Findings about operations that JAX compiles one at a time, because nobody put them under a `jit`."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from ejcache.history.findings import AT_MOST, SINGLE_OPERATIONS, Advice, Saving
from ejcache.history.program import caller_of, function_of, is_of_jax, read_library, read_maker, spent
from ejcache.history.statements import PURE
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.history.program import Caller
    from ejcache.history.statements import Statements
    from ejcache.journal.line import ProgramRecord

_NESTED: Final = re.compile(r"(\.<locals>\.<\w+>)+$")
"""Ends the name of a lambda or a comprehension in a function."""
_OPERATIONS: Final = 8
"""Programs of one operation from which on a function is advised."""
_BODIES: Final = frozenset({"cond", "fori_loop", "scan", "switch", "while"})
"""Operations with bodies of the program's own: they compile as long under a `jit`."""
_APART: Final = 8
"""Lines between two operations from which on they are not one block of lines."""
_KEPT: Final = 0.5
_KEPT_OF_MODEL: Final = 0.75
"""The part of the seconds that one program of all of them costs, at least: it has all of their operations.

By `tools/advised_changes.py` it is 0.34 to 0.54 of lines in a function, and 0.70 and 0.79 of a model that is made.
"""


class _Run(NamedTuple):
    """Operations of one function, or of one line that makes or calls a model, with no other program between them.

    Attributes:
        file: of the function.
        function: its name.
        line: the one that makes or calls the model; 0 of operations that the function itself calls.
        asks: the operations.
    """

    file: str
    function: str
    line: int
    asks: list[ProgramRecord]


def single_operations(asks: Sequence[ProgramRecord], statements: Statements) -> Iterator[Advice]:
    """Yield programs that JAX itself defines, called one after another by one function of the user's.

    Those in the methods of a model count for the line that makes or calls it. A line that also calls a jitted function
    is none of them: it does more than operations, such as a loop of training that a library has. Those of the function
    itself are in statements that one function could hold: not in a call of `print` or of a plot, and not partly in a
    loop. Where the source is not known, nothing is said of these.
    """
    for run in _runs(asks, statements):
        programs = len({ask.key for ask in run.asks})
        if programs >= _OPERATIONS:
            yield _of_model(run, programs) if run.line else _of_function(run, programs)


def _runs(asks: Sequence[ProgramRecord], statements: Statements) -> list[_Run]:
    """Return the runs of operations, in the order of their first ones."""
    jitted = {place for ask in asks if not is_of_jax(ask) for place in _lines(ask)}
    found: list[_Run] = []
    latest: dict[tuple[str, str, int, int], _Run] = {}
    for ask in asks:
        caller, maker = caller_of(ask), read_maker(ask.caller)
        if not is_of_jax(ask):
            # What follows in these functions is another run.
            for same in [each for each in latest if (each[0], each[1]) in {caller[::2], maker[::2]}]:
                del latest[same]
            continue
        is_known = read_library(ask.caller) in {"", *PURE}
        is_small = function_of(ask) not in _BODIES
        if not (caller.file and is_known and is_small and jitted.isdisjoint(_lines(ask))) or caller.is_library:
            continue
        place = maker if maker.file else caller._replace(line=0)
        block = 0 if maker.file else statements.block(caller.file, caller.line)
        if not (maker.file or block):
            continue
        same = place.file, place.function, place.line, block
        if same not in latest or (not place.line and caller.line > _last_line(latest[same]) + _APART):
            latest[same] = _Run(*same[:3], [])
            found.append(latest[same])
        latest[same].asks.append(ask)
    return found


def _last_line(run: _Run) -> int:
    return max(caller_of(ask).line for ask in run.asks)


def _lines(ask: ProgramRecord) -> set[Caller]:
    """Return the line that asks for a program, and the one that makes or calls the model for which it does."""
    return {each for each in (caller_of(ask), read_maker(ask.caller)) if each.file}


def _of_function(run: _Run, programs: int) -> Advice:
    """Advise on single operations that a function calls."""
    first, last = min(caller_of(ask).line for ask in run.asks), max(caller_of(ask).line for ask in run.asks)
    name = _NESTED.sub("", run.function)
    where = "the top level" if name == "<module>" else name
    span = f"lines {first} to {last}" if first < last else f"line {first}"
    what_to_do = f"put the operations of {span} of {where} into one function under jax.jit, or compute them with NumPy"
    return _finding(run, first, programs, f"each operation of {span} of {where}", what_to_do)


def _of_model(run: _Run, programs: int) -> Advice:
    """Advise on single operations in the methods of a model."""
    methods = Counter(caller_of(ask).function for ask in run.asks)
    main = methods.most_common(1)[0][0]
    more = f" and {len(methods) - 1} more" if len(methods) > 1 else ""
    what_to_do = "make the model under one jit: jax.jit(model.init), nnx.jit or eqx.filter_jit of what makes it"
    if main.endswith("__call__"):
        what_to_do = "call the model in a function under jax.jit; where this makes its parameters, jax.jit(model.init)"
    return _finding(run, run.line, programs, f"this line runs {main}{more}, of which each operation", what_to_do)


def _finding(run: _Run, line: int, programs: int, what: str, what_to_do: str) -> Advice:
    seconds = sum(map(spent, run.asks))
    names = list(dict.fromkeys(function_of(ask) for ask in run.asks))
    shown = ", ".join(names[:4]) + ", \N{HORIZONTAL ELLIPSIS}" * (len(names) > 4)
    kept = max(_KEPT_OF_MODEL if run.line else _KEPT, 1 / programs)
    return Advice(
        SINGLE_OPERATIONS,
        run.function,
        run.file,
        line,
        programs=programs,
        calls=len(run.asks),
        seconds=seconds,
        saves=(Saving(AT_MOST, seconds * (1 - kept), f"of these: one program of all takes {kept:.0%} or more"),),
        sentence=f"{what} is a program of its own: JAX compiles {programs} ({shown})",
        what_to_do=what_to_do,
    )
