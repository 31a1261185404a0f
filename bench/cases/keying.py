"""What making the key of a training step costs, beside JAX's own key and the compilation that the key may save."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from bench.measure import summarize
from bench.outcome import OURS, at_most
from bench.registry import case

if TYPE_CHECKING:
    from bench.context import Context
    from bench.outcome import Outcome

JAX = "JAX"


@case("key", title="the key of the demo's training step, beside JAX's own key and its compile time", order=70)
def key(context: Context, outcome: Outcome) -> None:
    """Both keys are made by turns where JAX asks for its own, of exactly what it passes; each process has one first.

    The first process is not counted: it leaves the digests of the native libraries on this host.
    """
    processes = []
    blocks, repeats = context.pick(24, 4), context.pick(15, 5)
    with context.directory() as home:
        for number in range(1 + context.pick(6, 2)):
            context.say(f"process {number} of {context.pick(6, 2)}")
            # The first one may pay for what both need.
            first = OURS if number % 2 == 0 else JAX
            then = "compile" if number <= context.pick(3, 1) else "stop"
            arguments = (home / f"cache-{number}", blocks, repeats, first, then)
            processes.append(context.run("bench.programs.keying", *arguments, home=home))
    del processes[0]
    later = {name: [s for one in processes for s in one[name][1:]] for name in (OURS, JAX)}
    first_ones = {name: [one[name][0] for one in processes] for name in (OURS, JAX)}
    compiles = [one["compile_seconds"] for one in processes if one["compile_seconds"]]
    outcome.line("a key", {name: summarize(samples) for name, samples in later.items()})
    outcome.line("the first key of a process", {name: summarize(samples) for name, samples in first_ones.items()})
    outcome.line("the compilation", {JAX: summarize(compiles)})
    pairs = [ours / theirs for one in processes for ours, theirs in zip(one[OURS][1:], one[JAX][1:], strict=True)]
    outcome.ratio(f"a key: {OURS} ÷ {JAX}", statistics.median(pairs), at_most(2))
    share = statistics.median(later[OURS]) / statistics.median(compiles)
    outcome.ratio(f"a key of {OURS} ÷ the compilation", 100 * share, at_most(1), unit="%")
    first_ratio = statistics.median(first_ones[OURS]) / statistics.median(first_ones[JAX])
    outcome.ratio(f"the first key of a process: {OURS} ÷ {JAX}", first_ratio, at_most(2))
    first_share = statistics.median(first_ones[OURS]) / statistics.median(compiles)
    outcome.note(f"One AdamW step of {blocks} transformer blocks.")
    outcome.ratio(f"the first key of {OURS} ÷ the compilation", 100 * first_share, unit="%")
