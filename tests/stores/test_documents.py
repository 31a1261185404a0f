"""Small documents: what each kind of storage does with them."""

from __future__ import annotations

import os

import pytest
from buckets import GcsServerProcess, gcs_bucket
from helpers import local_documents

from ejcache.bucket.files import FileBucket
from ejcache.errors import InvalidKeyError, StoreBusyError
from ejcache.stores.documents import Documents


@pytest.fixture(scope="module")
def gcs():
    with GcsServerProcess() as server:
        yield server


@pytest.fixture(params=["directory", "mount", "bucket"])
def documents(request, tmp_path):
    """Documents of each kind."""
    if request.param == "bucket":
        server = request.getfixturevalue("gcs")
        return Documents(gcs_bucket(server, request.node.name.replace("[", "-").replace("]", "")))
    local = request.param == "directory"
    return Documents(FileBucket(tmp_path / "documents", local=local, documents=True))


def test_documents(documents):
    """Every backend creates once, replaces, updates, lists by prefix and deletes."""
    assert documents.read("a/b.json") is None
    assert documents.stamp("a/b.json") is None
    assert documents.create("a/b.json", b"1")
    assert not documents.create("a/b.json", b"2")
    assert documents.read("a/b.json") == b"1"
    stamp = documents.stamp("a/b.json")
    documents.replace("a/b.json", b"3")
    assert documents.stamp("a/b.json") != stamp
    documents.update("a/b.json", lambda old: old + b"4")
    documents.update("a/c.json", lambda old: b"new" if old is None else None)
    documents.update("a/c.json", lambda old: None)
    assert documents.read("a/b.json") == b"34"
    assert sorted(documents.list("a/")) == ["a/b.json", "a/c.json"]
    assert list(documents.list("a/b")) == ["a/b.json"]
    assert list(documents.list("z/")) == []
    assert not documents.discard("a/b.json", b"other")
    assert documents.discard("a/b.json", b"34")
    assert not documents.discard("a/b.json", b"34")
    assert not documents.discard("none/b.json", b"")
    assert documents.delete("a/c.json")
    assert not documents.delete("a/c.json")
    for path in ("../x", "/x", "a//b", "a/.hidden", "x" * 300, "a\nb"):
        with pytest.raises(InvalidKeyError):
            documents.read(path)


def test_files_follow_their_directory(tmp_path):
    """Documents are private where their directory is, and readable where it is, whatever the umask."""
    (tmp_path / "open").mkdir(mode=0o755)
    old = os.umask(0o002)
    try:
        for name in ("made", "open"):
            local_documents(tmp_path / name).create("a.json", b"1")
    finally:
        os.umask(old)
    modes = [(tmp_path / name / "a.json").stat().st_mode & 0o777 for name in ("made", "open")]
    assert modes == [0o600, 0o644]


def test_update_gives_up_when_others_keep_the_lock(tmp_path):
    """A lock that is never released costs the deadline, not the program."""
    documents = local_documents(tmp_path)

    def change(_):
        with pytest.raises(StoreBusyError):
            local_documents(tmp_path).update("a.json", lambda old: b"2", timeout=0.05)
        return b"1"

    documents.update("a.json", change)
    assert documents.read("a.json") == b"1"


def test_killed_writers_leave_nothing_that_is_read(tmp_path):
    """What a writer that was killed leaves is no document, and is swept once it is old."""
    documents = local_documents(tmp_path)
    documents.create("a.json", b"1")
    left = tmp_path / ".tmp-host-1-x"
    left.write_bytes(b"half")
    assert list(documents.list("")) == ["a.json"]
    assert documents.sweep() == 0
    assert documents.bucket.sweep(older_than=-1) == 1
    assert not left.exists()
