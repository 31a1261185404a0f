"""What direct mode costs: its fingerprint at a start that it answers, and its records at those that it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.hits import NotAHitError, require_direct, require_hits
from bench.measure import paired_ratio, summarize
from bench.outcome import at_most
from bench.registry import case
from bench.starts import CALLED, CPU, DIRECT, MEASURES, PRELOAD, WHOLE, Start, start_once

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.context import Context
    from bench.outcome import Bar, Outcome
    from bench.starts import Contestant

BLOCKS = "blocks"
_LEAST = 1e-4
"""Seconds: a fingerprint may be hidden whole behind the load, and ratios are compared by their logarithms."""
FIRST, SECOND = "first start, which records", "second start, which proves"


@case(
    "direct-cost",
    title="what direct mode's fingerprint and its records cost: a training step of 24 blocks in plain JAX",
    order=303,
    when_named=True,
)
def direct_cost(context: Context, outcome: Outcome) -> None:
    """The fingerprint beside the trace and the lowering that it saves; recording and proving beside starts without."""
    require_direct()
    size = context.pick(24, 1)
    _tell_fingerprint(context, outcome, size)
    _tell_recording(context, outcome, size)


def _tell_fingerprint(context: Context, outcome: Outcome, size: int) -> None:
    """Processes that trace and those that hit take turns; each has done nothing of the kind before."""
    hits: list[Start] = []
    traces = []
    with context.directory() as home:
        for number in range(2):
            context.say(f"start {number + 1} of 2, which is not counted")
            start_once(context, BLOCKS, size, DIRECT, home)
        rounds = context.pick(9, 1)
        for number in range(rounds):
            context.say(f"the fingerprint, round {number + 1} of {rounds}")
            traces.append(context.run("bench.programs.tracing", BLOCKS, size, home=home))
            hits.append(start_once(context, BLOCKS, size, DIRECT, home))
    processor = [start.direct.processor for start in hits]
    samples = {name: [found[name] for found in processor] for name in ("walk", "guards")}
    outcome.line("processor time of the fingerprint", {name: summarize(taken) for name, taken in samples.items()})
    outcome.line(
        "trace and lower",
        {
            "processor time": summarize(one["processor"] for one in traces),
            "time": summarize(one["seconds"] for one in traces),
        },
    )
    spent = [(sum(mine.values()), one["processor"]) for mine, one in zip(processor, traces, strict=True)]
    _tell_share(outcome, "processor time: walk and guards ÷ trace and lower", spent, at_most(15))
    exposed = [
        (max(_LEAST, sum(start.direct.exposed.values())), one["seconds"])
        for start, one in zip(hits, traces, strict=True)
    ]
    _tell_share(outcome, "time while nothing loads: walk and guards ÷ trace and lower", exposed, at_most(3))
    require_hits(outcome, [start.direct for start in hits])


def _tell_share(outcome: Outcome, what: str, pairs: list[tuple[float, float]], bar: Bar) -> None:
    value, interval = paired_ratio(pairs)
    outcome.ratio(what, 100 * value, bar, unit="%", interval=(100 * interval[0], 100 * interval[1]))


def _tell_recording(context: Context, outcome: Outcome, size: int) -> None:
    """The first and the second start with a new cache, with direct mode and without."""
    starts: dict[tuple[Contestant, str], list[Start]] = {
        (one, which): [] for which in (FIRST, SECOND) for one in (PRELOAD, DIRECT)
    }
    rounds = context.pick(9, 1)
    for number in range(rounds):
        with context.directory() as home:
            for which in (FIRST, SECOND):
                for one in (PRELOAD, DIRECT) if number % 2 == 0 else (DIRECT, PRELOAD):
                    context.say(f"recording, round {number + 1} of {rounds}: {one.name}")
                    starts[one, which].append(start_once(context, BLOCKS, size, one, home))
    for which in (FIRST, SECOND):
        for measure in (WHOLE, CPU, CALLED):
            of = MEASURES[measure]
            samples = {one: [of(start) for start in starts[one, which]] for one in (PRELOAD, DIRECT)}
            outcome.line(f"{measure}, {which}", {one.name: summarize(taken) for one, taken in samples.items()})
            value, interval = paired_ratio(list(zip(samples[DIRECT], samples[PRELOAD], strict=True)))
            bar = at_most(1.06) if measure == WHOLE else None
            outcome.ratio(f"{measure}, {which}: {DIRECT.name} ÷ {PRELOAD.name}", value, bar, interval=interval)
    written = starts[DIRECT, FIRST]
    outcome.line("bytes of a record", {DIRECT.name: summarize(_sizes(written), unit="B")})
    said = dict.fromkeys(verdict for key in starts for start in starts[key] for verdict in start.direct.verdicts)
    outcome.note(f"What direct mode said: {'; '.join(said)}.")


def _sizes(starts: Iterable[Start]) -> list[int]:
    """Of the first document of each start.

    Raises:
        NotAHitError: a start recorded nothing.
    """
    sizes = []
    for start in starts:
        if not start.direct.record_bytes:
            raise NotAHitError(start.direct.verdicts)
        sizes.append(start.direct.record_bytes[0])
    return sizes
