"""What can be a word, what differs between two, and what is refused, with its place."""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejcache
from ejcache.errors import UsageError
from ejcache.jax_integration.seam.reuse.placements import DevicePlaces
from ejcache.reuse import start
from ejcache.reuse.call_data import call_data
from ejcache.reuse.word import Word
from ejcache.values.plain_data import NotWholeError


@dataclasses.dataclass
class Config:
    activation: Any = "relu"
    sizes: Any = (1, 2)


def test_words_are_values():
    """They count whole, whoever made them."""
    import optax

    words = ["a", b"a", 1, 1.0, (1,), [1], {"a": 1}, Config(), Config("gelu"), Config(jax.nn.gelu), ["a", True], Config]
    words += [Config(optax.adam(1e-3)), Config(optax.adam(1e-2)), Config(lambda x: x), Config(lambda x: x + 1)]
    assert len({Word(each).ask() for each in words}) == len(words)
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
    "an array of JAX": (lambda: Config(sizes=[jnp.ones(3)]), "config.sizes[0] is an array of JAX", "a digest of it"),
    "an object of C": (lambda: {"a": {"b": threading.Lock()}}, "word['a']['b'] is a _thread.lock", "what counts of it"),
    "a class of no name": (lambda: [type("C", (), {})], "word[0] is the class C", "give its name"),
    "a subclass of text": (lambda: Text("a"), "word is a test_words.Text", "str(…)"),
    "None": (lambda: None, "reuse_lowering is None", "says nothing"),
    "False": (lambda: False, "reuse_lowering is False", "says nothing"),
    "a boolean of NumPy": (lambda: np.bool_(True), "reuse_lowering is True", "says nothing"),
    "an array of no dimensions": (lambda: jnp.float32(1), "word is an array of JAX", "a digest of it"),
}


class Text(str):
    __slots__ = ()


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


def test_errors_of_a_word_are_those_of_the_call():
    """A word that raises, and one that is none."""
    with pytest.raises(ZeroDivisionError):
        ejcache.ejit(lambda x: x, reuse_lowering=lambda: 1 / 0)(1)
    with pytest.raises(UsageError, match="ejit: reuse_lowering is None"):
        ejcache.ejit(lambda x: x, reuse_lowering=lambda: None)(1)


def test_true_is_refused():
    """It is no word, but the old switch."""
    with pytest.raises(UsageError, match="reuse_lowering is True, which says nothing of what the function reads"):
        ejcache.ejit(lambda x: x, reuse_lowering=True)


def test_a_word_of_a_file_that_was_changed(tmp_path, caplog):
    """The function is traced, and one line names the file."""
    path = tmp_path / "models.py"
    path.write_text("K = 2")
    ejcache.enable(tmp_path / "cache")
    for word in (("w", ejcache.code_digest(path)), lambda: ("w", ejcache.code_digest(path))):
        assert int(ejcache.ejit(lambda x: x + 1, reuse_lowering=word)(1)) == 2
    assert f"is traced: {path} was modified after the process began" in caplog.text


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


# -- calls and starts ------------------------------------------------------------------------------------------------


def test_options_of_jit_count_by_content():
    """What cannot be compared is refused."""
    parts = {"leaves": [], "trees": [], "names": [], "statics": [], "static_positions": [], "static_names": []}
    places = DevicePlaces(jax.devices()[0].client)

    def options(**given):
        data = call_data(types.SimpleNamespace(options=given, **parts), places)
        return data["the options of jit"]

    assert options(compiler_options={"level": 3}) != options(compiler_options={"level": 2})
    with pytest.raises(NotWholeError, match=r"compiler_options\['level'\] is a _thread.lock"):
        options(compiler_options={"level": threading.Lock()})


def test_a_python_that_leaves_assertions_out_is_another_one(monkeypatch):
    """What `python -O` traces has no assertions, and may have another branch at each `__debug__`."""
    backend = jax.devices()[0].client
    before = start.machine(backend)
    optimized = types.SimpleNamespace(version=sys.version, flags=types.SimpleNamespace(optimize=1))
    monkeypatch.setattr(start, "sys", optimized)
    assert start.machine(backend) != before
