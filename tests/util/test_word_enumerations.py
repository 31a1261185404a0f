"""Sets of words and of numbers have plain texts and numbers as members."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ejcache.bucket.storage_causes import StorageCause
from ejcache.cache.counters import Skip
from ejcache.cache.policy import Miss
from ejcache.keys.known_flags import Kind
from ejcache.settings.table import Origin
from ejcache.util.lifecycle import ExitPhase


@pytest.mark.parametrize(
    ("kind", "of"),
    [(each, str) for each in (Kind, Miss, Origin, Skip, StorageCause)] + [(ExitPhase, int)],
)
def test_members_are_plain_and_differ(kind, of):
    """What the collector has to go through is the class alone, and no two members of it are mixed up."""
    members = [value for name, value in vars(kind).items() if name.isupper()]
    assert len(set(members)) == len(members) > 1
    assert {type(member) for member in members} == {of}


ROOT = Path(__file__).parents[2]
TREES = [ast.parse(path.read_text()) for room in ("src", "bench", "tools") for path in (ROOT / room).rglob("*.py")]
SETS = {
    node.name
    for tree in TREES
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in {"Words", "Numbers"} for base in node.bases)
}


def asked_of_an_enumeration(tree):
    """What type checkers allow of a set, and the program cannot do: call it, go through it, ask a member's name."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("isinstance"), args=[_, kinds]):
                named = {name.id for name in ast.walk(kinds) if isinstance(name, ast.Name)}
            case ast.Call(func=ast.Name(name)) | ast.comprehension(iter=ast.Name(name)) | ast.For(iter=ast.Name(name)):
                named = {name}
            case ast.Attribute(value=ast.Attribute(value=ast.Name(name)), attr="value" | "name"):
                named = {name}
            case _:
                named = set()
        if named & SETS:
            yield ast.unparse(node)


def test_nothing_asks_a_set_for_what_an_enumeration_has():
    """Type checkers take the sets for enumerations, so they do not see this."""
    assert {"Miss", "Skip", "Origin", "ExitPhase"} <= SETS
    assert [found for tree in TREES for found in asked_of_an_enumeration(tree)] == []
    wrong = "Miss(x), [m for m in Skip], Origin.CALL.value, isinstance(x, (int, Miss))"
    assert len(list(asked_of_an_enumeration(ast.parse(wrong)))) == 4
