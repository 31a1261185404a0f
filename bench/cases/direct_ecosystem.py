"""Direct mode on unchanged code of others: what hits at the third start, what does not, and whether it is right."""

from __future__ import annotations

import collections
import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.context import ROOT, ChildError
from bench.hits import require_direct
from bench.outcome import at_least, at_most
from bench.registry import SkipCase, case

if TYPE_CHECKING:
    from bench.context import Context
    from bench.outcome import Outcome

    Start = dict[str, dict[str, str]]
    """By the example's name, what direct mode said of it and the digest of its results."""

LIBRARIES = {
    "flax_linen": "flax",
    "flax_nnx": "flax",
    "equinox_models": "equinox",
    "optax_updates": "optax",
    "numpyro_densities": "numpyro",
    "haiku_models": "haiku",
    "diffrax_solves": "diffrax",
    "keras_calls": "keras",
    "brax_steps": "brax",
}
"""Modules of `bench.programs.direct_examples`, and the packages that they need."""

STARTS = 3
SETTINGS = {
    "EJCACHE_DIRECT_CHECK_ONE_IN": "0",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
CORPUS = "BENCH_CORPUS"
"""The variable that names the directory of other projects' checkouts, for `direct-soak`."""


@case(
    "direct-examples",
    title="unchanged functions as the examples of eight libraries jit them, at the third start in direct mode",
    order=310,
    when_named=True,
)
def direct_examples(context: Context, outcome: Outcome) -> None:
    """Each library's functions are called in three processes with hash seeds of their own."""
    require_direct()
    here = [module for module, library in LIBRARIES.items() if find_spec(library) is not None]
    if not here:
        raise SkipCase("none of the libraries is installed")
    taken: dict[str, list[Start]] = {}
    for module in here[: context.pick(len(here), 1)]:
        with context.directory() as home:
            taken[module] = []
            for number in range(STARTS):
                context.say(f"{module}, start {number + 1}")
                taken[module].append(_call_examples(context, module, home))
    tell_examples(outcome, taken)


def tell_examples(outcome: Outcome, taken: dict[str, list[Start]]) -> None:
    """Enter what each start of each library's functions printed."""
    counted: collections.Counter[str] = collections.Counter()
    wrong, caught, lost = 0, 0, []
    for module, starts in taken.items():
        hits = 0
        for name, last in starts[-1].items():
            counted[last["verdict"]] += 1
            hits += last["verdict"] == "hit"
            # What misses may differ: some libraries trace in the order of sets.
            wrong += last["verdict"] == "hit" and len({start[name]["digest"] for start in starts}) > 1
            caught += any(start[name]["verdict"] == "wrong" for start in starts)
            if last["verdict"] != "hit":
                lost.append(f"{name}: {last['verdict']}: {last['sentence']}")
        outcome.ratio(f"{module}: {hits} of {len(starts[-1])} hit", 100 * hits / len(starts[-1]), unit="%")
    total = sum(counted.values())
    share = 100 * counted["hit"] / total
    outcome.ratio(f"all: {counted['hit']} of {total} hit at the third start", share, at_least(80), unit="%")
    outcome.ratio("hits whose results differ from those of the traces", wrong, at_most(0), unit="")
    outcome.ratio("records that a later trace found wrong, before or after their proof", caught, unit="")
    for text in lost:
        outcome.note(_without_paths(text))


@case(
    "direct-soak",
    title="test suites of eight libraries, with all their jax.jit direct: what would have hit at the third start",
    order=311,
    when_named=True,
)
def direct_soak(context: Context, outcome: Outcome) -> None:
    """Everything is traced, and compared with what direct mode would have done (`tools/direct_soak.py`)."""
    require_direct()
    corpus = os.environ.get(CORPUS)
    if not corpus:
        raise SkipCase(f"{CORPUS} does not name the directory of the projects' checkouts")
    tool = ROOT / "tools" / "direct_soak.py"
    command = [sys.executable, str(tool), "--corpus", corpus, "--json", "--seconds", str(context.pick(120, 10))]
    context.say("the suites, each three times")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in {0, 1}:
        raise ChildError(f"the soak ended with {done.returncode}")
    tell_soak(outcome, json.loads(done.stdout))


def tell_soak(outcome: Outcome, reports: list[dict[str, Any]]) -> None:
    """Enter the reports of `tools/direct_soak.py --json`."""
    for report in reports:
        last = report["starts"][-1] if report["starts"] else {}
        if report["problem"] or not last:
            outcome.note(_without_paths(f"{report['suite']}: {report['problem'] or 'nothing was said'}"))
        if not last:
            continue
        said = ", ".join(f"{count:,} {verdict}" for verdict, count in last.items())
        functions = sum(report["functions"].values())
        if not math.isnan(report["hits"]):
            outcome.ratio(
                f"{report['suite']}: would have hit, of the calls that are not plain", report["hits"], unit="%"
            )
        outcome.note(f"{report['suite']}: {report['tests']:,} tests, {functions:,} functions; calls: {said}.")
        for verdict in ("missed", "unproven", "refused"):
            for kind, count in list(report["reasons"].get(verdict, {}).items())[:4]:
                outcome.note(_without_paths(f"{report['suite']}: {count:,} {verdict}: {kind}"))
    wrong = sum(len(report["wrong"]) for report in reports)
    outcome.ratio("records that would have given another program, all starts", wrong, at_most(0), unit="")


def _call_examples(context: Context, module: str, home: Path) -> Start:
    return context.run("bench.programs.direct_examples", module, home / "cache", home=home, env=SETTINGS, timeout=600)


def _without_paths(text: str) -> str:
    """The text without this machine's directories."""
    return text.replace(str(Path.home()), "~").replace(sys.prefix, "…").replace(str(ROOT), "…")[:400]
