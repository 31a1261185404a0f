"""The first line of `ejcache why` names what an author changed: pairs of real programs, with the cache and without."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from forking import Forked
from helpers import SUPPORT, run_program
from why_pairs import MISLEADING, PAIRS

from ejcache.history.causes import AVOIDABLE

LINES = 20


def measured(place, *titles, start=subprocess.Popen):
    """The answers about the pairs of these titles; all of them without titles."""
    driver = [sys.executable, SUPPORT / "why_driver.py", place, *titles]
    finished = run_program(driver, env={"PYTHONPATH": str(SUPPORT), "COLUMNS": None}, timeout=3600, start=start)
    answers = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith('{"title"')]
    return {answer["title"]: answer for answer in answers}


def unnamed(pair, answer):
    """What is wrong with the answers about a pair; empty if they name the change."""
    if "error" in answer:
        return answer["error"]
    for where in ("there", "gone"):
        if not re.search(pair.says, answer[where]["first"]):
            return f"{where}: {answer[where]['first']}"
        if pair.denies and (denied := [line for line in answer[where]["all"] if re.search(pair.denies, line)]):
            return f"{where}: {denied}"
        if answer[where]["lines"] > LINES:
            return f"{where}: {answer[where]['lines']} lines"
    return ""


WORDS = ("kind", "sentence", "what_to_do")


def words(answer):
    return tuple(answer[name] for name in WORDS)


def differing(answer):
    """Where `report` or `advise` says of a compilation what `why` does not say; `advise` if it speaks of that."""
    why = answer["why"]
    beside = {**why, "sentence": f"{why['sentence']} ({why['compared']})"}
    findings = [each for each in answer["advise"] if each["kind"] in AVOIDABLE and words(each) != words(beside)]
    return findings + [why] * (words(why) not in map(words, answer["report"]))


def test_typical_changes_are_named(tmp_path):
    """Of a constant, and of two other kinds; `why`, `report` and `advise` say the same."""
    quick = [pair for pair in PAIRS if pair.quick and not pair.is_alone][::9]
    answers = measured(tmp_path / "pairs", *(pair.title for pair in quick), start=Forked)

    assert len(quick) >= 3
    assert {pair.title: why for pair in quick if (why := unnamed(pair, answers[pair.title]))} == {}
    assert {pair.title: said for pair in quick if (said := differing(answers[pair.title]))} == {}


@pytest.mark.soak
def test_misleading_changes_are_named_without_false_advice(tmp_path):
    """Pairs in which comparing two texts gives a wrong cause: every answer names the right one, and no other."""
    answers = measured(tmp_path / "pairs", *(pair.title for pair in MISLEADING))

    assert len(MISLEADING) >= 40
    assert {pair.title: why for pair in MISLEADING if (why := unnamed(pair, answers[pair.title]))} == {}


@pytest.mark.soak
def test_of_a_hundred_changes_at_least_95_are_named(tmp_path, capsys):
    """All pairs. With `-s`, the score and the answers that missed are printed."""
    answers = measured(tmp_path / "pairs")

    missed = {pair.title: why for pair in PAIRS if (why := unnamed(pair, answers[pair.title]))}
    with capsys.disabled():
        print(f"\nejcache why named {len(PAIRS) - len(missed)} of {len(PAIRS)} changes in its first line")
        for title, why in missed.items():
            print(f"  {title}: {why}")
    assert len(PAIRS) >= 100
    assert len(PAIRS) - len(missed) >= 95
    some = [pair.title for pair in PAIRS if not pair.is_alone][::5]
    assert {title: said for title in some if (said := differing(answers[title]))} == {}
