"""Processes of one host that need the same call at once: one measures it, and the others wait for its record."""

from __future__ import annotations

import subprocess
import threading

import jax.numpy as jnp
from autotune_helpers import QUICK
from forking import Forked
from helpers import python_command

from ejcache.autotune import AutotuneStore, Tuner, autotuned

X = jnp.ones(8)


def operation(place, during=lambda: None, *, tuner=QUICK):
    """The operation as a process of its own has it: with a store and a choice of its own."""
    store = AutotuneStore(str(place), seeds=(), refresh_seconds=0.0)

    @autotuned(configs=[{"n": 1}, {"n": 2}], name="op", store=store, tuner=tuner)
    def op(x, *, n):
        during()
        return x * 2

    return op


def test_one_of_two_measures(tmp_path):
    """The other one begins while the first one measures, and has its record when it has ended."""
    other = operation(tmp_path)
    found = []
    waiting = threading.Thread(target=lambda: found.append(other.choose(X)))

    def begin_once():
        if not waiting.ident:
            waiting.start()

    choice = operation(tmp_path, begin_once).choose(X)
    waiting.join()
    assert found[0].configuration == choice.configuration
    assert (found[0].source.value, found[0].layer) == ("tuned", "user")
    assert other.chooser().counters["tuning"] == 0


PROGRAM = """
import logging, sys
import numpy as np
from ejcache.autotune import AutotuneStore, Tuner, autotuned

def say(text):
    print(text, flush=True)

class Waits(logging.Handler):
    def emit(self, record):
        if "another process measures" in record.getMessage():
            say("waits")

logger = logging.getLogger("ejcache.autotune")
logger.setLevel(logging.INFO)
logger.addHandler(Waits())
store = AutotuneStore(sys.argv[1], seeds=(), refresh_seconds=0.0)
built = set()

quick = Tuner(sample_seconds=0.0005, rounds=8)

@autotuned(configs=[{"n": 1}, {"n": 2}], name="op", store=store, tuner=quick)
def op(x, *, n):
    if not built:
        say("measures")
        sys.stdin.readline()
    built.add(n)
    return x * 2

choice = op.choose(np.ones(8, np.float32))
say(f"{choice.source.value} {choice.configuration} {sorted(built)}")
"""


def test_one_of_two_processes_measures(tmp_path):
    """The candidates are measured once, though both processes need them at once."""

    def process():
        command = python_command(PROGRAM, str(tmp_path))
        return Forked(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)

    with process() as one:
        assert one.stdout.readline() == "measures\n"
        with process() as other:
            assert other.stdout.readline() == "waits\n"
            said, _ = one.communicate("go on\n")
            heard, _ = other.communicate("go on\n")
    configuration = said.removeprefix("tuned ").removesuffix(" [1, 2]\n")
    assert said == f"tuned {configuration} [1, 2]\n"
    assert heard == f"tuned {configuration} []\n"


def meanwhile(place, other):
    """Choose while another process measures for the store at `place`, which goes on when that is done."""
    done = []

    def choose_once():
        if not done:
            done.append(True)
            thread = threading.Thread(target=other.choose, args=(X,))
            thread.start()
            thread.join()

    operation(place, choose_once).choose(X)
    return other.chooser().counters["tuning"]


def test_who_has_waited_long_enough_measures(tmp_path):
    """A process that is stopped holds nobody up for longer than measuring may take."""
    quick = Tuner(sample_seconds=0.0005, rounds=8, budget=0.05, compile_budget=0.05)
    assert meanwhile(tmp_path, operation(tmp_path, tuner=quick)) == 1


def test_another_store_is_not_waited_for(tmp_path):
    """What is measured for it would not be found."""
    assert meanwhile(tmp_path / "one", operation(tmp_path / "other")) == 1
