"""A URL is opened as the store it names, or refused in one sentence that says what is accepted."""

from __future__ import annotations

import pytest

from ejcache.errors import SettingError, UsageError
from ejcache.stores.local.store import LocalStore
from ejcache.stores.location import Location
from ejcache.stores.network_filesystems import detect_network_filesystem
from ejcache.stores.opening import open_store
from ejcache.stores.sharing_detection import mounts


@pytest.mark.parametrize("spell", [str, lambda path: path, lambda path: path.as_uri(), lambda path: f"{path}/x/../"])
def test_directory(tmp_path, spell):
    """A path, a path object and a file URL name the same directory."""
    with LocalStore(tmp_path / "a b") as store:
        store.put("k", b"value")
    with open_store(spell(tmp_path / "a b")) as store:
        assert isinstance(store, LocalStore)
        assert store.url == str(tmp_path / "a b")
        assert store.get("k") == b"value"


def test_home_and_relative_paths(tmp_path, monkeypatch, clean_environment):
    """`~` is the home directory, and a relative path starts at the working directory of the moment."""
    monkeypatch.chdir(tmp_path)
    assert Location.parse("~/cache").path == str(clean_environment / "cache")
    assert Location.parse("cache").path == str(tmp_path / "cache")
    assert Location.parse("./~/cache").path == str(tmp_path / "~" / "cache")
    assert Location.parse("file:///a%20b/c").path == "/a b/c"
    assert Location.parse("file://localhost/a").path == "/a"


@pytest.mark.parametrize(
    "url",
    [
        "", "  ", "gs://", "gs:///x", "s3://a b/x", "gs:bucket", "http://host/x", "github://x", "nonsense://x",
        "C:\\cache", "mailto:me",
        "file://host/path", "file:relative", "file:///a?b", "a\nb", "a\0b", "~nobody-of-that-name/x", None, 5, b"/x",
    ],
)  # fmt: skip
def test_refused(url, tmp_path, monkeypatch):
    """What is no URL of ours is refused in one sentence with what is accepted, and nothing is made."""
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    with pytest.raises(UsageError, match="accepted is") as caught:
        open_store(url)
    assert "\n" not in str(caught.value)
    assert set(tmp_path.iterdir()) == before


def test_sizes(tmp_path):
    """A limit is written as people write sizes; anything else is refused before anything is made."""
    with open_store(tmp_path / "a", max_size="10MB") as store:
        assert store.max_size == 10_000_000
    for bad in ("10 apples", -2, 1.5, "-7"):
        with pytest.raises(SettingError, match="max_size"):
            open_store(tmp_path / "b", max_size=bad)
    assert not (tmp_path / "b").exists()


def test_read_only_makes_nothing(tmp_path):
    """A store that is opened for reading only and is not there is empty, and still not there afterwards."""
    with open_store(tmp_path / "none", read_only=True) as store:
        assert list(store.entries()) == []
    assert not (tmp_path / "none").exists()


MOUNTS = r"""
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 21 0:5 / /proc rw - proc proc rw
30 21 0:40 / /home rw,relatime shared:1 master:2 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/local\040disk rw - xfs /dev/vdb rw
32 21 0:42 / /mnt/bucket rw - fuse.gcsfuse bucket rw
33 21 0:43 / /mnt/pooled rw - fuse.mergerfs pool rw
34 21 0:44 / /mnt/c rw - 9p C: rw,aname=drvfs;path=C:\,trans=fd,rfdno=8
35 21 0:45 / /mnt/shared rw - 9p share rw,trans=virtio
36 21 0:46 / /sandbox rw - 9p none rw,trans=fd,rfdno=4
37 21 0:47 / /over rw - nfs server:/over rw
38 21 0:48 / /over rw - tmpfs tmpfs rw
39 21 0:49 / /lustre rw - lustre mds:/fs rw
40 21 0:50 / /mnt/host rw - virtiofs host rw
41 21 0:51 / /mnt/mac rw - fakeowner mac rw
42 21 0:52 / /mnt/cray rw - dvs server rw
garbage
"""


@pytest.mark.parametrize(
    ("path", "network"),
    [
        ("/var/cache", False), ("/home/me/cache", True), ("/home", True), ("/homework", False),
        ("/home/local disk/cache", False), ("/mnt/bucket/x", True), ("/mnt/pooled/x", False), ("/mnt/c/x", True),
        ("/mnt/shared/x", True), ("/sandbox/x", False), ("/over/x", False), ("/lustre/scratch/x", True),
        ("/mnt/host/x", True), ("/mnt/mac/x", True), ("/mnt/cray/x", True),
    ],
)  # fmt: skip
def test_network_filesystems(path, network):
    """The innermost and topmost mount decides; network and unknown FUSE file systems count as network ones."""
    assert detect_network_filesystem(path, mounts(MOUNTS)) is network
    assert detect_network_filesystem(path, mounts("")) is False
