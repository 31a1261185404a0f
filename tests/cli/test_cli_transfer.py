"""`ejcache push`, `pull`, `export` and `import`: each intact entry is copied once, interrupted or not."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import stat
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from cli_helpers import PYTHON, ejcache, fill, key_text, plain_jax, put

from ejcache.bucket.breaker import forget_breakers
from ejcache.maintenance.transfer import read_bundle
from ejcache.stores.local.store import LocalStore
from ejcache.stores.opening import open_store

URL = "gs://bucket/a"
NAMES = ("jit_train", "jit_eval", "jit_init")


@pytest.fixture
def cache(tmp_path):
    """A local cache of three entries."""
    fill(tmp_path / "cache", *NAMES)
    return tmp_path / "cache"


def held(url) -> dict[str, bytes]:
    """The entries of a cache, by key."""
    with open_store(url, read_only=True) as store:
        return {info.key: store.peek(info.key) for info in store.entries()}


def copied(*arguments) -> tuple[int, int]:
    """How many entries a command copied, and found there."""
    said = ejcache(*arguments, "--json")
    assert said.status == 0, said
    return said.json["copied_entries"], said.json["already_entries"]


# -- push and pull -----------------------------------------------------------------------------------------------------


def test_push_and_pull(bucket, cache, tmp_path):
    """Entries go to a bucket and come to another host, byte for byte, each in one request after one listing."""
    bucket.clear_requests()
    assert copied("push", URL, "--dir", cache) == (3, 0)
    asked = Counter((record.method, record.path.split("/")[1]) for record in bucket.requests)
    assert asked == {("GET", "storage"): 1, ("POST", "upload"): 3}
    assert copied("pull", URL, "--dir", tmp_path / "other") == (3, 0)
    assert held(cache) == held(URL) == held(tmp_path / "other")


def test_again_copies_nothing(bucket, cache):
    """Entries that the target has are neither read nor sent."""
    copied("push", URL, "--dir", cache)
    with LocalStore(cache) as store:
        put(store, key_text("jit_new"))
    bucket.clear_requests()
    assert copied("push", URL, "--dir", cache) == (1, 3)
    assert sum(record.method == "POST" for record in bucket.requests) == 1
    said = ejcache("push", URL, "--dir", cache)
    assert "copied 0 entries" in said.out
    assert "4 entries already there" in said.out


def test_what_fails_is_tried_again(bucket, tmp_path):
    """Failures in the middle are reported; the next run copies the rest."""
    fill(tmp_path / "cache", *(f"jit_{number}" for number in range(40)))
    bucket.add_fault("status", method="POST", skip=10, status=400)
    said = ejcache("push", URL, "--dir", tmp_path / "cache", "--json")
    assert (said.status, said.json["copied_entries"], said.json["complete"]) == (1, 10, False)
    assert len(said.json["failed"]) + said.json["not_tried"] == 30
    assert said.json["not_tried"] > 0
    bucket.clear_faults()
    forget_breakers()  # the next run is another process
    assert copied("push", URL, "--dir", tmp_path / "cache") == (30, 10)
    assert held(URL) == held(tmp_path / "cache")


def test_by_name_and_age(bucket, cache):
    """Only the selected entries are copied, and --dry-run copies nothing."""
    for options, number in (
        (["--name", "jit_*t"], 1),
        (["--newer-than", "1h"], 3),
        (["--newer-than", "0s"], 0),
        (["--used-within", "1h", "--name", "jit_[te]*"], 2),
    ):
        said = ejcache("push", URL, "--dir", cache, *options, "--dry-run", "--json").json
        assert (said["dry_run"], said["planned_entries"]) == (True, number)
    assert bucket.objects() == {}
    assert "would copy 3 entries" in ejcache("push", URL, "--dir", cache, "-n").out
    assert copied("push", URL, "--dir", cache, "--name", "jit_init") == (1, 0)
    assert ejcache("push", URL, "--dir", cache, "--dry-run", "--json").json["planned_entries"] == 2


def test_what_is_damaged_stays(bucket, cache, tmp_path):
    """A damaged entry, one under a foreign key, and one of a later version are not copied; only the last is fine."""
    with LocalStore(cache) as store:
        good = store.peek(key_text("jit_train"))
        store.put("foreign", good)
        store.put("damaged", good[:-1] + bytes([good[-1] ^ 1]))
        later = b"EJC9" + good[4:-32]
        store.put("later", later + hashlib.sha256(later).digest())
    said = ejcache("push", URL, "--dir", cache, "--json")
    assert (said.status, said.json["copied_entries"], said.json["unknown_versions"]) == (1, 3, 1)
    assert {item["key"] for item in said.json["damaged"]} == {"foreign", "damaged"}
    assert held(URL).keys() == {key_text(name) for name in NAMES}
    (path,) = [name for name in bucket.api.buckets["bucket"].objects if "jit_eval" in name]
    bucket.api.buckets["bucket"].objects[path].replace_data(b"garbage")
    said = ejcache("pull", URL, "--dir", tmp_path / "other")
    assert said.status == 1
    assert "damaged and not copied" in said.err
    assert held(tmp_path / "other").keys() == {key_text("jit_train"), key_text("jit_init")}


def test_a_limit_keeps_what_was_used_last(bucket, cache, tmp_path, monkeypatch):
    """A cache with a limit ends up with the entries that were used last."""
    with open_store(URL) as store:
        for name in NAMES:
            put(store, key_text(name), os.urandom(4000))
    for age, name in enumerate(NAMES):
        (path,) = [path for path in bucket.api.buckets["bucket"].objects if name in path]
        bucket.api.buckets["bucket"].objects[path].created = f"2026-0{age + 1}-01T00:00:00.000Z"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "9000")
    monkeypatch.setattr("ejcache.cli.transfer.THREADS", 1)
    copied("pull", URL, "--dir", tmp_path / "small")
    assert held(tmp_path / "small").keys() == {key_text(name) for name in NAMES[1:]}


def test_a_target_that_may_not_be_written(bucket, cache):
    """Without permission nothing is copied, and one sentence says so."""
    bucket.add_fault("status", method="POST", status=403)
    said = ejcache("push", URL, "--dir", cache)
    assert said.status == 1
    assert "may not write to gs://bucket/a" in said.err


@pytest.mark.parametrize("command", ["push", "pull"])
def test_bad_usage(bucket, cache, tmp_path, command):
    """Copying a cache to itself is bad usage; a missing cache is reported, and nothing is created."""
    assert ejcache(command, cache, "--dir", cache.as_uri()).status == 2
    assert ejcache(command, "nonsense://x", "--dir", cache).status == 2
    assert ejcache(command, URL, "--dir", cache, "--newer-than", "old").status == 2
    here, there = (tmp_path / "none", URL) if command == "push" else (cache, tmp_path / "none")
    said = ejcache(command, there, "--dir", here)
    assert said.status == 1
    assert "does not exist" in said.err
    assert not (tmp_path / "none").exists()
    plain_jax(tmp_path / "plain")
    here, there = (tmp_path / "plain", URL) if command == "push" else (cache, tmp_path / "plain")
    assert "no entries of ejcache" in ejcache(command, there, "--dir", here).err


# -- export and import -------------------------------------------------------------------------------------------------


def test_export_and_import(cache, tmp_path):
    """One file carries a cache, byte for byte."""
    assert copied("export", tmp_path / "all.ejb", "--dir", cache) == (3, 0)
    assert copied("import", tmp_path / "all.ejb", "--dir", tmp_path / "image") == (3, 0)
    assert held(tmp_path / "image") == held(cache)
    assert copied("import", tmp_path / "all.ejb", "--dir", tmp_path / "image") == (0, 3)
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_a_name_that_no_entry_has(cache, tmp_path):
    """Copying nothing is said, and a dry run of an export writes no file."""
    bundle = tmp_path / "warm.ejb"
    said = ejcache("export", bundle, "-n", "--dir", cache)
    assert (said.status, said.out.startswith("would copy "), bundle.exists()) == (0, True, False)
    said = ejcache("push", tmp_path / "other", "--name", "nothing*", "--dir", cache)
    assert (said.status, said.out) == (0, f"nothing to copy: {cache} holds no such entries\n")


def test_export_by_name_replaces(cache, tmp_path):
    """A second export to the same file has the entries selected now, and no others."""
    copied("export", tmp_path / "some.ejb", "--dir", cache)
    assert copied("export", tmp_path / "some.ejb", "--dir", cache, "--name", "jit_init") == (1, 0)
    with (tmp_path / "some.ejb").open("rb") as file:
        assert [key for key, _ in read_bundle(file)] == [key_text("jit_init")]


def test_from_and_to_a_bucket(bucket, cache, tmp_path):
    """A bundle is made of a bucket, and fills one."""
    copied("push", URL, "--dir", cache)
    assert copied("export", tmp_path / "all.ejb", "--dir", URL) == (3, 0)
    bucket.reset()
    assert copied("import", tmp_path / "all.ejb", "--dir", URL) == (3, 0)
    assert held(URL) == held(cache)


def test_an_export_that_is_killed_goes_on(bucket, cache, tmp_path):
    """A killed export leaves no bundle; done again, it reads only what it had not read."""
    copied("push", URL, "--dir", cache)
    bucket.add_fault("stall", method="GET", path="jit_init")
    bucket.clear_requests()
    command = [PYTHON, "-m", "ejcache", "export", str(tmp_path / "all.ejb"), "--dir", URL]
    with subprocess.Popen(command, env={**os.environ, "STORAGE_EMULATOR_HOST": bucket.url}) as process:
        while sum("jit_" in r.path and r.status == 206 for r in bucket.requests) < 2:
            assert process.poll() is None
            time.sleep(0.005)
        while sum(path.stat().st_size for path in tmp_path.glob(".all.ejb.*.partial")) < 500:
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "all.ejb").exists()
    bucket.clear_faults()
    left, already = copied("export", tmp_path / "all.ejb", "--dir", URL)
    assert (left + already, already >= 1) == (3, True)
    assert copied("import", tmp_path / "all.ejb", "--dir", tmp_path / "image") == (3, 0)


def test_an_export_that_fails_goes_on(bucket, cache, tmp_path):
    """If an entry cannot be read, the bundle is not completed; the next run reads only the rest."""
    copied("push", URL, "--dir", cache)
    bucket.add_fault("status", method="GET", path="/download/.*jit_init", status=400)
    said = ejcache("export", tmp_path / "all.ejb", "--dir", URL, "--json")
    assert (said.status, said.json["copied_entries"], len(said.json["failed"])) == (1, 2, 1)
    assert not (tmp_path / "all.ejb").exists()
    bucket.clear_faults()
    assert copied("export", tmp_path / "all.ejb", "--dir", URL) == (1, 2)
    assert (tmp_path / "all.ejb").exists()


def test_a_damaged_bundle(cache, tmp_path):
    """Intact entries are imported; the others are reported, and the exit status is 1."""
    copied("export", tmp_path / "all.ejb", "--dir", cache)
    whole = (tmp_path / "all.ejb").read_bytes()
    (tmp_path / "cut.ejb").write_bytes(whole[:-2500])
    said = ejcache("import", tmp_path / "cut.ejb", "--dir", tmp_path / "cut", "--json")
    assert (said.status, said.json["copied_entries"], said.json["complete"]) == (1, 2, False)
    assert "the bundle is cut off" in said.err
    middle = whole.rindex(b"EJC1") + 200
    (tmp_path / "flipped.ejb").write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    said = ejcache("import", tmp_path / "flipped.ejb", "--dir", tmp_path / "flipped")
    assert said.status == 1
    assert "damaged and not copied" in said.err
    assert held(tmp_path / "flipped").items() < held(cache).items()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"garbage", "not a bundle"),
        (b"", "not a bundle"),
        (b"EJB7" + bytes(44), "version b'7'"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_bundle(tmp_path, content, message):
    """A file that is not a bundle is reported as such."""
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    said = ejcache("import", tmp_path / "file", "--dir", tmp_path / "image")
    assert said.status == 1
    assert message in said.err


def test_a_place_that_no_bundle_can_have(cache, tmp_path):
    """A directory is bad usage; a directory that does not exist is not found."""
    assert ejcache("export", tmp_path, "--dir", cache).status == 2
    said = ejcache("export", tmp_path / "none" / "all.ejb", "--dir", cache)
    assert (said.status, "does not exist" in said.err) == (1, True)


def socket_at(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def device_at(path):
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make devices")


@pytest.mark.parametrize("make", [os.mkfifo, socket_at, device_at])
@pytest.mark.parametrize("through_link", [False, True])
def test_what_is_no_file_is_not_replaced(cache, tmp_path, make, through_link):
    """A device, a pipe or a socket stays what it is, also behind a link; one sentence says so."""
    node = tmp_path / "node"
    make(node)
    before = node.lstat()
    target = node
    if through_link:
        target = tmp_path / "link"
        target.symlink_to("node")
    said = ejcache("export", target, "--dir", cache)
    assert said.status == 2
    (line,) = said.err.splitlines()
    assert f"{target} cannot be written: " in line
    assert (node.lstat().st_ino, node.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_a_place_of_the_system_is_refused(cache, tmp_path):
    """No file is created below /dev, not even through a link."""
    name = f"ejcache-test-{os.getpid()}"
    (tmp_path / "link").symlink_to(f"/dev/{name}")
    for target in (f"/dev/{name}", f"/proc/{name}", tmp_path / "link"):
        assert ejcache("export", target, "--dir", cache).status == 2
    assert not (Path("/dev") / name).exists()


def test_the_target_of_a_link_is_replaced(cache, tmp_path):
    """A link stays a link; the bundle is where it leads, and so is what an export broken off leaves."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "real.ejb").write_text("old")
    (tmp_path / "link.ejb").symlink_to("below/real.ejb")
    assert copied("export", tmp_path / "link.ejb", "--dir", cache) == (3, 0)
    assert (tmp_path / "link.ejb").is_symlink()
    assert (tmp_path / "below" / "real.ejb").read_bytes()[:14] == b"ejcache-bundle"
    (tmp_path / "round.ejb").symlink_to("round.ejb")
    assert ejcache("export", tmp_path / "round.ejb", "--dir", cache).status == 2
