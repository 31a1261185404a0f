"""Direct mode: starts without a trace, what its question costs, and the steady calls that follow."""

from __future__ import annotations

import statistics
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bench.hits import NotAHitError, require_direct, require_hits
from bench.measure import paired_ratio, summarize
from bench.outcome import at_least, at_most
from bench.registry import SkipCase, case
from bench.starts import (
    AT_ONCE,
    CALLED,
    DIRECT,
    DONE,
    JAX,
    MEASURES,
    PARTS,
    PLAIN,
    PRELOAD,
    WHOLE,
    Work,
    pairs_of,
    parts_of,
    start_by_turns,
    start_once,
)

if TYPE_CHECKING:
    from bench.context import Context
    from bench.outcome import Outcome
    from bench.starts import Contestant, Start

LATER = "after own work as long as the load"
BARS = {
    (CALLED, AT_ONCE): at_least(1.65),
    (CALLED, LATER): at_least(6),
    (DONE, AT_ONCE): at_least(1.4),
    (DONE, LATER): at_least(2.4),
}
ALL = replace(DIRECT, name=f"{DIRECT.name}, no floor", env=dict(DIRECT.env) | {"EJCACHE_DIRECT_FLOOR": "0"})
EXAMPLES = {
    "flax_linen": "flax", "flax_nnx": "flax", "equinox_models": "equinox", "optax_updates": "optax",
    "numpyro_densities": "numpyro", "haiku_models": "haiku", "diffrax_solves": "diffrax", "keras_calls": "keras",
    "brax_steps": "brax",
}  # fmt: skip
"""Modules of `bench.programs.direct_examples`, and the packages that they need."""


@case("direct-24", title="a training step of 24 blocks, warm, without a trace", order=300, when_named=True)
def direct_24(context: Context, outcome: Outcome) -> None:
    require_direct()
    size = context.pick(24, 1)
    with context.directory() as home:
        start_once(context, "blocks", size, JAX, home)
        timed = start_once(context, "blocks", size, JAX, home, units=10)
    works = [Work(AT_ONCE, 0), Work(LATER, max(1, round(10 * timed.phases["load"] / timed.phases["own work"])))]
    contestants = (JAX, PRELOAD, DIRECT)
    entered = [(one, work) for work in works for one in contestants]
    _, warm = start_by_turns(context, "blocks", size, entered, rounds=context.pick(5, 1))
    for work in works:
        for measure, of in MEASURES.items():
            samples = {one.name: summarize(map(of, warm[one.name, work.name])) for one in contestants}
            outcome.line(f"{measure}, {work.name}", samples)
            value, interval = paired_ratio(pairs_of(warm, JAX, DIRECT, work.name, measure))
            bar = BARS.get((measure, work.name))
            outcome.ratio(f"{measure}, {work.name}: JAX ÷ {DIRECT.name}", value, bar, interval=interval)
        parts = {one.name: parts_of(warm[one.name, work.name]) for one in contestants}
        outcome.split(f"ms, {work.name}", parts, order=PARTS)
    value, interval = paired_ratio(pairs_of(warm, PRELOAD, DIRECT, AT_ONCE, WHOLE))
    outcome.ratio(f"{WHOLE}, {AT_ONCE}: {PRELOAD.name} ÷ {DIRECT.name}", value, at_least(0.98), interval=interval)
    require_hits(outcome, [each.direct for (name, _), starts in warm.items() if name == DIRECT.name for each in starts])


@case("direct-cost", title="what direct mode's question costs", order=303, when_named=True)
def direct_cost(context: Context, outcome: Outcome) -> None:
    """Processor time of the question of a large step and of a large object, and of small functions."""
    require_direct()
    for program, size, most in (("blocks", context.pick(24, 1), 40), ("trainer", context.pick(16, 1), 150)):
        asked = [1e3 * each.direct.processor for each in _third(context, program, size, ALL)]
        outcome.ratio(f"the question of {program}, {size}", statistics.median(asked), at_most(most), unit="ms")
    cpu = {one: _third(context, "lines", 8, one) for one in (PLAIN, ALL)}
    ratio = statistics.median(each.called_cpu for each in cpu[ALL]) / statistics.median(
        e.called_cpu for e in cpu[PLAIN]
    )
    outcome.ratio("six one-line functions, processor time: direct ÷ plain hits", ratio, at_most(1.1))


