"""The autotune store: concurrent writers, what is measured, what is chosen, and what a lookup costs."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.context import child_environment
from bench.measure import summarize
from bench.noise import NOISES
from bench.outcome import OURS, Bar, at_least, at_most
from bench.registry import case

if TYPE_CHECKING:
    from bench.context import Context
    from bench.outcome import Outcome

EJKERNEL = "ejkernel"


@case("tuned-writers", title="8 processes put 25 configurations each into one operation at once", order=110)
def writers(context: Context, outcome: Outcome) -> None:
    """ejkernel's class keeps what the last writer had in memory."""
    workers, count = 8, 25
    for who in (OURS, EJKERNEL):
        if who == EJKERNEL and importlib.util.find_spec("ejkernel") is None:
            outcome.note("ejkernel is not installed.")
            continue
        context.say(who)
        with context.directory() as home:
            file = home / "store" / "operation.json"
            file.parent.mkdir()
            _write_at_once(who, file, home, workers, count)
            kept = len(json.loads(file.read_text()))
            outcome.ratio(f"kept in ejkernel's file: {who}", 100 * kept / (workers * count), _whole(who), unit="%")
            if who == OURS:
                records = len(list((file.parent / "autotune").rglob("*.json")))
                outcome.ratio(f"kept as records: {who}", 100 * records / (workers * count), _whole(who), unit="%")


def _whole(who: str) -> Bar | None:
    return at_least(100) if who == OURS else None


