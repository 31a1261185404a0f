"""Processes that start a program again and again: what is recorded, proven and reused, and what is traced."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from capabilities import needs
from forking import Forked, ForkedWithFrameworks, write_as_old
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

    write_as_old(tmp_path / "helper.py", "SCALE = 1\n")

    def run(body=None, *, name="train.py", launcher=(), how=subprocess.Popen, **environment):
        path = tmp_path / name
        if body is not None:
            write_as_old(path, HEAD + body + TAIL)
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
            cwd=tmp_path,
            start=how,
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


@needs("fork")
def test_a_namespace_disowns_what_was_stored_before(start, tmp_path):
    """Another EJCACHE_NAMESPACE finds no record and no module of earlier starts, and has its own."""
    from ejcache.stores.opening import open_store

    def stored():
        with open_store(tmp_path / "cache", read_only=True) as store:
            return {info.key for info in store.entries() if info.key.startswith("reuse_")}

    start(IMPORTS + CHANCE + SIGNATURES)  # with another seed of hashes than the others, which fork one process
    traced = [start(how=ForkedWithFrameworks)["traced"] for _ in range(2)]
    assert traced == [["chance", "loop"], ["chance"]]
    before = stored()
    other = start(EJCACHE_NAMESPACE="other", how=ForkedWithFrameworks)
    assert other["traced"] == ["chance", "loop"]
    assert "two traces of" not in other["stderr"]
    kinds = [key.partition("-")[0] for key in stored() - before]
    assert sorted(kinds) == ["reuse_module"] * 2 + ["reuse_record"] * 3  # a state of NumPy, and then one of JAX
    assert start(how=ForkedWithFrameworks)["traced"] == ["chance"]


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


IMPORTS = """
import collections, enum, types, warnings
import flax.linen as nn, optax
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
"""
CASES = """
warnings.simplefilter("ignore")
changed = bool(change)
two = 3 if changed else 2

def trap(name, use, **options):
    def body(*args):
        traced.append(name)
        return use(*args)
    body.__qualname__ = body.__name__ = name
    return ejcache.ejit(body, reuse_lowering=("w", name), **options)

def in_word(name, value, use):
    said[name] = ejcache.ejit(lambda x: traced.append(name) or use(x), reuse_lowering=value)(x)

def with_static(name, value, use):
    said[name] = trap(name, use, static_argnums=1)(x, value)

def with_node(name, tree, use):
    said[name] = trap(name, use)(x, tree)

# -- fields in another order
fields = ("y", "x") if changed else ("x", "y")
Batch = collections.namedtuple("Batch", fields)
with_node("named tuple", Batch(x, x + 1), lambda x, b: b.x - 2 * b.y)
Data = dataclasses.make_dataclass("Data", fields)
Data.__module__ = __name__
jax.tree_util.register_dataclass(Data, list(fields), [])
with_node("dataclass", Data(x, x + 1), lambda x, b: b.x - 2 * b.y)

# -- a class with a dtype
class BlockA:
    dtype, k = np.dtype("float32"), 2
class BlockB:
    dtype, k = np.dtype("float32"), 3
Block = BlockB if changed else BlockA
with_static("class", Block, lambda x, block: x * block.k)
@dataclasses.dataclass(frozen=True)
class Holder:
    block: type
with_static("class in a dataclass", Holder(Block), lambda x, holder: x * holder.block.k)
in_word("class in a word", ("w", Block), lambda x: x * Block.k)

# -- what a container or a dataclass holds besides
@dataclasses.dataclass
class Config(dict):
    name: str = "c"
config = Config()
config["k"] = two
in_word("dict in a word", config, lambda x: x * config["k"])
@dataclasses.dataclass
class More:
    size: int = 1
    def __post_init__(self):
        self.k = two
more = More()
in_word("attribute in a word", more, lambda x: x * more.k)

# -- functions as static arguments
def made(k):
    def inner(x):
        return (x * k).sum()
    return inner
for by in (jax.grad, jax.checkpoint, jax.jit):
    with_static(f"static {by.__name__}", by(made(two)), lambda x, f: f(x))
with_static("static vmap", jax.vmap(lambda x, k=two: x * k), lambda x, f: f(x))
def wraps(inner):
    @functools.wraps(inner)
    def outer(x):
        return outer.__wrapped__(x)
    return outer
with_static("static wraps", wraps(made(two)), lambda x, f: f(x))
def rule(k):
    found = jax.custom_jvp(lambda x: x.sum())
    found.defjvp(lambda primals, tangents: (primals[0].sum(), tangents[0].sum() * k))
    return found
