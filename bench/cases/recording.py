"""What the start record costs a warm start."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from bench.measure import summarize
from bench.outcome import at_most
from bench.registry import case

if TYPE_CHECKING:
    from bench.context import Context
    from bench.outcome import Outcome

_PROGRAMS = 200


@case("recording", title="the start record: its CPU time in a warm start of 200 programs", order=45)
def recording(context: Context, outcome: Outcome) -> None:
    """Starts of fresh processes; each times, in itself, all that is done for the record, the last write included."""
    with context.directory() as home:
        directory = str(home / "cache")
        context.say("filling the cache")
        context.run("bench.programs.recording", directory, _PROGRAMS, 0, home=home)
        shares, costs, starts = [], [], []
        for _ in range(context.pick(7, 2)):
            context.say("a warm start")
            found = context.run("bench.programs.recording", directory, _PROGRAMS, 1, home=home)
            if found["hits"] < _PROGRAMS:
                outcome.note(f"only {found['hits']} of {_PROGRAMS} programs were hits.")
            costs.append(found["seconds"])
            starts.append(found["cpu"])
            shares.append(found["seconds"] / found["cpu"])
        outcome.line("CPU time", {"recording": summarize(costs), "the start": summarize(starts)})
        share = 100 * statistics.median(shares)
        outcome.ratio("recording, of the CPU time of the start", share, at_most(1.0), unit="%")
