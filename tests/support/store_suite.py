"""The contract of a store as tests, which the tests of each store subclass.

A backend says of itself what it can do (`Suite`). `BasicTests`: one process, one store. `RecencyTests` and
`BoundTests`: the order of uses, and the size limit. Several processes on one store are in `store_sharing`.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pytest
from store_invariants import check_everything, check_listing

from ejcache.entry import Header, encode
from ejcache.errors import InvalidKeyError, StoreReadOnlyError, StoreTooSmallError
from ejcache.stores.base import UNLIMITED
from ejcache.util.store_keys import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ejcache.stores.base import Store


__all__ = [
    "INVALID_KEYS",
    "ODD_KEYS",
    "BasicTests",
    "BoundTests",
    "RecencyTests",
    "Suite",
    "briefly",
    "by_use",
    "fill",
    "generator",
]


def generator(seed: int) -> random.Random:
    """Numbers and bytes that look random and are the same in every run."""
    return random.Random(seed)


def briefly(*names: str) -> Callable[[type], type]:
    """Of the tests of a class, `make test` runs these, and `make soak` the others.

    For a backend of a protocol that takes long to serve, whose rounds another backend shows by the same code.
    """

    def marked(tests: type) -> type:
        for name in dir(tests):
            if name.startswith("test_") and name not in names and getattr(tests, name) is not None:
                setattr(tests, name, pytest.mark.soak(_called_as(getattr(tests, name))))
        assert all(hasattr(tests, name) for name in names)
        return tests

    return marked


def _called_as(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def test(*arguments: Any, **named: Any) -> None:
        function(*arguments, **named)

    return test


class Suite(ABC):
    """What a backend overrides.

    A subclass must be importable by its name from another process (a top-level class of a test module is), because
    the multi-process tests open the store over there through it.
    """

    multiprocess: ClassVar[bool] = True
    """Processes that open one path share its entries."""
    persistent: ClassVar[bool] = True
    """Entries outlive the store that put them: opened again at the same path, they are there."""
    largest: ClassVar[int] = 5_000_000
    """The largest value to try, in bytes."""
    odd_keys: ClassVar[tuple[str, ...]] = ()
    """The keys to try in place of all `ODD_KEYS`, where each costs requests to a slow server."""

    @abstractmethod
    def open(self, path: Path, *, max_size: int = UNLIMITED, read_only: bool = False) -> Store:
        """The store at `path`, a directory of the test's own, which need not exist yet.

        Opened twice at one path, it is one store with two users.
        """

    def stored(self, path: Path) -> dict[str, bytes]:
        """The entries stored at `path`: the oracle that a test compares with.

        A backend that can read its own format around its own methods does so here; this one looks through a store
        that is opened for it.
        """
        with self.open(path) as store:
            found = {info.key: store.peek(info.key) for info in store.entries()}
        return {key: data for key, data in found.items() if data is not None}


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

    def test_value_sizes(self, store: Store, path: Path) -> None:
        """Values of every size come back as they were, here and at the next opening."""
        sizes = (0, 1, 2, 255, 4_095, 4_096, 32_767, 32_768, 32_769, 65_537, 1_000_003)
        values = {f"k{size}": generator(size).randbytes(size) for size in sizes}
        assert [key for key, value in values.items() if store.put(key, value) is not True] == []
        assert [key for key in values if not store.contains(key)] == []
        assert [key for key, value in values.items() if store.get(key) != value] == []
        assert store.size() == sum(sizes)
        assert {info.key: info.size for info in store.entries()} == {f"k{size}": size for size in sizes}
        store.close()
        assert self.stored(path) == values

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
        # Compared apart from the assertion: a difference of megabytes is nothing to print.
        same = found == value
        assert same
        assert store.size() == self.largest
        assert store.delete("k") is True
        assert store.size() == 0

    def test_odd_keys(self, store: Store, path: Path) -> None:
        """Every valid key names its own entry, however it is spelled, and comes back in listings as it was.

        No key makes a store write beside its own directory.
        """
        keys = self.odd_keys or ODD_KEYS
        beside = sorted(entry.name for entry in path.parent.iterdir() if entry.name != path.name)
        values = {key: f"{n}:{key[:20]}".encode() + bytes(n % 3 * 20_000) for n, key in enumerate(keys)}
        assert len(values) == len(keys)
        assert [key for key, value in values.items() if store.put(key, value) is not True] == []
        assert self.stored(path) == values
        assert {key: store.get(key) for key in values} == values
        assert [key for key in values if not store.contains(key)] == []
        assert sorted(info.key for info in store.entries()) == sorted(values)
        gone = keys[::2]
        assert [key for key in gone if not store.delete(key)] == []
        for key in keys[::3]:
            store.replace(key, b"x")
        left = {key: value for key, value in values.items() if key not in gone} | dict.fromkeys(keys[::3], b"x")
        assert self.stored(path) == left
        assert sorted(entry.name for entry in path.parent.iterdir() if entry.name != path.name) == beside

    def test_invalid_keys(self, store: Store, path: Path) -> None:
        """A key that no store can hold is refused by every method, and nothing changes."""
        store.put("k", b"value")
        calls: list[Callable[[Any], object]] = [
            store.get,
            store.peek,
            lambda key: store.put(key, b"x"),
            lambda key: store.replace(key, b"x"),
            store.contains,
            store.delete,
            lambda key: store.quarantine(key, b"x"),
        ]
        for key in INVALID_KEYS:
            for call in calls:
                with pytest.raises(InvalidKeyError):
                    call(key)
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
        # Until a bucket has answered, all calls share a few seconds, which six clients on a busy machine can use up.
        assert store.get("absent") is None

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


def fill(store: Store, keys: Iterable[str], size: int = 10) -> None:
    """Put `keys` in their order, each with `size` bytes that begin with it."""
    for key in keys:
        assert store.put(key, key.encode().ljust(size, b".")[:size]) is True


def by_use(store: Store) -> str:
    """The keys, the least recently used first."""
    return "".join(info.key for info in sorted(store.entries(), key=lambda info: info.last_used))


class RecencyTests(Suite):
    """A use that is noted shows at once in `EntryInfo.last_used`."""

    def test_last_used_is_listed(self, tmp_path: Path) -> None:
        """The listing's times of last use are in the order of use."""
        with self.open(tmp_path / "store") as store:
            for key in "abcd":
                assert store.put(key, encode(Header(key=key, created=time.time()), b"value"))
            assert by_use(store) == "abcd"
            created = {info.key: info.created for info in store.entries()}
            store.note_used("b")
            store.note_used("a")
            assert by_use(store) == "cdba"
            assert {info.key: info.created for info in store.entries()} == created


