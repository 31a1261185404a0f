"""`why`, `report` and `advise` say the same of one compilation: thirty pairs of starts, ten of them of two scripts."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import SUPPORT, run_program

from ejcache.history.causes import AVOIDABLE

WORDS = ("kind", "sentence", "what_to_do")


def words(answer):
    return tuple(answer[name] for name in WORDS)


@pytest.mark.soak
def test_three_commands_say_the_same(tmp_path):
    """The words of a kind that a change of the program removes are those of advise, too, if it speaks of that."""
    driver = [sys.executable, SUPPORT / "voices_driver.py", tmp_path / "pairs"]
    done = run_program(driver, env={"PYTHONPATH": str(SUPPORT), "COLUMNS": None}, timeout=3600)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"title"')]
    assert [len([each for each in answers if each["stranger"] is kind]) for kind in (False, True)] == [20, 10]

    silent = [each["title"] for each in answers if words(each["why"]) not in map(words, each["report"])]
    assert silent == []
    assert {each["why"]["kind"] for each in answers if each["stranger"]} == {"new"}
    told = 0
    for each in answers:
        for finding in (*each["advise"], *each["findings"]):
            if finding["kind"] in AVOIDABLE:
                told += 1
                why = each["why"]
                beside = {**why, "sentence": f"{why['sentence']} ({why['compared']})"}
                assert words(finding) == words(beside), each["title"]
    assert told
    with_others = [each["title"] for each in answers if each["stranger"] and each["why"]["nearest_key"]]
    assert with_others == []
