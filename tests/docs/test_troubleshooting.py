"""The table of causes, and what `ejcache help` prints of the pages."""

from __future__ import annotations

import pytest
from causes_table import PAGE as PAGE_OF_CAUSES
from causes_table import with_table
from cli_helpers import ejcache

from ejcache.history.causes import CAUSES, OUTCOMES
from ejcache.history.findings import KINDS as FINDINGS


def test_the_table_of_causes_is_that_of_the_code():
    """`python tools/causes_table.py` writes it."""
    assert PAGE_OF_CAUSES.read_text() == with_table(PAGE_OF_CAUSES.read_text())


@pytest.mark.parametrize("topic", ["shape_varies", "gone", "messages", "causes", "a-shape-varies"])
def test_help_prints_the_part_about_a_topic(topic):
    said = ejcache("help", topic)
    assert said.status == 0
    assert len(said.out) > 20


def test_help_says_of_what_a_row_of_a_table_is():
    """A row alone does not name the program, as its table does."""
    assert ejcache("help", "gone").out.startswith("`gone`: the program was compiled because its entry was evicted")
    assert ejcache("help", "small").out.startswith("`small`: the program was compiled, or was not stored, because its")


def test_every_kind_that_a_message_names_has_its_help():
    for kind in (*CAUSES, *OUTCOMES, *FINDINGS):
        assert ejcache("help", str(kind)).status == 0, kind
    assert ejcache("help", "nonsense").status == 2
