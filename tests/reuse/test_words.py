"""What can be a word, what differs between two, and what is refused, with its place."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
import struct
import sys
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

import ejcache
from ejcache.errors import UsageError
from ejcache.jax_integration.seam.reuse.lowering import DevicePlaces
from ejcache.jax_integration.seam.reuse.refusal import RefusedError
from ejcache.reuse import process
from ejcache.reuse.call import call_texts
from ejcache.reuse.values import ValuePlace, plain_data
from ejcache.reuse.word import Word


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


class Sub(Config):
    """A subclass that is no dataclass itself: it may have attributes that are no fields."""


class Pair(NamedTuple):
    first: Any
    second: Any = 0


NAN = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]
DIFFERENT = [
    *(1, 1.0, True, "1", b"1", 1j, Decimal(1), Fraction(1), np.float32(1), np.int64(1), np.bool_(True), Path("1")),
    *(0.0, -0.0, 0, math.nan, NAN, math.inf, 10**5000, -1),
    *((1,), [1], {1}, frozenset({1}), {1: 1}, {"1": 1}, (), [], set(), {}, ((1,),), (1, 1), Pair(1), Pair(1, 1)),
    *(Kind.ADAM, Kind.SGD, Flags.A, Flags.A | Flags.B, Config(), Config("gelu"), Config(inner=Config()), Frozen()),
    *(np.dtype("float32"), np.float32, jnp.float32, jnp.bfloat16, ml_dtypes.bfloat16, float, np.dtype([("a", "i4")])),
    *(jax.random.key(0).dtype, PurePosixPath("1"), "a\ud800", ("a", "b"), ("a, b",), ""),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}),
]  # fmt: skip


def test_words_that_differ():
    """A number counts by its bits, and a container by its class and what is in it."""
    digests = {}
    for value in DIFFERENT:
        # A boolean alone is refused.
        word = Word(["booleans", value] if isinstance(value, (bool, np.bool_)) else value)
        digests.setdefault(word.ask(), []).append(value)
    assert [same for same in digests.values() if len(same) > 1] == []


def test_words_that_are_equal():
    """The order of a set does not count, and neither does who made the value."""
    assert Word({"a", "b", "c"}).ask() == Word({"c", "b", "a"}).ask()
    assert Word(Config(sizes={1, 2})).ask() == Word(lambda: Config(sizes={2, 1})).ask()
    assert Word(functools.partial(Config, "gelu")).ask() == Word(Config("gelu")).ask()


class Holder:
    def __init__(self):
        self.steps = 3

    def word(self):
        return self.steps


def test_a_function_is_asked_each_time():
    """A bound method and a callable object, too."""
    holder = Holder()
    word = Word(holder.word)
    before = word.ask()
    holder.steps = 4
    assert word.ask() != before


REFUSED = {
    "an array": (lambda: {"weights": np.ones(3)}, "word['weights'] is a numpy.ndarray", "a digest of it"),
    "an array of JAX": (lambda: Config(sizes=[jnp.ones(3)]), "config.sizes[0] is an array of JAX", "a digest of it"),
    "a function": (lambda: Config(jax.nn.relu), "config.activation is a ", "give its name"),
    "a lambda in a tuple": (lambda: (1, lambda: 1), "word[1] is a function", "ejcache.code_digest"),
    "a class": (lambda: [Config], "word[0] is a type", "give its name"),
    "an object": (lambda: {"a": {"b": object()}}, "word['a']['b'] is an object", "what counts of it"),
    "a subclass": (lambda: collections.OrderedDict(a=1), "word is a collections.OrderedDict", "dict(…)"),
    "a subclass of text": (lambda: type("Text", (str,), {})("a"), "Text", "str(…)"),
    "a subclass of a dataclass": (functools.partial(Sub), "sub is a ", "what counts of it"),
    "a key": (lambda: {(1, print): 1}, "a key of word[1] is a builtin_function_or_method", "give its name"),
    "None": (lambda: None, "reuse_lowering is None", "says nothing"),
    "False": (lambda: False, "reuse_lowering is False", "says nothing"),
    "a boolean of NumPy": (lambda: np.bool_(True), "reuse_lowering is True", "says nothing"),
    "a bytearray": (lambda: bytearray(b"1"), "word is a bytearray", "what counts of it"),
    "an array of no dimensions": (lambda: jnp.float32(1), "word is an array of JAX", "a digest of it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    """Of a value when the function is made, of a function when it is asked; the place is named, and what to give."""
    make, place, advice = REFUSED[name]
    errors = []
    value = make()
    if value is not None and value is not False:
        with pytest.raises(UsageError) as error:
            ejcache.ejit(lambda x: x, reuse_lowering=value)
        errors.append(str(error.value))
    word = Word(make)
    with pytest.raises(UsageError) as error:
        word.ask()
    for said in (*errors, str(error.value)):
        assert place in said
        assert advice in said


def test_true_is_refused():
    """It is no word, but the old switch."""
    with pytest.raises(UsageError, match="reuse_lowering is True, which says nothing of what the function reads"):
        ejcache.ejit(lambda x: x, reuse_lowering=True)


def test_a_word_that_holds_itself():
    """It has no end."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UsageError, match="nested too deeply"):
        Word(loop)


