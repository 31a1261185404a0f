"""Sizes and ages as people write them."""

from __future__ import annotations

import pytest

from ejcache.errors import SettingError
from ejcache.util.units import duration, format_age, format_size, parse_age, parse_size

HUGE = (
    "9" * 400,
    "9" * 400 + "GB",
    "9" * 400 + ".5",
    "9" * 5_000,
    "9" * 5_000 + "kB",
    str(1 << 63),
    1 << 63,
    float("inf"),
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("500000", 500_000),
        ("10GB", 10**10),
        ("10GiB", 10 * 2**30),
        ("1.5 kB", 1500),
        ("2m", 2 * 10**6),
        (7, 7),
        (str((1 << 63) - 1), (1 << 63) - 1),
    ],
)
def test_sizes(text, size):
    """GB is decimal, GiB is binary, a bare number is bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "ten", "-5", "10 XB", "10GBB", "iB", "5i", "1e9", "-1", True, 1.5, float("nan"), *HUGE]
)
def test_a_bad_size_is_one_clear_sentence(text):
    """The message names the setting, the value it got and what is accepted."""
    with pytest.raises(SettingError) as caught:
        parse_size(text, setting="--max-size")

    assert str(caught.value).startswith(f"--max-size cannot be {text!r}: accepted is ")
    assert "10GiB" in str(caught.value)


def test_no_limit_only_where_it_makes_sense():
    """-1 is a size only for a limit."""
    assert parse_size("-1", unlimited=True) == parse_size(-1, unlimited=True) == -1


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("36h", 129_600), ("2w", 1_209_600)])
def test_ages(text, seconds):
    """Seconds, minutes, hours and days."""
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5y", "-3d", "d", 5, "9" * 400 + "d"])
def test_a_bad_age_is_one_clear_sentence(text):
    """The message names the setting, the value it got and what is accepted."""
    with pytest.raises(SettingError, match=r"--older-than cannot be .* 14d"):
        parse_age(text, setting="--older-than")


@pytest.mark.parametrize(
    ("size", "text"), [(-1, "unlimited"), (0, "0 B"), (999, "999 B"), (10**10, "10 GB"), (1_234_567, "1.23 MB")]
)
def test_sizes_are_shown_short(size, text):
    """Three digits and a unit."""
    assert format_size(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (3.14, "3.1s"), (90, "2m"), (7200, "2h"), (1_209_600, "14d")])
def test_ages_are_shown_short(seconds, text):
    """One unit."""
    assert format_age(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "0 s"),
        (0.0117, "0.012 s"),
        (-0.1404, "-0.14 s"),
        (0.606, "0.61 s"),
        (90, "90.0 s"),
        (185, "3 min 5 s"),
        (9000, "2.5 h"),
    ],
)
def test_durations_have_as_many_digits_as_a_person_weighs(seconds, text):
    """Two below a second."""
    assert duration(seconds) == text


@pytest.mark.parametrize("text", ["10GiB", "512MiB", "1.5GiB", "2TiB", "10GB", "1.07GB", "1MB"])
def test_a_size_is_shown_in_the_units_in_which_it_was_written(text):
    """10 GiB are not shown as 10.7 GB."""
    assert format_size(parse_size(text)).replace(" ", "") == text
