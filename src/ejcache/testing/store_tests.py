"""The conformance suite: the contract of a store, as tests that every backend and wrapper passes."""

from __future__ import annotations

from ejcache.testing.basics import BasicTests
from ejcache.testing.bounds import BoundTests
from ejcache.testing.sharing import SharingTests

__all__ = ["StoreTests"]


class StoreTests(BasicTests, BoundTests, SharingTests):
    """Every test of the contract; a backend subclasses it, overrides `open`, and says what it cannot do.

    `Suite` describes what can be overridden. The tests take a few seconds on a local backend, start two further
    processes once per test session, and write about 200 MB below `tmp_path`.
    """
