"""Two processes on one store: what one of them does holds for the other when the call has returned."""

from __future__ import annotations

import functools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

from ejcache.testing.invariants import check_everything
from ejcache.testing.suite import Suite

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

__all__ = ["SharingTests"]

Call = tuple[str, tuple[Any, ...]]
"""A method of a store by name, and its positional arguments."""
_DEADLINE: Final = 240.0
"""Seconds after which a process that does not answer counts as hanging."""


class SharingTests(Suite):
    """What processes that share a store can rely on. The other process opens the store once for each row of calls."""

    @pytest.fixture
    def elsewhere(self, tmp_path: Path) -> Callable[..., Future[list[Any]]]:
        """Begins calls of the store at `tmp_path / "store"` in another process."""
        if not self.multiprocess:
            pytest.skip("the backend is of one process")
        return functools.partial(_other_process().submit, _perform, type(self), tmp_path / "store")

    def test_seen_at_once(self, elsewhere: Callable[..., Future[list[Any]]], tmp_path: Path) -> None:
        """What one process put, replaced, deleted, quarantined or counted is so for the other one."""
        large = b"large" * 50_000
        with self.open(tmp_path / "store") as here:
            assert here.put("k", large) is True
            there = elsewhere(("put", ("k", b"x")), ("get", ("k",)), ("replace", ("k", b"new")), ("put", ("l", b"x")))
            assert there.result(_DEADLINE) == [False, large, None, True]
            assert {info.key: info.size for info in here.entries()} == {"k": 3, "l": 1}
            assert here.get("k") == b"new"
            assert here.delete("k") is True
            there = elsewhere(("contains", ("k",)), ("quarantine", ("l", b"y")), ("quarantine", ("l", b"x")))
            assert there.result(_DEADLINE) == [False, False, True]
            assert elsewhere(("add_counters", ({"hits": 1},))).result(_DEADLINE) == [None]
            here.add_counters({"hits": 2})
            assert here.counters() == {"hits": 3}
            check_everything(here)

    def test_one_winner(self, elsewhere: Callable[..., Future[list[Any]]], tmp_path: Path) -> None:
        """Of two processes that put the same keys at once exactly one gets True for each, and its bytes stay."""
        path, rounds = tmp_path / "store", 30
        with self.open(path) as here:
            there = elsewhere(*[("put", (f"k{n}", b"there" * (1 + n * 400))) for n in range(rounds)])
            ours = [here.put(f"k{n}", b"here" * (1 + n * 400)) for n in reversed(range(rounds))][::-1]
            theirs = there.result(_DEADLINE)
            assert [one + other for one, other in zip(ours, theirs, strict=True)] == [1] * rounds
            check_everything(here)
        won = {f"k{n}": (b"there" if theirs[n] else b"here") * (1 + n * 400) for n in range(rounds)}
        assert self.stored(path) == won


@functools.cache
def _other_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _perform(suite: type[Suite], path: Path, *calls: Call) -> list[Any]:
    with suite().open(path) as store:
        return [getattr(store, method)(*arguments) for method, arguments in calls]
