"""Processes that start a program again and again: what is recorded, proven and reused, and what is traced."""

from __future__ import annotations

import json
import re
import sys

import pytest
from capabilities import needs
from helpers import run_program

HEAD = """
import dataclasses, functools, json, os, sys, threading
import jax, jax.numpy as jnp, numpy as np
import ejcache

ejcache.enable(os.environ["CACHE_AT"], min_compile_seconds=0)
traced, said = [], {}
x = np.arange(4.0, dtype=np.float32)
change = os.environ.get("CHANGE", "")
"""
TAIL = """
print(json.dumps({"traced": traced, "said": jax.tree.map(lambda each: np.asarray(each).tolist(), said)}))
"""
PROGRAM = """
import helper

phase = "main" if change == "phase" else "warmup"

def make(phase):
    @ejcache.ejit(reuse_lowering=("step", phase), donate_argnums=0)
    def step(state, batch):
        traced.append("phase")
        return {"w": state["w"] * (2 if phase == "warmup" else 3), "n": state["n"] + 1}, batch.sum()
    return step

said["phase"] = make(phase)({"w": jnp.ones(3), "n": 0}, x)

current = "a"
@ejcache.ejit(reuse_lowering=lambda: current)
def within(x):
    traced.append(f"within {current}")
    return x * (2 if current == "a" else 3)

for current in ("a", "b"):  # the second one is a signature that this process has not answered
    said[f"within {current}"] = within(x if current == "a" else np.ones(5, np.float32))
    jax.clear_caches()

@ejcache.ejit(reuse_lowering="typed")
def typed(x):
    traced.append("typed")
    return x * 2 + jnp.arange(4.0).dtype.itemsize

said["typed"] = typed(x.astype(np.float16) if change == "dtype" else x)

@ejcache.ejit(reuse_lowering="sharded")
def sharded(x):
    traced.append("sharded")
    return x + 1

mesh = jax.make_mesh((2,), ("data",))
spec = jax.P("data") if change == "sharding" else jax.P()
said["sharded"] = sharded(jax.device_put(x, jax.NamedSharding(mesh, spec)))

@dataclasses.dataclass(frozen=True)
class Size:
    rows: int

@functools.partial(ejcache.ejit, static_argnums=1, reuse_lowering="static")
def static(x, size):
    traced.append("static")
    return x * size.rows

said["static"] = static(x, Size(3 if change == "static" else 2))

@functools.partial(ejcache.ejit, static_argnums=1, reuse_lowering="function")
def function(x, activation):
    traced.append("function")
    return activation(x)

said["function"] = function(x, jax.nn.relu if change == "function" else jax.nn.gelu)
"""
NAMES = ["phase", "within a", "within b", "typed", "sharded", "static", "function"]


@pytest.fixture
def start(tmp_path):
    """Start a program of a name, and return what it printed, with what it logged."""
    (tmp_path / "helper.py").write_text("SCALE = 1\n")

    def run(body=None, *, name="train.py", launcher=(), **environment):
        path = tmp_path / name
        if body is not None:
            path.write_text(HEAD + body + TAIL)
        done = run_program(
            [sys.executable, *launcher, path],
            env={
                "CACHE_AT": str(tmp_path / "cache"),
                "XDG_CACHE_HOME": str(tmp_path / "home"),
                "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
                "EJCACHE_REUSE_FLOOR": "0",
                "EJCACHE_REUSE_CHECK_ONE_IN": "0",
                "EJCACHE_REPORT": "line",
                "PYTHONPATH": str(tmp_path / "site"),
                **environment,
            },
        )
        return json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}

    return run


def values(answer):
    return answer["said"]


CHANGES = (
    ("phase", "phase", [{"n": 1, "w": [3.0] * 3}, 6.0]),
    ("function", "function", [0.0, 1.0, 2.0, 3.0]),
    ("dtype", "typed", [4.0, 6.0, 8.0, 10.0]),
    ("sharding", "sharded", [1.0, 2.0, 3.0, 4.0]),
    ("static", "static", [0.0, 3.0, 6.0, 9.0]),
)


@pytest.mark.soak
def test_a_change_traces_what_it_concerns(start, tmp_path):
    """The first start records, the second proves, the third traces nothing, and each change traces its function."""
    flax = tmp_path / "site" / "flax-0.12.0.dist-info"
    flax.mkdir(parents=True)
    first, second, third = start(PROGRAM), start(), start()
    assert [each["traced"] for each in (first, second, third)] == [NAMES, NAMES, []]
    assert values(first) == values(second) == values(third)
    assert "7 functions not traced" not in third["stderr"]
    assert "6 functions not traced" in third["stderr"]
    for change, traced, value in CHANGES:
        changed = start(CHANGE=change)
        assert (changed["traced"], values(changed)[traced]) == ([traced], value)
    wide = start(JAX_ENABLE_X64="1")
    assert wide["traced"] == NAMES
    assert values(wide)["typed"] == [8.0, 10.0, 12.0, 14.0]
    flax.rename(flax.with_name("flax-0.13.0.dist-info"))
    assert start()["traced"] == NAMES
    flax.with_name("flax-0.13.0.dist-info").rename(flax)
    assert start()["traced"] == []
    edited = start(PROGRAM.replace("return x * 2 + ", "return x * 4 + "))
    assert edited["traced"] == NAMES
    assert values(edited)["typed"] == [4.0, 8.0, 12.0, 16.0]


