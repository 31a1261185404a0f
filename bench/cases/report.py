"""What `ejcache report` takes for many programs, with the texts that its advice is given on."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from bench.measure import summarize
from bench.outcome import at_most
from bench.registry import case

if TYPE_CHECKING:
    from bench.context import Context
    from bench.outcome import Outcome

_PROGRAMS = 10_000
_TEXTS = 1_500
"""More than the log of texts holds."""
_ROUNDS = 7


@case("report", title="ejcache report --html of 10,000 programs, with their texts and without, by CPU time", order=63)
def report(context: Context, outcome: Outcome) -> None:
    """Fresh processes, in turns: the texts are moved away and back between them."""
    with context.directory() as home:
        context.say("making records and texts")
        programs = context.pick(_PROGRAMS, 1_000)
        made = context.run("bench.programs.report", "make", programs, context.pick(_TEXTS, 100), home=home)
        texts = list(home.rglob("programs*.jsonl"))
        size = sum(each.stat().st_size for each in texts)
        taken: dict[str, list[float]] = {"without texts": [], "with texts": []}
        peaks: list[int] = []
        for number in range(context.turns(_ROUNDS, 2)):
            for way in sorted(taken, reverse=bool(number % 2)):
                context.say(f"a page {way}")
                away = [(each, each.with_suffix(".away")) for each in texts if way == "without texts"]
                for each, there in away:
                    each.rename(there)
                found = context.run("bench.programs.report", "show", home=home)
                for each, there in away:
                    there.rename(each)
                taken[way].append(found["cpu"])
                peaks += [found["peak"]] if way == "with texts" else []
    outcome.line("CPU time", {way: summarize(seconds) for way, seconds in taken.items()})
    outcome.note(f"{programs:,} programs; texts of {made['characters']:,} characters, {size / 1e6:.0f} MB as they lie.")
    more = median(a - b for a, b in zip(taken["with texts"], taken["without texts"], strict=True))
    outcome.ratio("report, its CPU time with texts less that without", more, at_most(2.0), unit="s")
    outcome.ratio("report, its memory with texts at most", median(peaks) / 1e6, at_most(200), unit="MB")
