"""What docs/troubleshooting.md names exists: variables, commands and options."""

from __future__ import annotations

import re

import pytest
from causes_table import PAGE as PAGE_OF_CAUSES
from causes_table import with_table
from cli_helpers import ejcache
from helpers import ROOT

from ejcache.history.causes import CAUSES, OUTCOMES
from ejcache.history.findings import KINDS as FINDINGS
from ejcache.settings.described import SETTINGS
from ejcache.settings.environment import OTHER_VARIABLES

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


def test_variables_exist():
    """Every variable of ours on the page sets something."""
    known = {*OTHER_VARIABLES}.union(*(setting.variables for setting in SETTINGS))
    named = set(re.findall(r"\bEJCACHE(?:_[A-Z_]+)?\b", PAGE))
    assert named
    assert named - known == set()


@pytest.mark.parametrize("command", sorted(set(re.findall(r"(?:`|^)ejcache ([a-z]+)", PAGE, re.MULTILINE))))
def test_commands_exist(command):
    """Every command on the page, and the options that follow it, are in its help."""
    said = ejcache(command, "--help")
    assert said.status == 0, said
    options = re.findall(rf"ejcache {command}[^\n`]*?(--[a-z-]+)", PAGE)
    assert [option for option in options if option not in said.out] == []


def test_the_table_of_causes_is_that_of_the_code():
    """`python tools/causes_table.py` writes it."""
    assert PAGE_OF_CAUSES.read_text() == with_table(PAGE_OF_CAUSES.read_text())


@pytest.mark.parametrize("topic", ["shape_varies", "gone", "messages", "causes", "a-shape-varies"])
def test_help_prints_the_part_about_a_topic(topic):
    said = ejcache("help", topic)
    assert said.status == 0
    assert len(said.out) > 20


def test_every_kind_that_a_message_names_has_its_help():
    for kind in (*CAUSES, *OUTCOMES, *FINDINGS):
        assert ejcache("help", str(kind)).status == 0, kind
    assert ejcache("help", "nonsense").status == 2