def _write_at_once(who: str, file: Path, home: Path, workers: int, count: int) -> None:
    command = [sys.executable, "-m", "bench.programs.autotune_writer", who, str(file)]
    processes = [
        subprocess.Popen(
            [*command, str(worker), str(count)],
            env=child_environment(home) | {"EJKERNEL_PERSISTENT_CACHE_DIR": str(home / "ejkernel")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for worker in range(workers)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=300)


@case("tuned-measure", title="what a tuner measures inside jit ÷ what it measures eagerly", order=111)
def measure(context: Context, outcome: Outcome) -> None:
    """1 is right; a tuner that times tracing is far from it, either way, and adds to the caller's program."""
    with context.directory() as home:
        answer = context.run("bench.programs.autotune_measure", context.pick(60, 15), home=home)
    for name in answer[OURS]:
        for what, which in (("eagerly", "eager"), ("inside jit", "inside")):
            found = {who: summarize([operations[name][which]]) for who, operations in answer.items()}
            outcome.line(f"{name}, {what}", found)
    for who, operations in answer.items():
        ratios = {name: found["inside"] / found["eager"] for name, found in operations.items()}
        middle = statistics.median(ratios.values())
        what = f"inside jit ÷ eagerly, median of 5 operations: {who}"
        outcome.ratio(what, middle, at_least(0.8) if who == OURS else None)
        if who == OURS:
            outcome.ratio(f"{what}, not above", middle, at_most(1.25))
        added = max(found["equations"] for found in operations.values())
        bar = at_most(0) if who == OURS else None
        outcome.ratio(f"equations added to the caller's program: {who}", added, bar, unit="")
        outcome.note(f"{who}: {', '.join(f'{name} {ratio:.3g}' for name, ratio in ratios.items())}.")


@case("tuned-choice", title="a planted candidate, 30 % or 1 % faster, beside two busy processes", order=112)
def choice(context: Context, outcome: Outcome) -> None:
    """A candidate that saves less than 3 % must not replace the default, whatever the noise says."""
    trials = context.pick(20, 3)
    with context.directory() as home:
        answer = context.run("bench.programs.autotune_choose", trials, home=home)
    for name, found in answer.items():
        outcome.line(f"choosing, {name} planted", {OURS: summarize(found["seconds"])})
    outcome.ratio("the 30 % faster one is chosen", 100 * answer["30 %"]["chosen"] / trials, at_least(95), unit="%")
    outcome.ratio("the 1 % faster one is chosen", 100 * answer["1 %"]["chosen"] / trials, at_most(0), unit="%")
    outcome.note(f"{trials} trials each.")


_REPLAYED = Path(__file__).parents[1] / "data" / "convolution.json.gz"
_NEAR_ENOUGH = {("history", 16): 1.09, ("history", 32): 1.06, ("history", 64): 1.04}
"""The time ÷ the optimum that we promise where other devices were searched before."""


@case("tuned-replay", title="the search replayed over all times of a kernel on six GPUs: time ÷ optimum", order=117)
def replay(context: Context, outcome: Outcome) -> None:
    """Cold, with what was measured on the five other GPUs, and at random; geometric means over GPUs and seeds."""
    seeds, budgets = context.pick(10, 1), context.pick([16, 32, 64, 128, 256], [16, 32])
    command = [sys.executable, "tools/replay_search.py", str(_REPLAYED), "--json", "--seeds", str(seeds)]
    command += ["--budgets", ",".join(map(str, budgets))]
    # Small matrices: threads of the linear algebra would only wait for each other.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=_REPLAYED.parents[2], capture_output=True, check=True, timeout=3000.0
    )
    rows = json.loads(done.stdout)["results"]
    means: dict[tuple[str, int], float] = {}
    for start, budget in itertools.product(("history", "cold", "random"), budgets):
        found = [row["slowdown"] for row in rows if (row["start"], row["budget"]) == (start, budget)]
        means[start, budget] = statistics.geometric_mean(found)
        bar = _NEAR_ENOUGH.get((start, budget))
        outcome.ratio(f"{start}, {budget} measured", means[start, budget], None if bar is None else at_most(bar))
        near = sum(slowdown <= 1.05 for slowdown in found) / len(found)
        outcome.ratio(f"{start}, {budget} measured: runs within 5 %", 100 * near, unit="%")
    for start, budget in itertools.product(("history", "cold"), budgets):
        ratio = means[start, budget] / means["random", budget]
        outcome.ratio(f"{start} ÷ random, {budget} measured", ratio, at_most(1))
    outcome.note(f"{seeds} seeds on each GPU.")


_HARD_CELLS = {"rivals 1 % apart, busy": 75.0}
"""The cells in which nobody is nearly always right, and the per cent that we promise there."""

_UNPROMISED = frozenset({"5 % faster, busy"})
"""To tell so little from noise takes more runs than it saves: the default stays, and the record is unsure."""


@case("tuned-verdicts", title="right choices among planted candidates, on simulated machines", order=114)
def verdicts(context: Context, outcome: Outcome) -> None:
    """The real tuner on a simulated clock, beside the rules of other tuners. A run takes 1 ms."""
    trials = context.pick(200, 10)
    answer: dict[str, dict[str, dict[str, float]]] = {}
    for noise in NOISES:
        context.say(noise)
        with context.directory() as home:
            answer |= context.run("bench.programs.autotune_verdicts", trials, noise, home=home, timeout=1800.0)
    chance = 3 * (0.5 / trials) ** 0.5
    for name, cell in answer.items():
        shares = {who: found["right"] / trials for who, found in cell.items()}
        best = max(share for who, share in shares.items() if who != OURS)
        for who, share in shares.items():
            needed = max(_HARD_CELLS.get(name, 0.0), 100 * max(0.0, best - chance))
            bar = at_least(needed) if who == OURS and name not in _UNPROMISED else None
            outcome.ratio(f"{name}: {who}", 100 * share, bar, unit="%")
    for who in next(iter(answer.values())):
        # In these cells any other choice than the default is a gain that is not there.
        cells = [cell[who]["right"] for name, cell in answer.items() if name.startswith(("nothing", "none"))]
        false = len(cells) * trials - sum(cells)
        bar = at_most(0) if who == OURS else None
        outcome.ratio(f"false gains in {len(cells) * trials:,} trials: {who}", false, bar, unit="")
    ratios = [cell[OURS]["seconds"] / cell["Triton's rule"]["seconds"] for cell in answer.values()]
    outcome.ratio("seconds ÷ those of Triton's rule, median of the cells", statistics.median(ratios), at_most(2))
    outcome.note(f"{trials} trials each.")


@case("tuned-cost", title="processor time of tuning ÷ that of a loop of 20 runs of each candidate", order=118)
def cost(context: Context, outcome: Outcome) -> None:
    """Fresh processes in turns; compilation counts on both sides. Beside other load a race takes more runs."""
    plain, turns = "a plain loop", context.pick(7, 1)
    for name in ("matmul", "attention"):
        found: dict[str, list[float]] = {OURS: [], plain: []}
        for _ in range(turns):
            for who, seconds in found.items():
                with context.directory() as home:
                    seconds.append(context.run("bench.programs.autotune_cost", name, who, home=home)["seconds"])
        outcome.line(f"tuning {name}", {who: summarize(seconds) for who, seconds in found.items()})
        ratio = statistics.median(found[OURS]) / statistics.median(found[plain])
        outcome.ratio(f"tuning {name} ÷ a plain loop", ratio, at_most(1.5))
        outcome.ratio(f"tuning {name} ÷ a plain loop, minima", min(found[OURS]) / min(found[plain]))


@case("tuned-lookup", title="a lookup beside 10,000 other records of the operation", order=113)
def lookup(context: Context, outcome: Outcome) -> None:
    """A call of an operation of three arrays that does nothing, with and without the choice."""
    number = context.pick(10_000, 500)
    with context.directory() as home:
        answer = context.run("bench.programs.autotune_lookup", home / "store", number, context.pick(50, 5), home=home)
    outcome.line("a call with the lookup", {OURS: summarize(answer["lookup"])})
    outcome.line("a call without", {"plain function": summarize(answer["plain"])})
    outcome.line("the first lookup of a process", {OURS: summarize([answer["first"]])})
    cost = statistics.median(answer["lookup"]) - statistics.median(answer["plain"])
    outcome.ratio(f"a lookup beside {number:,} records", 1e6 * cost, at_most(20), unit="µs")
    outcome.ratio("files opened or looked at in the steady state", answer["opened"], at_most(0), unit="")


@case("tuned-identical", title="races of four programs that are the same, of 50 µs, on a busy host", order=116)
def identical(context: Context, outcome: Outcome) -> None:
    """Real measurements beside two processes that compute: what wins against the default wins falsely."""
    races = context.pick(200, 8)
    with context.directory() as home:
        answer = context.run("bench.programs.autotune_identical", races, home=home, timeout=3000.0)
    outcome.ratio(f"false gains in {races} races", answer["false"], at_most(races * 0.015), unit="")
    outcome.ratio(f"races of {races} that end unsure", answer["unsure"], at_most(races * 0.15), unit="")
    outcome.note(f"A race takes {answer['seconds']:.1f} s, and one execution {answer['microseconds']:.0f} µs.")
    outcome.note(f"The false gains: {answer['gains']} %.")
