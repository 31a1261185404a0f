"""What each test of tuning begins with."""

from __future__ import annotations

import pytest

from ejcache.autotune.records.store import AutotuneStore, set_default_store
from ejcache.util.log import forget_warnings


@pytest.fixture(autouse=True)
def fresh_process():
    """Each test hears its own warnings, and leaves no store of its own behind."""
    forget_warnings()
    set_default_store(None)
    yield
    set_default_store(None)


@pytest.fixture
def store(tmp_path):
    """A store of the test's own."""
    return AutotuneStore(str(tmp_path / "store"), refresh_seconds=0.0)
