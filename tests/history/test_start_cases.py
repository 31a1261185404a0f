"""What changed since the last start, of functions that each start compiles for several values or shapes."""

from __future__ import annotations

import json
import re
import sys

import pytest
from forking import Forked
from helpers import SUPPORT, run_program
from start_cases import CASES

QUICK = {"static: a constant", "weak types, and a constant", "a cell edited twice", "an edit that was put back"}


def said_of(place, *titles):
    """The answers about the cases and planted programs of these titles."""
    driver = [sys.executable, SUPPORT / "starts_driver.py", place, *titles]
    done = run_program(driver, env={"PYTHONPATH": str(SUPPORT), "COLUMNS": None}, timeout=3600, start=Forked)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"title"')]
    return {answer["title"]: answer for answer in answers}


def wrong(case, answer):
    """What is wrong with the answers about a case; empty if each names the change, and nothing that did not happen."""
    said = [each["reason"] for each in answer["causes"]]
    if len(said) != len(case.says):
        return answer.get("error", f"{len(said)} programs: {said}")
    for pattern, reason in zip(case.says, said, strict=True):
        if not re.search(pattern, reason) or (case.denies and re.search(case.denies, reason)):
            return reason
    return ""


def test_each_program_is_compared_with_its_counterpart_of_the_last_start(tmp_path):
    answers = said_of(tmp_path / "cases", *QUICK)
    assert {
        case.title: why for case in CASES if case.title in QUICK and (why := wrong(case, answers[case.title]))
    } == {}
    # What is true of each start is said of each start: an edit does not hide it.
    before, after = answers["weak types, and a constant"]["findings"]
    assert [each["kind"] for each in before] == [each["kind"] for each in after] == ["weak_type"]
    assert "beside" in after[0]["sentence"]


@pytest.mark.soak
def test_all_cases(tmp_path):
    answers = said_of(tmp_path / "cases", *(case.title for case in CASES))
    assert sum(len(case.says) for case in CASES) >= 65
    assert {case.title: why for case in CASES if (why := wrong(case, answers[case.title]))} == {}
