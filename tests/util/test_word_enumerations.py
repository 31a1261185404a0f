"""Enumerations that are made quickly do what those of `enum` do."""

from __future__ import annotations

import copy
import enum
import json
import pickle
import sys
from types import ModuleType

import pytest

from ejcache.util import words


def made(words, numbers):
    """The same two classes, in a module of their own, where pickle finds them."""

    class Planet(words):
        """A planet."""

        NEAR = "near"
        FAR = "far away"

        def shout(self):
            return self.upper()

    class Order(numbers):
        FIRST = 0
        LAST = 7

    module = ModuleType("made_for_a_test")
    for each in (Planet, Order):
        each.__module__, each.__qualname__ = module.__name__, each.__name__
        setattr(module, each.__name__, each)
    sys.modules[module.__name__] = module
    return Planet, Order


def asked(kind):
    """What can be asked of an enumeration."""
    first, last = kind
    said = [list(kind.__members__), len(kind), first.name, last.value, f"{first}", str(last), json.dumps([*kind])]
    said += [kind(last.value) is last, first == first.value, first in {first.value: 1}, first != last, hash(first)]
    said += [isinstance(first, kind), [*reversed(kind)] == [last, first], sorted([last, first], key=[*kind].index)]
    said += [copy.deepcopy(last) is last, copy.copy(first) is first, pickle.loads(pickle.dumps(last)) is last]
    said += [
        last.value in kind,
        "neither" in kind,
        bool(first),
        kind.__doc__,
        getattr(kind, "FIRST", 0),
        max(first, last),
    ]
    with pytest.raises(ValueError, match="'neither' is not a valid"):
        kind("neither")
    return [str(each) if isinstance(each, kind) else each for each in said]


def test_they_answer_as_those_of_enum():
    """Members, values, names, order, look-ups, texts, copies and pickles are the same."""
    try:
        ours = [asked(each) for each in made(words.Words, words.Numbers)]
        theirs = [asked(each) for each in made(enum.StrEnum, enum.IntEnum)]
    finally:
        del sys.modules["made_for_a_test"]
    assert ours == theirs
    planet, _ = made(words.Words, words.Numbers)
    assert planet.FAR.shout() == "FAR AWAY"
    del sys.modules["made_for_a_test"]
