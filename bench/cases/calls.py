"""What a call of a function that is compiled already costs."""

from __future__ import annotations

import statistics
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bench.measure import summarize
from bench.outcome import OURS, at_most
from bench.registry import case

if TYPE_CHECKING:
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome


@case("call", title="a call of a compiled function: @ejit and ejkernel's ejit beside jax.jit", order=40)
def call(context: Context, outcome: Outcome) -> None:
    """Rounds of many calls, which take turns; the median of the rounds' ratios. jax.jit against itself is the noise."""
    with context.directory() as home:
        context.say("@ejit and jax.jit")
        _compare(context, outcome, home, library=OURS, bar=True)
        if find_spec("ejkernel") is None:
            outcome.note("ejkernel is not installed here, so its ejit was skipped.")
            return
        context.say("ejkernel's ejit and jax.jit")
        _compare(context, outcome, home, library="ejkernel", bar=False)


def _compare(context: Context, outcome: Outcome, home: Path, *, library: str, bar: bool) -> None:
    # ejkernel's ejit is jax.jit with a cache directory unless this is set, and then it does what it is known for.
    env = {"COMPILE_FUNC_DIR": str(home / "cache")} if library == OURS else {"EASYDEL_CACHE_COMPILES": "1"}
    found = context.run(
        "bench.programs.calls",
        library,
        context.pick(300, 40),
        context.pick(200, 100),
        home=home,
        env=env,
    )
    for shape, rounds in found["shapes"].items():
        outcome.line(
            f"one call, {shape}" + ("" if library == OURS else ", beside ejkernel"),
            {name: summarize(samples) for name, samples in rounds.items() if name != "jax.jit again"},
        )
        jit = rounds["jax.jit"]
        name = next(name for name in rounds if name.endswith("ejit"))
        ratio = statistics.median(a / b for a, b in zip(rounds[name], jit, strict=True))
        outcome.ratio(f"{shape}: {name} ÷ jax.jit", ratio, at_most(1.02) if bar else None)
        if bar:
            noise = statistics.median(a / b for a, b in zip(rounds["jax.jit again"], jit, strict=True))
            outcome.ratio(f"{shape}: jax.jit ÷ jax.jit (noise)", noise)
