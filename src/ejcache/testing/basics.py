"""One process, one store: creating, replacing, deleting, listing, keys and values of every kind."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

from ejcache.errors import InvalidKeyError, StoreReadOnlyError
from ejcache.testing.invariants import check_listing
from ejcache.testing.suite import Suite, generator
from ejcache.util.key_text import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ejcache.stores.base import Store

__all__ = ["INVALID_KEYS", "ODD_KEYS", "BasicTests"]

ODD_KEYS: Final = (
    *("k", "K", "key", "Key", "KEY", "0", "-1", "None"),
    *(" ", " leading", "trailing ", "trailing.", "two words"),
    *(".", "..", "...", ".hidden", "/", "//", "/etc/passwd", "../../outside"),
    *("a", "a/", "a/b", "a//b", "a/./b", "a/../b", "a/b/c.d", "a\\b", "C:\\temp"),
    *("%", "%2F", "a%2Fb", "%00", "100%", "~", "~root", "$HOME", "*", "?", "[a-z]", "-rf", "|;&`'\"<>(){}#!"),
    *("?query=1#part", "gs://bucket/key", "memory://", ":memory:"),
    *("CON", "nul.txt", "cache.db", "cache.db-wal", "lost+found", ".tmp"),
    *("jit_f-0123abcd-cache", "jit_f-0123abcd-atime"),
    *("ключ", "漢字", "é", "e\u0301", "ß", "SS", "ﬁ", "İ", "i", "🗝️", "\u200b", "\u2028", "\xa0", "\x85", "\u202etxt"),
    *("x" * MAX_KEY_BYTES, "x" * (MAX_KEY_BYTES - 1) + "y", "/" * MAX_KEY_BYTES, "%" * MAX_KEY_BYTES),
    *("漢" * (MAX_KEY_BYTES // 3), "🗝" * (MAX_KEY_BYTES // 4), "d/" * (MAX_KEY_BYTES // 2)),
)
"""Keys that are all different and all valid, and that a careless backend would refuse, confuse or escape with."""

INVALID_KEYS: Final[tuple[Any, ...]] = (
    *("", "\0", "nul\0inside", "line\nbreak", "carriage\rreturn", "\x1b[31m", "\x7f", "\ud800"),
    *("x" * (MAX_KEY_BYTES + 1), "é" * (MAX_KEY_BYTES // 2 + 1), b"bytes", 5, None),
)


class BasicTests(Suite):
    """What every store does, whatever it is kept on."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """A place of the test's own."""
        return tmp_path / "store"

    @pytest.fixture
    def store(self, path: Path) -> Iterator[Store]:
        """A store without a limit."""
        with self.open(path) as store:
            yield store

    def test_absence(self, store: Store) -> None:
        """What was never put is absent by every method, and asking makes nothing."""
        assert store.get("k") is None
        assert store.peek("k") is None
        assert store.peek("k", length=4) is None
        assert store.contains("k") is False
        assert store.delete("k") is False
        assert store.quarantine("k", b"x") is False
        assert list(store.entries()) == []
        assert store.size() == 0

    def test_put_then_get(self, store: Store, path: Path) -> None:
        """A put entry is stored as given and found by every method."""
        assert store.put("k", b"value") is True
        assert self.stored(path) == {"k": b"value"}
        assert store.get("k") == b"value"
        assert store.peek("k") == b"value"
        assert store.contains("k") is True
        assert store.size() == 5
        assert type(store.get("k")) is bytes

    def test_put_creates_only(self, store: Store, path: Path) -> None:
        """A second put under a key is refused and changes nothing."""
        assert store.put("k", b"first") is True
        assert store.put("k", b"second, and longer") is False
        assert self.stored(path) == {"k": b"first"}
        assert store.size() == 5

    def test_replace(self, store: Store, path: Path) -> None:
        """Replace overwrites an entry or creates one, and the size follows."""
        store.replace("k", b"created")
        assert self.stored(path) == {"k": b"created"}
        store.replace("k", b"new")
        store.put("l", b"other")
        assert self.stored(path) == {"k": b"new", "l": b"other"}
        assert store.get("k") == b"new"
        assert store.size() == 8
        large = generator(1).randbytes(300_000)
        store.replace("k", large)
        assert store.get("k") == large
        store.replace("k", b"")
        assert store.get("k") == b""
        assert store.size() == 5

    def test_delete(self, store: Store, path: Path) -> None:
        """Delete removes that entry once, frees its bytes, and its key can be put again."""
        store.put("k", b"x" * 200_000)
        store.put("l", b"y")
        assert store.delete("k") is True
        assert self.stored(path) == {"l": b"y"}
        assert store.delete("k") is False
        assert store.get("k") is None
        assert store.contains("k") is False
        assert store.size() == 1
        assert store.put("k", b"again") is True
        assert store.get("k") == b"again"

    def test_listing(self, store: Store) -> None:
        """A listing names every entry once, with its size and with times that are now."""
        before = time.time()
        sizes = {f"key-{n}": n * 997 for n in range(60)}
        for key, size in sizes.items():
            store.put(key, bytes(size))
        infos = list(store.entries())
        after = time.time()
        assert sorted(info.key for info in infos) == sorted(sizes)
        assert {info.key: info.size for info in infos} == sizes
        assert store.size() == sum(sizes.values())
        for info in infos:
            # File systems stamp with a coarse clock that may lag behind.
            assert before - 2 <= info.created <= after + 2
            assert info.created <= info.last_used <= after + 2
        check_listing(store)

    def test_listing_while_changing(self, store: Store) -> None:
        """A listing survives entries that come and go under it, and still names those that stay."""
        for n in range(20):
            store.put(f"stays-{n}", b"x")
            store.put(f"goes-{n}", b"x")
        seen = []
        for index, info in enumerate(store.entries()):
            seen.append(info.key)
            store.delete(f"goes-{index}")
            store.put(f"comes-{index}", b"y")
            if index > 200:
                break
        assert {f"stays-{n}" for n in range(20)} <= set(seen)
        assert len(seen) == len(set(seen))

    def test_abandoned_listing(self, store: Store, path: Path) -> None:
        """A listing that is not read to its end blocks nobody."""
        for n in range(20):
            store.put(f"key-{n}", b"x")
        listing = store.entries()
        next(listing)
        store.put("another", b"y")
        store.close()
        assert "another" in self.stored(path)

    def test_peek_length(self, store: Store) -> None:
        """Peek gives the first bytes that were asked for, or all there are, for values small and large."""
        values = {"small": bytes(range(100)), "large": generator(2).randbytes(1_000_000), "empty": b""}
        for key, value in values.items():
            store.put(key, value)
        for key, value in values.items():
            for length in (0, 1, 4, 99, 100, 101, 65_536, 2_000_000):
                assert store.peek(key, length=length) == value[:length]
            assert store.peek(key) == value

    @pytest.mark.parametrize("size", [0, 1, 2, 255, 4_095, 4_096, 32_767, 32_768, 32_769, 65_537, 1_000_003])
    def test_value_sizes(self, store: Store, path: Path, size: int) -> None:
        """Values of every size come back as they were, here and at the next opening."""
        value = generator(size).randbytes(size)
        assert store.put("k", value) is True
        assert store.contains("k") is True
        assert store.get("k") == value
        assert store.size() == size
        assert [info.size for info in store.entries()] == [size]
        store.close()
        assert self.stored(path) == {"k": value}

    def test_value_contents(self, store: Store) -> None:
        """Values that look like text, numbers, nothing or somebody's serialisation are just bytes."""
        texts = [b"None", b"0", b"\r\n\r\n", b"cos\nsystem\n", b"\x80\x04N."]
        values = [*texts, bytes(64), b"\xff\xfe", bytes(range(256))]
        for n, value in enumerate(values):
            store.put(f"k{n}", value)
        assert [store.get(f"k{n}") for n in range(len(values))] == values

    def test_largest_value(self, store: Store) -> None:
        """The largest value comes back as it was."""
        value = generator(3).randbytes(self.largest)
        assert store.put("k", value) is True
        found = store.get("k")
        assert found is not None
        # Compared apart from the assertion: a difference of 100 MB is nothing to print.
        same = found == value
        assert same
        assert store.size() == self.largest
        assert store.delete("k") is True
        assert store.size() == 0

    def test_odd_keys(self, store: Store, path: Path) -> None:
        """Every valid key names its own entry, however it is spelled, and comes back in listings as it was."""
        values = {key: f"{n}:{key[:20]}".encode() for n, key in enumerate(ODD_KEYS)}
        assert len(values) == len(ODD_KEYS)
        assert [key for key, value in values.items() if store.put(key, value) is not True] == []
        assert self.stored(path) == values
        assert {key: store.get(key) for key in values} == values
        assert [key for key in values if not store.contains(key)] == []
        assert sorted(info.key for info in store.entries()) == sorted(values)
        gone = ODD_KEYS[::2]
        assert [key for key in gone if not store.delete(key)] == []
        assert self.stored(path) == {key: value for key, value in values.items() if key not in gone}

    def test_odd_keys_stay_inside(self, store: Store, path: Path) -> None:
        """No key makes a store write beside its own directory."""
        beside = sorted(entry.name for entry in path.parent.iterdir() if entry.name != path.name)
        for key in ODD_KEYS:
            store.replace(key, b"x" * 40_000)
        assert sorted(entry.name for entry in path.parent.iterdir() if entry.name != path.name) == beside

    @pytest.mark.parametrize("key", INVALID_KEYS, ids=lambda key: ascii(key)[:20])
    def test_invalid_keys(self, store: Store, path: Path, key: Any) -> None:
        """A key that no store can hold is refused by every method, and nothing changes."""
        store.put("k", b"value")
        calls: list[Callable[[], object]] = [
            lambda: store.get(key),
            lambda: store.peek(key),
            lambda: store.put(key, b"x"),
            lambda: store.replace(key, b"x"),
            lambda: store.contains(key),
            lambda: store.delete(key),
            lambda: store.quarantine(key, b"x"),
        ]
        for call in calls:
            with pytest.raises(InvalidKeyError):
                call()
        assert self.stored(path) == {"k": b"value"}

    def test_quarantine_compares(self, store: Store, path: Path) -> None:
        """Quarantine takes an entry out of use if it is exactly what was seen, and never another one."""
        good, bad = b"good" * 20_000, b"bad!" * 20_000
        store.put("k", bad)
        assert store.quarantine("k", bad[:-1]) is False
        assert store.quarantine("k", good) is False
        assert store.get("k") == bad
        store.replace("k", good)
        assert store.quarantine("k", bad) is False
        assert self.stored(path) == {"k": good}
        assert store.quarantine("k", good) is True
        assert self.stored(path) == {}
        assert store.get("k") is None
        assert store.contains("k") is False
        assert store.size() == 0
        assert store.put("k", b"intact") is True
        assert store.get("k") == b"intact"

    def test_quarantine_often(self, store: Store) -> None:
        """One key can be quarantined again and again, and an empty entry too."""
        for n in range(30):
            damaged = bytes(n * 3_000)
            store.put("k", damaged)
            assert store.quarantine("k", damaged) is True
        assert list(store.entries()) == []
        assert store.size() == 0

    def test_counters(self, store: Store) -> None:
        """Counters add up by name, keep fractions, and start from zero when reset."""
        assert store.counters() == {}
        store.add_counters({"hits": 2, "seconds": 0.25})
        store.add_counters({"hits": 3, "misses.absent": 1, "seconds": 1.5})
        store.add_counters({})
        assert store.counters() == {"hits": 5, "misses.absent": 1, "seconds": 1.75}
        assert list(store.entries()) == []
        assert store.size() == 0
        store.reset_counters()
        assert {name: amount for name, amount in store.counters().items() if amount} == {}
        store.add_counters({"hits": 1})
        assert store.counters()["hits"] == 1

    def test_close_and_use_again(self, store: Store) -> None:
        """A closed store reopens itself when it is used, and can be closed as often as one likes."""
        store.put("k", b"value")
        store.close()
        store.close()
        assert store.get("k") == b"value"
        store.close()
        assert store.put("l", b"more") is True
        store.close()
        assert sorted(info.key for info in store.entries()) == ["k", "l"]

    def test_threads(self, store: Store, path: Path) -> None:
        """Of many threads that put one key exactly one gets True, and its bytes stay; no other entry is lost."""
        count, rounds = 6, 15
        start = threading.Barrier(count)

        def work(me: int) -> list[bool]:
            won = []
            for n in range(rounds):
                start.wait(60)
                won.append(store.put(f"shared-{n}", f"{me}".encode() * 9_000))
                store.put(f"own-{me}-{n}", f"{me}".encode())
                store.add_counters({"rounds": 1})
            return won

        with ThreadPoolExecutor(count) as pool:
            won = list(pool.map(work, range(count)))
        expected = {f"own-{me}-{n}": f"{me}".encode() for me in range(count) for n in range(rounds)}
        for n in range(rounds):
            winners = [me for me in range(count) if won[me][n]]
            assert len(winners) == 1
            expected[f"shared-{n}"] = f"{winners[0]}".encode() * 9_000
        assert self.stored(path) == expected
        assert store.counters() == {"rounds": count * rounds}

    def test_read_only(self, path: Path) -> None:
        """A read-only store reads everything, refuses every write with `StoreReadOnlyError`, and changes nothing."""
        if not self.persistent:
            pytest.skip("nothing to open again")
        with self.open(path) as store:
            store.put("k", b"value")
            store.put("l", b"y" * 100_000)
            store.add_counters({"hits": 1})
        with self.open(path, read_only=True) as reader:
            assert reader.read_only is True
            assert reader.get("k") == b"value"
            assert reader.peek("l", length=2) == b"yy"
            assert reader.contains("l") is True
            assert reader.get("absent") is None
            assert reader.size() == 100_005
            assert sorted(info.key for info in reader.entries()) == ["k", "l"]
            assert reader.counters() == {"hits": 1}
            writes: list[Callable[[], object]] = [
                lambda: reader.put("m", b"x"),
                lambda: reader.put("k", b"x"),
                lambda: reader.replace("k", b"x"),
                lambda: reader.delete("k"),
                lambda: reader.delete("absent"),
                lambda: reader.quarantine("k", b"value"),
            ]
            for write in writes:
                with pytest.raises(StoreReadOnlyError):
                    write()
            reader.add_counters({"hits": 5})
            assert reader.counters() == {"hits": 1}
        assert self.stored(path) == {"k": b"value", "l": b"y" * 100_000}

    def test_reopened(self, path: Path) -> None:
        """What was put, deleted, replaced and counted is so at the next opening."""
        if not self.persistent:
            pytest.skip("nothing to open again")
        with self.open(path) as store:
            for n in range(10):
                store.put(f"k{n}", bytes([n]) * 10_000 * n)
            store.delete("k3")
            store.replace("k4", b"four")
            store.add_counters({"hits": 4})
            listing = {info.key: info for info in store.entries()}
        expected = {f"k{n}": bytes([n]) * 10_000 * n for n in range(10) if n != 3} | {"k4": b"four"}
        assert self.stored(path) == expected
        with self.open(path) as again:
            assert {key: again.peek(key) for key in expected} == expected
            assert {info.key: info for info in again.entries()} == listing
            assert again.counters() == {"hits": 4}
            assert again.put("k5", b"x") is False
            assert again.put("k3", b"back") is True

    def test_two_stores_of_one_path(self, path: Path) -> None:
        """Two stores that are open at one path at once see each other's work."""
        if not self.persistent:
            pytest.skip("nothing to open twice")
        with self.open(path) as one, self.open(path) as two:
            assert one.put("k", b"one") is True
            assert two.put("k", b"two") is False
            assert two.get("k") == b"one"
            two.replace("k", b"TWO")
            assert one.get("k") == b"TWO"
            one.close()
            assert two.delete("k") is True
            assert one.contains("k") is False
