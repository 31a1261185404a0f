"""`ejcache bench` starts a program in turns, compares what it prints, and leaves the user's caches alone."""

from __future__ import annotations

import contextlib

import pytest
from cli_helpers import ejcache

from ejcache.cli import output

STEP = """
import sys, jax, jax.numpy as jnp
print(float(jax.jit(lambda x: jnp.tanh(x @ x.T).sum())(jnp.ones((64, 64)))))
"""
CONTESTANTS = ["no cache", "JAX, defaults", "JAX, floor 0", "ejcache, cold", "ejcache, warm"]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Run `ejcache bench` on a program text; its answer, and what is in the user's cache directory then."""

    def bench(program, *options, **env):
        script = tmp_path / "train.py"
        script.write_text(program)
        home = tmp_path / "caches"
        (home / "other").mkdir(parents=True, exist_ok=True)
        (home / "other" / "weights").write_text("weights")
        for name, value in {"XDG_CACHE_HOME": str(home), **env}.items():
            monkeypatch.setenv(name, value)
        said = ejcache("bench", "--rounds", "1", *options, script)
        return said, sorted(path.name for path in home.iterdir())

    return bench


@pytest.mark.soak
def test_contestants_and_caches(bench):
    """Each contestant starts, all print the same, and nothing is written to the user's caches."""
    said, kept = bench(STEP, "--json", EJCACHE="1", EJCACHE_READ_ONLY="1")
    assert said.status == 0, said
    found = said.json["contestants"]
    assert [each["name"] for each in found] == CONTESTANTS
    assert all(each["same_output"] is True and 0 < each["least_seconds"] <= each["seconds"] for each in found)
    assert kept == ["other"]


@pytest.mark.usefixtures("forked_children")
def test_another_result_is_found(bench, monkeypatch):
    """A program whose result depends on the cache is reported, with exit status 1; each start moves the bar."""
    steps = []

    @contextlib.contextmanager
    def progress(label, total, **_):
        yield lambda: steps.append(label)
        assert (total, {*steps}) == (len(steps), {"starting"})

    monkeypatch.setattr(output, "progress", progress)
    said, _ = bench("import os\nprint(os.environ['EJCACHE'])")
    assert said.status == 1
    assert [line.split()[-1] for line in said.lines[1:6]] == ["same"] * 3 + ["DIFFERS"] * 2
    assert len(steps) > len(CONTESTANTS)


@pytest.mark.usefixtures("forked_children")
def test_directories_of_the_user(bench, tmp_path):
    """What other programs keep in them is there, so that nothing is fetched anew, and nothing of ejcache.

    Its configuration file may name caches, or turn them off.
    """
    files = tmp_path / "configuration"
    for name, text in (("ejcache/config.toml", 'autotune_dir = "/elsewhere"\n'), ("other/file", "theirs")):
        (files / name).parent.mkdir(parents=True)
        (files / name).write_text(text)
    said, _ = bench(
        "import os, pathlib, ejcache\n"
        "assert ejcache.current_settings().autotune_dir is None\n"
        "assert pathlib.Path(os.environ['XDG_CACHE_HOME'], 'other', 'weights').read_text() == 'weights'\n"
        "assert pathlib.Path(os.environ['XDG_CONFIG_HOME'], 'other', 'file').read_text() == 'theirs'",
        XDG_CONFIG_HOME=str(files),
    )
    assert said.status == 0, said


@pytest.mark.usefixtures("forked_children")
@pytest.mark.parametrize(("program", "words"), [("raise SystemExit(3)", "ended with 3"), ("1/0", "ZeroDivisionError")])
def test_a_program_that_fails(bench, program, words):
    """Its exit status, its contestant and the last line of its errors are shown."""
    said, _ = bench(program)
    assert (said.status, words in said.err, "(JAX, defaults)" in said.err) == (1, True, True)


def test_no_rounds(bench):
    """Nothing is started for no rounds."""
    said, _ = bench("print(1)", "--rounds", "0")
    assert (said.status, "1 or more" in said.err) == (2, True)
