"""What a host remembers of programs that are too quick to be published: the file, its format, and what a store does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from store_faults import FaultStore

from ejcache.errors import StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore
from ejcache.stores.tiered.quick import EXPIRY_SECONDS, QuickNote, QuickNotes, decode_notes, encode_notes
from ejcache.stores.tiered.store import TieredStore

GOLDEN = Path(__file__).parent.parent / "data" / "quick" / "notes-v1"
NOTES = {
    "9e107d9d372bb6826bd81d3542a419d6": QuickNote(0.025569, 1_795_311_442.0),
    "bdbbb0d66ea87a580410a9dd62689d02": QuickNote(None, 1_795_311_443.0),
    "0123456789abcdef0123456789abcdef": QuickNote(0.000999, 1_795_311_444.0),
}


def test_the_format():
    """The notes of the golden file are read and written as they are there."""
    assert decode_notes(GOLDEN.read_bytes()) == NOTES
    assert encode_notes(NOTES.items()) == GOLDEN.read_bytes()


def test_damaged_lines():
    """A line that is cut short, or of another form, is ignored; words that a later version adds are, too."""
    whole = GOLDEN.read_bytes()
    torn = whole[:40] + whole + b"later 1 2\n\xff\xfe\n" + b"f" * 32 + b" 7 1795311445 more words\n"
    found = decode_notes(torn)
    assert found.pop("f" * 32) == QuickNote(7e-6, 1_795_311_445.0)
    assert found.items() <= NOTES.items()
    assert len(found) == 2  # the first line follows the torn one


def test_notes_of_other_processes(tmp_path):
    """What one process notes, the next one on that host knows; a withdrawn note is gone."""
    QuickNotes(tmp_path / "scratch" / "quick.notes", now=lambda: 1_800_000_000.9).add("k", 0.05)
    later = QuickNotes(tmp_path / "scratch" / "quick.notes", now=lambda: 1_800_000_000.9)
    assert later.seconds("k") == 0.05
    assert later.seconds("other") is None
    later.withdraw("other")
    later.withdraw("k")
    assert later.seconds("k") is None
    assert QuickNotes(tmp_path / "scratch" / "quick.notes", now=lambda: 1_800_000_000.9).seconds("k") is None
    assert (tmp_path / "scratch" / "quick.notes").read_bytes().count(b"\n") == 2


def test_expiry(tmp_path):
    """A note counts for thirty days. One from the future, by a clock that was wrong, does not count."""
    now = 1_800_000_000.0
    notes = QuickNotes(tmp_path / "notes", now=lambda: now)
    notes.add("k", 0.05)
    now += EXPIRY_SECONDS - 1
    assert notes.seconds("k") == 0.05
    now += 1
    assert notes.seconds("k") is None
    now -= 2 * EXPIRY_SECONDS
    assert notes.seconds("k") is None


def test_the_file_is_bounded(tmp_path, monkeypatch):
    """When the file is full, the older notes go, and the file stays below its limit."""
    monkeypatch.setattr("ejcache.stores.tiered.quick._LIMIT", 5_000)
    notes = QuickNotes(tmp_path / "notes")
    for number in range(300):
        notes.add(str(number), 0.05)
        assert (tmp_path / "notes").stat().st_size <= 5_000
    left = QuickNotes(tmp_path / "notes")
    assert left.seconds("299") == 0.05
    assert left.seconds("0") is None


@pytest.mark.parametrize("what", ["link", "pipe", "directory", "large"])
def test_what_is_no_file_of_ours(tmp_path, what):
    """Where something else is in the place of the file, nothing waits or is written there; the process has its own."""
    path = tmp_path / "notes"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(GOLDEN.read_bytes())
    if what == "link":
        path.symlink_to(elsewhere)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    notes = QuickNotes(path)
    notes.add("k", 0.05)
    assert notes.seconds("k") == 0.05
    assert elsewhere.read_bytes() == GOLDEN.read_bytes()


@pytest.fixture
def shared():
    return FaultStore(MemoryStore())


@pytest.fixture
def opened(tmp_path, shared):
    """Opens the store once more, as the next process of this host would."""
    stores = []

    def opened(**options):
        stores.append(TieredStore(LocalStore(tmp_path / "local"), shared, scratch=tmp_path / "scratch", **options))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


def test_what_is_kept_here(opened, shared):
    """An entry that is kept here is a hit on this host, also for its next process, and never uploaded."""
    store = opened()
    assert store.keep("k", b"value", seconds=0.05) is True
    assert store.keep("k", b"other", seconds=0.05) is False
    assert store.flush(60) is True
    assert opened().get("k") == b"value"
    assert shared.inner.contains("k") is False
    store.keep("k", b"other", seconds=0.05, replacing=True)
    assert opened().get("k") == b"other"


def test_what_nobody_is_asked_for(opened, shared):
    """What is known to be quick is looked up here only, and only as long as the floor is above it."""
    opened().note_quick("k", 0.05)
    shared.inner.put("k", b"value")
    store = opened()
    assert store.is_quick("k", 0.1)
    assert store.get_verified("k", here_only=True) == (None, None)
    assert shared.calls["get"] == 0
    assert not store.is_quick("k", 0.05)
    assert not store.is_quick("k", 0.0)
    assert store.get("k") == b"value"


def test_uses_that_nobody_is_told_of(tmp_path, opened, shared):
    """The uses of an entry that only this host has are not written to the journals of the shared tier."""
    noted = []
    shared.note_used = noted.append
    store = opened()
    store.keep("here", b"value", seconds=0.05)
    store.put("everywhere", b"value")
    for key in ("here", "everywhere"):
        assert store.get_verified(key, here_only=store.is_quick(key, 0.1))[0] == b"value"
    assert noted == ["everywhere"]


def test_published_after_all(opened):
    """A program that is published, because it took longer this time, is asked for again."""
    store = opened()
    store.note_quick("k", 0.05)
    store.put("k", b"value")
    assert not store.is_quick("k", 0.1)
    assert not opened().is_quick("k", 0.1)


def test_a_read_only_store(opened, tmp_path):
    """A job that may not write keeps no entries. It does note what is quick, so that it does not ask again."""
    store = opened(read_only=True)
    with pytest.raises(StoreReadOnlyError):
        store.keep("k", b"value", seconds=0.05)
    store.note_quick("k", 0.005)
    assert opened(read_only=True).is_quick("k", 0.01)


def test_a_local_tier_that_fails(tmp_path, shared):
    """If this host cannot keep an entry, that is an error, and the entry is not uploaded in its place."""
    local = FaultStore(LocalStore(tmp_path / "local"))
    store = TieredStore(local, shared, scratch=tmp_path / "scratch")
    local.fail("put", StoreUnavailableError("the disk is full"))
    with store, pytest.raises(StoreUnavailableError):
        store.keep("k", b"value", seconds=0.05)
    assert shared.inner.contains("k") is False


def test_without_a_disk(shared):
    """A local tier in memory has notes in memory."""
    with TieredStore(MemoryStore(), shared) as store:
        store.keep("k", b"value", seconds=0.05)
        assert store.is_quick("k", 0.1)
    assert shared.inner.contains("k") is False