@case("direct-deep", title="a step that traces for ten seconds, third start", order=305, when_named=True)
def direct_deep(context: Context, outcome: Outcome) -> None:
    """From `enable()` to the return of the first call, beyond what the load of its executable takes.

    XLA loads a program of 400 blocks for minutes on a CPU, so one start is measured.
    """
    require_direct()
    deep = _third(context, "blocks", context.pick(400, 2), DIRECT if not context.quick else ALL, starts=3)
    beyond = statistics.median(each.called - each.phases.get("load", 0.0) for each in deep)
    outcome.ratio("a long trace: enable() to the first call's return, beyond the load", beyond, at_most(0.5), unit="s")


def _third(context: Context, program: str, size: int, one: Contestant, *, starts: int = 5) -> list[Start]:
    """The third start and some more, each answered without a trace where the contestant is direct."""
    with context.directory() as home:
        found = [start_once(context, program, size, one, home) for _ in range(context.pick(starts, 3))][2:]
    for each in found:
        if one is not PLAIN and not each.direct.hit:
            raise NotAHitError(each.direct.verdicts)
    return found


@case("direct-steady", title="a call of a function that direct mode has answered, beside jax.jit", order=304)
def direct_steady(context: Context, outcome: Outcome) -> None:
    """Three processes: to record, to prove, and to hit; the third is measured, as `call` is."""
    require_direct()
    env = dict(ALL.env) | {"EASYDEL_CACHE_COMPILES": "1"}
    with context.directory() as home:
        env["COMPILE_FUNC_DIR"] = str(home / "cache")
        for rounds, calls in ((1, 1), (1, 1), (context.pick(300, 40), context.pick(200, 100))):
            found = context.run("bench.programs.calls", "ejcache", rounds, calls, home=home, env=env)
    missed = [verdict for verdict in found["verdicts"] if not verdict.startswith("hit:")]
    if missed or not found["verdicts"]:
        raise NotAHitError(missed)
    for shape, taken in found["shapes"].items():
        jit, direct = taken["jax.jit"], taken["ejcache ejit"]
        outcome.line(f"one call, {shape}", {"jax.jit": summarize(jit), DIRECT.name: summarize(direct)})
        ratio = statistics.median(a / b for a, b in zip(direct, jit, strict=True))
        outcome.ratio(f"{shape}: {DIRECT.name} ÷ jax.jit", ratio, at_most(1.02))


@case("direct-examples", title="functions as examples of libraries jit them, third start", order=312, when_named=True)
def direct_examples(context: Context, outcome: Outcome) -> None:
    """Each library's functions are called in three processes with hash seeds of their own."""
    require_direct()
    here = [module for module, library in EXAMPLES.items() if find_spec(library) is not None]
    if not here:
        raise SkipCase("none of the libraries is installed")
    hits = total = wrong = 0
    for module in here[: context.pick(len(here), 1)]:
        with context.directory() as home:
            program = ("bench.programs.direct_examples", module, home / "cache")
            starts = [context.run(*program, home=home, env=ALL.env, timeout=600) for _ in range(3)]
        for name, last in starts[-1].items():
            total, hits = total + 1, hits + (last["verdict"] == "hit")
            wrong += last["verdict"] == "hit" and len({start[name]["digest"] for start in starts}) > 1
            if last["verdict"] != "hit":
                outcome.note(f"{module}, {name}: {last['verdict']}: {last['sentence']}"[:300])
    outcome.ratio(f"hit at the third start, of {total}", hits, at_least(84), unit="functions")
    outcome.ratio("hits whose results differ from those of the traces", wrong, at_most(0), unit="functions")
