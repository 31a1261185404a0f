"""Findings about operations that JAX compiles one at a time, because nobody put them under a `jit`."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from ejcache.advice.evidence import read_library, read_maker
from ejcache.advice.findings import ESTIMATED, SINGLE_OPERATIONS, Advice
from ejcache.advice.statements import PURE
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.advice.evidence import Ask, Caller
    from ejcache.advice.statements import Statements

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


_EXAMPLE: Final = (
    "x = jnp.ones(shape)\ny = jnp.sin(x) * 2\nz = y / y.sum()",
    "@jax.jit\ndef prepare(x):\n    y = jnp.sin(x) * 2\n    return y / y.sum()\nz = prepare(x)",
)
"""Code before and after where the lines cannot be shown."""


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
    asks: list[Ask]


def single_operations(asks: Sequence[Ask], statements: Statements) -> Iterator[Advice]:
    """Programs that JAX itself defines, called one after another by one function of the user's.

    Those in the methods of a model count for the line that makes or calls it. A line that also calls a jitted function
    is none of them: it does more than operations, such as a loop of training that a library has. Those of the function
    itself are in statements that one function could hold: not in a call of `print` or of a plot, and not partly in a
    loop. Where the source is not known, nothing is said of these.
    """
    for run in _runs(asks, statements):
        programs = len({ask.program.key for ask in run.asks})
        if programs >= _OPERATIONS:
            yield _of_model(run, programs) if run.line else _of_function(run, programs, statements)


def _runs(asks: Sequence[Ask], statements: Statements) -> list[_Run]:
    """Return the runs of operations, in the order of their first ones."""
    jitted = {place for ask in asks if not ask.is_of_jax for place in _lines(ask)}
    found: list[_Run] = []
    latest: dict[tuple[str, str, int, int], _Run] = {}
    for ask in asks:
        caller, maker = ask.caller, read_maker(ask.program.caller)
        if not ask.is_of_jax:
            # What follows in these functions is another run.
            for same in [each for each in latest if (each[0], each[1]) in {caller[::2], maker[::2]}]:
                del latest[same]
            continue
        is_known = read_library(ask.program.caller) in {"", *PURE}
        is_small = ask.function not in _BODIES
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
    return max(ask.caller.line for ask in run.asks)


def _lines(ask: Ask) -> set[Caller]:
    """Return the line that asks for a program, and the one that makes or calls the model for which it does."""
    return {each for each in (ask.caller, read_maker(ask.program.caller)) if each.file}


def _of_function(run: _Run, programs: int, statements: Statements) -> Advice:
    """Advise on single operations that a function calls."""
    first, last = min(ask.caller.line for ask in run.asks), max(ask.caller.line for ask in run.asks)
    name = _NESTED.sub("", run.function)
    where = "the top level" if name == "<module>" else name
    span = f"lines {first} to {last}" if first < last else f"line {first}"
    change = f"put the operations of {span} of {where} under one jax.jit"
    code = statements.one_function(run.file, first, last, name="prepare", span=span)
    before, after = code or _EXAMPLE
    return _advice(run, first, programs, change=change, before=before, after=after)


def _of_model(run: _Run, programs: int) -> Advice:
    """Advise on single operations in the methods of a model."""
    methods = Counter(ask.caller.function for ask in run.asks)
    main = methods.most_common(1)[0][0]
    more = f" and {len(methods) - 1} more" if len(methods) > 1 else ""
    if main.endswith("__call__"):
        return _advice(
            run,
            run.line,
            programs,
            change="call the model under one jax.jit (jax.jit(model.init) where it makes the parameters, or a jitted "
            f"function that calls it): this line runs {main}{more}",
            before="y = model(x)",
            after="@jax.jit\ndef apply(…):\n    return model(x)\ny = apply(…)",
        )
    return _advice(
        run,
        run.line,
        programs,
        change="make the model under one jit (jax.jit(model.init), nnx.jit or eqx.filter_jit of what makes it): this "
        f"line runs {main}{more}",
        before="model = Model(…)",
        after="@nnx.jit  # or eqx.filter_jit\ndef make(…):\n    return Model(…)\nmodel = make(…)",
    )


def _advice(run: _Run, line: int, programs: int, *, change: str, before: str, after: str) -> Advice:
    seconds = sum(ask.seconds for ask in run.asks)
    names = list(dict.fromkeys(ask.function for ask in run.asks))
    shown = ", ".join(names[:4]) + ", \N{HORIZONTAL ELLIPSIS}" * (len(names) > 4)
    return Advice(
        SINGLE_OPERATIONS,
        run.function,
        run.file,
        line,
        programs=programs,
        calls=len(run.asks),
        seconds=seconds,
        saves=seconds * (1 - max(_KEPT_OF_MODEL if run.line else _KEPT, 1 / programs)),
        basis=ESTIMATED,
        message=f"{change}: JAX compiles {programs} programs of one operation each there ({shown})",
        before=before,
        after=after,
    )
