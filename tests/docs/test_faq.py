"""What docs/faq.md names exists: variables, commands and options."""

from __future__ import annotations

import re

import pytest
from cli_helpers import ejcache
from helpers import ROOT

from ejcache.settings.environment import OTHER_VARIABLES
from ejcache.settings.table import SETTINGS

PAGE = (ROOT / "docs" / "faq.md").read_text()


def test_variables_exist():
    """Every variable of ours on the page sets something."""
    known = OTHER_VARIABLES.union(*(setting.variables for setting in SETTINGS))
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
