"""Processes that start a project again and again: what is recorded, proven and reused, and what makes it a miss."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers import run_program

TRAIN = """
import json, os, sys
import jax, jax.numpy as jnp, numpy as np
import ejcache
import helper

ejcache.enable(os.environ["CACHE_AT"], min_compile_seconds=0)
traced = []
with open("config.yaml") as file:
    factor = float(file.read())

@ejcache.ejit(reuse_lowering=True, donate_argnums=0)
def init(key):
    traced.append("init")
    return jax.random.normal(key, (8, 8))

@ejcache.ejit(reuse_lowering=True)
def step(state, x):
    traced.append("step")
    x = jnp.tanh(x @ state["w"]) * helper.SCALE * factor * float(os.environ.get("FACTOR", 1))
    return {"w": state["w"] - x.T @ x, "n": state["n"] + ("--more" in sys.argv)}, x.sum()

state = {"w": init(jax.random.key(0)), "n": 0}
for _ in range(2):
    state, loss = step(state, np.ones((8, 8), np.float32))
print(json.dumps({"traced": traced, "loss": float(loss), "n": int(state["n"])}))
"""


@pytest.fixture
def project(tmp_path):
    """A directory with a program, a module and a configuration file."""
    place = tmp_path / "project"
    place.mkdir()
    (place / "train.py").write_text(TRAIN)
    (place / "helper.py").write_text("SCALE = 0.5\n")
    (place / "config.yaml").write_text("2.0\n")
    return place


@pytest.fixture
def start(project, tmp_path):
    """Start the program, and return what it printed."""

    def run(*arguments, command=("train.py",), place=project, at_once=False, **environment):
        # The start of a process is known to ten milliseconds: what a test has just written must be older than that.
        if not at_once:
            run_program([sys.executable, "-c", "pass"])
        done = run_program(
            [sys.executable, *command, *arguments],
            cwd=place,
            env={
                "CACHE_AT": str(tmp_path / "cache"),
                "XDG_CACHE_HOME": str(tmp_path / "home"),
                "EJCACHE_REUSE_FLOOR": "0",
                "EJCACHE_REUSE_CHECK_ONE_IN": "0",
                **environment,
            },
        )
        return json.loads(done.stdout.splitlines()[-1])

    return run


BOTH = ["init", "step"]


def test_the_third_start_traces_nothing(start):
    """The first start records, the second proves, and the third reuses; all compute the same."""
    said = [start() for _ in range(3)]
    assert [each["traced"] for each in said] == [BOTH, BOTH, []]
    assert len({(each["loss"], each["n"]) for each in said}) == 1


@pytest.mark.soak
def test_what_changes_is_traced(start, project):
    """Each input that changes makes the start trace; with what was before, the next one reuses."""
    for _ in range(2):
        start()
    assert start()["traced"] == []
    assert start("--more")["traced"] == BOTH
    assert start(FACTOR="3")["traced"] == BOTH
    for name, text in (("helper.py", "SCALE = 0.25\n"), ("config.yaml", "3.0\n")):
        before = (project / name).read_text()
        (project / name).write_text(text)
        assert start()["traced"] == BOTH
        (project / name).write_text(before)
    for name in ("new.py", "override.yaml"):
        (project / name).write_text("1")
        assert start()["traced"] == BOTH
        (project / name).unlink()
    assert start()["traced"] == []


@pytest.mark.soak
def test_a_file_that_changes_while_the_process_runs(start, project):
    """What a process writes into the project before its first call keeps it from recording."""
    train = project / "train.py"
    train.write_text("open('log.txt', 'a').write('x')\n" + train.read_text())
    assert [start()["traced"] for _ in range(4)] == [BOTH] * 4
    assert start(EJCACHE_REUSE_IGNORE="log.txt")["traced"] == BOTH
    start(EJCACHE_REUSE_IGNORE="log.txt")
    assert start(EJCACHE_REUSE_IGNORE="log.txt")["traced"] == []


def test_configuration_that_is_written_at_each_start(start, project):
    """A script writes it, alone in its directory, and starts the program at once: it is no output of the program."""
    train = project / "train.py"
    train.write_text(TRAIN.replace('open("config.yaml")', 'open("conf/config.yaml")'))
    conf = project / "conf"
    conf.mkdir()
    said = []
    for number in ("2.0", "2.0", "2.0", "3.0"):
        (conf / "config.yaml").write_text(number)
        said.append(start(at_once=True))
    assert [each["traced"] for each in said[:2]] == [BOTH, BOTH]
    assert said[2]["loss"] != said[3]["loss"]


@pytest.mark.soak
def test_outputs_and_ignored_arguments(start, project):
    """A new output directory at each start, and an ignored argument, do not count."""
    train = project / "train.py"
    # After the imports: what is written in the first hundredth of a second may be older than the process.
    output = "import time\nwhere = f'out{time.time_ns()}'\nos.makedirs(where)\n"
    output += "open(f'{where}/config.yaml', 'w').write(where)\n"
    opened = 'with open("config.yaml")'
    train.write_text(TRAIN.replace(opened, f"{output}{opened}"))
    ways = [("--run-name", "a"), ("--run-name=b",), ("--run_name", "c")]
    said = [start(*way, EJCACHE_REUSE_IGNORE="--run-name") for way in (*ways, ("run_name=d",))]
    assert [each["traced"] for each in said][:3] == [BOTH, BOTH, []]


@pytest.mark.soak
def test_the_same_project_elsewhere(start, project, tmp_path):
    """A copy of the project in another directory reuses."""
    for _ in range(2):
        start()
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-rp", str(project), str(copy)], check=True)
    assert start(place=copy)["traced"] == []


@pytest.mark.soak
def test_a_process_traces_and_compares(start):
    """One process in so many traces although it could reuse."""
    for _ in range(2):
        start()
    assert start(EJCACHE_REUSE_CHECK_ONE_IN="1")["traced"] == BOTH
    assert start()["traced"] == []


def test_two_traces_that_differ(start, project):
    """Chance that nobody declared is found by the proof, and nothing is reused from then on."""
    (project / "helper.py").write_text("import random\nSCALE = random.random()\n")
    said = [start() for _ in range(3)]
    assert [each["traced"] for each in said] == [BOTH] * 3
    assert len({each["loss"] for each in said}) == 3


def test_a_question_is_asked_once(start, project):
    """Two functions with one name and one question: neither is reused, at this start or later."""
    train = project / "train.py"
    again = "first = state\nfor number in (1, 2):\n    helper.SCALE, state = number, first\n    jax.clear_caches()"
    train.write_text(TRAIN.replace("for _ in range(2):", again))
    said = [start() for _ in range(4)]
    assert {each["loss"] for each in said} == {said[0]["loss"]}
    assert all(each["traced"].count("step") == 2 for each in said)


@pytest.mark.soak
def test_where_inputs_are_not_known(start, project):
    """Code on the command line, whose main module has no file, is traced."""
    code = f"import runpy; runpy.run_path({str(project / 'train.py')!r})"
    assert [start(command=("-c", code), PYTHONPATH=str(project))["traced"] for _ in range(3)] == [BOTH] * 3


@pytest.mark.soak
def test_damage_is_a_miss(start, tmp_path):
    """Without its modules, a record is of no use."""
    for _ in range(2):
        start()
    from ejcache.stores.opening import open_store

    with open_store(tmp_path / "cache") as store:
        for info in list(store.entries()):
            if info.key.startswith("reuse_module"):
                store.delete(info.key)
    assert start()["traced"] == BOTH
    assert start()["traced"] == []


@pytest.mark.soak
def test_why_compares_with_the_nearest_start(start, project, tmp_path):
    """The latest start had another argument and file, and one before it another file: that one is compared."""

    def why():
        done = run_program(
            [sys.executable, "-m", "ejcache", "why", "step", "--json"], env={"XDG_CACHE_HOME": str(tmp_path / "home")}
        )
        (found,) = json.loads(done.stdout)["reuse"]
        return found["did"], found["sentence"], found["advice"]

    start()
    assert why() == ("recorded", "nothing was recorded for these inputs", "")
    start()
    assert why() == ("proven", "an earlier start has recorded the same program", "")
    start(EJCACHE_REUSE_CHECK_ONE_IN="1")
    assert why() == ("compared", "one start in 1 traces everything and compares", "")
    start("--more", EJCACHE_REUSE_IGNORE="env:A")
    line = "if no program depends on it: ejcache config set reuse_ignore="
    assert why() == ("recorded", "the argument '--more' is new", f"{line}env:A,--more")
    (project / "config.yaml").write_text("3.0\n")
    start()
    assert why() == ("recorded", "the file config.yaml changed", f"{line}config.yaml")


@pytest.mark.soak
def test_verify_compares(project, tmp_path):
    """Where each run has other inputs than the one before, nothing was compared, and nothing is verified."""
    train = project / "train.py"
    train.write_text(f"import time\nopen(f'r{{time.time_ns()}}.json', 'w').close()\n{train.read_text()}")
    env = {"CACHE_AT": str(tmp_path / "cache"), "XDG_CACHE_HOME": str(tmp_path / "home"), "EJCACHE_REUSE_FLOOR": "0"}
    command = [sys.executable, "-m", "ejcache", "verify", "--reuse", "--json", "train.py"]
    for ignored, is_clean in ((None, False), ("r*.json", True)):
        done = run_program(command, cwd=project, env={**env, "EJCACHE_REUSE_IGNORE": ignored}, check=False)
        said = json.loads(done.stdout)
        assert (done.returncode, said["clean"]) == (not is_clean, is_clean)
        assert [each["compared"] for each in said["functions"]] == [is_clean] * 2


@pytest.mark.soak
def test_verify_finds_chance(project, tmp_path):
    """`ejcache verify --reuse` exits with 1 where traces differ, and with 0 where they do not."""
    env = {"CACHE_AT": str(tmp_path / "cache"), "XDG_CACHE_HOME": str(tmp_path / "home"), "EJCACHE_REUSE_FLOOR": "0"}
    command = [sys.executable, "-m", "ejcache", "verify", "--reuse", "--json", "train.py"]
    run_program([sys.executable, "-c", "pass"])
    fine = run_program(command, cwd=project, env=env, check=False)
    assert (fine.returncode, json.loads(fine.stdout)["clean"]) == (0, True), fine
    (project / "helper.py").write_text("SCALE = len(next(iter({'a', 'bb', 'ccc', 'dddd', 'eeeee'})))\n")
    wrong = run_program(command, cwd=project, env=env, check=False)
    said = {each["function"]: each["did"] for each in json.loads(wrong.stdout)["functions"]}
    assert (said["__main__.step"] == "wrong") is (wrong.returncode == 1), wrong
