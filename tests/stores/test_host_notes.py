"""What processes of a host leave to the next ones: which programs are below the floor, and what could not be sent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from store_faults import FaultStore

from ejcache.errors import StoreReadOnlyError, StoreUnavailableError
from ejcache.journal.line import EntryUse, ProgramRecord, encode_line
from ejcache.journal.unsent import DROPPED, UnsentUses
from ejcache.stores.host_notes import EXPIRY_SECONDS, HostNotes, decode_notes, encode_note
from ejcache.stores.local.store import LocalStore
from ejcache.stores.memory import MemoryStore
from ejcache.stores.tiered.store import TieredStore

GOLDEN = Path(__file__).parent.parent / "data" / "host_notes" / "notes-v1"
NOTES = {
    "9e107d9d372bb6826bd81d3542a419d6": (0.025569, 1_795_311_442.0),
    "bdbbb0d66ea87a580410a9dd62689d02": (None, 1_795_311_443.0),
    "0123456789abcdef0123456789abcdef": (0.000999, 1_795_311_444.0),
}
NOW = 1_800_000_000.9
KEY = f"jit_f-cpu-plain-{1:064x}"


def test_the_format_of_notes():
    """The notes of the golden file are read and written as they are there."""
    assert decode_notes(GOLDEN.read_bytes()) == NOTES
    assert b"".join(encode_note(digest, *note) for digest, note in NOTES.items()) == GOLDEN.read_bytes()


def test_damaged_notes():
    """A line that is cut short, or of another form, is ignored; words that a later version adds are, too."""
    whole = GOLDEN.read_bytes()
    torn = whole[:40] + whole + b"later 1 2\n\xff\xfe\n" + b"f" * 32 + b" 7 1795311445 more words\n"
    found = decode_notes(torn)
    assert found.pop("f" * 32) == (7e-6, 1_795_311_445.0)
    assert found.items() <= NOTES.items()
    assert len(found) == 2  # the first line follows the torn one


@pytest.fixture
def path(tmp_path):
    return tmp_path / "scratch" / "notes"


def test_notes_of_other_processes(path):
    """What one process notes, the next one on that host knows; a program that was published is below no floor."""
    HostNotes(path, now=lambda: NOW).note("k", 0.05)
    later = HostNotes(path, now=lambda: NOW)
    assert later.number("k") == 0.05
    assert later.number("other") is None
    later.note_published("other")
    later.note_published("k")
    assert later.number("k") is None
    assert HostNotes(path, now=lambda: NOW).number("k") is None
    assert path.read_bytes().count(b"\n") == 2


def test_expiry(path):
    """A note counts for thirty days. One from the future, by a clock that was wrong, does not count."""
    now = NOW
    log = HostNotes(path, now=lambda: now)
    log.note("k", 0.05)
    now += EXPIRY_SECONDS - 1
    assert log.number("k") == 0.05
    now += 1
    assert log.number("k") is None
    now -= 2 * EXPIRY_SECONDS
    assert log.number("k") is None


@pytest.fixture
def unsent(tmp_path):
    return tmp_path / "scratch" / "unsent"


def test_what_could_not_be_sent_is_taken_once(unsent):
    """Uses of one key are joined, sums add up, and a torn or foreign line costs itself only."""
    left = UnsentUses(unsent)
    assert left.take() == ({}, {}, [])
    assert not left.is_due()
    left.leave({KEY: EntryUse(5.0)}, {"hits": 1})
    left.leave({KEY: EntryUse(4.0)}, {"hits": 2, "seconds": 0.5})
    with unsent.open("ab") as file:
        file.write(b'[]\n{"used": 3}\n\xff\n{"at": 1, "used": {"x\\u0000": [1, 1, 1]}, "sums": {}}\n{"at": 1, "us')
    assert not left.is_due()
    assert left.take() == ({KEY: EntryUse(5.0, 2)}, {"hits": 3.0, "seconds": 0.5}, [])
    assert left.take() == ({}, {}, [])


def test_when_it_is_due(unsent):
    """What was left ten minutes ago, or is much, is sent by a process that asks for nothing else; damage is, too."""
    now = NOW
    left = UnsentUses(unsent, now=lambda: now)
    left.leave({KEY: EntryUse(5.0)}, {})
    assert not left.is_due()
    now += 600
    assert left.is_due()
    assert left.take()[0] == {KEY: EntryUse(5.0)}
    left.leave({f"{KEY}{n}": EntryUse(5.0) for n in range(1400)}, {})
    assert left.is_due()
    unsent.write_bytes(b'{"at": x, "used": {}}\n')
    assert left.is_due()
    assert left.take() == ({}, {}, [])
    assert not left.is_due()


def test_the_files_are_bounded(path, unsent):
    """When there are too many notes the older ones go; lines that are to be sent are folded into one."""
    notes, left = HostNotes(path, limit=5_000), UnsentUses(unsent, limit=5_000)
    for number in range(300):
        notes.note(str(number), 0.05)
        left.leave({KEY: EntryUse(float(number))}, {"hits": 1})
        assert path.stat().st_size <= 10_200
        assert unsent.stat().st_size <= 5_000
    again = HostNotes(path)
    assert again.number("299") == 0.05
    assert again.number("0") is None
    used, sums, _ = left.take()
    assert (used, sums) == ({KEY: EntryUse(299.0, 300)}, {"hits": 300})


def test_lines_of_records_are_left_too(unsent):
    """They are taken as they are. They alone make nobody ask the storage, and they are the first without room."""
    left = UnsentUses(unsent, limit=20_000)
    line = encode_line({"id": "p"}, [ProgramRecord(f"jit_{number}") for number in range(600)])
    left.leave({}, {}, [line])
    assert not left.is_due()
    assert left.take() == ({}, {}, [line])
    left.leave({KEY: EntryUse(5.0)}, {"hits": 1}, [line])
    left.leave({KEY: EntryUse(6.0)}, {"hits": 1}, [line])
    assert left.take() == ({KEY: EntryUse(6.0, 2)}, {"hits": 2}, [])


def test_uses_without_room_are_counted(unsent):
    """The oldest go first, never what was counted, and how many have gone is counted, too."""
    left = UnsentUses(unsent, limit=5_000)
    for number in range(300):
        left.leave({f"{KEY}{number}": EntryUse(float(number))}, {"hits": 1})
        assert unsent.stat().st_size <= 5_000
    used, sums, _ = left.take()
    assert sums == {"hits": 300, DROPPED: 300 - len(used)}
    assert 10 < len(used) < 100
    assert f"{KEY}299" in used
    assert f"{KEY}0" not in used


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
    notes, left = HostNotes(path), UnsentUses(path)
    notes.note("k", 0.05)
    assert notes.number("k") == 0.05
    left.leave({}, {"hits": 1})
    assert not left.is_due()
    left.take()
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
    assert store.put_here("k", b"value") is True
    assert store.put_here("k", b"other") is False
    assert store.flush(60) is True
    assert opened().get("k") == b"value"
    assert shared.inner.contains("k") is False
    store.put_here("k", b"other", replacing=True)
    assert opened().get("k") == b"other"


def test_what_nobody_is_asked_for(opened, shared):
    """Of what has a note, the caller decides whether to ask the shared tier."""
    opened().note_local("k", 0.05)
    shared.inner.put("k", b"value")
    store = opened()
    assert store.local_note("k") == 0.05
    assert store.get_verified("k", local_only=True) == (None, None)
    assert shared.calls["get"] == 0
    assert store.local_note("another") is None
    assert store.get("k") == b"value"


def test_uses_that_nobody_is_told_of(tmp_path, opened, shared):
    """The uses of an entry that only this host has are not written to the journals of the shared tier."""
    noted = []
    shared.note_used = noted.append
    store = opened()
    store.put_here("here", b"value")
    store.put("everywhere", b"value")
    store.note_used_here("here")
    store.note_used("everywhere")
    assert noted == ["everywhere"]


def test_published_after_all(opened):
    """A program that is published, because it took longer this time, is asked for again."""
    store = opened()
    store.note_local("k", 0.05)
    store.put("k", b"value")
    assert store.local_note("k") is None
    assert opened().local_note("k") is None


def test_a_read_only_store(opened, tmp_path):
    """A job that may not write keeps no entries. It does note what is quick, so that it does not ask again."""
    store = opened(read_only=True)
    with pytest.raises(StoreReadOnlyError):
        store.put_here("k", b"value")
    store.note_local("k", 0.005)
    assert opened(read_only=True).local_note("k") == 0.005


def test_a_local_tier_that_fails(tmp_path, shared):
    """If this host cannot keep an entry, that is an error, and the entry is not uploaded in its place."""
    local = FaultStore(LocalStore(tmp_path / "local"))
    store = TieredStore(local, shared, scratch=tmp_path / "scratch")
    local.fail("put", StoreUnavailableError("the disk is full"))
    with store, pytest.raises(StoreUnavailableError):
        store.put_here("k", b"value")
    assert shared.inner.contains("k") is False


def test_without_a_disk(shared):
    """A local tier in memory has notes in memory."""
    with TieredStore(MemoryStore(), shared) as store:
        store.put_here("k", b"value")
        store.note_local("k", 0.05)
        assert store.local_note("k") == 0.05
    assert shared.inner.contains("k") is False
