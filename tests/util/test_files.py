"""Replacing files atomically."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ejcache.util.files import is_temporary, write_atomically


@pytest.fixture
def place(tmp_path):
    """An empty directory of this user alone."""
    (tmp_path / "place").mkdir(mode=0o700)
    return tmp_path / "place"


def names(place):
    return [path.name for path in place.iterdir()]


def test_creates_and_replaces(place):
    """The file is created, or replaced, with the mode that is asked for; nothing else is left in the directory."""
    path = place / "file"
    write_atomically(path, b"one", mode=0o644)
    write_atomically(path, b"two" * 100_000)
    assert path.read_bytes() == b"two" * 100_000
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(place) == ["file"]


def test_a_link_is_replaced(place):
    """A symbolic link is replaced by a file; the file that it names is unchanged."""
    (place / "other").write_bytes(b"theirs")
    (place / "file").symlink_to("other")
    write_atomically(place / "file", b"ours")
    assert (place / "other").read_bytes() == b"theirs"
    assert not (place / "file").is_symlink()


def test_a_failed_write_changes_nothing(place, monkeypatch):
    """When the new file cannot be put in place the old one stands, and no temporary one is left."""
    (place / "file").write_bytes(b"old")

    def full(path, target):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(place / "file", b"new")
    assert (place / "file").read_bytes() == b"old"
    assert names(place) == ["file"]


def test_long_names_and_missing_directories(place):
    """A name as long as the file system allows can be written; a missing directory is an OSError."""
    write_atomically(place / ("x" * 255), b"data")
    with pytest.raises(FileNotFoundError):
        write_atomically(place / "missing" / "file", b"data")


def test_temporary_names_are_recognised(place, monkeypatch):
    """What a killed writer leaves can be told by its name."""
    seen = []
    monkeypatch.setattr(Path, "replace", lambda path, target: seen.append(path.name))
    write_atomically(place / "file", b"data")
    assert is_temporary(seen[0])
    assert not is_temporary("file")
