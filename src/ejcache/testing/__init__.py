"""What a new store, and a program that uses one, is tested with: shipped, so that backends elsewhere can use it too.

    from ejcache.testing import StoreTests

    class TestMyStore(StoreTests):
        def open(self, path, *, max_size=-1, read_only=False):
            return MyStore(path, max_size=max_size, read_only=read_only)

`StoreTests` is the contract as tests, `stateful` a state machine against a model, `faults` wraps a store in trouble,
`invariants` is what must hold of any store at rest. They need pytest, and `stateful` hypothesis: the `test` extra.
"""

from __future__ import annotations

import pytest

for _module in ("basics", "bounds", "sharing"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")

from ejcache.testing.faults import FaultStore, Gate, LatencyStore  # noqa: E402  # after the rewriting is registered
from ejcache.testing.store_tests import StoreTests  # noqa: E402

__all__ = ["FaultStore", "Gate", "LatencyStore", "StoreTests"]
