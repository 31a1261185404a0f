"""Jobs whose ranks do not agree on a reuse, beside the same jobs without it: how much later the first step ends."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.context import ChildError, child_environment, support
from bench.measure import summarize
from bench.outcome import at_most
from bench.registry import case

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome

TRACED, REUSED = "traced", "reused"
RANKS, BLOCKS = 2, 4
LONGEST = 180.0
"""Seconds after which a job hangs."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a rank.

    Attributes:
        what: for people.
        limit: so many seconds later than without reuse the first step may end, or fail.
        env: of both ranks.
        own: of one rank, by its number.
        is_reused: True if all ranks reuse in spite of it; None if no rank is left that says so.
        rounds: in a full run.
    """

    what: str
    limit: float
    env: Mapping[str, str] | None = None
    own: Mapping[int, Mapping[str, str]] | None = None
    is_reused: bool | None = False
    rounds: int = 5


NOTHING = Trouble("all ranks can reuse", 0.2, is_reused=True)
CASES: dict[str, tuple[Trouble, ...]] = {
    "reuse-late": (Trouble("rank 1 comes 20 s later", 2.0, {"LATE": "20"}, rounds=3),),
    "reuse-dead": (Trouble("rank 1 is killed before the step", 16.0, {"DIES": "1"}, is_reused=None, rounds=3),),
    "reuse-ranks": (
        NOTHING,
        Trouble("rank 1 is without ejcache", 2.0, {"WITHOUT": "1"}),
        Trouble("rank 1 has another word", 0.2, own={1: {"WORD": ""}}),
        Trouble("rank 0 was drawn to compare", 0.2, own={0: {"EJCACHE_REUSE_CHECK_ONE_IN": "1"}}),
        Trouble("rank 1 has another word, and traces run a program of all", 2.0, {"INSIDE": "1"}, {1: {"WORD": ""}}),
    ),
}
"""An empty `WORD` is another one in each job."""


def _measure(troubles: tuple[Trouble, ...], context: Context, outcome: Outcome) -> None:
    """Real ranks with gloo collectives. Both kinds of jobs have ejcache, and take turns; no job may hang."""
    blocks = context.pick(BLOCKS, 1)
    with context.directory() as home:
        known: set[str] = set()
        for trouble in troubles:
            inside = dict(trouble.env or {}).get("INSIDE", "")
            if inside not in known:
                known.add(inside)
                for number in range(2):
                    context.say(f"start {number + 1}, which is not counted")
                    _job(home, REUSED, blocks, Trouble("", 0.0, {"INSIDE": inside}))
            found: dict[str, list[float]] = {TRACED: [], REUSED: []}
            for number in range(context.turns(trouble.rounds)):
                for who in (TRACED, REUSED) if number % 2 else (REUSED, TRACED):
                    context.say(f"{trouble.what}, round {number + 1}: {who}")
                    seconds, traces = _job(home, who, blocks, trouble)
                    if trouble.is_reused is not None and any(
                        (each > 0) is (trouble.is_reused and who == REUSED) for each in traces
                    ):
                        raise AssertionError(f"{trouble.what}, {who}: the ranks traced {traces} times")
                    found[who].append(seconds)
            ends = "the job ends" if trouble.is_reused is None else "the last rank has made its first step"
            outcome.line(f"{trouble.what}: {ends}", {who: summarize(taken) for who, taken in found.items()})
            later = statistics.median(a - b for a, b in zip(found[REUSED], found[TRACED], strict=True))
            outcome.ratio(f"{trouble.what}: later than without reuse", later, at_most(trouble.limit), unit="s")


def _job(home: Path, who: str, blocks: int, trouble: Trouble) -> tuple[float, list[int]]:
    """Seconds from the meeting of the ranks to the end of the last first step, and how often each rank traced it.

    Where a rank dies, the seconds until the others have ended.
    """
    port = support("pod").free_port()
    changed = str(time.monotonic_ns())
    children = []
    for rank in range(RANKS):
        own = {name: value or changed for name, value in dict((trouble.own or {}).get(rank, {})).items()}
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORD": f"bench {(trouble.env or {}).get('INSIDE')}" if who == REUSED else "",
            "EJCACHE_REUSE_CHECK_ONE_IN": "0",
            "EJCACHE_REUSE_FLOOR": "0",
            **(trouble.env or {}),
            **(own if who == REUSED else {}),
        }
        command = [sys.executable, "-m", "bench.programs.reuse_ranks", str(blocks)]
        children.append(
            subprocess.Popen(
                command,
                env=child_environment(home) | {name: value for name, value in env.items() if value},
                cwd=home,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    answers, ended = [], 0.0
    try:
        for rank, child in enumerate(children):
            try:
                out, err = child.communicate(timeout=LONGEST)
            except subprocess.TimeoutExpired as exc:
                raise ChildError(f"{trouble.what}, {who}: rank {rank} hangs") from exc
            ended = ended or time.monotonic()
            lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            if not lines or (len(lines) < 2 and trouble.is_reused is not None):
                raise ChildError(f"{trouble.what}, {who}: rank {rank} ended with {child.returncode}: {err[-2000:]}")
            answers.append(lines)
    finally:
        for child in children:
            child.kill()
            child.wait()
    if trouble.is_reused is None:
        return ended - answers[0][0]["began"], []
    return max(each[1]["seconds"] for each in answers), [each[1]["traced"] for each in answers]


for _name, _troubles in CASES.items():
    case(
        _name,
        title=f"a job of {RANKS} ranks, beside the same without reuse: {'; '.join(each.what for each in _troubles)}",
        order=117,
        when_named=True,
    )(partial(_measure, _troubles))


@case(
    "reuse-votes",
    title="votes of 64 ranks on one coordination service, one start in twenty drawn",
    order=117,
    when_named=True,
)
def votes(context: Context, outcome: Outcome) -> None:
    """The ranks are threads of one process, each with its own client of JAX's service."""
    ranks, starts = context.pick((64, 200), (8, 20))
    with context.directory() as home:
        answer: dict[str, Any] = context.run("bench.programs.reuse_votes", ranks, starts, home=home)
    found = answer["starts"]
    split = [each for each in found if each["reused"] != (0 if each["drawn"] else ranks)]
    outcome.ratio(
        f"starts of {len(found)} in which not all {ranks} ranks did the same", len(split), at_most(0), unit=""
    )
    drawn = [each["seconds"] for each in found if each["drawn"]]
    outcome.line(
        "until the last rank knows",
        {"all say yes": summarize(each["seconds"] for each in found if not each["drawn"])}
        | ({"rank 0 was drawn": summarize(drawn)} if drawn else {}),
    )
