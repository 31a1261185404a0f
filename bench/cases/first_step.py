"""From the start of a process to the end of the demo's training step, with each cache and with none."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measure import summarize
from bench.outcome import OURS
from bench.registry import case

if TYPE_CHECKING:
    from bench.context import Context
    from bench.outcome import Outcome

JAX, NONE = "JAX", "no cache"
_PHASES = {
    "compile, or load": "compile_or_load_seconds",
    "whole process": "process_seconds",
}


@case("first_step", title="the demo's training step in a fresh process, cold and warm", order=50)
def first_step(context: Context, outcome: Outcome) -> None:
    """The program is unchanged: under `ejcache run`, under JAX's own cache, and under none. Every compile is kept."""
    program = str(Path(__file__).parents[2] / "examples" / "training_step.py")
    blocks = context.pick(24, 4)
    taken: dict[tuple[str, str], list[dict[str, Any]]] = {}
    sizes: dict[str, list[float]] = {OURS: [], JAX: []}
    for number in range(context.pick(5, 1)):
        order = [OURS, JAX, NONE]
        for name in order if number % 2 == 0 else reversed(order):
            with context.directory() as home:
                for which in ("cold", "warm") if name != NONE else ("cold",):
                    context.say(f"round {number + 1}: {name}, {which}")
                    taken.setdefault((name, which), []).append(_process(context, name, program, blocks, home))
                if name in sizes:
                    sizes[name].append(sum(f.stat().st_size for f in (home / "cache").rglob("*") if f.is_file()))
    losses = {run["loss"] for runs in taken.values() for run in runs}
    if len(losses) != 1:
        raise AssertionError("the processes computed different losses")
    for phase, field in _PHASES.items():
        found = {f"{name}, {which}": summarize(run[field] for run in runs) for (name, which), runs in taken.items()}
        outcome.line(phase, found)
        for which in ("cold", "warm"):
            outcome.ratio(f"{phase}, {which}: {OURS} ÷ {JAX}", _paired(taken, (OURS, which), (JAX, which), field))
        outcome.ratio(f"{phase}: {OURS} warm ÷ {NONE}", _paired(taken, (OURS, "warm"), (NONE, "cold"), field))
    outcome.line("directory afterwards", {name: summarize(size, unit="B") for name, size in sizes.items()})
    outcome.note(
        f"One AdamW step of {blocks} transformer blocks. All processes computed the same bits. The whole process is "
        "from its start to its end: with ejcache the start of `ejcache run` and the report at the end are in it."
    )


def _process(context: Context, name: str, program: str, blocks: int, home: Path) -> dict[str, Any]:
    cache = str(home / "cache")
    command: list[object] = [program, blocks, "--json"]
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    if name == OURS:
        command = ["-m", "ejcache", "run", "--dir", cache, "--report", "off", *command]
    elif name == JAX:
        env["JAX_COMPILATION_CACHE_DIR"] = cache
    else:
        env["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    seconds, printed = context.start(*command, home=home, env=env)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found | {"process_seconds": seconds}


def _paired(
    taken: dict[tuple[str, str], list[dict[str, Any]]], ours: tuple[str, str], theirs: tuple[str, str], field: str
) -> float:
    """The median over rounds of one divided by the other."""
    return statistics.median(float(a[field]) / float(b[field]) for a, b in zip(taken[ours], taken[theirs], strict=True))
