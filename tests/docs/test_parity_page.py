"""The pages that name tests as evidence name tests that there are."""

from __future__ import annotations

import re

import pytest
from helpers import ROOT


def test_every_named_test_is_there():
    """Each `file.py::test` of the page is a test of this suite."""
    page = ROOT / "tests" / "jax_integration" / "jax_parity.md"
    named = re.findall(r"`(\w+\.py)::(\w+)`", page.read_text(encoding="utf-8"))
    assert len(named) >= 20
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in named if f"def {name[1]}(" not in files[name[0]]] == []


@pytest.mark.parametrize("page", ["keys.md", "pgle.md"])
def test_every_test_of_a_page_is_there(page):
    """Each name of a test or of a file of tests on the page is one of this suite."""
    named = set(re.findall(r"\btest_\w+", (ROOT / "docs" / page).read_text(encoding="utf-8")))
    files = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    there = {*files, *re.findall(r"def (test_\w+)\(", "\n".join(files.values()))}
    assert named
    assert named <= there
