"""What dead processes have left of the entries that they were loading."""

from __future__ import annotations

import os
import time

import pytest

from ejcache.entry import Header
from ejcache.jax_integration.load_journal import LoadTraces

RECORD = 128
DAY = 86_400.0


@pytest.mark.parametrize(("age", "deaths"), [(0.0, 2), (-60.0, 2), (30 * DAY, 0), (-30 * DAY, 0)])
def test_the_age_of_a_trace(tmp_path, age, deaths):
    """One that is older than a week, or of a clock that was ahead, counts for nothing, and is removed."""
    header = Header(key="k", created=5.0)
    left = tmp_path / "left"
    left.write_bytes(f"1 {header.created!r} {header.key}".encode().ljust(RECORD, b"\0"))
    when = time.time() - age
    os.utime(left, (when, when))
    traces = LoadTraces(RECORD)
    traces.read([left])
    assert traces.deaths_at(header) == deaths
    assert left.exists() == (deaths > 0)
