"""What became of each case, as a table and in sums."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from direct_traps.trap import Trap

__all__ = ["Result", "judge", "page", "read_results", "summary"]

STALE: Final = "STALE"
WRONG: Final = "WRONG"


@dataclass(frozen=True)
class Result:
    """One case that has been through its phases.

    Attributes:
        changed: missed, refused, plain, right (a hit whose program is the changed one's) or STALE; `traced` or `hit`
            where nothing says why.
        unchanged: hit, refused, plain, miss, or WRONG (a hit with another result).
        sentence: why the changed one, or else the unchanged one, did not hit.
        proven: what the second start said.
        problems: what is not as the case expects it.
    """

    name: str
    group: str
    changed: str
    unchanged: str
    sentence: str
    proven: str
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(trap: Trap, answers: dict[str, dict[str, Any]], *, mode: str) -> Result:
    """Compare what the phases of a case answered with each other and with what the case expects."""
    problems = [f"{phase}: {answer['failed']}" for phase, answer in answers.items() if "failed" in answer]
    if problems:
        return Result(trap.name, trap.group, "FAILED", "FAILED", "", "", tuple(problems))
    judged = {"jit": _judge_jit, "direct": _judge_direct, "ejkernel": _judge_ejkernel}[mode]
    changed, unchanged, sentence, proven = judged(trap, answers, problems)
    return Result(trap.name, trap.group, changed, unchanged, sentence, proven, tuple(problems))


def _program_problems(trap: Trap, answers: dict[str, dict[str, Any]]) -> list[str]:
    """Whether the two versions differ as they should, and each repeats itself."""
    one, two, record = answers["plain 1"], answers["plain 2"], answers["record"]
    same = one["results"] == two["results"] and one["module"] == two["module"]
    problems = []
    if trap.repeats and same and trap.changed not in {"right", "either"} and one["said"] == two["said"]:
        problems.append("the two versions do not differ")
    if trap.changed == "right" and not _is_right(trap, answers):
        problems.append("the two versions are different programs")
    if trap.repeats and not trap.by_seed and trap.unchanged != "miss" and record["results"] != one["results"]:
        problems.append(f"the first version does not repeat itself: {record['results']} {one['results']}")
    return problems


def _judge_jit(trap: Trap, answers: dict[str, dict[str, Any]], problems: list[str]) -> tuple[str, str, str, str]:
    problems += _program_problems(trap, answers)
    for phase in ("hit", "changed"):
        if not answers[phase]["traced"]:
            problems.append(f"{phase}: the function that is watched did not run")
    return "traced", "traced", "", ""


def _judge_ejkernel(trap: Trap, answers: dict[str, dict[str, Any]], problems: list[str]) -> tuple[str, str, str, str]:
    words = []
    for phase, plain in (("changed", "plain 2"), ("hit", "record")):
        answer = answers[phase]
        if answer["traced"]:
            words.append("missed" if phase == "changed" else "miss")
        elif _same(trap, answer, answers[plain]) and (phase == "hit" or _same_program(answers)):
            words.append("right" if phase == "changed" else "hit")
        else:
            words.append(STALE if phase == "changed" else WRONG)
    return words[0], words[1], "", ""


def _judge_direct(trap: Trap, answers: dict[str, dict[str, Any]], problems: list[str]) -> tuple[str, str, str, str]:
    changed, why_changed = _verdict(answers["changed"])
    unchanged, why_unchanged = _verdict(answers["hit"])
    proven, why_unproven = _verdict(answers["prove"])
    if unchanged == "hit" and answers["hit"]["traced"] and not trap.traced_before:
        problems.append("hit: the body of the function ran")
    if changed == "hit" and "plain 2" not in answers:
        problems.append("changed: it hit, and was traced all the same, so that there is nothing to compare it with")
        changed = "FAILED"
    if changed == "hit":
        right = _same(trap, answers["changed"], answers["plain 2"]) and _is_right(trap, answers)
        changed = "right" if right else STALE
    if unchanged == "hit" and not _same(trap, answers["hit"], answers["record"]):
        unchanged = WRONG
    unchanged = {"missed": "miss", "unproven": "miss"}.get(unchanged, unchanged)
    if changed == STALE and trap.loses_output:
        changed = "right"
    if changed == STALE:
        problems.append(f"stale: {answers['changed']['results']} for {answers['plain 2']['results']}")
    elif trap.changed not in {changed, "either"}:
        problems.append(f"changed: expected {trap.changed}, was {changed}: {why_changed}")
    if trap.unchanged not in {unchanged, "either"}:
        problems.append(
            f"unchanged: expected {trap.unchanged}, was {unchanged}: {why_unchanged} (before: {proven}: {why_unproven})"
        )
    return changed, unchanged, why_changed or why_unchanged, proven + (f": {why_unproven}" if why_unproven else "")


def _verdict(answer: dict[str, Any]) -> tuple[str, str]:
    """What direct mode said of the first call that it did not serve, or of the first one."""
    verdicts = [(verdict, sentence) for _, verdict, sentence in answer["verdicts"]]
    if not verdicts:
        return "plain", "direct mode was not asked, or the trace failed"
    # A function that is called by another one while that is traced is plain.
    verdicts = [each for each in verdicts if each[0] != "plain"] or verdicts
    return next(((verdict, sentence) for verdict, sentence in verdicts if verdict != "hit"), verdicts[0])


def _same(trap: Trap, answer: dict[str, Any], plain: dict[str, Any]) -> bool:
    if not trap.repeats and trap.changed != "right":
        return False
    return answer["results"] == plain["results"] and (trap.loses_output or answer["said"] == plain["said"])


def _same_program(answers: dict[str, dict[str, Any]]) -> bool:
    return answers["plain 1"]["module"] == answers["plain 2"]["module"]


def _is_right(trap: Trap, answers: dict[str, dict[str, Any]]) -> bool:
    """Whether both versions are one program: the text of it may differ only where the case says that they are one."""
    same = answers["plain 1"]["results"] == answers["plain 2"]["results"]
    return _same_program(answers) or (trap.changed == "right" and same)


def summary(results: Sequence[Result]) -> list[str]:
    """The sums, one a line."""
    changed, unchanged = (Counter(getattr(each, name) for each in results) for name in ("changed", "unchanged"))
    decided = {name: changed[name] for name in ("missed", "refused", "plain")}
    total = sum(decided.values()) or 1
    return [
        f"{len(results)} cases, {changed[STALE]} stale",
        f"changed: {_in_words(changed)}",
        f"of those that did not hit, {100 * decided['missed'] / total:.0f} % missed and the rest refused",
        f"unchanged: {_in_words(unchanged)}",
        f"not as expected: {sum(bool(each.problems) for each in results)}",
    ]


def read_results(path: Path) -> dict[str, Result]:
    """The results that `--json` wrote, by the names of their cases."""
    found = [Result(**each) for each in json.loads(path.read_text(encoding="utf-8"))]
    return {each.name: each for each in found}


def page(results: Sequence[Result], others: dict[str, dict[str, Result]]) -> str:
    """The results as a page in Markdown, with a column for each of `others` (label → results by name)."""
    python = ".".join(map(str, sys.version_info[:2]))
    sums = [f"* {line}" for line in summary(results)]
    sums += [f"* {label}: {_sum_of(found)}" for label, found in others.items()]
    return "\n".join([_HEAD.format(python=python, jax=version("jax")), *sums, "", _table(results, others)])


_HEAD: Final = """\
# The staleness traps of direct mode

Written by `python -m direct_traps --write bench/DIRECT_TRAPS.md`, with `tests/support` on `PYTHONPATH`. Each case is a
program in two versions. The first is recorded, proven, and started a third time: *unchanged* says what direct mode made
of that. Then the second version starts in the same cache: *changed*. Python {python}, JAX {jax}, CPU.

*missed* and *refused*: traced as usual. *plain*: left to `jax.jit`. *right*: a hit, and the program is the same.
*wrong*: traced, and the record deleted. *STALE*: another result than that of `jax.jit`.
"""


def _sum_of(found: dict[str, Result]) -> str:
    return f"{len(found)} cases: {_in_words(Counter(each.changed for each in found.values()))}"


def _in_words(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counted.most_common())


_ADDRESS: Final = re.compile(r"0x[0-9a-f]{6,}|(?<=-)[0-9a-f]{24,}")
"""What differs from run to run."""


def _table(results: Iterable[Result], others: dict[str, dict[str, Result]]) -> str:
    """A line for each case."""
    lines = [
        " | ".join(["| case | changed", "unchanged", *others, "why |"]),
        "|" + "---|" * (4 + len(others)),
    ]
    for each in results:
        beside = [found[each.name].changed if each.name in found else "" for found in others.values()]
        why = _ADDRESS.sub("…", each.sentence).replace("|", "\\|")
        lines.append(" | ".join([f"| {each.name} | {each.changed}", each.unchanged, *beside, f"{why} |"]))
    return "\n".join(lines)