def test_a_function_with_parameters_is_refused():
    """It could not be called."""
    with pytest.raises(UsageError, match="without parameters"):
        Word(lambda config: config)


@pytest.mark.parametrize("off", [None, False])
def test_without_a_word(off):
    """The function is that of `jax.jit`."""
    plain = ejcache.ejit(lambda x: x + 1, reuse_lowering=off)
    assert "ReusingCalls" not in repr(plain._cache_miss)
    assert int(plain(1)) == 2


# -- arguments -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Hidden:
    size: int = 1

    def __post_init__(self):
        self.more = 0


def f(x):
    return x


def static(value):
    return plain_data(value, ValuePlace.STATIC, "a static argument")


def test_static_arguments_count_by_value():
    """Functions count by name and bytecode, and a dataclass by all that it holds."""
    other = eval("lambda x: x + 1")
    assert static(jax.nn.relu) != static(jax.nn.gelu)
    assert static(f) != static(other) != static(eval("lambda x: x + 2"))
    assert static(functools.partial(f, 1)) != static(functools.partial(f, 2))
    hidden = Hidden()
    before = static(hidden)
    hidden.more = 1
    assert static(hidden) != before
    assert static(np.tanh) != static(np.sin) != static(math.sin)
    assert static(range(3)) != static(slice(3))
    assert static(...) == static(Ellipsis)


class Own:
    def method(self):
        return self


@pytest.mark.parametrize(
    "value", [Own(), Own, Own().method, (1, Own()), functools.partial(f, Own()), np.frompyfunc(f, 1, 1), [jnp.ones(1)]]
)
def test_other_static_arguments_trace(value):
    """Nobody can compare them; in a node of a tree they count by their class."""
    with pytest.raises(RefusedError, match="a static argument"):
        static(value)
    assert plain_data(value, ValuePlace.NODE, "a node") == plain_data(value, ValuePlace.NODE, "a node")


def test_bytecode_counts_without_lines():
    """The same function further down is the same; another constant, name or default of a nested one is not."""
    texts = [f"lambda: {each}" for each in ("1", "1.0", "True", "-0.0", "0.0", "a", "b", "(lambda: 1)", "{1, 2} & a")]
    texts += ["lambda: (lambda: 2)", "lambda x: 1", "lambda *, x: 1"]
    found = [static(eval(text)) for text in texts]
    assert len({str(each) for each in found}) == len(texts)
    assert [static(eval(f"(\n\n{text})")) for text in texts] == found


def test_options_and_settings_of_jax_count_by_content_alone():
    """A static argument that is a function counts by its bytecode; an option that holds one is refused."""
    parts = {"leaves": [], "trees": [], "names": [], "statics": [], "static_positions": [], "static_names": []}
    places = DevicePlaces(jax.devices()[0].client)
    texts = call_texts(types.SimpleNamespace(options={"compiler_options": {"level": 3}}, **parts), places)
    assert "level" in texts["the options of jit"]
    with pytest.raises(RefusedError, match="the option compiler_options"):
        call_texts(types.SimpleNamespace(options={"compiler_options": {"level": lambda: 3}}, **parts), places)


def test_a_python_that_leaves_assertions_out_is_another_one(monkeypatch):
    """What `python -O` traces has no assertions, and may have another branch at each `__debug__`."""
    backend = jax.devices()[0].client
    before = process.machine(backend)
    optimized = types.SimpleNamespace(version=sys.version, flags=types.SimpleNamespace(optimize=1))
    monkeypatch.setattr(process, "sys", optimized)
    assert process.machine(backend) != before
