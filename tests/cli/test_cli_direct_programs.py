"""Direct mode on the command line, with programs that JAX runs: from the first start to a record that is wrong."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import run_program

from ejcache import entry, open_store
from ejcache.direct.records import DIRECT_RECORD_KIND, decode_document, encode_document

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="direct mode needs Python 3.12")

TRAIN = """
import sys, time
import jax
import jax.numpy as jnp
import ejcache

RATE = 0.1

@ejcache.ejit(direct=True)
def step(w, x):
    return w - RATE * jax.grad(lambda w: jnp.tanh(x @ w).sum() ** 2)(w)

@ejcache.ejit(direct=True)
def noisy(x):
    return x * time.time()

step(jnp.ones((64, 64)), jnp.ones((8, 64)))
if "noisy" in sys.argv:
    noisy(jnp.ones(8))
"""
CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "train.py"], check=True)
"""


@pytest.fixture
def run(tmp_path):
    """Run the command line in a directory with a program, with every program stored."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "child.py").write_text(CHILD)

    def run(*arguments, check=True):
        # The path of one program that checks itself by chance would be that of another test.
        env = {
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "EJCACHE": str(tmp_path / "cache"),
            "EJCACHE_DIRECT_CHECK_ONE_IN": "0",
        }
        return run_program([sys.executable, "-m", "ejcache", *arguments], cwd=tmp_path, env=env, check=check)

    return run


def counted(report):
    """The verdicts that a report of `ejcache run --json` has counted."""
    return {verdict: number for verdict, number in json.loads(report.stderr)["direct"].items() if number}


def said(run, what="step"):
    """What `why` says of direct mode and a function."""
    (document,) = json.loads(run("why", what, "--json").stdout)
    (direct,) = document["direct"]
    return direct


def test_from_the_first_start_to_a_change(run, tmp_path):
    """Each start is counted, and `why` says what it was: missed, unproven, hit, and missed because of a change."""
    assert [counted(run("run", "--json", "train.py")) for _ in range(3)] == [{"missed": 1}, {"unproven": 1}, {"hit": 1}]
    assert (said(run)["function"], said(run)["verdict"]) == ("__main__.step", "hit")
    assert said(run)["counts"] == {"hit": 1, "unproven": 1, "missed": 1}
    (tmp_path / "train.py").write_text(TRAIN.replace("0.1", "0.2"))
    assert run("run", "train.py", "noisy").stderr.count("; direct: 1 missed, 1 refused (") == 1
    assert said(run)["verdict"] == "missed"
    assert "RATE" in said(run)["sentence"]
    assert "time.time()" in said(run, "jit_noisy")["sentence"]
    lines = run("why", "step").stdout.splitlines()
    assert lines[0].startswith("jit_step was compiled because RATE changed: 0.1 -> 0.2")
    assert [line.split()[1:4] for line in lines if line.startswith("direct ")] == [
        ["__main__.step", "missed", "because"]
    ]
    stats = json.loads(run("stats", "--json").stdout)
    assert {verdict: number for verdict, number in stats["direct"].items() if number} == {
        "hit": 1, "unproven": 1, "missed": 2, "refused": 1
    }  # fmt: skip
    assert all("direct" not in each["key"] for each in json.loads(run("ls", "--json").stdout)["entries"])
    assert stats["side_objects"] > 0
    assert run("verify").returncode == 0


def test_verify_direct_traces_and_compares(run, tmp_path):
    """Every process of the program traces and compares; a record that leads to another program fails and is deleted."""
    first = run("verify", "--direct", "child.py")
    assert first.stdout.startswith("missed  __main__.step: ")
    assert run("verify", "--direct", "--strict", "child.py").stdout.startswith("unproven  __main__.step: ")
    checked = json.loads(run("verify", "--direct", "--json", "train.py").stdout)
    assert (checked["counts"], checked["compared"], checked["clean"]) == ({"checked": 1}, 1, True)
    assert run("verify", "--direct", "train.py", "noisy").returncode == 0
    assert run("verify", "--direct", "--strict", "train.py", "noisy", check=False).returncode == 1
    lead_astray(tmp_path / "cache")
    wrong = run("verify", "--direct", "train.py", check=False)
    assert wrong.returncode == 1
    assert wrong.stdout.startswith("wrong  __main__.step: tracing gave jit_step-")
    assert wrong.stdout.splitlines()[-1] == "1 call of direct functions, 1 compared with a record: 1 record was wrong"
    assert said(run)["verdict"] == "wrong"
    assert counted(run("run", "--json", "train.py")) == {"plain": 1}


def lead_astray(directory):
    """Let each record lead to another entry than the one that tracing leads to."""
    with open_store(directory) as store:
        keys = [info.key for info in store.entries() if info.key.startswith("direct_record-")]
        assert keys
        for key in keys:
            data = store.get(key)
            document = decode_document(entry.decode(data, key=key).raw)
            records = [
                record._replace(entry=record.entry.replace("jit_step-", "jit_other-")) for record in document.records
            ]
            payload = encode_document(document._replace(records=tuple(records)))
            store.replace(key, entry.encode(entry.Header(key=key, kind=DIRECT_RECORD_KIND), payload))
