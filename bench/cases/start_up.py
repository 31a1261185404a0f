"""How long programs take to start: warm, with each cache, with and without work of their own before the first call."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.measure import paired_ratio, summarize, timed
from bench.outcome import at_least
from bench.registry import SkipCase, case
from bench.starts import (
    AT_ONCE,
    CALLED,
    CPU,
    DEFAULTS,
    DONE,
    JAX,
    JAX_DEFAULTS,
    LEAST,
    MEASURES,
    NONE,
    PARTS,
    PLAIN,
    PRELOAD,
    WHOLE,
    Contestant,
    Start,
    Work,
    known_to_preload,
    pairs_of,
    parts_of,
    start_by_turns,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.context import Context
    from bench.outcome import Bar, Outcome

    Found = dict[tuple[str, str], list[Start]]

LATER = "after 1 s of own work"
_ROUNDS = 9
"""One start differs from the next by 10 % and more on a machine that is shared with others."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of `bench.programs.start`.

    Attributes:
        what: for people.
        sizes: what it is given in a full and in a quick run.
        needs: packages that are not ours.
        bars: of JAX ÷ a contestant, by measure, moment and contestant.
    """

    name: str
    module: str
    what: str
    sizes: tuple[int, int]
    needs: tuple[str, ...] = ()
    bars: dict[tuple[str, str, Contestant], Bar] = field(default_factory=dict)


PROGRAMS = (
    Program("start-4", "blocks", "a training step of 4 transformer blocks in plain JAX", (4, 1)),
    Program(
        "start-24",
        "blocks",
        "a training step of 24 transformer blocks in plain JAX",
        (24, 1),
        bars={
            (CALLED, AT_ONCE, PRELOAD): at_least(1.1),
            (DONE, AT_ONCE, PRELOAD): at_least(1.05),
            (DONE, LATER, PRELOAD): at_least(1.6),
        },
    ),
    Program("start-96", "blocks", "a training step of 96 transformer blocks in plain JAX", (96, 2)),
    Program("start-nnx", "nnx_blocks", "a transformer of 4 blocks in Flax NNX", (4, 1), ("flax", "optax")),
    Program("start-equinox", "equinox_blocks", "a transformer of 4 blocks in Equinox", (4, 1), ("equinox", "optax")),
    Program(
        "start-tiny",
        "tiny",
        "150 tiny programs",
        (150, 10),
        bars={(WHOLE, AT_ONCE, PLAIN): at_least(0.88), (WHOLE, AT_ONCE, PRELOAD): at_least(1.0)},
    ),
    Program("start-serving", "serving", "a server's model, called with 40 shapes", (40, 4)),
)
REAL = (
    Program("start-real-flax", "real_flax", "Flax NNX: a convolutional network", (8, 2), ("flax", "optax")),
    Program("start-real-equinox", "real_equinox", "Equinox: a recurrent network", (20, 1), ("equinox", "optax")),
    Program("start-real-optax", "real_optax", "Optax: AdamW, then L-BFGS", (20, 5), ("optax",)),
    Program("start-real-numpyro", "real_numpyro", "NumPyro: eight schools by NUTS", (100, 10), ("numpyro",)),
    Program("start-real-keras", "real_keras", "Keras: a convolutional classifier", (8, 4), ("keras",)),
    Program("start-real-diffrax", "real_diffrax", "Diffrax: a neural ODE", (3, 1), ("diffrax", "optax")),
)
_REAL = "start-real"
_BOUNDED = "start-tiny"
"""Measured with `LEAST`, too."""


def _measure(program: Program, context: Context, outcome: Outcome) -> None:
    """At once, and after work of its own, without which a preload has little time; equal floors unless said."""
    contestants = _contestants(context, program, outcome)
    bound = [LEAST] if program.name == _BOUNDED else []
    later = Work(LATER, _units_of_a_second())
    entered = [(one, Work(AT_ONCE, 0)) for one in (*contestants, *bound)]
    entered += [(one, later) for one in contestants if one in (JAX, PLAIN, PRELOAD)]
    cold, warm = start_by_turns(
        context, program.module, context.pick(*program.sizes), entered, rounds=context.turns(_ROUNDS)
    )
    _tell_times(outcome, cold, warm)
    for moment in (AT_ONCE, LATER):
        for one in (PLAIN, PRELOAD):
            if one in contestants:
                for measure in MEASURES:
                    if measure != CPU or moment == AT_ONCE:
                        _tell_ratio(outcome, program, warm, measure, moment, one)
        _tell_hidden(outcome, program, warm, moment)
        _tell_parts(outcome, warm, moment)
    for one in bound:
        _tell_ratio(outcome, program, warm, WHOLE, AT_ONCE, one)
        _tell_ratio(outcome, program, warm, CPU, AT_ONCE, one)
    _tell_hits(outcome, warm)


def _measure_real(program: Program, context: Context, outcome: Outcome) -> None:
    """The cache is enabled before the library is imported, as people write it."""
    contestants = [*_contestants(context, program, outcome), DEFAULTS]
    now = Work(AT_ONCE, 0)
    cold, warm = start_by_turns(
        context,
        program.module,
        context.pick(*program.sizes),
        [(one, now) for one in contestants],
        rounds=context.turns(_ROUNDS),
    )
    _tell_times(outcome, cold, warm)
    ours = PRELOAD if PRELOAD in contestants else PLAIN
    pairs = {}
    for peer, one in ((JAX, ours), (JAX_DEFAULTS, DEFAULTS), *(((JAX, PLAIN),) if ours is not PLAIN else ())):
        pairs[peer, one] = pairs_of(warm, peer, one, AT_ONCE, WHOLE)
        value, interval = paired_ratio(pairs[peer, one])
        bar = at_least(0.95) if one is ours else None
        outcome.ratio(f"{WHOLE}: {peer.name} ÷ {one.name}", value, bar, interval=interval)
    _tell_ratio(outcome, program, warm, CPU, AT_ONCE, ours)
    context.kept.setdefault(_REAL, {})[program.name] = pairs
    _tell_parts(outcome, warm, AT_ONCE)
    _tell_hits(outcome, warm)


def _measure_all_real(context: Context, outcome: Outcome) -> None:
    found: dict[str, dict[tuple[Contestant, Contestant], Any]] = context.kept.get(_REAL, {})
    if not found:
        raise SkipCase(f"no real program was measured in this run; `python -m bench {_REAL}` measures all of them.")
    for peer, one in next(iter(found.values())):
        value, interval = paired_ratio(*(pairs[peer, one] for pairs in found.values()))
        bar = at_least(1.8 if one is DEFAULTS else 1.0) if one is not PLAIN else None
        what = f"{WHOLE}, geometric mean: {peer.name} ÷ {one.name}"
        outcome.ratio(what, value, bar, interval=interval)
    missing = [program.name for program in REAL if program.name not in found]
    if missing:
        outcome.note(f"Without {', '.join(missing)}, which did not run.")


def _missing(program: Program) -> list[str]:
    return [name for name in program.needs if find_spec(name) is None]


def _contestants(context: Context, program: Program, outcome: Outcome) -> list[Contestant]:
    missing = _missing(program)
    if missing:
        raise SkipCase(f"it needs {' and '.join(missing)}, which this environment does not have.")
    context.say("starting")
    if known_to_preload():
        return [NONE, JAX_DEFAULTS, JAX, PLAIN, PRELOAD]
    outcome.note("This version of ejcache preloads nothing: there is no contestant that does.")
    return [NONE, JAX_DEFAULTS, JAX, PLAIN]


def _units_of_a_second() -> int:
    """How much of its own work a process does in a second of a processor that it has for itself."""
    from bench.programs.start_up import work

    work()
    return round(1 / min(timed(work) for _ in range(20)))


def _tell_times(outcome: Outcome, cold: dict[str, Start], warm: Found) -> None:
    moments = list(dict.fromkeys(moment for _, moment in warm))
    for moment in moments:
        found = {name: starts for (name, when), starts in warm.items() if when == moment}
        for measure, of in MEASURES.items():
            if measure in (WHOLE, CPU) or len(moments) > 1:
                samples = {name: summarize(map(of, starts)) for name, starts in found.items()}
                outcome.line(f"{measure}, {moment}", samples)
    outcome.line("the first process, which compiles", {name: summarize([one.seconds]) for name, one in cold.items()})


def _tell_ratio(outcome: Outcome, program: Program, warm: Found, measure: str, moment: str, one: Contestant) -> None:
    value, interval = paired_ratio(pairs_of(warm, JAX, one, moment, measure))
    own = "" if moment == AT_ONCE else ", without that second"
    bar = program.bars.get((measure, moment, one))
    outcome.ratio(f"{measure}, {moment}{own}: JAX ÷ {one.name}", value, bar, interval=interval)


def _tell_hidden(outcome: Outcome, program: Program, warm: Found, moment: str) -> None:
    """What the main thread still spends on reading and loading."""
    if (PRELOAD.name, moment) not in warm:
        return
    spent = {
        one: statistics.median(start.phases.get("fetch", 0) + start.phases.get("load", 0) for start in starts)
        for (one, when), starts in warm.items()
        if when == moment
    }
    hidden = 100 * (1 - spent[PRELOAD.name] / spent[PLAIN.name])
    bar = at_least(80) if program.name == _BOUNDED and moment == AT_ONCE else None
    outcome.ratio(f"fetch and load hidden by the preload, {moment}", hidden, bar, unit="%")


def _tell_parts(outcome: Outcome, warm: Found, moment: str) -> None:
    parts = {name: parts_of(starts) for (name, when), starts in warm.items() if when == moment}
    alone = parts[JAX.name]
    floor = {name: alone[name] for name in ("load", "run") if name in alone}
    parts["load and run alone"] = floor | {WHOLE: sum(floor.values())}
    outcome.split(f"ms, {moment}", parts, order=PARTS)


def _tell_hits(outcome: Outcome, warm: Found) -> None:
    said = dict.fromkeys(
        f"{name}: {starts[-1].counts.get('hits', 0)} of {starts[-1].counts.get('requests', 0)}"
        for (name, _), starts in warm.items()
        if name != NONE.name
    )
    outcome.note(f"Hits of a warm process: {'; '.join(said)}.")


def _register() -> None:
    for number, program in enumerate((*PROGRAMS, *REAL)):
        measured = _measure_real if program in REAL else _measure
        _register_one(program, measured, 200 + number)
    title = "six real programs, whole processes, warm: the mean of those measured in this run"
    case(_REAL, title=title, order=290, when_named=True)(_measure_all_real)


def _register_one(program: Program, measured: Callable[[Program, Context, Outcome], None], order: int) -> None:
    def run(context: Context, outcome: Outcome) -> None:
        measured(program, context, outcome)

    case(program.name, title=f"starting {program.what}, warm", order=order, when_named=True)(run)


_register()
