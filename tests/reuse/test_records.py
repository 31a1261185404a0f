"""Records of reuse: their format, trees of results that nobody may forge, and what `why` says of a function."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cli_helpers import ejcache

from ejcache.jax_integration.lowering.module_digest import ModuleDigest
from ejcache.jax_integration.seam.reuse.calls import RefusedError, parse_call
from ejcache.jax_integration.seam.reuse.placements import DevicePlaces
from ejcache.reuse.notes import note
from ejcache.reuse.records import ReuseRecord, TurnedOff, Witness, decode_record, encode_record
from ejcache.reuse.result_trees import TreeCodec

CONTENT = ModuleDigest("1", 0, 0, False, 9, frozenset({"Sharding"}), frozenset())
RECORD = ReuseRecord("m.step", {"name": "jit_step"}, [0], "2", CONTENT, Witness("3", "4"))
FORMAT = (
    '{"version":2,"name":"m.step","program":{"name":"jit_step"},"tree":[0],"module":"2","content":{"digest":"1",'
    '"custom_partitionings":0,"inspections":0,"host_code":false,"size":9,"custom_calls":["Sharding"],'
    '"batched_calls":[]},"recorded":{"process":"3","seed":"4"},"proven":null}'
)


def test_the_format_of_a_record():
    """It is read as it was written; another version, and damage, is none."""
    assert encode_record(RECORD).decode() == FORMAT
    proven = RECORD._replace(proven=Witness("5", "6"))
    for each in (RECORD, proven, TurnedOff("two traces differ")):
        assert decode_record(encode_record(each)) == each
    assert decode_record(FORMAT.replace('"version":2', '"version":1').encode()) is None
    for cut in range(0, len(FORMAT), 7):
        assert decode_record(FORMAT[:cut].encode()) is None
    for name in json.loads(FORMAT):
        for wrong in (7, None, [1], {"a": 1}):
            fields = json.loads(FORMAT) | {name: wrong}
            found = decode_record(json.dumps(fields).encode())
            assert found is None or isinstance(found, ReuseRecord)


def test_why_says_what_was_done(tmp_path):
    """The function, what was done and why, and what had changed since the nearest start."""
    note("train.step", "recorded", "nothing was recorded for this word, code and call", {"the word": "1"},
         url=str(tmp_path))  # fmt: skip
    said = ejcache("why", "step").lines
    assert said[0].startswith("train.step was traced and recorded, because nothing was recorded for this word")
    (found,) = ejcache("why", "--json").json["reuse"]
    assert (found["function"], found["did"], found["parts"]) == ("train.step", "recorded", {"the word": "1"})


# -- trees -----------------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


class Callable(NamedTuple):
    """A named tuple that can be called."""

    x: Any

    def __call__(self):
        return os.getpid()


@jax.tree_util.register_pytree_node_class
class Node:
    """A node with data."""

    def __init__(self, child, data):
        self.child, self.data = child, data

    def tree_flatten(self):
        return (self.child,), self.data

    @classmethod
    def tree_unflatten(cls, data, children):
        return cls(*children, data)


def codec(*args):
    return TreeCodec(parse_call(jax.jit(lambda *args: args), args, {}))


def again(found, tree):
    return found.decode_tree(json.loads(json.dumps(found.encode_tree(tree))))


@pytest.mark.parametrize(
    "result",
    [
        1,
        (1, [2], {"a": 3}),
        None,
        Point(1, (2,)),
        Node(1, ("a", 2.5, frozenset({1}), Point(1, 2))),
        {"b": Node(1, None)},
    ],
)
def test_trees_that_are_read_as_they_were(result):
    """Registered classes, named tuples, and plain data."""
    tree = jax.tree.structure(result)
    assert again(codec(np.ones(3)), tree) == tree


def test_functions_in_trees():
    """They are those of the arguments, or nobody's."""
    tree = jax.tree.structure(Node(1, (jnp.sin, 3)))
    assert again(codec(Node(np.ones(3), jnp.sin)), tree) == tree
    for held in (jnp.sin, os.system, Point, Callable(1)):
        with pytest.raises(RefusedError, match="which is in no argument"):
            codec(np.ones(3)).encode_tree(jax.tree.structure(Node(1, held)))


NODE = ["name", f"{__name__}:Node"]
FORGED: list[Any] = [
    [0, [1, NODE, ["name", "os:system"]]],
    [0, [1, NODE, ["tuple of", ["name", f"{__name__}:Callable"], 1]]],
    [0, [1, NODE, ["tuple of", ["name", "os:system"], 1]]],
    [0, [1, NODE, ["tuple of", ["name", "builtins:tuple"], 1]]],
    [0, [1, NODE, ["ref", 10**9]]],
    [0, [1, NODE, ["ref", -1]]],
    [0, [1, ["name", "os:system"], None]],
    [0, [1, ["name", "subprocess:Popen"], "true"]],
    [0, [1, ["name", "not_imported:Node"], None]],
    [0, [1, ["literal", "1"], None]],
    [0, [2, NODE, None]],
    [0, [1, NODE]],
    [0, 0],
    [],
]


@pytest.mark.parametrize("forged", FORGED)
def test_trees_that_nobody_wrote(forged):
    """No record names anything that could be called, but a class that JAX knows as a node."""
    with pytest.raises((RefusedError, ValueError, TypeError, IndexError)):
        codec(Node(np.ones(3), 1)).decode_tree(forged)


def test_random_keys_of_an_unknown_kind_are_no_numbers():
    """A stored program with keys of a generator that this JAX does not know is an error, and so it is traced."""
    places = DevicePlaces(jax.devices()[0].client)
    _, *others = places.encode_aval(jax.typeof(jax.numpy.zeros(3)))
    with pytest.raises(ValueError, match="no random keys of the kind key<none>"):
        places.decode_aval(["key<none>", *others])
