"""Shared entries on a file system: what links, renames and dead mounts do."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from ejcache.bucket.files import FileBucket
from ejcache.bucket.object_names import ENTRIES, entry_name, key_of_name
from ejcache.bucket.retry import RetryPolicy
from ejcache.errors import StoreBusyError, StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.shared.store import SharedStore
from ejcache.util.directory_access import Access


@pytest.fixture
def bucket(tmp_path):
    return FileBucket(tmp_path / "shared", policy=RetryPolicy(deadline=60))


def temporaries(bucket):
    return sorted(path.name for path in (bucket.path / "v1/tmp").iterdir())


def test_the_layout_on_disk(bucket):
    """An entry is the file of its name, and nothing else is left behind."""
    store = SharedStore(bucket)
    store.put("key", b"value")
    store.replace("key", b"other")
    store.put("key", b"refused")
    assert (bucket.path / entry_name("key")).read_bytes() == b"other"
    assert temporaries(bucket) == []
    assert sorted(path.name for path in bucket.path.iterdir()) == ["v1"]


def test_a_reader_makes_nothing(tmp_path):
    """Looking into a directory that is not there finds nothing and makes nothing."""
    store = SharedStore(FileBucket(tmp_path / "shared"))
    assert store.get("k") is None
    assert list(store.entries()) == []
    assert store.counters() == {}
    assert store.delete("k") is False
    store.close()
    assert not (tmp_path / "shared").exists()


def test_a_link_whose_answer_was_lost(bucket, monkeypatch):
    """A link that NFS made, and then reports as existing because it asked twice, is our own."""
    link = os.link

    def link_twice(*args, **kwargs):
        link(*args, **kwargs)
        link(*args, **kwargs)

    monkeypatch.setattr(os, "link", link_twice)
    assert bucket.create("k", b"mine") is True
    assert bucket.create("k", b"other") is False
    assert bucket.read("k").data == b"mine"
    assert temporaries(bucket) == []


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_no_hard_links(bucket, monkeypatch, code):
    """Where there are no links, an entry is created by a rename, and one that stands is left."""

    def refuse(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    assert bucket.create("k", b"mine") is True
    assert bucket.create("k", b"other") is False
    assert bucket.read("k").data == b"mine"


def test_a_stale_handle_is_tried_again(bucket, monkeypatch):
    """A file that another host replaced under the reader is read again."""
    bucket.create("k", b"value")
    read, failures = os.read, iter([OSError(errno.ESTALE, "Stale file handle")])

    def stale(*args):
        for failure in failures:
            raise failure
        return read(*args)

    monkeypatch.setattr(os, "read", stale)
    assert bucket.read("k").data == b"value"


def test_a_full_disk(bucket, monkeypatch):
    """A write that fails leaves no entry and no temporary file, and says what failed."""
    bucket.create("other", b"x")

    def full(fd, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreUnavailableError, match="No space left"):
        bucket.create("k", b"value")
    monkeypatch.undo()
    assert bucket.read("k") is None
    assert temporaries(bucket) == []


def test_a_hanging_mount(tmp_path, monkeypatch):
    """A call that hangs is left at the deadline, the store says it is busy, and other calls go on."""
    bucket = FileBucket(tmp_path, policy=RetryPolicy(deadline=60))
    store = SharedStore(bucket)
    store.put("fine", b"x")
    store.put("hangs", b"x")
    answers, real = threading.Event(), os.open

    def hang(path, *args, **kwargs):
        if str(path).endswith("hangs"):
            answers.wait(60)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", hang)
    bucket.policy = RetryPolicy(deadline=0.4)
    with pytest.raises(StoreBusyError, match=r"gave no answer.*within 0"):
        store.get("hangs")
    bucket.policy = RetryPolicy(deadline=60)
    assert store.get("fine") == b"x"
    answers.set()


def test_a_read_only_mount(bucket, monkeypatch):
    """A file system that refuses writes makes the store read-only, and reads go on."""
    bucket.create("k", b"value")
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreReadOnlyError, match="Read-only file system"):
        bucket.create("l", b"x")
    assert bucket.read("k").data == b"value"


def test_a_file_in_place_of_the_directory(tmp_path):
    """A path that is a file is unavailable to write to, and left alone."""
    (tmp_path / "file").write_bytes(b"mine")
    bucket = FileBucket(tmp_path / "file", policy=RetryPolicy(deadline=60))
    assert bucket.read("k") is None
    with pytest.raises(StoreUnavailableError):
        bucket.create("k", b"x")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_deleting_a_version_spares_its_successor(bucket, monkeypatch):
    """An object that was replaced a moment before its old version is deleted is put back."""
    version = bucket.write("k", b"old")
    rename = Path.rename

    def replace_then_rename(path, target):
        bucket.write("k", b"new")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", replace_then_rename)  # which takes the old version away
    assert bucket.delete("k", version=version) is False
    assert bucket.read("k").data == b"new"
    assert temporaries(bucket) == []


def test_a_killed_writer(tmp_path, run_forked):
    """A process killed between writing and publishing leaves no entry, and what it leaves is named after it."""
    program = """
        import os, sys
        from ejcache.bucket.files import FileBucket

        os.link = lambda *_: os._exit(9)
        FileBucket(sys.argv[1]).create("v1/entries/k", b"value" * 1000)
    """
    finished = run_forked(program, str(tmp_path / "shared"), check=False)
    assert finished.returncode == 9
    bucket = FileBucket(tmp_path / "shared")
    assert list(bucket.walk("v1/entries/")) == []
    (left,) = bucket.walk("v1/tmp/")
    assert len(left.name.rsplit("-", 2)[-1]) == 32
    assert bucket.create("v1/entries/k", b"other") is True


def test_a_listing_asks_for_one_directory_at_a_time(bucket, monkeypatch):
    """However much is below a prefix, no call lists more than one directory; each has the deadline of a call."""
    store = SharedStore(bucket)
    keys = {f"k{number}" for number in range(40)}
    for key in keys:
        store.put(key, b"x")
    listed = []
    run, scan = RetryPolicy.run, os.scandir

    def call(policy, what, attempt, **options):
        listed.append(0)
        return run(policy, what, attempt, **options)

    def counted_scan(place):
        listed[-1] += 1
        return scan(place)

    monkeypatch.setattr(RetryPolicy, "run", call)
    monkeypatch.setattr(os, "scandir", counted_scan)
    found = {key_of_name(info.name) for info in bucket.walk("v1/") if info.name.startswith(ENTRIES)}
    assert found == keys
    assert set(listed) == {1}
    assert len(listed) > 20


def test_modes_of_shared_files(tmp_path):
    """Files and directories have the root's permissions, whatever the umask; quarantined copies are private."""
    bucket = FileBucket(tmp_path / "shared", access=Access(tmp_path / "shared", 0o750))
    old = os.umask(0)
    try:
        bucket.create("v1/entries/ab/k", b"x")
        bucket.write("v1/quarantine/k", b"x")
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "shared" / "v1").rglob("*")}
    assert {name: mode for name, mode in modes.items() if name != "k"} == dict.fromkeys(
        ("entries", "ab", "tmp", "quarantine"), 0o750
    )
    assert (tmp_path / "shared/v1/entries/ab/k").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "shared/v1/quarantine/k").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("size", [5000, 4 << 30])
def test_what_is_too_large_is_not_read(bucket, size):
    """A lease of 5 kB and an entry of 4 GB were not written by ejcache: at most the first part of them is read."""
    name = "v1/leases/k" if size == 5000 else entry_name("k")
    bucket.create(name, b"x")
    os.truncate(bucket.path / name, size)
    blob = bucket.read(name)
    assert len(blob.data) == (4097 if size == 5000 else bucket.part_size)
    assert blob.size == size


def test_a_large_entry_that_states_another_size(bucket):
    """The rest of a large entry is read only if its header states the size that it has."""
    bucket.entries_only, bucket.part_size = True, 1 << 20
    bucket.create(entry_name("k"), b"EJC1" + bytes(100))
    os.truncate(bucket.path / entry_name("k"), 100 << 20)
    assert len(bucket.read(entry_name("k")).data) == 1 << 20
    later = b"EJC2" + bytes(100)  # an entry of a later version is for others to judge
    bucket.write(entry_name("k"), later)
    os.truncate(bucket.path / entry_name("k"), 70 << 20)
    assert len(bucket.read(entry_name("k")).data) == 70 << 20
