"""The page about JAX's own tests names tests that there are."""

from __future__ import annotations

import re

from helpers import ROOT


def test_every_named_test_is_there():
    """Each `file.py::test` of the page is a test of this suite."""
    named = re.findall(r"`(\w+\.py)::(\w+)`", (ROOT / "docs" / "jax_parity.md").read_text(encoding="utf-8"))
    assert len(named) >= 20
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in named if f"def {name[1]}(" not in files[name[0]]] == []
