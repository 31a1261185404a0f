"""Signal handlers that use a shared cache inside the program's own calls, such as one that saves a checkpoint."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from interruptions import interrupt_everywhere

from ejcache.coordination.single_flight import SingleFlight
from ejcache.stores.memory import MemoryStore
from ejcache.stores.tiered.store import TieredStore
from ejcache.util.scheduler import Scheduler
from ejcache.util.threads import DaemonPool
from ejcache.util.time_budget import Budget

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)  # a deadlock is what these tests look for


def test_inside_a_put_and_a_get(tmp_path: Path) -> None:
    """A handler may put and get wherever the program does so; every entry of both gets to shared storage."""
    shared, numbers = MemoryStore(), itertools.count()

    def use() -> None:
        key = f"key{next(numbers)}"
        assert store.put(key, b"entry")
        assert store.get(key) == b"entry"

    with TieredStore(MemoryStore(), shared, scratch=tmp_path / "scratch") as store:
        assert interrupt_everywhere(use, use) > 50
        assert store.flush(60.0)
        assert len(list(shared.entries())) == next(numbers)
    assert list((tmp_path / "scratch/spool").rglob("key*")) == []


def test_inside_a_single_flight(tmp_path: Path) -> None:
    """A handler may take a lease of its own wherever the program takes, holds and releases one."""
    numbers = itertools.count()

    def make() -> None:
        key = f"key{next(numbers)}"
        assert flight.run(key, lookup=lambda: store.get(key), work=lambda: store.put(key, b"entry"), deadline=60.0)

    with TieredStore(MemoryStore(), MemoryStore()) as store:
        flight = SingleFlight.of_store(store, directory=tmp_path / "leases")
        assert interrupt_everywhere(make, make) > 50


def test_inside_a_scheduler() -> None:
    """A handler may plan tasks wherever the program does so, and every task runs."""
    scheduler, pool, budget = Scheduler(), DaemonPool(), Budget(1000.0)
    done: list[None] = []
    planned = 0

    def plan() -> None:
        nonlocal planned
        planned += 2
        assert scheduler.submit(lambda: done.append(None))
        assert scheduler.later(0.0, lambda: None)
        with budget.waiting():
            pool.submit(lambda: done.append(None)).result(60.0)

    assert interrupt_everywhere(plan, plan) > 10
    assert scheduler.drain(patience=60.0, limit=60.0)
    assert len(done) == planned
