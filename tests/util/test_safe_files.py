"""Files that somebody else has prepared are opened without following links, without waiting and within a size."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ejcache.util.files import UnsafeFileError, append_regular, directory_below, open_below, read_regular, remove_below


@pytest.fixture
def root(tmp_path):
    """A cache's root, reached through a link, beside a directory of somebody's private files."""
    (tmp_path / "scratch" / "v1" / "entries").mkdir(parents=True)
    (tmp_path / "scratch" / "v1").chmod(0o700)
    (tmp_path / "scratch" / "v1" / "entries" / "key").write_bytes(b"entry")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "id_rsa").write_bytes(b"secret")
    (tmp_path / "cache").symlink_to(tmp_path / "scratch")
    return tmp_path / "cache"


def test_regular_file(root):
    """A regular file is read, whole or its beginning, also where the root is a link."""
    assert read_regular(root / "v1/entries/key", max_size=5) == b"entry"
    assert read_regular(root / "v1/entries/key", max_size=3, length=2) == b"en"
    descriptor = open_below(root, "v1/entries/key")
    assert os.read(descriptor, 10) == b"entry"
    os.close(descriptor)


def test_too_large(root):
    """A file that is larger than allowed is refused before it is read; a sparse one costs nothing."""
    path = root / "sparse"
    with path.open("wb") as file:
        file.truncate(6 << 30)
    with pytest.raises(UnsafeFileError, match="at most"):
        read_regular(path, max_size=1000)
    assert read_regular(path, max_size=1000, length=4) == b"\0" * 4


def test_what_is_not_a_file(root, monkeypatch):
    """Links, pipes, devices, sockets and directories are refused at once."""
    monkeypatch.chdir(root)
    os.mkfifo("pipe")
    Path("link").symlink_to(root.parent / "private" / "id_rsa")
    Path("zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    for name, what in [("pipe", "pipe"), ("link", "link"), ("zero", "link"), ("socket", "socket"), ("v1", "directory")]:
        with pytest.raises(UnsafeFileError, match=what):
            read_regular(name, max_size=1 << 20)
    with pytest.raises(UnsafeFileError, match="a device"):
        read_regular("/dev/zero", max_size=1 << 20)


@pytest.mark.parametrize("name", ["v1/entries/key", "v1/entries/../entries/key", "v1/entries/./key"])
def test_links_below_the_root(root, name):
    """A directory below the root that is a link, or a name that leaves it, leads nowhere."""
    (root / "v1" / "entries" / "key").unlink()
    (root / "v1" / "entries").rmdir()
    (root / "v1" / "entries").symlink_to(root.parent / "private")
    with pytest.raises(UnsafeFileError):
        open_below(root, name)
    with pytest.raises(UnsafeFileError):
        remove_below(root, "v1/entries/id_rsa")
    assert (root.parent / "private" / "id_rsa").exists()


def test_removal(root):
    """A file is removed once, and of a link the link itself."""
    assert remove_below(root, "v1/entries/key") is True
    assert remove_below(root, "v1/entries/key") is False
    (root / "v1" / "link").symlink_to(root.parent / "private" / "id_rsa")
    assert remove_below(root, "v1/link") is True
    assert (root.parent / "private" / "id_rsa").read_bytes() == b"secret"


def test_descriptors_are_closed(root):
    """Nothing stays open, whether or not a walk ends at a link."""
    (root / "v1" / "away").symlink_to(root.parent / "private")
    before = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(UnsafeFileError), directory_below(root, "v1/away"):
        pass
    with directory_below(root, "v1/entries"):
        pass
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_appending(root):
    """A file is made if that is asked for, for this user alone, and never what a link names."""
    log, link = root / "v1" / "log", root / "v1" / "link"
    with pytest.raises(FileNotFoundError):
        append_regular(log, b"a", create=False)
    assert append_regular(log, b"first\n").st_size == 6
    assert append_regular(log, b"second\n", create=False).st_size == 13
    assert (log.read_bytes(), log.stat().st_mode & 0o777) == (b"first\nsecond\n", 0o600)
    link.symlink_to(root.parent / "private" / "id_rsa")
    for create in (False, True):
        with pytest.raises(UnsafeFileError):
            append_regular(link, b"a", create=create)
    assert (root.parent / "private" / "id_rsa").read_bytes() == b"secret"


def test_appending_to_a_full_disk(root, run_forked):
    """What is written only in part is an error, and does not take the next line with it."""
    program = """
        import resource, sys
        from ejcache.util.files import append_regular
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))
        try:
            append_regular(sys.argv[1], b"first\\n")
        except OSError:
            sys.exit()
        sys.exit("no error")
    """
    run_forked(program, str(root / "v1" / "log"))
    assert (root / "v1" / "log").read_bytes() == b"firs"
    append_regular(root / "v1" / "log", b"second\n")
    assert (root / "v1" / "log").read_bytes() == b"firs\nsecond\n"
