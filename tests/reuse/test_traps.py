"""What was once reused wrongly: each case, and its neighbours, is noticed, or traced with a line.

One program makes all calls. It starts three times unchanged and must not trace any more, but for what is never reused;
then each part of it changes.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from forking import ForkedWithFrameworks
from helpers import run_program

HEAD = """
import collections, dataclasses, enum, functools, json, os, sys, types, warnings
import flax.linen as nn, jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
from flax.training.train_state import TrainState
import ejcache
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

warnings.simplefilter("ignore")
ejcache.enable(os.environ["CACHE_AT"], min_compile_seconds=0)
two, three = (3, 2) if os.environ.get("CHANGE") else (2, 3)  # a number, and another one
changed = bool(os.environ.get("CHANGE"))
traced, said = [], {}
x = np.arange(4.0, dtype=np.float32)

def step(name, use, **options):
    def body(*args):
        traced.append(name)
        return use(*args)
    body.__qualname__ = body.__name__ = name
    return ejcache.ejit(body, reuse_lowering=("w", name), **options)

def word(name, value, use):
    said[name] = ejcache.ejit(lambda x: traced.append(name) or use(x), reuse_lowering=value)(x)

def static(name, value, use):
    said[name] = step(name, use, static_argnums=1)(x, value)

def node(name, tree, use):
    said[name] = step(name, use)(x, tree)
"""
CASES = """
# -- fields in another order
fields = ("y", "x") if changed else ("x", "y")
Batch = collections.namedtuple("Batch", fields)
node("named tuple", Batch(x, x + 1), lambda x, b: b.x - 2 * b.y)
Data = dataclasses.make_dataclass("Data", fields)
Data.__module__ = __name__
jax.tree_util.register_dataclass(Data, list(fields), [])
node("dataclass", Data(x, x + 1), lambda x, b: b.x - 2 * b.y)

# -- a class with a dtype
class BlockA:
    dtype, k = np.dtype("float32"), 2
class BlockB:
    dtype, k = np.dtype("float32"), 3
Block = BlockB if changed else BlockA
static("class", Block, lambda x, block: x * block.k)
@dataclasses.dataclass(frozen=True)
class Holder:
    block: type
static("class in a dataclass", Holder(Block), lambda x, holder: x * holder.block.k)
word("class in a word", ("w", Block), lambda x: x * Block.k)

# -- what a container or a dataclass holds besides
@dataclasses.dataclass
class Config(dict):
    name: str = "c"
config = Config()
config["k"] = two
word("dict in a word", config, lambda x: x * config["k"])
@dataclasses.dataclass
class More:
    size: int = 1
    def __post_init__(self):
        self.k = two
more = More()
word("attribute in a word", more, lambda x: x * more.k)

# -- functions as static arguments
def made(k):
    def inner(x):
        return (x * k).sum()
    return inner
for by in (jax.grad, jax.checkpoint, jax.jit):
    static(f"static {by.__name__}", by(made(two)), lambda x, f: f(x))
static("static vmap", jax.vmap(lambda x, k=two: x * k), lambda x, f: f(x))
def wraps(inner):
    @functools.wraps(inner)
    def outer(x):
        return outer.__wrapped__(x)
    return outer
static("static wraps", wraps(made(two)), lambda x, f: f(x))
def rule(k):
    found = jax.custom_jvp(lambda x: x.sum())
    found.defjvp(lambda primals, tangents: (primals[0].sum(), tangents[0].sum() * k))
    return found
static("static custom_jvp", rule(two), lambda x, f: jax.grad(f)(x))
numbers = (1,) if changed else ()
static("static argnums", jax.jit(lambda x, k: x * k, static_argnums=numbers), lambda x, f: x * (2 + changed))
static("static partial", functools.partial(made(two)), lambda x, f: f(x))

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
class Own:
    def __init__(self, k):
        self.k = k
    def __eq__(self, other):
        return isinstance(other, Own) and self.k == other.k
    def __hash__(self):
        return hash(self.k)
mesh = Mesh(np.array(jax.devices()), ("a",))
node("spec", Box(x, P("a") if changed else P()), lambda x, b: b.leaf * len(b.held))
node("sharding", Box(x, NamedSharding(mesh, P("a") if changed else P())), lambda x, b: b.leaf * len(b.held.spec))
node("mesh", Box(x, Mesh(mesh.devices, ("b" if changed else "aa",))), lambda x, b: b.leaf * len(b.held.axis_names[0]))
node("shape", Box(x, jax.ShapeDtypeStruct((two,), jnp.float32)), lambda x, b: b.leaf * b.held.shape[0])
node("tree", Box(x, jax.tree.structure((0,) * two)), lambda x, b: b.leaf * b.held.num_leaves)
node("device", Box(x, jax.devices()[int(changed)]), lambda x, b: b.leaf * b.held.id)
node("object", Box(x, Own(two)), lambda x, b: b.leaf * b.held.k)
node("object in a tuple", Box(x, (1, Own(two))), lambda x, b: b.leaf * b.held[1].k)
class Color(enum.Enum):
    A = 1
