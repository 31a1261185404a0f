"""Functions with one name and code: which of them may be reused."""

from __future__ import annotations

import gc

import pytest

from ejcache.reuse import namesakes
from ejcache.reuse.functions import KnownFunction
from ejcache.reuse.namesakes import Namesake
from ejcache.reuse.word import Word


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """No function was made yet."""
    monkeypatch.setattr(namesakes, "_groups", {})


def known(*, is_bare=False):
    return KnownFunction("m.step", "code", (), is_bare, "")


def named(word, *, fun=None, is_bare=False):
    """A namesake and its word's digest."""
    made = Word(word)
    return Namesake(known(is_bare=is_bare), fun or object(), made), made


def asked(namesake, word):
    return namesake.why_trace(word.ask())


def test_different_words_are_reused():
    """As those of two phases."""
    one, other = named("warmup"), named("main")
    assert asked(*one) == asked(*other) == asked(*one) == ""


def test_equal_words_trace():
    """All of them, from the first that is asked."""
    functions = [named("a"), named(lambda: "a"), named("b")]
    said = "several functions of the name m.step have the same word: give each another word"
    assert all(asked(*each).startswith(said) for each in functions)


@pytest.mark.parametrize("broken", [lambda: 1 / 0, lambda: None])
def test_a_word_that_cannot_be_had_traces(broken):
    """The other one may raise, or return what is no word."""
    one, other = named("a"), named(broken)
    assert "the word of another one could not be had" in asked(*one)
    del other


def test_those_that_hold_nothing_are_one():
    """Made twice, they have one program; so has an object that is given twice."""
    one, other = named("a", is_bare=True), named("a", is_bare=True)
    assert asked(*one) == asked(*other) == ""
    fun = object()
    one, other = named("b", fun=fun), named("b", fun=fun)
    assert asked(*one) == asked(*other) == ""


class Trainer:
    def step(self):
        return self


def test_bound_methods():
    """One object has one method, wherever it is read; another object has another."""
    trainer = Trainer()
    first, again = named("a", fun=trainer.step), named("a", fun=trainer.step)
    assert asked(*first) == asked(*again) == ""
    other = named("a", fun=Trainer().step)
    assert "the same word" in asked(*other)


def test_what_a_function_that_is_gone_has_answered():
    """A function that was made in a loop is forgotten, and its answer is not."""
    one = named("a")
    assert asked(*one) == ""
    del one
    gc.collect()
    assert asked(*named("b")) == ""
    assert "the same word" in asked(*named("a"))


def test_one_that_is_made_after_a_reuse():
    """What was reused is withdrawn at once, where the word can be had, and otherwise when the new one is asked."""
    withdrawn: list[str] = []
    one, word = named("a")
    assert asked(one, word) == ""
    one.note_reuse(word.ask(), withdrawn.append)
    named("b")
    assert withdrawn == []
    named("a")
    assert len(withdrawn) == 1
    assert "one of them was reused before" in withdrawn[0]


def test_one_whose_word_comes_later():
    """A word that raises when the function is made is asked with its first call."""
    phases: list[str] = []
    withdrawn: list[str] = []
    one, word = named("a")
    assert asked(one, word) == ""
    one.note_reuse(word.ask(), withdrawn.append)
    late, other = named(lambda: phases[0])
    assert withdrawn == []
    phases.append("a")
    assert "the same word" in asked(late, other)
    assert len(withdrawn) == 1