with_static("static custom_jvp", rule(two), lambda x, f: jax.grad(f)(x))
numbers = (1,) if changed else ()
with_static("static argnums", jax.jit(lambda x, k: x * k, static_argnums=numbers), lambda x, f: x * (2 + changed))
with_static("static partial", functools.partial(made(two)), lambda x, f: f(x))

# -- JAX's own types and objects in nodes of trees
@jax.tree_util.register_pytree_node_class
class Box:
    def __init__(self, leaf, held):
        self.leaf, self.held = leaf, held
    def tree_flatten(self):
        return (self.leaf,), self.held
    @classmethod
    def tree_unflatten(cls, held, leaves):
        return cls(leaves[0], held)
class Held:
    def __init__(self, k):
        self.k = k
    def __eq__(self, other):
        return isinstance(other, Held) and self.k == other.k
    def __hash__(self):
        return hash(self.k)
grid = Mesh(np.array(jax.devices()), ("a",))
with_node("spec", Box(x, P("a") if changed else P()), lambda x, b: b.leaf * len(b.held))
spread = NamedSharding(grid, P("a") if changed else P())
with_node("sharding", Box(x, spread), lambda x, b: b.leaf * len(b.held.spec))
other = Mesh(grid.devices, ("b" if changed else "aa",))
with_node("mesh", Box(x, other), lambda x, b: b.leaf * len(b.held.axis_names[0]))
with_node("shape", Box(x, jax.ShapeDtypeStruct((two,), jnp.float32)), lambda x, b: b.leaf * b.held.shape[0])
with_node("tree", Box(x, jax.tree.structure((0,) * two)), lambda x, b: b.leaf * b.held.num_leaves)
with_node("device", Box(x, jax.devices()[int(changed)]), lambda x, b: b.leaf * b.held.id)
with_node("object", Box(x, Held(two)), lambda x, b: b.leaf * b.held.k)
with_node("object in a tuple", Box(x, (1, Held(two))), lambda x, b: b.leaf * b.held[1].k)
class Color(enum.Enum):
    A = 1
Color.A.k = two
with_static("enumeration", Color.A, lambda x, color: x * color.k)

# -- what the function holds: its closure, defaults, self, a partial
def closing(k):
    return lambda x: traced.append("held") or x * k
said["held"] = ejcache.ejit(closing(two), reuse_lowering="w")(x)
said["default"] = ejcache.ejit(lambda x, k=two: traced.append("default") or x * k, reuse_lowering="w")(x)
class Trainer:
    def __init__(self, k):
        self.k = k
    def step(self, x):
        traced.append("method")
        return x * self.k
    def __call__(self, x):
        traced.append("call")
        return x * self.k
said["method"] = ejcache.ejit(Trainer(two).step, reuse_lowering="w")(x)
said["call"] = ejcache.ejit(Trainer(two), reuse_lowering="w")(x)
partial = functools.partial(lambda k, x: traced.append("partial") or x * k, two)
said["partial"] = ejcache.ejit(partial, reuse_lowering="w")(x)

# -- states of training, with another learning rate
model = nn.Dense(2, use_bias=False)
params = {"params": {"kernel": np.ones((4, 2), np.float32)}}
state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(float(two)))
said["TrainState"] = trap("TrainState", lambda x, s: s.apply_gradients(grads=s.params).params)(x, state)
net = nnx.Linear(4, 2, kernel_init=nn.initializers.ones, rngs=nnx.Rngs(0))
both = nnx.split((net, nnx.Optimizer(net, optax.sgd(float(two)), wrt=nnx.Param)))
def update(x, graph, leaves):
    net, optimizer = nnx.merge(graph, leaves)
    optimizer.update(net, nnx.state(net, nnx.Param))
    return nnx.state(net, nnx.Param)
said["graphdef"] = jax.tree.leaves(trap("graphdef", update, static_argnums=1)(x, *both))

# -- an edit of the file in which ejit is called
def loss(model, x):
    traced.append("nnx.grad")
    return (model(x) * 2.0).sum()
said["nnx.grad"] = jax.tree.leaves(ejcache.ejit(nnx.grad(loss), reuse_lowering="w")(net, x))
class Plain(nn.Module):
    def __call__(self, x):
        traced.append("apply")
        return x * 2.0
said["apply"] = ejcache.ejit(Plain().apply, reuse_lowering="w")({}, x)

