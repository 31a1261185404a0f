"""The key of a program is what the golden file of this JAX says, byte for byte."""

from __future__ import annotations

import json

import jax
import pytest
from golden_keys import SIDES, golden_path, keys_here


def test_keys_are_those_of_earlier_versions():
    """No program gets another key, and no component comes or goes, but those that depend on the machine."""
    path = golden_path(jax.__version__)
    if not path.is_file():
        pytest.skip(f"there are no golden keys of JAX {jax.__version__}")
    golden = json.loads(path.read_text())

    found = keys_here()

    assert set(golden) == set(SIDES)
    assert [title for title in golden if found[title]["components"] != golden[title]["components"]] == []
    assert [title for title in golden if found[title]["key"] != golden[title]["key"]] == []