Color.A.k = two
static("enumeration", Color.A, lambda x, color: x * color.k)

# -- what the function holds: its closure, defaults, self, a partial
def closing(k):
    return lambda x: traced.append("closure") or x * k
said["closure"] = ejcache.ejit(closing(two), reuse_lowering="w")(x)
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
params = model.init(jax.random.key(0), jnp.ones((1, 4)))
state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(float(two)))
said["TrainState"] = step("TrainState", lambda x, s: s.apply_gradients(grads=s.params).params)(x, state)
net = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
both = nnx.split((net, nnx.Optimizer(net, optax.sgd(float(two)), wrt=nnx.Param)))
def update(x, graph, leaves):
    net, optimizer = nnx.merge(graph, leaves)
    optimizer.update(net, nnx.state(net, nnx.Param))
    return nnx.state(net, nnx.Param)
said["graphdef"] = step("graphdef", update, static_argnums=1)(x, *both)

# -- an edit of the file in which ejit is called
def loss(model, x):
    traced.append("nnx.grad")
    return (model(x) * 2.0).sum()
said["nnx.grad"] = ejcache.ejit(nnx.grad(loss), reuse_lowering="w")(net, x)
class Plain(nn.Module):
    def __call__(self, x):
        traced.append("apply")
        return x * 2.0
said["apply"] = ejcache.ejit(Plain().apply, reuse_lowering="w")({}, x)

# -- never reused
text = "def typed(x):\\n    traced.append('exec')\\n    return x * two\\n"
exec(compile(text, __file__, "exec"), globals())
said["exec"] = ejcache.ejit(typed, reuse_lowering="w")(x)
space = {"traced": traced, "two": two}
exec(compile(text, __file__, "exec"), space)
said["exec elsewhere"] = ejcache.ejit(space["typed"], reuse_lowering="w")(x)
warnings.simplefilter("default")
@functools.partial(ejcache.ejit, reuse_lowering="w", donate_argnums=0)
def donates(x):
    traced.append("warned")
    return x.sum()
said["warned"] = donates(x * two)
"""
TAIL = """
said = {name: [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(each)] for name, each in said.items()}
print(json.dumps({"traced": traced, "said": said}))
"""
NEVER = ["exec", "exec", "warned"]
EDITS = {"(model(x) * 2.0)": "(model(x) * 3.0)", "return x * 2.0": "return x * 3.0"}


@pytest.fixture
def start(tmp_path):
    """Start the program, and return what it printed, with what it logged."""

    def run(body, *, start=subprocess.Popen, **environment):
        path = tmp_path / "train.py"
        path.write_text(HEAD + body + TAIL)
        done = run_program(
            [sys.executable, path],
            env={
                "CACHE_AT": str(tmp_path / "cache"),
                "XDG_CACHE_HOME": str(tmp_path / "home"),
                "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
                "EJCACHE_REUSE_FLOOR": "0",
                "EJCACHE_REUSE_CHECK_ONE_IN": "0",
                **environment,
            },
            start=start,
        )
        return json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}

    return run


def test_nothing_is_stale(start):
    """The third start traces what is never reused; with other values each function that reads them is, and is right.

    What is never reused is code of exec with the name of a real file, and a trace that warned: a line says so.
    """

    def without(body, **environment):
        return start(body, start=ForkedWithFrameworks, EJCACHE="0", **environment)

    starts = [start(CASES) for _ in range(3)]
    names, third = starts[0]["traced"], starts[2]
    assert names[-3:] == NEVER
    assert [each["traced"] for each in starts[1:]] == [names, NEVER]
    assert starts[1]["said"] == third["said"]
    for each in starts:
        assert "Some donated buffers were not usable" in each["stderr"]
        assert "typed has other code than its file" in each["stderr"]
        assert "typed was made by exec" in each["stderr"]
        assert "its trace or its lowering warned" in each["stderr"]
    changed, plain = start(CASES, CHANGE="yes"), without(CASES, CHANGE="yes")
    assert changed["said"] == plain["said"]
    of_files = {"nnx.grad", "apply"}
    assert set(names) - set(changed["traced"]) == of_files
    assert {name for name in plain["said"] if plain["said"][name] == third["said"][name]} == of_files
    edited = CASES
    for before, after in EDITS.items():
        edited = edited.replace(before, after)
    after, plain = start(edited), without(edited)
    assert set(after["traced"]) == set(names)
    assert after["said"] == plain["said"]
