"""A value counts whole, or is refused: what differs between two values, and what is equal in every process."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import json
import math
import random
import re
import struct
import sys
import threading
import types
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from forking import ForkedWithFrameworks, write_as_old
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ejcache.values.plain_data import NotWholeError, whole_digest


class Kind(enum.Enum):
    ADAM = 1
    SGD = 2


class Flags(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class Config:
    activation: Any = "relu"
    sizes: Any = (1, 2)
    inner: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    activation: Any = "relu"


class Pair(NamedTuple):
    first: Any
    second: Any = 0


class Slotted:
    __slots__ = ("__private", "size")

    def __init__(self, size, private=1):
        self.size, self.__private = size, private


class BlockA:
    dtype = np.dtype("float32")


class BlockB:
    dtype = np.dtype("float32")


class Own:
    def __init__(self, k):
        self.k = k

    def __eq__(self, other):
        return True

    __hash__ = object.__hash__

    def __call__(self, x):
        return x * self.k

    def method(self, x):
        return x * self.k


class Mapping(dict):
    """A dict that may have attributes, too."""

    @classmethod
    def make(cls, *given, **attributes):
        made = cls(*given)
        vars(made).update(attributes)
        return made


NAN = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]
DEVICE = jax.devices()[0]
MESH = Mesh(np.array([DEVICE]), ("x",))
REPLICATED = NamedSharding(MESH, PartitionSpec())
PLAIN = [
    *(None, True, False, 1, 1.0, "1", b"1", 1j, Decimal(1), Fraction(1), np.float32(1), np.int64(1), np.bool_(True)),
    *(
        Path("1"),
        PurePosixPath("1"),
        0.0,
        -0.0,
        0,
        math.nan,
        NAN,
        math.inf,
        10**5000,
        -1,
        "a\ud800",
        "",
        bytearray(b"1"),
    ),
    *((1,), [1], {1}, frozenset({1}), {1: 1}, {"1": 1}, (), [], set(), {}, ((1,),), (1, 1), ("a", "b"), ("a, b",)),
    *(collections.OrderedDict(a=1), collections.defaultdict(int, a=1), collections.defaultdict(None, a=1), {"a": 1}),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}, types.MappingProxyType({"a": 1}), types.SimpleNamespace(a=1)),
    *(range(3), slice(3), ..., NotImplemented),
    *(Kind.ADAM, Kind.SGD, Flags.A, Flags.A | Flags.B, Pair(1), Pair(1, 1), Pair),
    *(np.dtype("float32"), np.float32, jnp.float32, jnp.bfloat16, ml_dtypes.bfloat16, float, np.dtype([("a", "i4")])),
    *(np.ones(3), np.ones(3, np.float32), np.ones((3, 1)), np.zeros(3), np.array([-0.0, 0, 0])),
]
OBJECTS = [
    *(
        Config(),
        Config("gelu"),
        Config(inner=Config()),
        Frozen(),
        Frozen("gelu"),
        Slotted(1),
        Slotted(2),
        Slotted(1, 2),
    ),
    *(BlockA, BlockB, Config(BlockA), Config(BlockB), BlockA(), Own(1), Own(2), Own(Own(1)), Own([Own(1)])),
    *(Mapping(), Mapping(k=1), Mapping(k=2), Mapping.make({"k": 1}, more=1), Mapping.make({"k": 1}, more=2)),
    *(Own(1).method, Own(2).method),
]


def of_jax():
    """Types of JAX and of libraries above it, which are imported by the process that has these tests alone."""
    import flax.linen as nn
    import optax

    return [
        *(jax.random.key(0).dtype, PartitionSpec(), PartitionSpec("x"), PartitionSpec("x", None)),
        *(NamedSharding(MESH, PartitionSpec("x")), REPLICATED, SingleDeviceSharding(DEVICE)),
        *(MESH, Mesh(MESH.devices, ("y",)), AbstractMesh((1,), ("x",)), AbstractMesh((2,), ("x",)), DEVICE),
        *(jax.ShapeDtypeStruct((2,), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.float32)),
        *(jax.ShapeDtypeStruct((2,), jnp.float16), jax.ShapeDtypeStruct((2,), jnp.float32, sharding=REPLICATED)),
        *(jax.tree.structure(each) for each in (0, (0,), [0], {"a": 0}, {"b": 0}, None, Pair(0, 0), ((0,),))),
        *(jax.nn.relu, jax.nn.gelu, np.sin, np.tanh, jnp.sin, math.sin, len, jax.checkpoint_policies.dots_saveable),
        *(json, np),
        *(optax.adam(1e-3), optax.adam(1e-2), optax.sgd(1e-3), optax.adam(1e-3, eps=1e-6)),
        *(optax.adam(optax.linear_schedule(1, 0, 9)), optax.adam(optax.linear_schedule(1, 0, 8))),
        *(nn.Dense(2), nn.Dense(3), nn.Dense(3, param_dtype=jnp.float16)),
    ]  # fmt: skip


def f(x):
    return x


def g(x):
    return x + 1


def closure(k):
    return lambda x: x * k


def default(k):
    return lambda x, k=k: x * k


def keyword(k):
    return lambda x, *, k=k: x * k


def with_attribute(k):
    def made(x):
        return x

    made.k = k
    return made


def custom(k):
    made = jax.custom_jvp(f)
    made.defjvp(lambda primals, tangents: (primals[0], tangents[0] * k))
    return made


def wraps(inner):
    @functools.wraps(inner)
    def outer(x):
        return inner(x)

    return outer


def apply_of(k):
    import flax.linen as nn

    return nn.Dense(k).apply


def two(x, y):
    return x * y


def made_by():
    """Functions that make functions of a number."""
    from flax import nnx

    return (
        *(closure, default, keyword, with_attribute, custom),
        *(
            lambda k: functools.partial(f, k),
            lambda k: functools.partial(f, k=k),
            lambda k: jax.tree_util.Partial(f, k),
        ),
        *(lambda k, by=by: by(closure(k)) for by in (jax.vmap, jax.grad, jax.value_and_grad, jax.checkpoint, jax.jit)),
        *(lambda k, by=by: by(closure(k)) for by in (wraps, nnx.grad, nnx.value_and_grad)),
        *(lambda k: jax.vmap(two, in_axes=k), lambda k: nnx.grad(two, argnums=k - 1), apply_of),
        *(lambda k: jax.jit(two, static_argnums=k - 1), lambda k: jax.jit(two, donate_argnums=k - 1)),
        lambda k: jax.jit(f, inline=k == 1),
    )


def functions():
    return [f, g, jax.vmap(f), jax.grad(f), jax.checkpoint(f), *(by(k) for by in made_by() for k in (1, 2))]


@pytest.mark.parametrize(
    "values",
    [lambda: PLAIN, lambda: OBJECTS, of_jax, functions],
    ids=["plain", "objects", "jax", "functions"],
)
def test_values_that_differ(values):
    """A number counts by its bits, an object by all that it holds, a function by code, closure, defaults and more."""
    digests = collections.defaultdict(list)
    for value in values():
        digests[whole_digest(value, "a value")].append(value)
    assert [same for same in digests.values() if len(same) > 1] == []


def test_values_that_are_equal():
    """Who made a value does not count, nor the order of a set, nor the line of a function; an identity is a number."""
    import optax

    pairs = [({"a", "b", "c"}, {"c", "b", "a"}), (Own([1]), Own([1])), (closure(Own(1)), closure(Own(1)))]
    pairs += [(by(2), by(2)) for by in made_by() if by is not apply_of]  # Linen numbers its modules
    pairs += [(eval("lambda: {1, 2, 3} & a"), eval("(\n\nlambda: {3, 2, 1} & a)"))]
    pairs += [(MESH, Mesh(MESH.devices, ("x",))), (optax.adam(0.1), optax.adam(0.1))]
    assert [pair for pair in pairs if len({whole_digest(each, "a value") for each in pair}) > 1] == []


def test_cycles_end():
    """What is in itself is known again, and at which depth counts."""

    def cycle(depth):
        made = []
        inner = made
        for _ in range(depth):
            inner = [inner]
        made.append(inner)
        return made

    def recursive(x):
        return recursive(x)

    own = Own(1)
    own.k = own
    digests = [whole_digest(each, "a value") for each in (cycle(1), cycle(2), cycle(1), recursive, own)]
    assert digests[0] == digests[2]
    assert len(set(digests)) == 4
    shared = [1]
    assert whole_digest([shared, shared], "a value") != whole_digest([[1], [1]], "a value")


def test_an_enumeration_member_counts_with_its_attributes():
    """They may be set after the class was made."""
    before = whole_digest(Kind.ADAM, "a value")
    Kind.ADAM.rate = 1
    try:
        first = whole_digest(Kind.ADAM, "a value")
        Kind.ADAM.rate = 2
        assert len({before, first, whole_digest(Kind.ADAM, "a value")}) == 3
    finally:
        del Kind.ADAM.rate
    assert whole_digest(Kind.ADAM, "a value") == before


def test_fields_count_in_their_order():
    """Of a named tuple, and of a dataclass that is a node of a tree."""

    def make(*fields):
        made = [collections.namedtuple("Batch", fields), dataclasses.make_dataclass("Batch", fields)]  # noqa: PYI024
        for each in made:
            each.__module__, each.__qualname__ = __name__, "Batch"
        jax.tree_util.register_dataclass(made[1], list(fields), [])
        return made

    found = set()
    for made in zip(make("x", "y"), make("y", "x"), strict=True):
        for each in made:
            sys.modules[__name__].Batch = each
            try:
                found.add(whole_digest(jax.tree.structure(each(0, 1)), "a value"))
                found.add(whole_digest(each(0, 1), "a value"))
            finally:
                del sys.modules[__name__].Batch
    assert len(found) == 8


def numbers():
    yield 1


REFUSED = {
    "a value[1] is a _thread.lock": lambda: (1, threading.Lock()),
    "a value['a'].k is an _io.TextIOWrapper": lambda: {"a": Own(sys.__stdout__)},
    "a value's k is an array of JAX": lambda: closure(jnp.ones(2)),
    "a value.__self__.k is an array of JAX": lambda: Own(jnp.ones(2)).method,
    "a value is a generator": numbers,
    "a value is a re.Pattern": lambda: re.compile("a"),
    "a value is a random.Random": lambda: random.Random(1),
    "a value is a numpy.ufunc": lambda: np.frompyfunc(f, 1, 1),
    "a value.args[0] is a functools._lru_cache_wrapper": lambda: functools.partial(f, functools.lru_cache(f)),
    "a value is an array of Python objects": lambda: np.array([object()]),
    "a value is the class Text, which its module does not have": lambda: type("Text", (str,), {}),
    "a value is the module test_whole": lambda: sys.modules[__name__],
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_refused(said):
    """The part is named, as Python writes it."""
    with pytest.raises(NotWholeError, match=re.escape(said)):
        whole_digest(REFUSED[said](), "a value")


def test_a_value_that_is_nested_too_deeply():
    """It is refused, and does not end the process."""
    value: Any = ()
    for _ in range(10_000):
        value = (value,)
    with pytest.raises(NotWholeError, match="a value is nested too deeply"):
        whole_digest(value, "a value")


STATES = """
import equinox as eqx, flax.linen as nn, jax, numpy as np, optax
from flax import nnx
from flax.training.train_state import TrainState
from ejcache.values.plain_data import whole_digest

