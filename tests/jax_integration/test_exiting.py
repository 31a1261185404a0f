"""An exit leaves out Python's collections of cyclic garbage where they would change nothing but memory."""

from __future__ import annotations

import sys

import pytest

PROGRAM = """
import atexit, gc, os, sys, types
# What is registered before ejcache's own function runs after it.
atexit.register(lambda: print("left out:", gc.get_freeze_count() > 10_000, flush=True))
import jax, ejcache

class Cycle:
    def __init__(self, held):
        self.held, self.itself = held, self

ejcache.enable(sys.argv[1], **eval(sys.argv[2]))
jax.jit(lambda x: x + 1)(1.0).block_until_ready()
"""

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="nothing is left out there")


def exit_of(run_python, tmp_path, program="", settings="{}"):
    done = run_python(PROGRAM + program, str(tmp_path / "cache"), settings)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "program",
    [
        "",
        "kept = Cycle(jax.numpy.ones(8).block_until_ready())",
        "file = open(sys.argv[1] + '.txt', 'w'); file.close(); kept = Cycle(file)",
        "kept = Cycle(n for n in range(3))",
    ],
    ids=["nothing", "a finished array", "a closed file", "a generator that has not begun"],
)
def test_collections_that_change_nothing_are_left_out(run_python, tmp_path, program):
    """Where no object is to do anything when it is freed, none is collected, and nothing is printed about it."""
    assert exit_of(run_python, tmp_path, program) == ["left out: True"]


def test_an_open_file_in_a_cycle_is_written(run_python, tmp_path):
    """What a program has written to a file that only a cycle holds is in the file."""
    path = tmp_path / "log.txt"
    program = f"kept = Cycle(open({str(path)!r}, 'w')); kept.held.write('the last line')"
    assert exit_of(run_python, tmp_path, program) == ["left out: False"]
    assert path.read_text() == "the last line"


def test_an_open_file_that_a_class_holds_is_written(run_python, tmp_path):
    """Classes are in cycles; a file that only one of them holds, which was opened before `enable`, is written, too."""
    path = tmp_path / "log.txt"
    program = PROGRAM.replace("ejcache.enable", f"Cycle.log = open({str(path)!r}, 'w'); ejcache.enable")
    done = run_python(f"{program}\nCycle.log.write('the last line')", str(tmp_path / "cache"), "{}")
    assert (done.stdout, path.read_text()) == ("left out: False\n", "the last line")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            "class Closing(Cycle):\n def __del__(self, write=os.write): write(1, b'closed')\nkept = Closing(1)",
            ["left out: False", "closed"],
        ),
        (
            "def steps(write=os.write):\n try: yield\n finally: write(1, b'ended')\nk = Cycle(steps()); next(k.held)",
            ["left out: False", "ended"],
        ),
        (
            "sys.modules['unknown'] = types.ModuleType('unknown')\nsys.modules['unknown'].__file__ = 'unknown.abi3.so'",
            ["left out: False"],
        ),
        ("ejcache.disable()", ["left out: False"]),
    ],
    ids=["a finaliser", "a generator that has begun", "an unknown compiled package", "disabled"],
)
def test_everything_is_collected_where_that_does_something(run_python, tmp_path, program, said):
    """Objects that do something when they are freed are, and so is everything beside what is not known."""
    assert exit_of(run_python, tmp_path, program) == said


def test_the_setting_leaves_the_exit_alone(run_python, tmp_path):
    """With a threshold of 0, everything is collected as without ejcache."""
    assert exit_of(run_python, tmp_path, settings="{'tracing_gc_threshold': 0}") == ["left out: False"]
