"""Starts of a program with a direct function: recorded, proven, answered; changed, wrong and switched off."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from direct_scripts import run_scripts
from helpers import run_program

import ejcache
from ejcache.settings.resolve import resolve

pytest.importorskip("ejcache.direct")
from ejcache.direct import recording

TRAIN = """
import sys
import jax, jax.numpy as jnp, numpy as np
import ejcache

if "wrong" in sys.argv:
    import ejcache.direct.records as store
    def decode(raw, original=store.decode_document):
        document = original(raw)
        others = [record._replace(entry=record.entry.replace("jit_step-", "jit_mine-")) for record in document.records]
        return document._replace(records=tuple(others))
    store.decode_document = decode

RATE, calls = 0.1, []

@ejcache.ejit(direct=True)
def step(w, x):
    return w - RATE * jax.grad(lambda w: jnp.tanh(x @ w).sum() ** 2)(w)

@ejcache.ejit
def other(x):
    return x + 2

@ejcache.ejit
def broken(x):
    calls.append(1)
    raise KeyError("mine")

w = step(jnp.ones((4, 4)), jnp.ones((8, 4)))
try:
    broken(other(1.0))
except KeyError:
    print(float(w.sum()), len(calls))
"""
"""With the word `wrong` each record of `step` leads to another program."""


def test_the_starts_of_a_program(tmp_path):
    """Recorded, proven and answered; changed, and named by `why`; checked, and switched off where a record was wrong.

    What the function raises reaches the program, which has then run once; what it computes stays right.
    """
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    results = []

    def run(*arguments, **env):
        env |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "EJCACHE": str(tmp_path / "cache")}
        env = {"EJCACHE_DIRECT": "1", "EJCACHE_DIRECT_FLOOR": "0", **env}
        if "verify" not in arguments:
            env["EJCACHE_DIRECT_CHECK_ONE_IN"] = "0"
        return run_program([sys.executable, "-m", "ejcache", *arguments], cwd=tmp_path, env=env, check=False)

    def start(**env):
        report = run("run", "--json", "train.py", **env)
        results.append(report.stdout.split())
        counts = json.loads(report.stderr.splitlines()[-1])["direct"]
        return {verdict: number for verdict, number in counts.items() if number}

    def verify(*words):
        verified = run("verify", "--direct", "--json", "train.py", *words)
        return verified.returncode, json.loads(verified.stdout)["counts"]

    assert start() == {"missed": 2}
    assert verify() == (0, {"unproven": 2})
    assert start() == {"hit": 2}
    script.write_text(TRAIN.replace("0.1", "0.2"))
    assert start(EJCACHE_DIRECT_FLOOR="1000") == {"plain": 2}
    assert start() == {"missed": 2}
    assert results[0] == results[1] != results[2] == results[3]
    (document,) = json.loads(run("why", "step", "--json").stdout)
    assert [(each["function"], each["verdict"]) for each in document["direct"]] == [("__main__.step", "missed")]
    assert "RATE" in document["direct"][0]["sentence"]
    script.write_text(TRAIN)
    assert verify() == (0, {"checked": 2})
    assert verify("wrong") == (1, {"wrong": 1, "checked": 1})
    assert start() == {"plain": 1, "hit": 1}
    assert results[-1] == results[0]
    assert run("verify").returncode == 0


@pytest.mark.parametrize("word", ["strict", "explain"])
def test_words_of_the_last_version_count_as_true_and_warn(word, monkeypatch, caplog):
    """They have no effect of their own any more."""
    monkeypatch.setenv("EJCACHE_DIRECT", word)
    assert resolve().direct is True
    assert f"direct={word} has no effect any more" in caplog.text
    with pytest.warns(DeprecationWarning, match="nothing raises it any more"):
        assert issubclass(ejcache.DirectModeError, ejcache.EjcacheError)


def test_what_changes_at_each_start_is_named_with_the_advice_that_helps():
    """A value can be left out of the comparison, and a file cannot."""
    record = SimpleNamespace(state="now")
    for missed, records, advice in (
        ("step → self.run changed", [], 'ignore=["step.self.run"]'),
        ("the module train changed", [record], "keep what differs between starts out of the files of the program"),
    ):
        document, state = SimpleNamespace(records=records), SimpleNamespace(digest="now")
        said = recording._advice(SimpleNamespace(missed=missed, document=document, state=state))
        assert said.startswith(advice)


def test_a_script_hits_wherever_it_is_installed(tmp_path):
    """A script with a run id, a time stamp and new directories hits at its third start, from a wheel."""
    for each in run_scripts(tmp_path, scripts=["trainer_class", "rope_cache"], ways=["wheel"]):
        assert (each["verdicts"], each["right"]) == (["missed", "unproven", "hit"], True), each
