"""Programs that change between two starts in ways that a fingerprint could overlook: does direct mode ever miss it."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.context import ROOT
from bench.outcome import OURS, at_least, at_most
from bench.registry import SkipCase, case

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome

_SUPPORT = ROOT / "tests" / "support"
_QUICK = ("code", "pytrees", "chance")


@case(
    "direct-traps",
    title="the staleness traps of direct mode: programs changed in ways that a fingerprint could overlook",
    order=310,
    when_named=True,
)
def direct_traps(context: Context, outcome: Outcome) -> None:
    """Every case of `tests/support/direct_traps`; bench/DIRECT_TRAPS.md has a line for each."""
    if not _has_monitoring():
        raise SkipCase("direct mode needs Python 3.12")
    with context.directory() as home:
        found = {OURS: _run(context, home, "direct")}
        if find_spec("ejkernel") is not None:
            found["ejkernel"] = _run(context, home, "ejkernel")
    for name, results in found.items():
        _add(outcome, name, results, bars=name == OURS)
    if "ejkernel" not in found:
        outcome.note("ejkernel is not installed here, so its ejit was skipped.")
    outcome.note(
        "The second version of a case ran after the first one had been recorded, proven and hit; a result that"
    )
    outcome.note("is not that of plain jax.jit, or a hit of another program, is stale.")


def _has_monitoring() -> bool:
    import sys

    return hasattr(sys, "monitoring")


def _run(context: Context, home: Path, mode: str) -> list[dict[str, Any]]:
    context.say(f"the traps on {mode}")
    path = home / f"{mode}.json"
    groups = context.pick((), ("--group", *_QUICK))
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(_SUPPORT)])}
    context.start("-m", "direct_traps", "--mode", mode, "--json", path, *groups, home=home, env=env, timeout=7200)
    results: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return results


def _add(outcome: Outcome, name: str, results: list[dict[str, Any]], *, bars: bool) -> None:
    from collections import Counter

    changed = Counter(each["changed"] for each in results)
    unchanged = Counter(each["unchanged"] for each in results)
    outcome.ratio(f"{name}: stale, of {len(results)}", changed["STALE"], at_most(0) if bars else None, unit="cases")
    outcome.ratio(f"{name}: an unchanged program that got another result", unchanged["WRONG"], unit="cases")
    share = 100 * changed["missed"] / (_not_hit(changed) or 1)
    outcome.ratio(
        f"{name}: changed ones that were missed, not refused", share, at_least(70) if bars else None, unit="%"
    )
    outcome.ratio(f"{name}: unchanged ones that hit", unchanged["hit"], unit="cases")
    outcome.ratio(f"{name}: changed to the same program, and hit", changed["right"], unit="cases")


def _not_hit(changed: Counter[str]) -> int:
    return sum(changed[name] for name in ("missed", "refused", "plain"))
