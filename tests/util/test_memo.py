"""Functions whose answers are remembered."""

from __future__ import annotations

import pytest

from ejcache.util.memo import recent, remembered


def test_each_answer_is_made_once():
    """By its arguments, None among the answers, until they are forgotten."""
    asked = []

    @remembered
    def answer(*arguments):
        asked.append(arguments)
        return arguments[0] if arguments else None

    assert [answer(), answer(), answer(1), answer(1), answer(1, 2)] == [None, None, 1, 1, 1]
    assert asked == [(), (1,), (1, 2)]
    answer.cache_clear()
    assert answer() is None
    assert asked[3:] == [()]
    assert answer.__wrapped__(7) == 7


def test_an_error_is_no_answer():
    """The next call tries again."""
    asked = []

    @remembered
    def fail(number):
        asked.append(number)
        raise ValueError(number)

    for _ in range(2):
        with pytest.raises(ValueError, match="3"):
            fail(3)
    assert asked == [3, 3]


def test_the_oldest_answer_is_forgotten():
    """Where so many are kept, a new one takes its place."""
    asked = []

    @recent(maxsize=2)
    def double(number):
        asked.append(number)
        return 2 * number

    assert [double(number) for number in (1, 2, 3, 2, 1)] == [2, 4, 6, 4, 2]
    assert asked == [1, 2, 3, 1]
