"""Whole programs that reuse their lowering: one thing changes, and the next start computes what plain tracing does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from attack_driver import BAD, attack, programs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("name", programs())
def test_a_start_after_a_change_computes_what_plain_tracing_computes(name: str, tmp_path: Path) -> None:
    bad = [str(outcome) for outcome in attack(programs()[name], tmp_path) if outcome.what in BAD]
    assert not bad, "\n".join(bad)
