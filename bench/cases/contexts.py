"""What it saves and what it costs in memory that small programs are lowered into one MLIR context for longer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bench.measure import Summary, paired_ratio, summarize
from bench.outcome import OURS, reaches
from bench.registry import case

if TYPE_CHECKING:
    from bench.context import Context
    from bench.outcome import Outcome

_PROGRAM = """
import json, resource, sys
import jax, ejcache
from ejcache.jax_integration.seam import contexts
if sys.argv[1] == "JAX's":
    contexts._MOST_BYTES = -1
ejcache.enable(sys.argv[2], min_compile_seconds=0, preload=False)
before = resource.getrusage(resource.RUSAGE_SELF)
for number in range(int(sys.argv[3])):
    jax.jit(lambda x: jax.numpy.tanh(x * number) + x.sum())(2.0)
after = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss * 1024]))
"""


@case("contexts", title="small programs in one MLIR context, beside JAX's own number of contexts", order=64)
def contexts(context: Context, outcome: Outcome) -> None:
    """Processor time and memory of warm starts of programs that have one line each, in turns."""
    count = context.pick(400, 40)
    names = (OURS, "JAX's")
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with context.directory() as home:
        for number in range(context.pick(12, 3)):
            context.say(f"round {number}")
            for name in names if number % 2 else reversed(names):
                _, printed = context.start("-c", _PROGRAM, name, home / "cache", count, home=home)
                if number:  # the first round compiles
                    taken[name].append(tuple(json.loads(printed)))
    found: dict[str, Summary] = {name: summarize(seconds for seconds, _ in taken[name]) for name in names}
    outcome.line(f"processor time of {count} programs", found)
    pairs = [(theirs[0], ours[0]) for ours, theirs in zip(taken[OURS], taken["JAX's"], strict=True)]
    value, interval = paired_ratio(pairs)
    outcome.ratio("processor time: JAX's contexts ÷ ours", value, reaches(1.0), interval=interval)
    most = {name: summarize(size for _, size in taken[name]).median for name in names}
    outcome.ratio("peak memory: ours less JAX's contexts", (most[OURS] - most["JAX's"]) / 1e6, unit="MB")
