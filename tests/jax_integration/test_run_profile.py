"""The run profile: its format, and what a run makes of the one before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import ROOT

from ejcache.errors import EntryCorruptError
from ejcache.jax_integration.preload.run_profile import (
    MAX_PAYLOAD,
    ProgramUse,
    RunProfile,
    decode_profile,
    differs,
    encode_profile,
    merge,
)

GOLDEN = Path(ROOT, "tests", "data", "run_profile", "v1.json")
ON = "cpu-0123456789abcdef01234567-1"
FIRST = ProgramUse("jit_f-cpu-plain-0", 1000, 0.25, options=b"\x1a\x00", devices=(0,))
SECOND = ProgramUse("jit_g-cpu-plain-1", 2000, 0.5, options=b"\x1a\x01", devices=(0, 1))
QUICK = ProgramUse("jit_h-cpu-plain-2", quick=0.005, stored=False)


def keys(profile, environment=ON):
    return [use.key for use in profile.environments[environment]]


def test_the_golden_file_is_read_as_it_was_written():
    """Version 1 is read for ever, and still written so."""
    wanted = RunProfile({ON: (FIRST, QUICK), "gpu-0-8": (SECOND._replace(unused=2),)})
    assert decode_profile(GOLDEN.read_bytes()) == wanted
    assert encode_profile(wanted) == GOLDEN.read_bytes()


def test_unknown_fields_are_ignored():
    """A later release may add fields without a new version."""
    about = json.loads(GOLDEN.read_bytes())
    about["later"] = 1
    about["environments"][ON][0]["later"] = {"a": [1]}
    assert decode_profile(json.dumps(about).encode()) == decode_profile(GOLDEN.read_bytes())


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"options": ["*"]},
        {"environments": []},
        {"environments": {"\x1b": []}},
        {"environments": {ON: [{}]}},
    ],
)
def test_what_is_no_profile_is_refused(change):
    """A later version, or fields of other types."""
    about = {**json.loads(GOLDEN.read_bytes()), **change}
    with pytest.raises(EntryCorruptError):
        decode_profile(json.dumps(about).encode())


def test_a_profile_that_is_too_large_is_refused_and_never_written():
    """The limit holds for both directions; the programs that were used first stay."""
    with pytest.raises(EntryCorruptError):
        decode_profile(b" " * (MAX_PAYLOAD + 1))
    uses = tuple(ProgramUse(f"{number:0600}", options=b"o" * 50_000 + b"%d" % number) for number in range(200))
    payload = encode_profile(RunProfile({ON: uses}))
    assert len(payload) <= MAX_PAYLOAD
    left = decode_profile(payload).environments[ON]
    assert left == uses[: len(left)]
    assert left


def test_programs_are_in_the_order_of_their_first_use():
    """The order is that of the last run; what it did not use follows."""
    profile = merge(RunProfile({ON: (FIRST, SECOND)}), ON, [SECOND, QUICK])
    assert keys(profile) == [SECOND.key, QUICK.key, FIRST.key]


def test_an_unused_program_leaves_after_three_runs():
    """A run that uses it in between keeps it."""
    profile = merge(RunProfile(), ON, [FIRST, SECOND])
    for used in ([FIRST], [FIRST], [FIRST, SECOND], [FIRST], [FIRST]):
        profile = merge(profile, ON, used)
        assert SECOND.key in keys(profile)
    assert keys(merge(profile, ON, [FIRST])) == [FIRST.key]


def test_a_run_that_ended_early_forgets_nothing():
    """It used less than half of the programs."""
    many = [FIRST._replace(key=f"k{number}") for number in range(9)]
    profile = merge(RunProfile(), ON, many)
    for _ in range(5):
        profile = merge(profile, ON, many[:4])
    assert len(keys(profile)) == 9


def test_each_environment_has_its_own_programs():
    """At most four are kept: those that were written last."""
    profile = RunProfile()
    for number in range(6):
        profile = merge(profile, f"cpu-{number}", [FIRST._replace(key=f"k{number}")])
    profile = merge(profile, "cpu-3", [SECOND])
    assert list(profile.environments) == ["cpu-2", "cpu-4", "cpu-5", "cpu-3"]
    assert keys(profile, "cpu-3") == [SECOND.key, "k3"]


def test_a_compiled_program_keeps_the_size_that_an_earlier_run_knew():
    """Compiling tells nothing about loading."""
    profile = merge(RunProfile({ON: (FIRST,)}), ON, [FIRST._replace(size=0, seconds=0.0)])
    assert profile.environments[ON] == (FIRST,)


def test_a_host_on_which_a_quick_program_is_quicker_says_nothing_about_the_others():
    """Whether a program is kept is decided by each host; about as slow as the floor, it would change with each run."""
    kept = QUICK._replace(stored=True, options=b"o", devices=(0,), size=3, unused=2)
    before = RunProfile({ON: (FIRST, kept)})
    after = merge(before, ON, [FIRST, QUICK._replace(key=kept.key, quick=0.007)])
    assert after.environments[ON][1] == kept._replace(quick=0.007, unused=0)
    assert not differs(RunProfile({ON: (FIRST, kept._replace(unused=0))}), after, ON)
    published = RunProfile({ON: (FIRST._replace(quick=0.0),)})
    assert not merge(published, ON, [FIRST._replace(quick=0.007, stored=False, seconds=0.0)]).environments[ON][0].stored


def test_only_what_the_next_run_would_do_differently_is_a_difference():
    """Times and the order are not."""
    before = RunProfile({ON: (FIRST, SECOND)})
    assert not differs(before, RunProfile({ON: (SECOND._replace(seconds=9.0), FIRST)}), ON)
    for other in (
        (FIRST,),
        (FIRST, SECOND, QUICK),
        (FIRST, SECOND._replace(unused=1)),
        (FIRST, SECOND._replace(options=b"")),
    ):
        assert differs(before, RunProfile({ON: other}), ON)


def test_a_program_with_huge_options_is_left_out():
    """Those of a compilation with a PGLE profile hold the profile."""
    assert keys(merge(RunProfile(), ON, [FIRST, SECOND._replace(options=b"p" * 100_000)])) == [FIRST.key]
