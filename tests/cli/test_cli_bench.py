"""`ejcache bench` starts a program in turns, compares what it prints, and leaves the user's caches alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from forking import ForkedWithChildren
from helpers import run_program

STEP = """
import sys, jax, jax.numpy as jnp
print(float(jax.jit(lambda x: jnp.tanh(x @ x.T).sum())(jnp.ones((64, 64)))))
"""
CONTESTANTS = ["no cache", "JAX, defaults", "JAX, floor 0", "ejcache, cold", "ejcache, warm"]


@pytest.fixture
def bench(tmp_path):
    """Run `ejcache bench` on a program text; its answer, and what is in the user's cache directory then."""

    def bench(program, *options, start=ForkedWithChildren, **env):
        script = tmp_path / "train.py"
        script.write_text(program)
        home = tmp_path / "caches"
        (home / "other").mkdir(parents=True, exist_ok=True)
        (home / "other" / "weights").write_text("weights")
        command = [sys.executable, "-m", "ejcache", "bench", "--rounds", "1", *options, str(script)]
        done = run_program(command, cwd=tmp_path, env={"XDG_CACHE_HOME": str(home), **env}, check=False, start=start)
        return done, sorted(path.name for path in home.iterdir())

    return bench


@pytest.mark.soak
def test_contestants_and_caches(bench):
    """Each contestant starts, all print the same, and nothing is written to the user's caches."""
    done, kept = bench(STEP, "--json", start=subprocess.Popen, EJCACHE="1", EJCACHE_READ_ONLY="1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["contestants"]
    assert [each["name"] for each in found] == CONTESTANTS
    assert all(each["same_output"] is True and 0 < each["least_seconds"] <= each["seconds"] for each in found)
    assert kept == ["other"]


def test_another_result_is_found(bench):
    """A program whose result depends on the cache is reported, with exit status 1."""
    done, _ = bench("import os\nprint(os.environ['EJCACHE'])")
    assert done.returncode == 1
    assert [line.split()[-1] for line in done.stdout.splitlines()[1:6]] == ["same"] * 3 + ["DIFFERS"] * 2


def test_other_caches_are_those_of_the_user(bench):
    """What other libraries keep in the cache directory is there: nothing is fetched anew."""
    done, _ = bench(
        "import os, pathlib\nprint(pathlib.Path(os.environ['XDG_CACHE_HOME'], 'other', 'weights').read_text())"
    )
    assert done.returncode == 0, done.stderr


def test_the_configuration_file_of_the_user_does_not_count(bench, tmp_path):
    """It may name caches, or turn them off; the files of other programs beside it are there."""
    files = tmp_path / "configuration"
    for name, text in (("ejcache/config.toml", 'autotune_dir = "/elsewhere"\n'), ("other/file", "theirs")):
        (files / name).parent.mkdir(parents=True)
        (files / name).write_text(text)
    done, _ = bench(
        "import os, pathlib, ejcache\n"
        "assert ejcache.current_settings().autotune_dir is None\n"
        "assert pathlib.Path(os.environ['XDG_CONFIG_HOME'], 'other', 'file').read_text() == 'theirs'",
        XDG_CONFIG_HOME=str(files),
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("program", "words"), [("raise SystemExit(3)", "ended with 3"), ("1/0", "ZeroDivisionError")])
def test_a_program_that_fails(bench, program, words):
    """Its exit status, its contestant and the last line of its errors are shown."""
    done, _ = bench(program)
    assert done.returncode == 1
    assert words in done.stderr
    assert "(JAX, defaults)" in done.stderr


def test_no_rounds(bench):
    """Nothing is started for no rounds."""
    done, _ = bench("print(1)", "--rounds", "0")
    assert done.returncode == 2
    assert "1 or more" in done.stderr
