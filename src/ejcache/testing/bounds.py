"""The size limit and the order of eviction."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import pytest

from ejcache.errors import StoreTooSmallError
from ejcache.testing.invariants import check_bound, check_everything
from ejcache.testing.suite import Suite, generator

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ejcache.stores.base import Store

__all__ = ["BoundTests", "by_use", "fill"]


def fill(store: Store, keys: Iterable[str], size: int = 10) -> None:
    """Put `keys` in their order, each with `size` bytes that begin with it."""
    for key in keys:
        assert store.put(key, key.encode().ljust(size, b".")[:size]) is True


def by_use(store: Store) -> str:
    """The keys, the least recently used first."""
    return "".join(info.key for info in sorted(store.entries(), key=lambda info: info.last_used))


class BoundTests(Suite):
    """What a limit means; every test opens the store with a limit of its own."""

    def need(self, *, bounded: bool = True) -> None:
        """Skip a test of what this backend does not claim."""
        if (bounded and not self.bounded) or not self.recency:
            pytest.skip("the backend keeps no limit of its own")

    def test_least_recently_used_goes_first(self, tmp_path: Path) -> None:
        """A full store evicts the least recently used entries; a get is a use."""
        self.need()
        with self.open(tmp_path / "store", max_size=40) as store:
            fill(store, "abcd")
            store.get("a")
            fill(store, "e")
            assert sorted(self.stored(tmp_path / "store")) == ["a", "c", "d", "e"]
            store.get("c")
            store.get("c")
            fill(store, "fg")
            assert sorted(self.stored(tmp_path / "store")) == ["c", "e", "f", "g"]

    def test_looking_is_no_use(self, tmp_path: Path) -> None:
        """Peek, contains, a listing, a refused put and a miss leave the order of eviction alone."""
        self.need()
        with self.open(tmp_path / "store", max_size=30) as store:
            fill(store, "abc")
            store.peek("a")
            store.peek("a", length=3)
            store.contains("a")
            assert store.put("a", b"refused") is False
            store.get("absent")
            assert by_use(store) == "abc"
            fill(store, "d")
            assert sorted(self.stored(tmp_path / "store")) == ["b", "c", "d"]

    def test_replace_is_a_use(self, tmp_path: Path) -> None:
        """A replaced entry is the most recently used one, and its old bytes no longer count."""
        self.need()
        with self.open(tmp_path / "store", max_size=30) as store:
            fill(store, "abc")
            store.replace("a", b"A" * 10)
            assert by_use(store) == "bca"
            assert store.size() == 30
            store.replace("a", b"A" * 20)
            assert self.stored(tmp_path / "store") == {"c": b"c.........", "a": b"A" * 20}
            store.replace("c", b"C" * 30)
            assert self.stored(tmp_path / "store") == {"c": b"C" * 30}

    def test_last_used_is_listed(self, tmp_path: Path) -> None:
        """The listing's times of last use are in the order of use."""
        self.need(bounded=False)
        with self.open(tmp_path / "store") as store:
            fill(store, "abcd")
            assert by_use(store) == "abcd"
            created = {info.key: info.created for info in store.entries()}
            store.get("b")
            store.get("a")
            assert by_use(store) == "cdba"
            assert {info.key: info.created for info in store.entries()} == created

    def test_reading_only_is_no_use(self, tmp_path: Path) -> None:
        """Reads of a read-only store leave the order of eviction alone."""
        self.need()
        with self.open(tmp_path / "store", max_size=30) as store:
            fill(store, "abc")
            with self.open(tmp_path / "store", max_size=30, read_only=True) as reader:
                assert reader.get("a") == b"a........."
            assert by_use(store) == "abc"
            fill(store, "d")
            assert sorted(self.stored(tmp_path / "store")) == ["b", "c", "d"]

    @pytest.mark.parametrize("scale", [1, 200, 20_000], ids=["bytes", "kilobytes", "megabytes"])
    def test_bound_after_every_put(self, tmp_path: Path, scale: int) -> None:
        """After each of many puts and gets the store is within its limit and holds exactly what strict LRU keeps."""
        self.need()
        rng = generator(scale)
        limit = 100 * scale
        model: OrderedDict[str, int] = OrderedDict()
        with self.open(tmp_path / "store", max_size=limit) as store:
            for n in range(120 if scale < 20_000 else 40):
                if model and rng.random() < 0.4:
                    used = rng.choice(list(model))
                    assert store.get(used) is not None
                    model.move_to_end(used)
                size = rng.choice([0, scale, 7 * scale, 30 * scale, 60 * scale, limit])
                key = f"k{n}"
                assert store.put(key, bytes(size)) is True
                while sum(model.values()) + size > limit:
                    model.popitem(last=False)
                model[key] = size
                assert store.size() == sum(model.values()) <= limit
                assert {info.key: info.size for info in store.entries()} == model
            check_everything(store)

    def test_values_near_the_limit(self, tmp_path: Path) -> None:
        """A limit of 50 MB and values of 8 MB: six of them are kept, never none and never a seventh."""
        self.need()
        size, limit = 8_000_000, 50_000_000
        with self.open(tmp_path / "store", max_size=limit) as store:
            for n in range(9):
                assert store.put(f"k{n}", bytes([n]) * size) is True
                kept = range(max(0, n - 5), n + 1)
                assert sorted(info.key for info in store.entries()) == [f"k{m}" for m in kept]
                assert store.size() == len(kept) * size
            assert store.peek("k8", length=2) == b"\x08\x08"
            check_bound(store)

    @pytest.mark.parametrize("limit", [1, 100, 32_768, 4_500_000])
    def test_one_value_of_the_whole_limit(self, tmp_path: Path, limit: int) -> None:
        """A value of exactly the limit is stored in place of everything else; one byte more is refused for nothing."""
        self.need()
        path = tmp_path / "store"
        with self.open(path, max_size=limit) as store:
            assert store.put("before", b"b") is True
            with pytest.raises(StoreTooSmallError):
                store.put("too large", bytes(limit + 1))
            with pytest.raises(StoreTooSmallError):
                store.replace("too large", bytes(limit + 1))
            with pytest.raises(StoreTooSmallError):
                store.replace("before", bytes(limit + 1))
            assert self.stored(path) == {"before": b"b"}
            assert store.put("whole", b"w" * limit) is True
            assert self.stored(path) == {"whole": b"w" * limit}
            with pytest.raises(StoreTooSmallError):
                store.put("too large", bytes(limit + 1))
            assert self.stored(path) == {"whole": b"w" * limit}
            assert store.put("next", b"n") is True
            assert self.stored(path) == {"next": b"n"}

    def test_empty_entries_need_no_room(self, tmp_path: Path) -> None:
        """Entries without bytes fit into a full store and evict nothing."""
        self.need()
        with self.open(tmp_path / "store", max_size=10) as store:
            fill(store, "a")
            for n in range(10):
                assert store.put(f"empty-{n}", b"") is True
            assert store.size() == 10
            assert len(list(store.entries())) == 11
            check_everything(store)

    def test_a_smaller_limit(self, tmp_path: Path) -> None:
        """A store that is opened with less room than it holds fits again when its next put returns."""
        self.need()
        if not self.persistent:
            pytest.skip("nothing to open again")
        path = tmp_path / "store"
        with self.open(path) as store:
            fill(store, "abcdefgh")
            store.get("a")
        with self.open(path, max_size=35) as store:
            fill(store, "i")
            assert sorted(self.stored(path)) == ["a", "h", "i"]
            check_everything(store)

    def test_room_is_given_back(self, tmp_path: Path) -> None:
        """Deleted and quarantined entries make room again, without an eviction."""
        self.need()
        with self.open(tmp_path / "store", max_size=30) as store:
            fill(store, "abc")
            store.delete("c")
            fill(store, "d")
            assert store.quarantine("b", b"b.........") is True
            fill(store, "e")
            assert sorted(self.stored(tmp_path / "store")) == ["a", "d", "e"]
