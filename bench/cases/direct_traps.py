"""Programs that change between two starts in ways that a question could overlook, and scripts as people write them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from bench.context import ROOT
from bench.outcome import OURS, at_least, at_most
from bench.registry import case

if TYPE_CHECKING:
    from bench.context import Context
    from bench.outcome import Outcome

_ENV = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])}
_QUICK = ("--group", "code", "pytrees", "chance")


@case("direct-traps", title="the staleness traps of direct mode", order=310, when_named=True)
def direct_traps(context: Context, outcome: Outcome) -> None:
    """Every trap of `tests/support/direct_traps/cases`, with the project by its path, installed, and in no file."""
    with context.directory() as home:
        for way in ("path", "installed", "live"):
            context.say(f"the traps, {way}")
            file = home / f"{way}.json"
            words = ["--way", way, "--json", file, *context.pick((), _QUICK), *(() if way == "path" else ("--quick",))]
            context.start("-m", "direct_traps", *words, home=home, env=_ENV, timeout=7200)
            results: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
            compared = [each for each in results if not each["apart"]]
            stale = sum("STALE" in {each["changed"], each["unchanged"]} for each in compared)
            outcome.ratio(f"{OURS}, {way}: stale, of {len(compared)} compared", stale, at_most(0), unit="traps")
            hits = sum(each["unchanged"] == "hit" for each in compared)
            if way == "path":
                outcome.ratio(f"{OURS}, {way}: unchanged ones that hit", hits, unit="traps")


@case("direct-scripts", title="nine scripts, installed in four ways, at the third start", order=311, when_named=True)
def direct_scripts(context: Context, outcome: Outcome) -> None:
    """Each start has another run id, time stamp, output directory and job number, and new directories."""
    with context.directory() as home:
        words = context.pick((), ("--only", "rope_cache", "--ways", "path"))
        _, text = context.start("-m", "direct_scripts", *words, home=home, env=_ENV, timeout=3600)
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    hits = [each for each in found if each["verdicts"][-1] == "hit" and each["right"]]
    outcome.ratio(f"hit at the third start, of {len(found)}", len(hits), at_least(32), unit="scripts")
    for each in found:
        if each not in hits:
            outcome.note(f"{each['script']}, {each['way']}: {each['verdicts'][-1]}: {each['sentences'][-1]}")
