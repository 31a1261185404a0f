"""Python's garbage collector collects less often while JAX traces and lowers, and then as before.

What was made during a trace does not count against the program; the next collection puts the threshold back.

A full collection that Python begins by itself leaves out, once, what existed when ejcache was enabled.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback

import jax
import pytest

import ejcache


@pytest.fixture(autouse=True)
def own_threshold():
    """A threshold that tells whether it was put back."""
    before = gc.get_threshold()
    gc.set_threshold(701, 11, 12)
    yield
    gc.set_threshold(*before)


@pytest.fixture
def enable(tmp_path):
    def enable(**settings):
        return ejcache.enable(str(tmp_path), min_compile_seconds=0, **settings)

    return enable


def test_while_tracing_and_lowering(enable):
    """The threshold is raised for nested calls as a whole and put back, after an error too, and not after `disable`."""
    seen = []

    @jax.jit
    def inner(x):
        seen.append(gc.get_threshold())
        return x + 1

    def outer(x):
        y = inner(x)
        seen.append(gc.get_threshold())
        if x.shape == (3,):
            raise ValueError("wrong")
        return y

    enable()
    gc.collect(0)
    assert gc.get_threshold() == (701, 11, 12)
    jax.jit(outer)(jax.numpy.ones(2))
    with pytest.raises(ValueError, match="wrong"):
        jax.jit(outer)(jax.numpy.ones(3))
    jax.jit(outer).lower(jax.numpy.ones(4)).compile()
    gc.collect(0)
    assert gc.get_threshold() == (701, 11, 12)
    assert set(seen) == {(50_000, 11, 12)}
    jax.jit(outer)(jax.numpy.ones(6))
    ejcache.disable()
    assert gc.get_threshold() == (701, 11, 12)
    seen.clear()
    jax.jit(lambda x: outer(x) * 2)(jax.numpy.ones(5))
    assert set(seen) == {(701, 11, 12)}


@pytest.mark.parametrize("reason", ["setting", "off", "higher", "changed"])
def test_left_alone(enable, reason):
    """The setting 0, a collector that is off, a higher threshold, and a change made meanwhile stay as they are."""
    enable(tracing_gc_threshold=0 if reason == "setting" else 60_000)
    gc.collect(0)
    if reason == "off":
        gc.disable()
    elif reason == "higher":
        gc.set_threshold(100_000, 1, 1)
    seen = []

    def program(x):
        if reason == "changed":
            gc.set_threshold(900, 9, 9)
        seen.append(gc.get_threshold())
        return x + 1

    try:
        jax.jit(program)(1.0)
        assert gc.isenabled() == (reason != "off")
    finally:
        gc.enable()
    gc.collect(0)
    expected = {"higher": (100_000, 1, 1), "changed": (900, 9, 9)}.get(reason, (701, 11, 12))
    assert seen == [expected]
    assert gc.get_threshold() == expected


@pytest.mark.parametrize("threshold", [0, 10_000])
def test_libraries_that_are_imported_after_enable(enable, threshold):
    """The first collection comes after as many objects as the setting says, and the next one as ever."""
    enable(tracing_gc_threshold=threshold)
    collections = []

    def watch(phase, about):
        collections.append(phase)

    gc.callbacks.append(watch)
    try:
        kept = []
        while not collections and len(kept) < 50_000:
            kept.append([])
        assert len(kept) <= 701 if threshold == 0 else 5_000 < len(kept) <= 10_001
        assert gc.get_threshold() == (701, 11, 12)
    finally:
        gc.callbacks.remove(watch)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there the collector counts in another way")
def test_between_traces(enable):
    """No collection begins because of what a trace has made; a few objects of the program's own begin one."""
    enable()
    jax.jit(lambda x: x + 1)(1.0)
    collections = []

    def watch(phase, about):
        collections.append(phase)

    gc.collect()
    gc.callbacks.append(watch)
    try:
        for number in range(50):
            jax.jit(lambda x, number=number: jax.numpy.sin(x) * number).lower(1.0)
        assert gc.get_count()[0] > 2 * 701
        assert collections == []
        kept = []
        while not collections and len(kept) < 50_000:
            kept.append([])
        # What was made and dropped after the trace makes room for as many.
        assert len(kept) < 5_000
        assert gc.get_threshold() == (701, 11, 12)
    finally:
        gc.callbacks.remove(watch)


def test_a_threshold_that_the_program_remembers(enable):
    """A program that puts back what it found after a trace ends with its own threshold, not with ours."""
    enable()
    jax.jit(lambda x: x + 1)(1.0)
    found = gc.get_threshold()
    gc.set_threshold(100, 5, 5)
    gc.collect(0)
    assert gc.get_threshold() == (100, 5, 5)
    gc.set_threshold(*found)
    gc.collect(0)
    assert gc.get_threshold() == (701, 11, 12)


