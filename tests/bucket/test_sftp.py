"""A bucket behind an SSH server: who is first, and whom it trusts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from ssh_server import SshServer, sftp_bucket, ssh_home, why_no_ssh

from ejcache.errors import StoreUnavailableError


@pytest.fixture(scope="module")
def ssh():
    if why_no_ssh():
        pytest.skip(why_no_ssh())
    with SshServer() as server:
        yield server


@pytest.fixture
def buckets(ssh, tmp_path):
    """Eight clients of one directory, each with a connection of its own."""
    opened = [sftp_bucket(ssh.url, tmp_path.name) for _ in range(8)]
    yield opened
    for bucket in opened:
        bucket.close()


def test_one_creates(ssh, buckets, tmp_path):
    """Of eight clients that create one object, one is told that it did, its bytes stand, and nothing else is left."""
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: buckets[n].create("v1/entries/aa/k", b"%d" % n * 1000), range(8)))
    assert won.count(True) == 1
    assert buckets[0].read("v1/entries/aa/k").data == b"%d" % won.index(True) * 1000
    assert not list((ssh.root / tmp_path.name / "v1" / "tmp").iterdir())


def test_readers_see_whole_objects(buckets):
    """An object that is replaced again and again is always one of its versions."""
    writer, reader = buckets[:2]
    writer.write("k", bytes(100_000))
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [writer.write("k", bytes([n]) * 100_000) for n in range(1, 20)])
        while not writing.done():
            data = reader.read("k").data
            assert data == data[:1] * 100_000


def test_links_are_no_objects(ssh, buckets, tmp_path):
    """A link in the directory is not listed, so that no command copies or deletes what it leads to."""
    buckets[0].create("v1/a", b"x")
    (ssh.root / tmp_path.name / "v1" / "link").symlink_to("/etc/passwd")
    (ssh.root / tmp_path.name / "v1" / "folder").symlink_to("/etc")
    assert [info.name for info in buckets[0].walk("v1/")] == ["v1/a"]
    assert buckets[0].stat("v1/link") is None


@pytest.mark.parametrize(
    ("options", "said"),
    [({"known_hosts": b""}, "~/.ssh/known_hosts"), ({"client_keys": None, "config": None}, "no key of ~/.ssh")],
    ids=["server", "user"],
)
def test_keys_count(ssh, options, said):
    """A server whose key is not known is not used, and a user whose key is refused is told what was tried."""
    port = int(ssh.url.rpartition(":")[2])
    known = str(ssh_home(ssh.url) / ".ssh" / "known_hosts")
    bucket = sftp_bucket(ssh.url, **{"host": "127.0.0.1", "port": port, "known_hosts": known, **options})
    with pytest.raises(StoreUnavailableError, match=said):
        bucket.read("k")
    bucket.close()
