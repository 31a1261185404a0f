"""One vocabulary of JSON: each document has a schema, and one name is one thing in all of them."""

from __future__ import annotations

import runpy
from collections import defaultdict

import pytest
from helpers import ROOT

WORDS = {
    bool: "true or false",
    dict: "object",
    float: "number",
    int: "number",
    list: "array",
    str: "text",
    type(None): "null",
}


@pytest.fixture(scope="module")
def reference():
    """The program that makes the page about JSON."""
    return runpy.run_path(str(ROOT / "tools" / "json_reference.py"))


@pytest.mark.usefixtures("doctor_is_told", "forked_children")
def test_every_document_has_a_schema_and_one_name_is_one_thing(reference, clean_environment):
    """Of what each command prints of a small cache: all documents have the same schema, in front.

    No name has values of two types, but those that have the type of a setting; what hits saved has one name.
    """
    documents = reference["printed"](clean_environment)
    assert len(documents) > 20
    assert all(reference["fields_of"](document) for document in documents.values())
    assert {next(iter(document.items())) for document in documents.values()} == {("schema", 1)}
    kinds = defaultdict(set)
    for document in documents.values():
        for name, kind in named(document, reference["DATA"]):
            kinds[name].add(kind)
    assert kinds["entries"] == {"array"}
    assert kinds["total_entries"] == {"number"}
    assert kinds["seconds_saved"] <= {"number", "null"}
    assert "saved" not in kinds
    of_settings = {path.rpartition(".")[2] for path in reference["ANY"]}
    assert {name: seen for name, seen in kinds.items() if len(seen - {"null"}) > 1 and name not in of_settings} == {}


def named(value, data):
    """Each name of a field in a document, with the type of what it has; the keys of data are no names."""
    if isinstance(value, list):
        for each in value:
            yield from named(each, data)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name, WORDS[type(inner)]
            below = inner.values() if name in data and isinstance(inner, dict) else [inner]
            for each in below:
                yield from named(each, data)
