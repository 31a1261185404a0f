"""What the start record costs a warm start."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from bench.measure import summarize
from bench.outcome import at_most
from bench.registry import case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.context import Context
    from bench.outcome import Outcome

_PROGRAMS = 200
_PAIRS = 30


def interval(ordered: Sequence[float]) -> tuple[float, float]:
    """The interval of 95 % of the median of ordered numbers, by their ranks."""
    half = 0.98 * math.sqrt(len(ordered))
    low = max(0, math.floor(len(ordered) / 2 - half))
    return ordered[low], ordered[-1 - low]


@case("recording", title="the start record: its CPU time in a warm start of 200 programs", order=45)
def recording(context: Context, outcome: Outcome) -> None:
    """Starts of fresh processes; each times, in itself, all that is done for the record, the last write included.

    Then turns with and without it in one process, by the CPU time that this spends in its own code: two processes
    differ by more than what is looked for.
    """
    with context.directory() as home:
        directory = str(home / "cache")
        context.say("filling the cache")
        context.run("bench.programs.recording", directory, _PROGRAMS, "plain", home=home)
        shares, costs, starts = [], [], []
        for _ in range(context.pick(7, 2)):
            context.say("a warm start")
            found = context.run("bench.programs.recording", directory, _PROGRAMS, "watched", home=home)
            if found["hits"] < _PROGRAMS:
                outcome.note(f"only {found['hits']} of {_PROGRAMS} programs were hits.")
            costs.append(found["seconds"])
            starts.append(found["cpu"])
            shares.append(found["seconds"] / found["cpu"])
        outcome.line("CPU time", {"recording": summarize(costs), "the start": summarize(starts)})
        share = 100 * statistics.median(shares)
        context.say("turns with and without it, in one process")
        found = context.run(
            "bench.programs.recording", directory, _PROGRAMS, context.pick(_PAIRS, 2), home=home, timeout=900
        )
        start = statistics.median(starts)
        more = sorted(100 * (on - off) / start for on, off in found["pairs"])
        low, high = interval(more)
        middle = statistics.median(more)
        outcome.note(
            f"{len(more)} turns with and without it: {middle:+.2f} % of the start, 95 % {low:+.2f} to {high:+.2f}. "
            "Where this interval is wider than the bar, it says nothing against what was timed inside."
        )
        outcome.ratio(
            "recording, by turns, of the CPU time of the start", statistics.median(more), at_most(1.0), unit="%"
        )
        outcome.ratio("recording, timed inside, of the CPU time of the start", share, at_most(1.0), unit="%")
