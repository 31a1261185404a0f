"""Where the function of a program is defined, and which programs come from one function."""

from __future__ import annotations

import pytest

from ejcache.history.definitions import UNKNOWN, definition_of, qualified_name
from ejcache.history.known_texts import Texts
from ejcache.history.nearest_program import Earlier, relation
from ejcache.jax_integration.program_details import shorten_details
from ejcache.journal.line import ProgramRecord
from ejcache.journal.start_records import Process, StartRecord

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


LIBRARY = "/a/site-packages/flax/x.py:1 f"
OF_JAX = "/a/site-packages/jax/_src/x.py:1 f"


def program(place, source="", **fields):
    return ProgramRecord("jit_step", details=defined(place, source), **fields)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/a/app/train.py:14 step", "/a/app/train.py:20 step", True),
        ("/a/app/train.py:14 step", "/b/app/train.py:20 step", None),  # a checkout may have moved
        ("/a/app/train.py:14 step", "app/train.py:20 step", None),  # as an entry says it
        ("/a/app/train.py:14 step", "/a/app/eval.py:14 step", False),
        ("/a/app/train.py:14 step", "/a/app/train.py:14 other", False),
        ("/a/app/train.py:14 <lambda>", "/a/app/train.py:15 <lambda>", False),
        ("/a/app/train.py:14 <lambda>", "/b/app/train.py:14 <lambda>", True),
        (LIBRARY, "/a/app/train.py:15 f", False),
        ("", "/a/app/train.py:15 step", True),
        ("", "/a/app/train.py:15 <lambda>", False),
    ],
)
def test_one_function(one, other, same):
    assert relation(program(one), program(other)) is same


@pytest.mark.parametrize(
    ("place", "callers", "same"),
    [
        (LIBRARY, ("/a/train.py:3 in main", "/a/train.py:9 in main"), True),
        (LIBRARY, ("/a/train.py:3 in main", "/a/eval.py:3 in main"), False),
        (LIBRARY, ("/a/train.py:3 in main", "/b/train.py:3 in main"), None),
        (LIBRARY, ("/a/train.py:3 in main", ""), None),
        (OF_JAX, ("/a/train.py:3 in main", "/a/train.py:3 in main"), True),
        (OF_JAX, ("/a/train.py:3 in main", "/a/train.py:9 in main"), False),
        (OF_JAX, ("", ""), False),
    ],
)
def test_a_function_of_a_library_counts_for_its_caller(place, callers, same):
    assert relation(*(program(place, caller=each) for each in callers)) is same


def test_a_lambda_that_moved_is_known_by_its_line():
    one, other = (program(f"/a/t.py:{line} <lambda>", "f = jit(lambda x: x + 1)") for line in (3, 9))
    assert relation(one, other)


def compared(one, other, *texts):
    """Whether the later one of two programs is compared with the earlier one, where these are their texts."""
    programs = [
        program(place, key=str(n), time=1.0 + n, components={"computation": str(n)}, outcome="stored")
        for n, place in enumerate((one, other))
    ]
    earlier = Earlier(
        [StartRecord(Process(id=str(n)), [each]) for n, each in enumerate(programs)],
        Texts(lambda _: {str(n): text for n, text in enumerate(texts) if text}),
    )
    return bool(earlier.of_function(programs[1]).programs)


def test_two_functions_of_one_name_in_one_file():
    place = "/home/me/app/train.py:4 step"
    assert compared(place, place, TEXT, TEXT)
    assert not compared(place, place, TEXT, TEXT.replace("Trainer.fit", "Evaluator.fit"))
    assert compared(place, place, TEXT, "")


def test_a_checkout_that_moved_is_known_by_its_operations():
    old, new = "/home/me/app/train.py:4 step", "/tmp/clone/app/train.py:4 step"
    assert compared(old, new, TEXT, TEXT)
    assert not compared(old, new, TEXT, TEXT.replace("multiply", "add"))
    assert not compared(old, new, TEXT, "")