@pytest.mark.soak
def test_one_start_in_so_many_compares(start):
    """It traces everything although it could reuse; the next one reuses."""
    for _ in range(2):
        start(PROGRAM)
    assert start(EJCACHE_REUSE_CHECK_ONE_IN="1")["traced"] == NAMES
    assert start()["traced"] == []


TRACED = """
@dataclasses.dataclass
class Own:
    __hash__ = object.__hash__
    k: object

@functools.partial(ejcache.ejit, static_argnums=1, reuse_lowering="own")
def own(x, size):
    traced.append("own")
    return x * size.k.factor

class K:
    def __init__(self, factor):
        self.factor, self.lock = factor, threading.Lock()

weights = jnp.full(4, 3.0 if change else 2.0)

@ejcache.ejit(reuse_lowering="weights")
def weighted(x):
    traced.append("weights")
    return x * weights

scale = jnp.float32(3 if change else 2)

@ejcache.ejit(reuse_lowering="scalar")
def scaled(x):
    traced.append("scalar")
    return jax.lax.cond(x[0] > 1, lambda x: x * scale, lambda x: x + scale, x)

def make(k):
    @ejcache.ejit(reuse_lowering="the same")
    def step(x):
        traced.append("closure")
        return x * k
    return step

said["closure"] = make(3 if change else 2)(x)  # what the closure holds counts

space = {"x": x}
exec("def typed(x):\\n    traced.append('exec')\\n    return x + 1", {"traced": traced}, space)
said["exec"] = ejcache.ejit(space["typed"], reuse_lowering="exec")(x)

@ejcache.ejit(reuse_lowering="callback")
def calls_back(x):
    traced.append("callback")
    return jax.pure_callback(lambda x: np.asarray(x) * (3 if change else 2), x, x)

said |= {"own": own(x, Own(K(3 if change else 2))), "weights": weighted(x), "scalar": scaled(x)}
said["callback"] = calls_back(x)
"""


@pytest.mark.soak
def test_what_is_never_reused(start):
    """With the same word the third start traces them, the fourth has what changed, and a sentence says why."""
    start(TRACED)
    start()
    third, fourth = start(), start(CHANGE="yes")
    never = ["exec", "own", "weights", "scalar", "callback"]
    assert (third["traced"], fourth["traced"]) == (never, ["closure", *never])
    assert values(third)["closure"] == values(third)["own"] == values(third)["weights"] == [0.0, 2.0, 4.0, 6.0]
    assert values(fourth)["closure"] == values(fourth)["own"] == values(fourth)["weights"] == [0.0, 3.0, 6.0, 9.0]
    for sentence in (
        "ejcache: __main__.own has a word, and is traced: a static argument.k.lock is a _thread.lock",
        "ejcache: __main__.weighted has a word, and is traced: arrays of JAX are baked into its program",
        "ejcache: __main__.scaled has a word, and is traced: arrays of JAX are baked into its program",
        "typed was defined in <string>, which is no source file",
        "ejcache: __main__.calls_back has a word, and is traced: ",
    ):
        assert third["stderr"].count(sentence) == 1, sentence


EDITED = """
import pathlib
if change:
    path = pathlib.Path(__file__)
    text = path.read_text().replace("K = 2", "K = 3")
    if change == "replaced":
        old, new = path.stat(), path.with_suffix(".new")
        new.write_text(text)
        os.utime(new, ns=(old.st_atime_ns, old.st_mtime_ns))
        new.rename(path)
    else:
        path.write_text(text)
K = 2

@ejcache.ejit(reuse_lowering="edited")
def edited(x):
    traced.append(K)
    return x * K

said["edited"] = edited(x)
"""


@pytest.mark.soak
@pytest.mark.parametrize("change", ["written", "replaced"])
def test_a_module_that_is_edited_before_the_first_call(start, change):
    """The process has the old code, and its file the new one: it neither records nor reuses."""
    for _ in range(2):
        start(EDITED)
    assert start()["traced"] == []
    edited = start(EDITED, CHANGE=change)
    assert (edited["traced"], values(edited)["edited"]) == ([2], [0.0, 2.0, 4.0, 6.0])
    assert "was modified after the process began" in edited["stderr"]
    assert start(CHANGE="")["said"] == {"edited": [0.0, 3.0, 6.0, 9.0]}


CHANCE = """
@ejcache.ejit(reuse_lowering="chance")
def chance(x):
    traced.append("chance")
    return x * int.from_bytes(os.urandom(3), "big")

said["chance"] = chance(x)
"""


