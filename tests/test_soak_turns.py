"""The turns of the long tests: every part has one, and each comes within ten days."""

from __future__ import annotations

import datetime as dt

import pytest
from soak_turns import TURNS, asked_turn, next_day, turn_on, turns_of

TODAY = dt.date(2026, 11, 27)


def test_every_part_has_a_turn_within_ten_days():
    parts = [f"tests/test_{number:02d}.py" for number in range(23)]
    turns = turns_of(parts)
    days = [turn_on(TODAY + dt.timedelta(days=number)) for number in range(TURNS)]
    assert sorted(days) == list(range(TURNS))
    assert turns.keys() == set(parts)
    assert {days.count(turn) for turn in turns.values()} == {1}


@pytest.mark.parametrize("turn", range(TURNS))
def test_the_next_day_of_a_turn_is_the_first_one_after_today(turn):
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