# -- never reused
text = "def executed(x):\\n    traced.append('exec of a file')\\n    return x * two\\n"
exec(compile(text, __file__, "exec"), globals())
said["exec of a file"] = ejcache.ejit(executed, reuse_lowering="w")(x)
elsewhere = {"traced": traced, "two": two}
exec(compile(text, __file__, "exec"), elsewhere)
said["exec elsewhere"] = ejcache.ejit(elsewhere["executed"], reuse_lowering="w")(x)
warnings.simplefilter("default")
@functools.partial(ejcache.ejit, reuse_lowering="w", donate_argnums=0)
def donates(x):
    traced.append("warned")
    return x.sum()
said["warned"] = donates(x * two)
"""
EVERYTHING = IMPORTS + PROGRAM + TRACED + CHANCE + SIGNATURES.replace("range(400)", "range(20)") + CASES
OF_FILES = {"nnx.grad", "apply"}
"""The cases in which nothing but an edit of their file changes anything."""
NEVER = ["exec", "own", "weights", "scalar", "callback", "chance", "exec of a file", "exec of a file", "warned"]


def test_starts(start):
    """Recorded, proven, reused, changed, edited: only what may be reused is, and a sentence says why another is not.

    Of what was once reused wrongly, and its neighbours, each function that reads a changed value is traced, and right.
    It is no matter whether a launcher runs the script: `runpy.run_path` gives it no loader, and compiles its file. A
    call with arrays of NumPy and one with arrays of JAX have one trace, and one program to load.

    `make soak` has parts of this program alone, and more changes.
    """
    launcher = "-c", "import runpy, sys; sys.path.insert(0, ''); runpy.run_path(sys.argv[1], run_name='__main__')"
    first = start(EVERYTHING, launcher=launcher, how=ForkedWithFrameworks)
    second = start()  # another interpreter, with other addresses and another seed of hashes
    third = start(how=ForkedWithFrameworks)
    changed = start(CHANGE="function", how=ForkedWithFrameworks)
    edit = re.sub(
        "(?s)# -- fields.*(?=# -- states)", "", EVERYTHING
    )  # what follows would be traced for the same reason
    edit = edit.replace("(model(x) * 2.0", "(model(x) * 3.0").replace("return x * 2.0", "return x * 3.0")
    edited = start(edit, how=ForkedWithFrameworks)
    names = first["traced"]
    assert [each["traced"] for each in (second, third)] == [names, NEVER]
    assert [*NAMES, "closure", "loop"] == [name for name in names if name in {*NAMES, "closure", "loop"}]
    assert {*NAMES, "loop", *OF_FILES} - {"function"} == set(names) - set(changed["traced"])
    assert {*edited["traced"]} == {*NAMES, "closure", "loop", "TrainState", "graphdef", *OF_FILES, *NEVER}
    hits = [int(re.search(r"(\d+) hits?", each["stderr"])[1]) for each in (second, third)]
    assert hits[1] == hits[0] > 0

    def other(one, another):
        both = {*values(one)} & {*values(another)}
        return {name for name in both if values(one)[name] != values(another)[name]}

    assert other(first, second) == other(second, third) == {"chance"}
    assert other(third, edited) == {"chance", *OF_FILES}
    assert {*values(third)} - other(third, changed) == {*NAMES, "exec", "state", *OF_FILES} - {"function"}
    assert values(changed)["function"] == [0.0, 1.0, 2.0, 3.0]
    assert [values(each)["own"] for each in (third, changed)] == [[0.0, 2.0, 4.0, 6.0], [0.0, 3.0, 6.0, 9.0]]
    for sentence in (
        "__main__.own has a word, and is traced: a static argument.k.lock is a _thread.lock",
        "__main__.weighted has a word, and is traced: arrays of JAX are baked into its program",
        "two traces of __main__.chance with the same word, code and call gave other programs",
        "executed has other code than its file",
        "executed was made by exec",
        "its trace or its lowering warned",
    ):
        assert third["stderr"].count(sentence) == 1, sentence
    assert "Some donated buffers were not usable" in third["stderr"]


@needs("fork")
def test_a_process_that_was_forked_first(start):
    """Its modules are those of another process, so that nobody knows what is younger; it says so, and traces."""
    said = start("said['step'] = ejcache.ejit(lambda x: x + 1, reuse_lowering='forked')(x)", how=Forked)
    assert said["said"] == {"step": [1.0, 2.0, 3.0, 4.0]}
    assert "the process was forked before" in said["stderr"]
