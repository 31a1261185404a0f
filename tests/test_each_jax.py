"""`tools/each_jax.py`: which versions of JAX it takes, and in which order."""

from __future__ import annotations

import each_jax

FOUND = ["0.4.37", "0.4.38", "0.5.0", "0.5.3", "0.12.0", "0.12.0.1", "0.13.0rc1", "0.13.0.dev20270101"]


def taken(*versions: str) -> list[str]:
    return [each.jax for each in each_jax.chosen(dict.fromkeys(versions, "python"))]


def test_one_release_of_each_minor_version_and_the_newest_that_is_none():
    """Pre-releases only if no release is newer."""
    assert taken(*FOUND) == ["0.4.38", "0.5.3", "0.12.0.1", "0.13.0rc1"]
    assert taken(*FOUND, "0.13.0") == ["0.4.38", "0.5.3", "0.12.0.1", "0.13.0"]
    assert taken("0.4.37") == []


def test_each_version_is_the_second_on_some_day():
    """The newest is the first every day: users get it."""
    versions = each_jax.chosen(dict.fromkeys(FOUND, "python"))
    days = [[each.jax for each in each_jax.in_turns(versions, day)] for day in range(3)]
    assert {each[0] for each in days} == {"0.13.0rc1"}
    assert {each[1] for each in days} == {"0.4.38", "0.5.3", "0.12.0.1"}
    assert all(sorted(each) == sorted(days[0]) for each in days)


def test_an_index_that_cannot_be_asked_has_no_version(tmp_path):
    """As one whose environment cannot be made, it is left out."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert each_jax.released(str(broken), pre=True) == []
    assert each_jax.environment(each_jax.Version("0.8.3", str(broken)), tmp_path / "envs", seconds=5.0) is None
