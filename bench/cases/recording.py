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
    """Starts of fresh processes; each times, in itself, all that is done for the record, the last write included.

    Then pairs of starts with and without it, in turns, by the CPU time of the whole process.
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
        pairs = []
        for number in range(context.pick(20, 2)):
            context.say(f"pair {number + 1}")
            ways = ("plain", "without") if number % 2 else ("without", "plain")
            took = {way: context.run("bench.programs.recording", directory, _PROGRAMS, way, home=home) for way in ways}
            pairs.append(100 * (took["plain"]["cpu"] / took["without"]["cpu"] - 1))
        ordered = sorted(pairs)
        low, high = ordered[len(pairs) // 4], ordered[-1 - len(pairs) // 4]
        middle = statistics.median(pairs)
        outcome.note(f"{len(pairs)} pairs with and without it: {middle:+.2f} %, half from {low:+.2f} to {high:+.2f} %.")
        outcome.ratio("recording, of the CPU time of the start", share, at_most(1.0), unit="%")
