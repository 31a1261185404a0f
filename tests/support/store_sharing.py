"""Several processes on one store: races, forks, limits, and what one of them sees of the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest
from capabilities import needs
from store_invariants import check_everything
from store_processes import Peer, in_fork, peers
from store_suite import BasicTests, BoundTests, by_use, fill

from ejcache.stores.shared.store import SharedStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ejcache.stores.base import Store

__all__ = ["BoundProcessTests", "ProcessTests", "PromptStore"]

needs_fork = needs("fork")


class PromptStore(SharedStore):
    """A shared store that writes each change of its counters at once, so that other processes see it."""

    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """As `SharedStore` does, and written."""
        super().add_counters(amounts)
        self.journal.write()


class ProcessTests(BasicTests):
    """The tests of a store, and what processes that share one can rely on."""

    @pytest.fixture
    def pair(self, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
        """One store, open here and in another process."""
        self.need_processes()
        path = tmp_path / "store"
        with self.open(path) as here, peers()[0].open(type(self), path) as there:
            yield here, there

    def need_processes(self) -> None:
        """Skip a test of what a backend of one process cannot do."""
        if not self.multiprocess:
            pytest.skip("the backend is of one process")

    def test_seen_at_once(self, pair: tuple[Store, Store]) -> None:
        """What one process put, replaced, deleted, quarantined or counted is so for the other one."""
        here, there = pair
        large = b"large" * 50_000
        assert here.put("k", large) is True
        assert (there.put("k", b"x"), there.get("k")) == (False, large)
        there.replace("k", b"new")
        assert there.put("l", b"x") is True
        assert {info.key: info.size for info in here.entries()} == {"k": 3, "l": 1}
        assert here.get("k") == b"new"
        assert here.delete("k") is True
        assert (there.contains("k"), there.quarantine("l", b"y"), there.quarantine("l", b"x")) == (False, False, True)
        there.add_counters({"hits": 1})
        here.add_counters({"hits": 2})
        assert here.counters() == {"hits": 3}
        check_everything(here)

    def test_counters_over_processes(self, pair: tuple[Store, Store], tmp_path: Path) -> None:
        """Counts of two processes at once add up without a loss, and a reset holds for both."""
        here, _ = pair
        others = [peer.open(type(self), tmp_path / "store") for peer in peers()]
        for other in others:
            other.begin(*[("add_counters", ({"hits": 1, "seconds": 0.5},))] * 25)
        for other in others:
            other.finish()
        assert here.counters() == {"hits": 50, "seconds": 25.0}
        here.reset_counters()
        assert not any(others[0].counters().values())
        for other in others:
            other.close()

    def test_one_winner_of_a_meeting(self, tmp_path: Path) -> None:
        """Of two processes that put one key at the same moment exactly one gets True, and its bytes stand."""
        self.need_processes()
        path = tmp_path / "store"
        rounds = 20
        with self.open(path) as here:
            others = [peer.open(type(self), path) for peer in peers()]
            for me, other in enumerate(others):
                calls = [("put", (f"k{n}", bytes([me]) * (1 + n * 6_000))) for n in range(rounds)]
                other.begin(*calls, meet=True)
            won = [other.finish() for other in others]
            expected = {}
            for n in range(rounds):
                assert [won[0][n], won[1][n]].count(True) == 1
                expected[f"k{n}"] = bytes([won[1][n]]) * (1 + n * 6_000)
            assert self.stored(path) == expected
            check_everything(here)
            for other in others:
                other.close()

    def test_replace_is_never_torn(self, pair: tuple[Store, Store]) -> None:
        """A reader of an entry that is being replaced sees the old value or the new one, whole, and never none."""
        here, there = pair
        values = [b"a" * 300_000, b"b" * 200_000, b"c" * 10]
        here.put("k", values[0])
        stop = threading.Event()

        def read() -> list[int | None]:
            wrong = []
            while not stop.is_set():
                found = here.get("k")
                if found not in values:
                    wrong.append(None if found is None else len(found))
            return wrong

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            try:
                for _ in range(15):
                    for value in values:
                        there.replace("k", value)
            finally:
                stop.set()
            assert reading.result() == []

    def test_one_quarantines(self, pair: tuple[Store, Store], tmp_path: Path) -> None:
        """Of two processes that met one damaged entry exactly one takes it out of use."""
        here, _ = pair
        rounds = 20
        for n in range(rounds):
            here.put(f"k{n}", b"bad" * 20_000)
        others = [peer.open(type(self), tmp_path / "store") for peer in peers()]
        for other in others:
            other.begin(*[("quarantine", (f"k{n}", b"bad" * 20_000)) for n in range(rounds)], meet=True)
        taken = [other.finish() for other in others]
        assert [pair.count(True) for pair in zip(*taken, strict=True)] == [1] * rounds
        assert list(here.entries()) == []
        assert here.size() == 0
        for other in others:
            other.close()

    @needs_fork
    def test_fork_after_open(self, tmp_path: Path) -> None:
        """A fork of a process that uses a store can use it, and so can the parent after it."""
        path = tmp_path / "store"
        with self.open(path) as store:
            store.put("parent", b"p" * 50_000)
            store.get("parent")

            def work() -> tuple[object, ...]:
                found = store.get("parent") == b"p" * 50_000
                done = found, store.put("parent", b"x"), store.put("child", b"c" * 50_000), store.get("child")
                store.close()
                return done

            assert in_fork(work) == (True, False, True, b"c" * 50_000)
            assert store.get("parent") == b"p" * 50_000
            assert store.put("after", b"a") is True
            assert store.contains("child") is self.multiprocess
            check_everything(store)

    @needs_fork
    def test_fork_while_a_thread_is_inside(self, tmp_path: Path) -> None:
        """A fork in the middle of another thread's put neither hangs in the child nor spoils the parent's store."""
        stop = threading.Event()
        with self.open(tmp_path / "store", max_size=2_000_000 if isinstance(self, BoundTests) else -1) as store:

            def keep_busy() -> None:
                for n in range(1_000_000):
                    if stop.is_set():
                        return
                    store.put(f"busy-{n}", bytes([n % 251]) * 40_000)

            def put_and_get(key: str) -> tuple[bool, bytes | None]:
                return store.put(key, b"c"), store.get(key)

            with ThreadPoolExecutor(1) as pool:
                busy = pool.submit(keep_busy)
                try:
                    for n in range(2):
                        assert in_fork(partial(put_and_get, f"child-{n}")) == (True, b"c")
                finally:
                    stop.set()
                busy.result()
            check_everything(store)

    def test_ended_process(self, tmp_path: Path) -> None:
        """Entries that a killed process wrote stay, and its death locks nobody out."""
        self.need_processes()
        path = tmp_path / "store"
        with self.open(path) as here:
            peer = Peer()
            there = peer.open(type(self), path)
            there.put("k", b"value" * 10_000)
            there.add_counters({"hits": 1})
            try:
                # In the middle of a long row of puts, wherever that is.
                there.begin(*[("put", (f"k{n}", bytes([n % 251]) * 70_000)) for n in range(300)])
                while here.get("k10") is None:
                    if peer.has_answered:
                        there.finish()  # raises what the puts have raised
            finally:
                peer.stop()  # this process would not end before it
            assert here.get("k") == b"value" * 10_000
            assert here.put("mine", b"x") is True
            assert here.counters() == {"hits": 1}
            for info in here.entries():
                if info.key.startswith("k") and info.key != "k":
                    assert here.peek(info.key) == bytes([int(info.key[1:]) % 251]) * 70_000
            check_everything(here)


class BoundProcessTests(ProcessTests, BoundTests):
    """The same of a store that keeps a limit."""

    def test_order_over_processes(self, tmp_path: Path) -> None:
        """What another process used counts as used; what it only read does not."""
        self.need_processes()
        path = tmp_path / "store"
        peer = peers()[0]
        with self.open(path, max_size=40) as here, peer.open(type(self), path, max_size=40) as there:
            fill(here, "abc")
            fill(there, "d")
            there.note_used("a")
            assert there.get("b") == b"b........."
            fill(here, "e")
            assert sorted(self.stored(path)) == ["a", "c", "d", "e"]
            here.note_used("c")
            fill(there, "f")
            assert sorted(self.stored(path)) == ["a", "c", "e", "f"]
            assert by_use(here) == by_use(there) == "aecf"
            assert here.size() == there.size() == 40

    def test_bound_with_two_writers(self, tmp_path: Path) -> None:
        """Two processes that fill one store at once keep it within its limit and end with whole entries."""
        self.need_processes()
        path = tmp_path / "store"
        limit, size = 500_000, 60_000
        with self.open(path, max_size=limit) as here:
            others = [peer.open(type(self), path, max_size=limit) for peer in peers()]
            for n, other in enumerate(others):
                calls: list[tuple[str, tuple[object, ...]]] = []
                for m in range(40):
                    calls += [("put", (f"k{n}-{m}", bytes([m]) * size)), ("size", ())]
                other.begin(*calls)
            answers = [other.finish() for other in others]
            for answer in answers:
                assert answer[::2] == [True] * 40
                assert max(answer[1::2]) <= limit
            assert here.size() == limit // size * size
            check_everything(here)
            for other in others:
                other.close()
