"""The turns of the long tests: every part has one, and each comes within ten days."""

from __future__ import annotations

import datetime as dt
import types

import pytest
from helpers import ROOT, SMALL_SUITE
from soak_turns import MOVED, TURNS, Part, asked_turn, next_day, rotated, turn_on, turns_of

TODAY = dt.date(2026, 11, 27)


def test_every_part_has_a_turn_within_ten_days():
    parts = [f"tests/test_{number:02d}.py" for number in range(23)]
    turns = turns_of(parts)
    days = [turn_on(TODAY + dt.timedelta(days=number)) for number in range(TURNS)]
    assert sorted(days) == list(range(TURNS))
    assert turns.keys() == set(parts)
    assert {days.count(turn) for turn in turns.values()} == {1}


def test_a_part_that_has_another_day_than_its_name_gives_is_there():
    assert [part for part in MOVED if not (ROOT / part).is_file()] == []
    assert turns_of(MOVED) == MOVED
    assert set(MOVED.values()) <= set(range(TURNS))


def test_the_next_day_of_a_turn_is_the_first_one_after_today():
    for turn in range(TURNS):
        day = next_day(turn, TODAY)
        between = [TODAY + dt.timedelta(days=number) for number in range(1, (day - TODAY).days)]
        assert turn_on(day) == turn
        assert 1 <= (day - TODAY).days <= TURNS
        assert turn not in map(turn_on, between)


def test_what_the_variable_may_be():
    assert asked_turn("", TODAY) is None
    assert asked_turn("today", TODAY) == turn_on(TODAY)
    assert asked_turn("3", TODAY) == 3
    for wrong in ("10", "-1", "tomorrow"):
        with pytest.raises(pytest.UsageError, match=f"SOAK_TURN is '{wrong}'"):
            asked_turn(wrong, TODAY)


def test_another_part_is_the_first_each_time():
    assert [rotated(["a", "b", "c"], by) for by in range(3)] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert rotated([], 5) == []


def reports(*ended):
    """What pytest reports of a test that ended so in these phases."""
    return [types.SimpleNamespace(when=when, outcome=how, duration=2.0) for when, how in ended]


@pytest.mark.parametrize(("tests", "ended", "says"), [
    (1, [("setup", "passed"), ("call", "passed"), ("teardown", "passed")], "passed in 6 s"),
    (2, [("call", "passed"), ("call", "failed")], "FAILED in 4 s"),
    (1, [("setup", "failed")], "FAILED in 2 s"),
    (1, [("call", "passed"), ("teardown", "failed")], "FAILED in 4 s"),
    (1, [("setup", "skipped")], "skipped in 2 s"),
    (2, [("setup", "skipped"), ("call", "passed")], "passed in 4 s"),
    (2, [("call", "passed"), ("setup", "passed")], "left out after 4 s"),
])  # fmt: skip
def test_what_is_said_of_a_part(tests, ended, says):
    part = Part(tests)
    for report in reports(*ended):
        part.add(report)
    assert part.said == says


def test_a_part_keeps_its_turn_when_others_come():
    few, many = turns_of(["tests/test_b.py"]), turns_of(["tests/test_a.py", "tests/test_b.py"])
    assert few.items() <= many.items()


@pytest.mark.parametrize(("body", "seconds", "says"), [
    ("pass", "", "passed in 0 s, "),
    ("raise KeyboardInterrupt", "", "left out after 0 s, "),
    ("pass", "0", "left out after 0 s, "),
])  # fmt: skip
def test_the_last_lines_say_how_each_part_went(run_forked, tmp_path, body, seconds, says):
    """One that was interrupted is left out, as one for which no time is left; one of another turn says its day."""
    text = "import pytest\npytestmark = pytest.mark.soak\ndef test_it(): pass\ndef test_b(): "
    turns = turns_of(f"test_{number}.py" for number in range(9))
    part = "test_0.py"
    other = next(name for name, turn in turns.items() if turn != turns[part])
    for name in (part, other):
        (tmp_path / name).write_text(f"{text}{body}\n")
    (tmp_path / "test_short.py").write_text("def test_it(): pass\n")
    (tmp_path / "conftest.py").write_text(
        "import soak_turns\ndef pytest_configure(config): config.pluginmanager.register(soak_turns.SoakTurns())\n"
    )
    program = "import pytest, sys; sys.exit(pytest.main(['-m', 'soak']))"
    env = {
        "PYTEST_ADDOPTS": SMALL_SUITE,
        "PYTHONPATH": str(ROOT / "tests" / "support"),
        "SOAK_TURN": str(turns[part]),
        "SOAK_SECONDS": seconds,
    }
    lines = run_forked(program, env=env, check=False).stdout.splitlines()
    found = [line.rpartition("next on ")[0] for line in lines if "next on 2" in line]
    assert found == [f"{part}: {says}", f"{other}: "]
