"""Tests for a new store, and stores for the tests of programs that use one. Other packages' backends can use them.

    from ejcache.testing import StoreTests

    class TestMyStore(StoreTests):
        def open(self, path, *, max_size=-1, read_only=False):
            return MyStore(path, max_size=max_size, read_only=read_only)

`StoreTests` is the contract as tests, and `invariants` checks a store that nobody uses at the moment. They need pytest:
install the `test` extra.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(f"{__name__}.suite")

from ejcache.testing.suite import BasicTests, BoundTests, SharingTests  # noqa: E402  # after the rewriting is registered


class StoreTests(BasicTests, BoundTests, SharingTests):
    """Every test of the contract; a backend subclasses it, overrides `open`, and sets what it cannot do.

    `ejcache.testing.suite.Suite` describes what can be overridden. The tests take a few seconds on a local backend,
    start one more process once per test session, and write about 200 MB below `tmp_path`.
    """


__all__ = ["StoreTests"]
