"""One fetch for all processes of a host: who asks, who waits, and what happens when nobody lets go."""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import filelock
import pytest

from ejcache.stores.tiered import host_fetches
from ejcache.stores.tiered.host_fetches import HostFetches
from ejcache.util import locks
from ejcache.util.locks import exclusive


class Origin:
    """The far side, and the near one that fetches fill."""

    def __init__(self, data):
        self.data = data
        self.near = None
        self.asked = 0
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.opened.set()

    def again(self):
        return self.near

    def fetch(self):
        self.asked += 1
        self.reached.set()
        assert self.opened.wait(60)
        self.near = self.data
        return self.data


def lock_of(directory, key="k"):
    return filelock.FileLock(directory / f"{hashlib.sha256(key.encode()).hexdigest()[:3]}.lock", thread_local=False)


@pytest.mark.parametrize("data", [b"value", None])
def test_waiters_ask_nobody(tmp_path, monkeypatch, data):
    """A process that waits while another fetches is answered by that fetch, whether it found something or not."""
    origin = Origin(data)
    origin.opened.clear()
    asking = threading.Semaphore(0)
    count = 5

    def announced(*args, **options):
        asking.release()
        return exclusive(*args, **options)

    def one(_):
        # Each has its own, as processes have.
        return HostFetches(tmp_path, patience=60).run("k", again=origin.again, fetch=origin.fetch)

    monkeypatch.setattr(locks, "exclusive", announced)
    monkeypatch.setattr(host_fetches, "STALE_SECONDS", 60)
    with ThreadPoolExecutor(count) as pool:
        found = [pool.submit(one, n) for n in range(count)]
        for _ in range(count):
            assert asking.acquire(timeout=60)
        origin.opened.set()
        assert [future.result(60) for future in found] == [data] * count
    assert origin.asked == 1


def test_an_old_miss_is_no_answer(tmp_path, monkeypatch):
    """A fetch that was begun long before the question, and found nothing, is not believed."""
    monkeypatch.setattr(host_fetches, "STALE_SECONDS", -1.0)
    origin = Origin(None)
    origin.opened.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(HostFetches(tmp_path).run, "k", again=origin.again, fetch=origin.fetch)
        assert origin.reached.wait(60)
        fetches = HostFetches(tmp_path, patience=60)
        second = pool.submit(fetches.run, "k", again=origin.again, fetch=origin.fetch)
        origin.opened.set()
        assert (first.result(60), second.result(60)) == (None, None)
    assert origin.asked == 2


@pytest.mark.parametrize("note", ["", "garbage", "a b c", "{digest} 1.0", "{digest} 1e18 1e18"])
def test_notes_of_misses_that_cannot_be(tmp_path, note):
    """A note that is torn, or of a time to come, as after a restart of the host, is not believed."""
    digest = hashlib.sha256(b"k").hexdigest()
    (tmp_path / f"{digest[:3]}.miss").write_text(note.format(digest=digest))
    origin = Origin(b"value")
    assert HostFetches(tmp_path).run("k", again=origin.again, fetch=origin.fetch) == b"value"


def test_a_miss_is_no_answer_to_a_later_question(tmp_path):
    """A process that asks after a fetch found nothing asks anew: the entry may be there now."""
    origin = Origin(None)
    fetches = HostFetches(tmp_path)
    assert fetches.run("k", again=origin.again, fetch=origin.fetch) is None
    origin.data = b"value"
    assert fetches.run("k", again=origin.again, fetch=origin.fetch) == b"value"
    assert origin.asked == 2


def test_found_meanwhile(tmp_path):
    """What another has fetched between the question and the lock is not fetched again."""
    origin = Origin(b"value")
    origin.near = b"value"
    assert HostFetches(tmp_path).run("k", again=origin.again, fetch=origin.fetch) == b"value"
    assert origin.asked == 0


def test_stopped_holder(tmp_path, monkeypatch):
    """A lock that is never released is waited for once, and then no more, until it is free again."""
    waits = []

    def hurried(path, *, deadline, **options):
        waits.append(deadline > time.monotonic() + 300)
        return exclusive(path, deadline=time.monotonic(), **options)

    monkeypatch.setattr(locks, "exclusive", hurried)
    origin = Origin(None)
    fetches = HostFetches(tmp_path, patience=600)
    fetches.run("k", again=origin.again, fetch=origin.fetch)
    held = lock_of(tmp_path)
    held.acquire()
    for _ in range(3):
        fetches.run("k", again=origin.again, fetch=origin.fetch)
    held.release()
    for _ in range(2):
        fetches.run("k", again=origin.again, fetch=origin.fetch)
    assert waits == [True, True, False, False, False, True]
    assert origin.asked == 6


def test_failed_fetch_lets_go(tmp_path):
    """A fetch that fails lets the next one in."""
    fetches = HostFetches(tmp_path)

    def fail():
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fetches.run("k", again=lambda: None, fetch=fail)
    held = lock_of(tmp_path)
    held.acquire(timeout=0)
    held.release()


def test_without_a_directory(tmp_path):
    """Where no lock can be had, everybody fetches."""
    (tmp_path / "file").touch()
    for directory in (None, tmp_path / "file"):
        origin = Origin(b"value")
        assert HostFetches(directory).run("k", again=origin.again, fetch=origin.fetch) == b"value"
        assert origin.asked == 1


def test_exclusive(tmp_path):
    """Work that is to be apart from fetches of a key is not done while one is made."""
    fetches, origin, seen = HostFetches(tmp_path, patience=60), Origin(b"value"), []
    origin.opened.clear()
    with ThreadPoolExecutor(2) as pool:
        fetching = pool.submit(fetches.run, "k", again=origin.again, fetch=origin.fetch)
        assert origin.reached.wait(60)

        def apart():
            with HostFetches(tmp_path, patience=60).exclusive("k"):
                seen.append(origin.near)

        working = pool.submit(apart)
        origin.opened.set()
        fetching.result(60)
        working.result(60)
    assert seen == [b"value"]
