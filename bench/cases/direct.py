"""Direct mode: starts without a trace, beside plain JAX, and the steady calls that follow them."""

from __future__ import annotations

import statistics
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bench.hits import NotAHitError, require_direct, require_hits
from bench.measure import paired_ratio, summarize
from bench.outcome import at_least, at_most
from bench.registry import SkipCase, case
from bench.starts import (
    AT_ONCE,
    CALLED,
    CPU,
    DIRECT,
    DONE,
    JAX,
    MEASURES,
    PARTS,
    PRELOAD,
    Work,
    pairs_of,
    parts_of,
    start_by_turns,
    start_once,
)

if TYPE_CHECKING:
    from bench.context import Context
    from bench.hits import Direct
    from bench.outcome import Bar, Outcome
    from bench.starts import Start

    Found = dict[tuple[str, str], list[Start]]

LATER = "after own work as long as the load"
BLOCKS = "blocks"


@case(
    "direct-24",
    title="starting a training step of 24 blocks in plain JAX, warm, without a trace",
    order=300,
    when_named=True,
)
def direct_24(context: Context, outcome: Outcome) -> None:
    require_direct()
    size = context.pick(24, 1)
    context.say("how long the load takes")
    later = Work(LATER, _units_of_a_load(context, BLOCKS, size))
    bars = {
        (CALLED, AT_ONCE): at_least(1.6),
        (CALLED, LATER): at_least(6),
        (DONE, AT_ONCE): at_least(1.3),
        (DONE, LATER): at_least(2.2),
    }
    warm = _compare(context, outcome, BLOCKS, size, [Work(AT_ONCE, 0), later], bars)
    alone = [start.phases["load"] + start.phases["run"] for start in warm[JAX.name, AT_ONCE]]
    ours = [start.done for start in warm[DIRECT.name, AT_ONCE]]
    value, interval = paired_ratio(list(zip(ours, alone, strict=True)))
    what = f"{DONE}, {AT_ONCE}: {DIRECT.name} ÷ JAX's load and run alone"
    outcome.ratio(what, value, at_most(1.3), interval=interval)
    require_hits(outcome, _directly(warm))


@case(
    "direct-nnx",
    title="starting a training step of 8 blocks in Flax NNX, warm, without a trace",
    order=301,
    when_named=True,
)
def direct_nnx(context: Context, outcome: Outcome) -> None:
    """The graph of the model is an argument: it has no leaves."""
    _compare_library(context, outcome, "nnx_step", ("flax", "optax"))


@case(
    "direct-equinox",
    title="starting a training step of 8 blocks in Equinox, warm, without a trace",
    order=302,
    when_named=True,
)
def direct_equinox(context: Context, outcome: Outcome) -> None:
    """The static part of the model is closed over."""
    _compare_library(context, outcome, "equinox_step", ("equinox", "optax"))


def _compare_library(context: Context, outcome: Outcome, program: str, needs: tuple[str, ...]) -> None:
    require_direct()
    missing = [name for name in needs if find_spec(name) is None]
    if missing:
        raise SkipCase(f"it needs {' and '.join(missing)}, which this environment does not have.")
    bars = {(CALLED, AT_ONCE): at_least(1.4)}
    warm = _compare(context, outcome, program, context.pick(8, 1), [Work(AT_ONCE, 0)], bars)
    require_hits(outcome, _directly(warm))


def _compare(
    context: Context,
    outcome: Outcome,
    program: str,
    size: int,
    works: list[Work],
    bars: dict[tuple[str, str], Bar],
) -> Found:
    """Plain JAX, ejcache without direct mode, and with it; all preload what they can, and have no floors."""
    contestants = (JAX, PRELOAD, DIRECT)
    entered = [(one, work) for work in works for one in contestants]
    cold, warm = start_by_turns(context, program, size, entered, rounds=context.pick(7, 1))
    for work in works:
        for measure, of in MEASURES.items():
            samples = {one.name: summarize(map(of, warm[one.name, work.name])) for one in contestants}
            outcome.line(f"{measure}, {work.name}", samples)
        own = "" if work.name == AT_ONCE else ", without that work"
        for one in (DIRECT, PRELOAD):
            for measure in MEASURES:
                if measure != CPU or one is DIRECT:
                    value, interval = paired_ratio(pairs_of(warm, JAX, one, work.name, measure))
                    bar = bars.get((measure, work.name)) if one is DIRECT else None
                    outcome.ratio(f"{measure}, {work.name}{own}: JAX ÷ {one.name}", value, bar, interval=interval)
        parts = {one.name: parts_of(warm[one.name, work.name]) for one in contestants}
        outcome.split(f"ms, {work.name}", parts, order=PARTS)
    outcome.line("the first process, which compiles", {name: summarize([one.seconds]) for name, one in cold.items()})
    outcome.note(f"The recording start: {'; '.join(cold[DIRECT.name].direct.verdicts) or 'no verdict'}.")
    return warm


def _directly(warm: Found) -> list[Direct]:
    return [start.direct for (name, _), starts in warm.items() if name == DIRECT.name for start in starts]


def _units_of_a_load(context: Context, program: str, size: int) -> int:
    """How much own work takes as long as JAX takes to load the program."""
    units = 10
    with context.directory() as home:
        start_once(context, program, size, JAX, home)
        start = start_once(context, program, size, JAX, home, units=units)
    return max(1, round(units * start.phases["load"] / start.phases["own work"]))


@case("direct-steady", title="a call of a function that direct mode has answered, beside jax.jit", order=304)
def direct_steady(context: Context, outcome: Outcome) -> None:
    """Three processes: to record, to prove, and to hit; the third is measured, as `call` is."""
    require_direct()
    env = dict(DIRECT.env) | {"EASYDEL_CACHE_COMPILES": "1"}
    with context.directory() as home:
        env["COMPILE_FUNC_DIR"] = str(home / "cache")
        for number in range(2):
            context.say(f"process {number + 1} of 3")
            context.run("bench.programs.calls", "ejcache", 1, 1, home=home, env=env)
        context.say("process 3 of 3")
        rounds, calls = context.pick(300, 40), context.pick(200, 100)
        found = context.run("bench.programs.calls", "ejcache", rounds, calls, home=home, env=env)
    missed = [verdict for verdict in found["verdicts"] if not verdict.startswith("hit:")]
    if missed or not found["verdicts"]:
        raise NotAHitError(missed)
    for shape, taken in found["shapes"].items():
        jit, direct, again = taken["jax.jit"], taken["ejcache ejit"], taken["jax.jit again"]
        outcome.line(f"one call, {shape}", {"jax.jit": summarize(jit), DIRECT.name: summarize(direct)})
        outcome.ratio(f"{shape}: {DIRECT.name} ÷ jax.jit", _ratio(direct, jit), at_most(1.02))
        outcome.ratio(f"{shape}: jax.jit ÷ jax.jit (noise)", _ratio(again, jit))


def _ratio(first: list[float], second: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(first, second, strict=True))
