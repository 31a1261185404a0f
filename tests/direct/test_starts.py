"""Starts of a program with a direct function: recorded, proven, answered; changed, wrong and switched off."""

from __future__ import annotations

import json
import sys

import pytest
from direct_scripts import run_scripts
from helpers import run_program

pytest.importorskip("ejcache.direct")

TRAIN = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
import ejcache

RATE, calls = 0.1, []

@ejcache.ejit(direct=True)
def step(w, x):
    if "fail" in sys.argv:
        calls.append(1)
        raise KeyError("mine")
    return w - RATE * jax.grad(lambda w: jnp.tanh(x @ w).sum() ** 2)(w)

@ejcache.ejit
def other(x):
    return x + 2

try:
    w = step(jnp.ones((4, 4)), jnp.ones((8, 4)))
    print(float(w.sum()), float(other(1.0)), ejcache.stats().amounts.get("direct_hit", 0))
except KeyError:
    print(len(calls))
"""
WRONG = """
import ejcache.direct.records as store
def decode(raw, original=store.decode_document):
    document = original(raw)
    others = [record._replace(entry=record.entry.replace("jit_step-", "jit_mine-")) for record in document.records]
    return document._replace(records=tuple(others))
store.decode_document = decode
"""
"""Each record leads to another program."""


@pytest.fixture
def run(tmp_path):
    """Run the command line in a directory with a program, with every program stored and every function direct."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "wrong.py").write_text(WRONG + TRAIN)

    def run(*arguments, check=True, **env):
        env |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "EJCACHE": str(tmp_path / "cache")}
        env = (
            {"EJCACHE_DIRECT_FLOOR": "0"}
            | ({} if "verify" in arguments else {"EJCACHE_DIRECT_CHECK_ONE_IN": "0"})
            | env
        )
        return run_program([sys.executable, "-m", "ejcache", *arguments], cwd=tmp_path, env=env, check=check)

    return run


def counted(report):
    """The verdicts that a report of `ejcache run --json` has counted."""
    return {
        verdict: number for verdict, number in json.loads(report.stderr.splitlines()[-1])["direct"].items() if number
    }


def test_from_the_first_start_to_a_change(run, tmp_path):
    """Each start is counted, `why` names what changed, and what the program computes stays right."""
    starts = [run("run", "--json", "train.py") for _ in range(3)]
    assert [counted(each) for each in starts] == [{"missed": 1}, {"unproven": 1}, {"hit": 1}]
    assert len({each.stdout.split()[0] for each in starts}) == 1
    (tmp_path / "train.py").write_text(TRAIN.replace("0.1", "0.2"))
    changed = run("run", "--json", "train.py")
    assert (counted(changed), changed.stdout.split()[0] == starts[0].stdout.split()[0]) == ({"missed": 1}, False)
    (document,) = json.loads(run("why", "step", "--json").stdout)
    (direct,) = document["direct"]
    assert (direct["function"], direct["verdict"]) == ("__main__.step", "missed")
    assert "RATE" in direct["sentence"]
    assert run("verify").returncode == 0


def test_variables_switch_it_on_and_off(run):
    """`EJCACHE_DIRECT=1` is for each `@ejit`; a function that is traced quickly stays plain; one in one is checked."""
    assert counted(run("run", "--json", "train.py", EJCACHE_DIRECT="1")) == {"missed": 2}
    assert counted(run("run", "--json", "train.py", EJCACHE_DIRECT_FLOOR="1000")) == {"unproven": 1}
    assert counted(run("run", "--json", "train.py", EJCACHE_DIRECT_CHECK_ONE_IN="1")) == {"checked": 1}


def test_an_exception_of_the_function_is_the_programs(run):
    """What the function raises while it is traced reaches the program, and the function ran once."""
    assert run("run", "train.py", "fail").stdout.split() == ["1"]


def test_a_wrong_record_is_deleted_and_switches_off(run):
    """`verify --direct` traces and compares: a record that leads to another program fails and is deleted."""
    assert run("verify", "--direct", "wrong.py").stdout.startswith("missed  __main__.step: ")
    wrong = run("verify", "--direct", "wrong.py", check=False)
    assert wrong.returncode == 1
    assert wrong.stdout.split()[:5] == ["wrong", "__main__.step:", "tracing", "gave", wrong.stdout.split()[4]]
    assert counted(run("run", "--json", "wrong.py")) == {"plain": 1}


def test_verify_direct_compares_right_records(run):
    """Right records are compared, each process of the program traces, and nothing is wrong."""
    said = [run("verify", "--direct", "--json", "train.py") for _ in range(3)]
    assert [json.loads(each.stdout)["counts"] for each in said] == [{"missed": 2}, {"unproven": 2}, {"checked": 2}]


def test_a_script_hits_wherever_it_is_installed(tmp_path):
    """A script with a run id, a time stamp and new directories hits at its third start, by path and from a wheel."""
    for each in run_scripts(tmp_path, scripts=["trainer_class", "rope_cache"], ways=["path", "wheel"]):
        assert (each["verdicts"], each["right"]) == (["missed", "unproven", "hit"], True), each
