"""A location is parsed once, without looking at anything, and never holds or repeats a credential."""

from __future__ import annotations

import pytest
from mounts import mount_nfs

from ejcache.errors import StoreNotAskedError, UsageError
from ejcache.stores import network_filesystems, sharing_detection
from ejcache.stores.location import Location, display_url
from ejcache.stores.opening import open_store
from ejcache.stores.shared.store import SharedStore
from ejcache.stores.sharing_detection import detect_shared_storage, forget_filesystems
from ejcache.util.threads import CallTimeoutError


@pytest.fixture(autouse=True)
def no_verdicts():
    """No verdict about a path is another test's."""
    forget_filesystems()
    yield
    forget_filesystems()


@pytest.mark.parametrize(
    ("url", "kind", "bucket", "prefix"),
    [
        ("gs://bucket/a/b/", "gcs", "bucket", "a/b"),
        ("S3A://bucket", "s3", "bucket", ""),
        ("abfs://container@account/x", "azure", "container@account", "x"),
        ("memory://name/x", "memory", "name/x", ""),
    ],
)
def test_parts(url, kind, bucket, prefix):
    """A URL is its kind, its bucket or host, and what follows."""
    location = Location.parse(url)
    assert (location.kind, location.bucket, location.prefix) == (kind, bucket, prefix)
    assert Location.parse(location) is location
    assert Location.parse(location.url) == location


SECRET = "hunter2"
WITH_SECRETS = [
    f"sftp://alice:{SECRET}@host/dir",
    f"s3://AKIAEXAMPLE:{SECRET}@bucket/x",
    f"s3://AKIAEXAMPLE:ab/{SECRET}/x@bucket/x",
    f"s3://bucket:{SECRET}/x",
    f"gs://{SECRET}@bucket/x",
    f"webdav://{SECRET}@host/x",
    f"abfs://container@account/x?sig={SECRET}",
    f"s3://bucket/x?X-Amz-Signature={SECRET}",
    f"https://alice:{SECRET}@host/x",
    f"nonsense://host/x?token={SECRET}",
]


@pytest.mark.parametrize("url", WITH_SECRETS)
def test_credentials_are_refused_and_not_repeated(url):
    """A URL with a password, a token or a signature is refused, and the message does not repeat it."""
    with pytest.raises(UsageError) as caught:
        Location.parse(url)
    assert SECRET not in str(caught.value)
    assert SECRET not in display_url(url)
    if not url.startswith(("https", "nonsense", "sftp")):
        assert "put credentials in" in str(caught.value)


def test_sftp_is_refused_with_what_does_it():
    """Nobody has to guess: the directory is mounted, and its path is given."""
    with pytest.raises(UsageError, match=r"^sftp://alice@host/dir cannot .* with sshfs, and give its path"):
        Location.parse("sftp://alice@host/dir")


@pytest.mark.parametrize("url", ["gs://bucket/a", "/var/cache", "abfs://c@a/x", "sftp://alice@host:22/d@1", "a?b"])
def test_display_changes_nothing_else(url):
    """What carries no credential is shown as it is."""
    assert display_url(url) == url


def test_verdict_is_reached_once(tmp_path, monkeypatch):
    """A directory is looked at once per process, however many parts of a cache ask."""
    looked = []
    mount_nfs(tmp_path, monkeypatch)
    detect = network_filesystems.detect_filesystem
    monkeypatch.setattr(
        network_filesystems, "detect_filesystem", lambda path, table: (looked.append(path), detect(path, table))[1]
    )
    location = Location.parse(tmp_path)
    assert all(detect_shared_storage(location) for _ in range(5))
    assert looked == [str(tmp_path)]


def test_a_dead_mount_is_waited_for_once(tmp_path, monkeypatch):
    """A mount that does not answer when it is looked at is shared storage, and its first read waits no second time."""
    looked = []

    def hang(what, function, seconds):
        looked.append(what)
        raise CallTimeoutError(f"{what} gave no answer within {seconds} s")

    mount_nfs(tmp_path / "mount", monkeypatch)
    monkeypatch.setattr(network_filesystems, "call_with_timeout", hang)
    with open_store(tmp_path / "mount") as store:
        assert isinstance(store, SharedStore)
        with pytest.raises(StoreNotAskedError):
            store.get("k")
        assert detect_shared_storage(Location.parse(tmp_path / "mount"))
    assert len(looked) == 1


def test_a_local_disk_needs_no_thread(tmp_path, monkeypatch):
    """Where all names are on this machine's disks, and none is a link, the directory is looked at without a deadline.

    A link, a mount of another kind on the way, and what may be the layout of shared storage are looked at with one.
    """
    asked = []
    monkeypatch.setattr(
        network_filesystems, "call_with_timeout", lambda what, function, _: (asked.append(what), function())[1]
    )
    kinds = {"/": "ext4"}
    monkeypatch.setattr(sharing_detection, "mounts", lambda _=None: [(*mount, "") for mount in kinds.items()])
    root = tmp_path.resolve()

    def looked(path):
        sharing_detection.forget_filesystems()
        asked.clear()
        return detect_shared_storage(Location.parse(path)), len(asked)

    for path in ("cache", "is/not/there"):
        assert looked(root / path) == (False, 0)
    for kind, answer in {"overlay": (False, 0), "ext4": (False, 0), "nfs4": (True, 1), "fuse.new": (True, 1)}.items():
        kinds["/"] = kind
        assert looked(root / "cache") == answer
    kinds["/"] = "xfs"
    for kind, answer in {"overlay": (False, 1), "autofs": (True, 1), "tmpfs": (False, 0)}.items():
        kinds[str(root)] = kind
        assert looked(root / "cache") == answer
        assert looked(root.parent / "cache") == (False, 0)
    (root / "link").symlink_to(root / "cache")
    assert looked(root / "link") == (False, 1)
    (root / "shared/v1/entries").mkdir(parents=True)
    assert looked(root / "shared") == (True, 1)
    (root / "shared/v1/local").mkdir()
    assert looked(root / "shared") == (False, 1)
    kinds.clear()
    assert looked(root / "cache") == (False, 1)