@pytest.mark.soak
def test_two_traces_that_differ(start, tmp_path):
    """What the word leaves out is found by the proof, and nothing is reused until `clear`."""
    starts = [start(CHANCE) for _ in range(4)]
    assert len({str(values(each)) for each in starts}) == 4
    said = "two traces of __main__.chance with the same word, code and call gave other programs"
    assert [said in each["stderr"] for each in starts] == [False, True, True, True]
    run_program([sys.executable, "-m", "ejcache", "prune", "--all", "--dir", tmp_path / "cache", "--yes"])
    assert said not in start()["stderr"]


SIGNATURES = """
@ejcache.ejit(reuse_lowering="loop", donate_argnums=0)
def step(state, x):
    traced.append("loop")
    for _ in range(400):
        x = jnp.sin(x)
    return {"w": state["w"] + x.sum(), "n": state["n"] + 1}, x

state = {"w": np.ones(3, np.float32), "n": 0}
for _ in range(3):
    state, _ = step(state, x)
said["state"] = state
"""


def test_calls_of_equal_types(start):
    """The first call has arrays of NumPy, and the next ones arrays of JAX: one trace, and one program to load.

    It is no matter whether a launcher runs the script: `runpy.run_path` gives it no loader, and compiles its file.
    """
    launcher = "-c", "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    starts = [start(SIGNATURES, launcher=each, EJCACHE_REUSE_FLOOR="0.002") for each in (launcher, (), launcher)]
    assert [each["traced"] for each in starts] == [["loop"], ["loop"], []]
    hits = [int(re.search(r"(\d+) hits?", each["stderr"])[1]) for each in starts]
    assert hits[2] == hits[1] > 0


@pytest.mark.soak
def test_damage_is_a_miss(start, tmp_path):
    """Without its module, a record is of no use; with its next trace, it is."""
    from ejcache.stores.opening import open_store

    for _ in range(2):
        start(SIGNATURES)
    with open_store(tmp_path / "cache") as store:
        for info in list(store.entries()):
            if info.key.startswith("reuse_module"):
                store.delete(info.key)
    assert [start()["traced"] for _ in range(2)] == [["loop"], []]


@pytest.mark.soak
def test_why_names_what_changed(start, tmp_path):
    """What was recorded is compared with the nearest earlier start."""

    def why():
        done = run_program(
            [sys.executable, "-m", "ejcache", "why", "step"], env={"XDG_CACHE_HOME": str(tmp_path / "home")}
        )
        return " ".join(done.stdout.split())

    start(SIGNATURES)
    assert "was traced and recorded, because nothing was recorded for this word, code and call. when" in why()
    start(SIGNATURES.replace('"loop"', '"other"'))
    assert "changed the word changed the function, what it holds, or the file in which it was made when" in why()
    start()
    assert "was traced and proven, because an earlier start has recorded the same program" in why()


def test_four_starts(start):
    """Recorded, proven, reused, changed: only what may be reused is, and each sentence says why another one is not.

    `make soak` has each of these programs alone, and more changes.
    """
    start(PROGRAM + TRACED + CHANCE + SIGNATURES)
    second, third, fourth = start(), start(), start(CHANGE="function")
    never = ["exec", "own", "weights", "scalar", "callback", "chance"]
    assert second["traced"] == [*NAMES, "closure", *never, "loop"]
    assert third["traced"] == never
    assert fourth["traced"] == ["function", "closure", *never]
    assert values(fourth)["function"] == [0.0, 1.0, 2.0, 3.0] != values(third)["function"] == values(second)["function"]
    assert [values(each)["own"] for each in (third, fourth)] == [[0.0, 2.0, 4.0, 6.0], [0.0, 3.0, 6.0, 9.0]]
    assert values(second)["chance"] != values(third)["chance"]
    assert values(second)["state"] == values(third)["state"]
    for sentence in (
        "__main__.own has a word, and is traced: a static argument.k.lock is a _thread.lock",
        "__main__.weighted has a word, and is traced: arrays of JAX are baked into its program",
        "two traces of __main__.chance with the same word, code and call gave other programs",
    ):
        assert third["stderr"].count(sentence) == 1, sentence


def test_errors_of_the_user_are_the_user_s(start):
    """A word that raises, and one that is none."""
    said = start("""
def raises():
    1 / 0

for name, word in (("raises", raises), ("none", lambda: None)):
    try:
        ejcache.ejit(lambda x: x, reuse_lowering=word)(x)
    except Exception as exc:
        traced.append([type(exc).__name__, str(exc)])
""")["traced"]
    assert [each[0] for each in said] == ["ZeroDivisionError", "UsageError"]
    assert said[1][1].startswith("ejit: reuse_lowering is None")


@needs("fork")
def test_a_process_that_was_forked_first(start):
    """Its modules are those of another process, so that nobody knows what is younger; it says so, and traces."""
    forked = """
child = os.fork()
if child:
    os._exit(os.waitpid(child, 0)[1])

@ejcache.ejit(reuse_lowering="forked")
def step(x):
    traced.append(1)
    return x + 1

said["step"] = step(x)
"""
    said = start(forked)
    assert said["traced"] == [1]
    assert "the process was forked before" in said["stderr"]
