"""The first finding about a program in which one thing is to be changed: its kind, its file and its line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers import ROOT, run_program
from start_cases import PLANTED
from test_start_cases import said_of

FILES = sorted((ROOT / "tests" / "data" / "planted").glob("*.py"))


def wrong(planted, answer):
    """What is wrong with the first finding about a program; empty if it is right."""
    if not any(answer["findings"]):
        return answer.get("error", "nothing was found")
    first = answer["findings"][0][0]
    is_right = (first["kind"], Path(first["file"]).name, first["line"]) == (planted.kind, "train.py", planted.line)
    return "" if is_right else f"{first['kind']} at line {first['line']}: {first['message']}"


def test_first_finding_of_each_kind(tmp_path):
    """In plain functions; `make soak` has the other styles."""
    quick = [planted for planted in PLANTED if planted.style == "plain"]
    answers = said_of(tmp_path / "programs", *(planted.title for planted in quick))

    assert len(quick) == 7
    assert {each.title: why for each in quick if (why := wrong(each, answers[each.title]))} == {}
    for answer in answers.values():
        ((first, *_),) = answer["findings"]
        assert all(0 <= each["seconds"] <= first["seconds"] + 1e-6 for each in first["saves"])
        assert {each["known"] for each in first["saves"]} <= {"at least", "about", "at most"}
        assert first["source"].endswith("# <-")
        assert first["sentence"]
        assert first["what_to_do"]


@pytest.mark.soak
def test_first_finding_of_all(tmp_path):
    answers = said_of(tmp_path / "programs", *(planted.title for planted in PLANTED))

    assert len(PLANTED) >= 26
    assert {each.title: why for each in PLANTED if (why := wrong(each, answers[each.title]))} == {}


@pytest.mark.soak
@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in FILES])
def test_first_finding_as_a_user_asks(path, tmp_path):
    """`ejcache advise` itself, with the seconds that it wants a change to save."""
    text = path.read_text()
    kind = path.stem.partition("-")[0]
    line = next(number for number, each in enumerate(text.splitlines(), 1) if each.endswith("# <-"))
    program = tmp_path / "train.py"
    program.write_text(text)
    env = {"XDG_CACHE_HOME": str(tmp_path / "home"), "EJCACHE": f"{tmp_path}/cache/", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "ejcache", "advise", "--fresh", "--json", sys.executable, program]
    done = run_program(command, env=env, cwd=tmp_path, check=False, timeout=600)
    found = json.loads(done.stdout)["findings"]
    assert [(each["kind"], each["file"], each["line"]) for each in found[:1]] == [(kind, str(program), line)]
