"""`.ci/run`: which parts of the suite it runs, in which order, and that it ends in time."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING

import pytest
from capabilities import needs
from helpers import ROOT, run_program

if TYPE_CHECKING:
    from pathlib import Path

MAKE = """#!/usr/bin/env bash
echo "$1 $2 $4" >> "$CALLS"
if [ "$1" = soak ]; then
  echo "before ===== long tests"
  echo '===== long tests: turn 3 of 10, 2026-11-27 ====='
  printf 'a: passed in 9 s, next on 2026-12-07\\nb: %snext on 2026-12-01\\n=== 1 passed\\n' "$LONG"
  exit "$SOAK"
fi
[ "$1 $2" = "$WAITS" ] && { echo waits; exec sleep 600; }
[ "$1 $2" != "$FAILS" ]
"""
PYTHON = """#!/usr/bin/env bash
case "$1" in *each_jax*)
  printf '=== 2 versions of JAX, 9 s\\nJAX 1: passed\\nJAX 2: left out\\n'
  exit "$EACH_JAX" ;;
*release_check*) exit "$RELEASE" ;;
esac
case "$2" in *print*) echo %s ;; esac
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without tests, whose `make` only notes how it was called, and three interpreters that do nothing."""
    checkout, programs = tmp_path / "checkout", tmp_path / "programs"
    shutil.copytree(ROOT / "constraints", checkout / "constraints")
    (checkout / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", checkout / ".ci" / "run")
    programs.mkdir()
    for name, version in (("python3", "3.11"), ("python3.12", "3.12"), ("python3.13", "3.13")):
        (programs / name).write_text(PYTHON % version)
    (programs / "make").write_text(MAKE)
    for each in programs.iterdir():
        each.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "no-pyenv"))
    monkeypatch.setenv("CALLS", str(checkout / "calls"))
    return checkout


def run_ci(place: Path, **env: str) -> tuple[int, list[str], list[str]]:
    """The exit status, the last lines, and how `make` was called."""
    programs = {"WAITS": "", "FAILS": "", "LONG": "", "SOAK": "0", "EACH_JAX": "0", "RELEASE": "0", **env}
    done = run_program([".ci/run"], cwd=place, env=programs, check=False)
    summary = done.stdout.partition(" interpreters, ")[2].splitlines()[1:]
    return done.returncode, summary, (place / "calls").read_text().splitlines()


pytestmark = needs("linux")


def test_every_part_runs_the_newest_jax_first(place):
    status, summary, calls = run_ci(place)
    programs = place.parent / "programs"
    assert status == 0
    assert calls == [
        f"test PYTHON={programs}/python3.12 SELECT=not soak",
        "pytest PYTHON=python3 SELECT=not soak and not one_jax",
        f"pytest PYTHON={programs}/python3.13 SELECT=not soak and not one_python",
        f"soak PYTHON={programs}/python3.12 SOAK_TURN=today",
    ]
    assert [": passed in " in line for line in summary[:3]] == [True] * 3
    assert summary[3:5] == ["JAX 1: passed", "JAX 2: left out"]
    assert re.fullmatch(r"a release, built and installed: passed in \d+ s", summary[5])
    assert summary[6:8] == ["a: passed in 9 s, next on 2026-12-07", "b: next on 2026-12-01"]
    assert re.fullmatch(r"long tests of today: passed in \d+ s", summary[8])


@pytest.mark.parametrize(("ends", "said", "status", "says"), [
    ("2", "FAILED in 9 s, ", 1, "FAILED"),
    ("2", "", 1, "FAILED"),
    ("124", "left out after 9 s, ", 0, "stopped after "),
    ("124", "FAILED in 9 s, ", 1, "FAILED"),
    ("0", "left out after 9 s, ", 0, "passed in "),
])  # fmt: skip
def test_a_long_test_that_fails_fails_the_run(place, ends, said, status, says):
    """It does so also if the time was over then; the lines about all of them are among the last ones."""
    found, summary, _ = run_ci(place, SOAK=ends, LONG=said)
    assert found == status
    assert summary[-2] == f"b: {said}next on 2026-12-01"
    assert summary[-1].startswith(f"long tests of today: {says}")


@pytest.mark.parametrize(
    ("exits", "status", "said"), [("1", 1, "FAILED"), ("3", 0, "left out after"), ("124", 0, "left")]
)
def test_a_release_that_cannot_be_installed_fails_the_run(place, exits, status, said):
    """One that could not be tried does not: what builds it was not to be had, or the time was over."""
    found, summary, _ = run_ci(place, RELEASE=exits)
    assert found == status
    assert summary[5].startswith(f"a release, built and installed: {said}")


def test_a_version_of_jax_that_fails_fails_the_run(place):
    """Its lines are the last ones, with those that were left out."""
    status, summary, _ = run_ci(place, EACH_JAX="1")
    assert status == 1
    assert summary[3:6] == ["JAX 1: passed", "JAX 2: left out", "one JAX of each minor version: FAILED"]


def test_parts_that_would_begin_too_late_are_left_out(place):
    status, summary, calls = run_ci(place, BEGIN_BEFORE="0")
    assert status == 0
    assert [call.split()[0] for call in calls] == ["test", "soak"]
    assert "passed in" in summary[0]
    assert [": left out, because " in line for line in summary[1:3]] == [True, True]


def test_a_part_that_does_not_end_is_stopped_and_left_out(place):
    status, summary, calls = run_ci(place, WAITS="pytest PYTHON=python3", END_BEFORE="2")
    assert status == 0
    assert len(calls) == 3
    assert "JAX 0.10.2, not soak and not one_jax: left out, because it was not ready" in summary[1]
    assert "passed in" in summary[2]


def test_a_part_that_fails_fails_the_run(place):
    status, summary, _ = run_ci(place, FAILS="pytest PYTHON=python3")
    assert status == 1
    assert "FAILED in" in summary[1]


def test_the_first_part_must_end_in_time(place):
    newest = place.parent / "programs" / "python3.12"
    status, summary, _ = run_ci(place, WAITS=f"test PYTHON={newest}", END_BEFORE="1")
    assert status == 1
    assert "FAILED in" in summary[0]