class Net(nnx.Module):
    def __init__(self, size, activation, rngs):
        self.first, self.second = nnx.Linear(2, size, rngs=rngs), nnx.Linear(size, 2, rngs=rngs)
        self.drop, self.activation = nnx.Dropout(0.1, rngs=rngs), activation

def states(size, activation, rate):
    model = nn.Sequential([nn.Dense(size), activation, nn.Dense(2)])
    params = {"params": {"kernel": np.ones((2, size), np.float32)}}
    state = TrainState(step=0, apply_fn=model.apply, params=params, tx=optax.adamw(rate), opt_state=())
    yield jax.tree.structure(state)
    net = Net(size, activation, nnx.Rngs(0))
    both = net, nnx.Optimizer(net, optax.chain(optax.clip(1.0), optax.adamw(rate)), wrt=nnx.Param)
    yield jax.tree.structure(both)
    yield nnx.graphdef(both)
    mlp = eqx.nn.MLP(2, 2, size, 2, activation, key=jax.random.key(0))
    yield eqx.partition(mlp, eqx.is_array_like)[1], optax.adam(rate)

def digests(size=4, activation=jax.nn.relu, rate=1e-3):
    found = []
    def traced():
        found.extend(whole_digest(each, "a state") for each in states(size, activation, rate))
    jax.eval_shape(traced)
    return found

def lines():
    for given in ({}, {"size": 8}, {"activation": jax.nn.gelu}, {"rate": 1e-2}):
        yield " ".join(digests(**given))
"""


def test_states_of_training(run_python, tmp_path, monkeypatch):
    """TrainState, NNX and Equinox: the same in every process, another one for each change of model and optimiser.

    The other process has another seed of hashes than this one, and other addresses.
    """
    from flax.ids import UUIDManager

    write_as_old(tmp_path / "states_of_training.py", STATES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("flax.linen.module.uuid", UUIDManager())  # it numbers modules, and other tests have made some
    import states_of_training

    here = list(states_of_training.lines())
    program = "import sys; sys.path[:0] = ['.']; from states_of_training import lines; print(*lines(), sep='\\n')"
    assert run_python(program, start=ForkedWithFrameworks).stdout.splitlines() == here
    for digests in zip(*(line.split() for line in here), strict=True):
        assert len(set(digests)) == 4
