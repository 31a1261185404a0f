"""A prepared shared directory harms nothing outside of it and keeps nobody waiting."""

from __future__ import annotations

import os

import pytest

from ejcache.bucket.files import FileBucket
from ejcache.bucket.retry import RetryPolicy
from ejcache.errors import StoreForbiddenError

SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----"


@pytest.fixture
def victim(tmp_path):
    """A directory of somebody's private files."""
    (tmp_path / "victim" / "aa").mkdir(parents=True)
    for name in ("id_rsa", "aa/key", "0123456789abcdef"):
        (tmp_path / "victim" / name).write_bytes(SECRET)
    return tmp_path / "victim"


@pytest.fixture(params=[False, True], ids=["network", "local"])
def bucket(request, tmp_path):
    return FileBucket(tmp_path / "shared", policy=RetryPolicy(deadline=60), local=request.param)


def untouched(victim):
    return sorted(path.relative_to(victim).as_posix() for path in victim.rglob("*") if path.is_file()) == [
        "0123456789abcdef", "aa/key", "id_rsa",
    ] and all(path.read_bytes() == SECRET for path in victim.rglob("*") if path.is_file())  # fmt: skip


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "device", "directory"])
def test_what_is_not_a_file_is_not_an_object(bucket, victim, kind):
    """Under an object's name, a link, a pipe, a device or a directory is absence: at once, and for every operation."""
    path = bucket.path / "v1" / "entries" / "aa" / "key"
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to({"link": victim / "id_rsa", "device": "/dev/zero"}.get(kind, victim / "none"))
    assert bucket.read("v1/entries/aa/key") is None
    assert bucket.stat("v1/entries/aa/key") is None
    assert [info.name for info in bucket.walk("v1/")] == []
    if kind != "directory":
        bucket.write("v1/entries/aa/key", b"ours")
        assert bucket.read("v1/entries/aa/key").data == b"ours"
    assert untouched(victim)


@pytest.mark.parametrize("linked", ["v1", "v1/entries", "v1/entries/aa", "v1/quarantine", "v1/tmp"])
def test_linked_directories_lead_nowhere(bucket, victim, linked):
    """Below the root, a directory that is a link is not followed: each call is refused, and what is beside is read."""
    path = bucket.path / linked
    path.parent.mkdir(parents=True)
    path.symlink_to(victim)
    (bucket.path / "beside").write_bytes(b"value")
    for name in ("key", "id_rsa", "0123456789abcdef", "aa/key"):
        below = f"{linked}/{name}"
        for attempt in (
            lambda below=below: bucket.read(below),
            lambda below=below: bucket.write(below, b"theirs"),
            lambda below=below: bucket.create(below, b"theirs"),
            lambda below=below: bucket.delete(below),
            lambda below=below: bucket.delete(below, version="1-2-3"),
            lambda below=below: list(bucket.delete_many([(below, None)])),
            lambda: list(bucket.walk(f"{linked}/")),
        ):
            with pytest.raises(StoreForbiddenError, match="symbolic link"):
                attempt()
    assert bucket.read("beside").data == b"value"
    assert untouched(victim)


def test_a_root_behind_a_link_is_used(tmp_path):
    """A cache directory that is a link to a scratch disk, as its owner made it, works."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "scratch")
    bucket = FileBucket(tmp_path / "cache")
    bucket.write("v1/x", b"data")
    assert bucket.read("v1/x").data == b"data"
    assert bucket.delete("v1/x") is True
