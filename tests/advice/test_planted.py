"""The first finding about a program in which one thing is to be changed: its kind, its file and its line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers import SUPPORT, run_program
from planted import PLANTED


def found_in(place, *titles):
    """The findings about the programs of these titles, by title."""
    driver = [sys.executable, SUPPORT / "planted_driver.py", place, *titles]
    done = run_program(driver, env={"PYTHONPATH": str(SUPPORT)}, timeout=3600)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"title"')]
    return {answer["title"]: answer for answer in answers}


def wrong(planted, answer):
    """What is wrong with the first finding about a program; empty if it is right."""
    if not answer["findings"]:
        return answer.get("error", "nothing was found")
    first = answer["findings"][0]
    is_right = (first["kind"], Path(first["file"]).name, first["line"]) == (planted.kind, "train.py", planted.line)
    return "" if is_right else f"{first['kind']} at line {first['line']}: {first['message']}"


def test_first_finding_of_each_kind(tmp_path):
    quick = list({planted.kind: planted for planted in PLANTED}.values())
    answers = found_in(tmp_path / "programs", *(planted.title for planted in quick))

    assert len(quick) == 9
    assert {each.title: why for each in quick if (why := wrong(each, answers[each.title]))} == {}
    for answer in answers.values():
        first = answer["findings"][0]
        assert 0 <= first["saves"] <= first["seconds"] + 1e-6
        assert first["basis"] in {"measured", "counted", "estimated"}
        assert first["fix"]["before"]
        assert first["fix"]["after"]


@pytest.mark.soak
def test_first_finding_of_all(tmp_path):
    answers = found_in(tmp_path / "programs")

    assert len(PLANTED) >= 36
    assert {each.title: why for each in PLANTED if (why := wrong(each, answers[each.title]))} == {}