class BoundTests(RecencyTests):
    """What a limit means to a store that keeps one whenever a `put` returns; every test opens it with its own."""

    def test_least_recently_used_goes_first(self, tmp_path: Path) -> None:
        """A full store evicts the least recently used entries."""
        with self.open(tmp_path / "store", max_size=40) as store:
            fill(store, "abcd")
            store.note_used("a")
            fill(store, "e")
            assert sorted(self.stored(tmp_path / "store")) == ["a", "c", "d", "e"]
            store.note_used("c")
            fill(store, "fg")
            assert sorted(self.stored(tmp_path / "store")) == ["c", "e", "f", "g"]

    def test_looking_is_no_use(self, tmp_path: Path) -> None:
        """Reads, contains, a listing, a refused put and the use of an absent entry leave the order alone."""
        with self.open(tmp_path / "store", max_size=30) as store:
            fill(store, "abc")
            store.peek("a")
            store.peek("a", length=3)
            store.contains("a")
            assert store.put("a", b"refused") is False
            assert store.get("a") is not None
            store.note_used("absent")
            assert by_use(store) == "abc"
            fill(store, "d")
            assert sorted(self.stored(tmp_path / "store")) == ["b", "c", "d"]

    def test_replace_is_a_use(self, tmp_path: Path) -> None:
        """A replaced entry is the most recently used one, and its old bytes no longer count."""
        with self.open(tmp_path / "store", max_size=30) as store:
            fill(store, "abc")
            store.replace("a", b"A" * 10)
            assert by_use(store) == "bca"
            assert store.size() == 30
            store.replace("a", b"A" * 20)
            assert self.stored(tmp_path / "store") == {"c": b"c.........", "a": b"A" * 20}
            store.replace("c", b"C" * 30)
            assert self.stored(tmp_path / "store") == {"c": b"C" * 30}

    def test_reading_only_is_no_use(self, tmp_path: Path) -> None:
        """Uses of a read-only store leave the order of eviction alone."""
        with self.open(tmp_path / "store", max_size=30) as store:
            fill(store, "abc")
            with self.open(tmp_path / "store", max_size=30, read_only=True) as reader:
                assert reader.get("a") == b"a........."
                reader.note_used("a")
            assert by_use(store) == "abc"
            fill(store, "d")
            assert sorted(self.stored(tmp_path / "store")) == ["b", "c", "d"]

    @pytest.mark.parametrize("scale", [1, 20_000], ids=["bytes", "megabytes"])
    def test_bound_after_every_put(self, tmp_path: Path, scale: int) -> None:
        """After each of many puts and gets the store is within its limit and holds exactly what strict LRU keeps."""
        rng = generator(scale)
        limit = 100 * scale
        model: OrderedDict[str, int] = OrderedDict()
        with self.open(tmp_path / "store", max_size=limit) as store:
            for n in range(120 if scale < 20_000 else 40):
                if model and rng.random() < 0.4:
                    used = rng.choice(list(model))
                    assert store.get(used) is not None
                    store.note_used(used)
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

    @pytest.mark.parametrize("limit", [1, 100, 4_500_000])
    def test_one_value_of_the_whole_limit(self, tmp_path: Path, limit: int) -> None:
        """A value of exactly the limit is stored in place of everything else; one byte more is refused for nothing."""
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

    def test_a_smaller_limit(self, tmp_path: Path) -> None:
        """A store that is opened with less room than it holds fits again when its next put returns."""
        if not self.persistent:
            pytest.skip("nothing to open again")
        path = tmp_path / "store"
        with self.open(path) as store:
            fill(store, "abcdefgh")
            store.note_used("a")
        with self.open(path, max_size=35) as store:
            fill(store, "i")
            assert sorted(self.stored(path)) == ["a", "h", "i"]
            check_everything(store)
