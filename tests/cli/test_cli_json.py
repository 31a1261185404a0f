"""One vocabulary of JSON: each document has a schema, and one name is one thing in all of them."""

from __future__ import annotations

import runpy
from collections import defaultdict

import pytest
from helpers import ROOT


@pytest.fixture(scope="module")
def reference():
    """The program that makes the page about JSON."""
    return runpy.run_path(str(ROOT / "tools" / "json_reference.py"))


@pytest.fixture
def documents(reference, clean_environment):
    """What each command prints of a small cache."""
    return reference["printed"](clean_environment)


def test_every_document_has_a_schema(documents):
    """All have the same one, in front."""
    assert len(documents) > 20
    assert {next(iter(document.items())) for document in documents.values()} == {("schema", 1)}


def test_one_name_is_one_thing(documents, reference):
    """No name is a number in one place and a list in another, and what hits saved has one name."""
    kinds = defaultdict(set)
    for document in documents.values():
        for name, kind in named(document, reference["DATA"]):
            kinds[name].add(kind)
    assert kinds["entries"] == {list}
    assert kinds["total_entries"] == {int}
    assert kinds["seconds_saved"] <= {int, float, type(None)}
    assert "saved" not in kinds
    settings = {"default", "value"}  # have the type of the setting
    assert {name for name, seen in kinds.items() if list in seen and seen & {int, float}} <= settings


def named(value, data):
    """Each name of a field in a document, with the type of what it has; the keys of data are no names."""
    if isinstance(value, list):
        for each in value:
            yield from named(each, data)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name, type(inner)
            below = inner.values() if name in data and isinstance(inner, dict) else [inner]
            for each in below:
                yield from named(each, data)
