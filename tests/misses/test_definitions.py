"""Where the function of a program is defined, and which programs come from one function."""

from __future__ import annotations

import pytest

from ejcache.misses.definitions import UNKNOWN, are_one_function, definition_of, qualified_name, shorten_details

TEXT = """
    %2 = stablehlo.multiply %1, %arg1 : tensor<3xf32> loc(#loc13)
#loc3 = loc("/home/me/app/train.py":5:27 to :35)
#loc4 = loc("/home/me/app/train.py":7:6 to :44)
#loc6 = loc("Trainer.fit.<locals>.step"(#loc3))
#loc7 = loc("<module>"(#loc4))
#loc9 = loc(callsite(#loc6 at #loc7))
#loc13 = loc("jit(step)/mul"(#loc9))
"""


def defined(place, source=""):
    return {"defined": place, "source": source}


def test_definition():
    found = definition_of(defined("/home/me/my app/train.py:14 step"))
    assert (found.file, found.line, found.name) == ("/home/me/my app/train.py", 14, "step")
    assert str(found) == "train.py:14"
    assert definition_of({}) == definition_of(defined("nonsense")) == UNKNOWN
    assert definition_of(defined("/x/site-packages/flax/core.py:3 wrapped")).is_library


def test_qualified_name():
    assert qualified_name(TEXT, definition_of(defined("/home/me/app/train.py:4 step"))) == "Trainer.fit.<locals>.step"
    assert qualified_name(TEXT, definition_of(defined("/home/me/app/train.py:6 step"))) == ""
    assert qualified_name(TEXT, definition_of(defined("/home/me/app/other.py:4 step"))) == ""


def test_entries_name_no_directories_and_no_source():
    details = {
        "jax": "0.12",
        "committed": "x",
        **defined("/home/me/secret/app/train.py:14 <lambda>", "lambda x: password"),
    }
    assert shorten_details(details) == {"jax": "0.12", "defined": "app/train.py:14 <lambda>"}
    assert shorten_details({"jax": "0.12"}) == {"jax": "0.12"}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/a/app/train.py:14 step", "/b/app/train.py:20 step", True),
        ("/a/app/train.py:14 step", "/a/app/eval.py:14 step", False),
        ("/a/app/train.py:14 step", "/a/app/train.py:14 other", False),
        ("/a/app/train.py:14 <lambda>", "/a/app/train.py:15 <lambda>", False),
        ("/a/app/train.py:14 <lambda>", "/b/app/train.py:14 <lambda>", True),
        ("/a/site-packages/flax/x.py:1 f", "/a/app/train.py:15 f", True),
        ("", "/a/app/train.py:15 step", True),
        ("", "/a/app/train.py:15 <lambda>", False),
    ],
)
def test_one_function(one, other, same):
    assert are_one_function(defined(one), defined(other)) is same


def test_a_lambda_that_moved_is_known_by_its_line():
    one, other = (defined(f"/a/t.py:{line} <lambda>", "f = jit(lambda x: x + 1)") for line in (3, 9))
    assert are_one_function(one, other)


def test_two_functions_of_one_name_in_one_file():
    one, other = defined("/home/me/app/train.py:4 step"), defined("/home/me/app/train.py:4 step")
    assert are_one_function(one, other, texts=(TEXT, TEXT))
    assert not are_one_function(one, other, texts=(TEXT, TEXT.replace("Trainer.fit", "Evaluator.fit")))
    assert are_one_function(one, other, texts=(TEXT, ""))