def test_threads(enable):
    """Threads that trace at once end with the threshold that was there before."""
    enable()
    functions = [jax.jit(lambda x, n=n: jax.numpy.sin(x) * n) for n in range(8)]
    threads = [threading.Thread(target=function, args=(1.0,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect(0)
    assert gc.get_threshold() == (701, 11, 12)


def test_a_fork_while_tracing(enable):
    """A child that is forked inside a trace has the threshold from before."""
    enable()
    read, write = os.pipe()

    def program(x):
        child = os.fork()
        if child == 0:
            os.write(write, repr(gc.get_threshold()).encode())
            os._exit(0)
        os.waitpid(child, 0)
        return x + 1

    jax.jit(program)(1.0)
    os.close(write)
    with os.fdopen(read) as said:
        assert said.read() == "(701, 11, 12)"
    gc.collect(0)
    assert gc.get_threshold() == (701, 11, 12)


def test_no_frame_of_ours(enable):
    """Neither a traceback nor a location in the module names our file."""
    enable()

    def program(x):
        return x.nothing

    with pytest.raises(AttributeError) as caught:
        jax.jit(program)(1.0)
    assert "seam/collector.py" not in "".join(traceback.format_tb(caught.value.__traceback__))
    text = jax.jit(lambda x: x + 1).lower(1.0).as_text(debug_info=True)
    assert "seam/collector.py" not in text


OLD = """
import gc, sys
import jax, ejcache

class Cycle:
    def __init__(self, name):
        self.name, self.itself = name, self

    def __del__(self):
        print("collected", self.name, flush=True)

def full_collection():
    ended = []
    def note(phase, about):
        if phase == "stop" and about["generation"] == 2:
            ended.append(True)
    gc.callbacks.append(note)
    kept = []
    while not ended:
        kept.append([[] for _ in range(100)])
    gc.callbacks.remove(note)

gc.collect()
cycles = {name: Cycle(name) for name in ("enabled", "traced")}
ejcache.enable(sys.argv[1], preload=False, **eval(sys.argv[2]))
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="has no full collections of its own")
def test_one_full_collection_leaves_old_objects_out(run_python, tmp_path):
    """What is garbage among older objects waits for one full collection after `enable` and one after a first trace."""
    program = (
        OLD
        + """
del cycles["enabled"]
full_collection(); print("first"); full_collection(); print("second")
jax.jit(lambda x: x + 1)(1.0)
del cycles["traced"]
full_collection(); print("third"); full_collection(); print("fourth")
jax.jit(lambda x: x + 2)(1.0)
print(gc.get_freeze_count() < 10_000)
"""
    )
    said = run_python(program, str(tmp_path), "{}").stdout.splitlines()
    assert said == ["first", "collected enabled", "second", "third", "collected traced", "fourth", "True"]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="has no full collections of its own")
@pytest.mark.parametrize("how", ["collect", "disable", "setting", "exit", "frozen", "frozen later"])
def test_old_objects_are_put_back(run_python, tmp_path, how):
    """`gc.collect()` and an exit collect older objects at once; so does Python after `disable`, or with the setting 0.

    What the program freezes itself stays frozen.
    """
    program = {
        "collect": "gc.collect()",
        "disable": "ejcache.disable(); full_collection()",
        "setting": "full_collection()",
        "exit": "",
        "frozen": "gc.collect()",
        "frozen later": "gc.freeze(); gc.collect(); full_collection()",
    }[how]
    before = OLD.replace("ejcache.enable", "gc.freeze(); ejcache.enable") if how == "frozen" else OLD
    settings = "{'tracing_gc_threshold': 0}" if how == "setting" else "{}"
    said = run_python(
        f"{before}\ndel cycles['enabled']\n{program}\nprint('then', gc.get_freeze_count() > 10_000)",
        str(tmp_path),
        settings,
    ).stdout.splitlines()
    expected = ["then True"] if how.startswith("frozen") else ["collected enabled", "then False"]
    assert said[:2] == (["then True", "collected enabled"] if how == "exit" else expected)


EXIT = """
import atexit, gc, os, sys
class Cycle:
    def __init__(self, name):
        self.name, self.me, self.file = name, self, open(f"{sys.argv[1]}/{name}", "w")
        self.file.write("all of it")
    def __del__(self, write=os.write):
        write(1, f"ended {self.name}\\n".encode())
kept, garbage = Cycle("kept"), Cycle("garbage")
def note(phase, about, write=os.write):
    if about["generation"] == 2:  # until Python 3.12, young objects are collected while it exits, too
        write(1, f"{phase}\\n".encode())
@atexit.register  # it runs after ejcache's own functions, which are registered later
def last():
    gc.callbacks.append(note)
"""


@pytest.mark.parametrize(
    ("settings", "then", "collections"),
    [
        ("{}", "", 0),
        ("{'tracing_gc_threshold': 0}", "", 1),
        ("{}", "ejcache.disable()", 1),
        ("{}", "gc.disable()", 0),
    ],
)
def test_collections_while_the_program_exits(run_python, tmp_path, settings, then, collections):
    """The first of three is left out; the second calls all finalizers and writes all files, as the first would have.

    All are left alone by the setting 0, after `disable`, and in a program that has switched them off.
    """
    program = f"""{EXIT}
import ejcache
ejcache.enable(sys.argv[1] + "/cache", preload=False, **{settings})
del garbage
{then}
"""
    said = run_python(program, str(tmp_path)).stdout.splitlines()
    assert said.count("start") == collections
    assert sorted(line for line in said if line.startswith("ended")) == ["ended garbage", "ended kept"]
    assert [(tmp_path / name).read_text() for name in ("kept", "garbage")] == ["all of it", "all of it"]
