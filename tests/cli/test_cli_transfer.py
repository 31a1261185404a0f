"""`ejcache push` and `pull`, also of files: each intact entry is copied once, interrupted or not."""

from __future__ import annotations

import os
import socket
import stat
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from archives import archive, flipped, of_a_later_version
from autotune_helpers import record
from capabilities import require
from cli_helpers import ejcache, fill, key_text, put

from ejcache.autotune.records.store import AutotuneStore
from ejcache.bucket.breaker import forget_breakers
from ejcache.bucket.object_names import key_of_name
from ejcache.keys.key import module_text_key, parse_any_key
from ejcache.maintenance.archive import read_archive
from ejcache.settings.directories import state_directory
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
    """Entries go to a bucket and come to another host, byte for byte, each in one request after one listing.

    One more request is the journal, which says what they are worth, one asks where the entries are, and one what is
    recalled.
    """
    bucket.clear_requests()
    assert copied("push", URL, "--dir", cache) == (3, 0)
    asked = Counter((record.method, record.path.split("/")[1]) for record in bucket.requests)
    assert asked == {("GET", "storage"): 1, ("GET", "download"): 2, ("POST", "upload"): 3 + 1}
    assert copied("pull", URL, "--dir", tmp_path / "other") == (3, 0)
    assert held(cache) == held(URL) == held(tmp_path / "other")


def test_again_copies_nothing(bucket, cache):
    """Entries that the target has are neither read nor sent: one is new, and the journal says what it is worth."""
    copied("push", URL, "--dir", cache)
    with LocalStore(cache) as store:
        put(store, key_text("jit_new"))
    bucket.clear_requests()
    assert copied("push", URL, "--dir", cache) == (1, 3)
    assert sum(record.method == "POST" for record in bucket.requests) == 1 + 1
    said = ejcache("push", URL, "--dir", cache)
    assert "copied 0 entries" in said.out
    assert "4 entries already there" in said.out


def test_what_fails_is_tried_again(bucket, tmp_path):
    """Failures in the middle are reported; the next run copies the rest."""
    fill(tmp_path / "cache", *(f"jit_{number}" for number in range(120)))  # more than are under way at once
    bucket.add_fault("status", method="POST", skip=10, status=400)
    said = ejcache("push", URL, "--dir", tmp_path / "cache", "--json")
    assert (said.status, said.json["copied_entries"], said.json["complete"]) == (1, 10, False)
    assert len(said.json["failed"]) + said.json["not_tried"] == 110
    assert said.json["not_tried"] > 0
    bucket.clear_faults()
    forget_breakers()  # the next run is another process
    assert copied("push", URL, "--dir", tmp_path / "cache") == (110, 10)
    assert held(URL) == held(tmp_path / "cache")


def test_a_limit_keeps_what_was_used_last(bucket, cache, tmp_path, monkeypatch):
    """A cache with a limit ends up with the entries that were used last."""
    with open_store(URL) as store:
        for name in NAMES:
            put(store, key_text(name), os.urandom(4000))
    objects = bucket.api.buckets["bucket"].objects
    for each in objects.values():
        each.created = "2026-01-01T00:00:00.000Z"  # of what a journal of now names, a use was now
    for age, name in enumerate(NAMES):
        (path,) = [path for path in objects if name in path]
        objects[path].created = f"2026-0{age + 1}-01T00:00:00.000Z"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "9000")
    monkeypatch.setattr("ejcache.cli.commands.push_pull.THREADS", 1)
    copied("pull", URL, "--dir", tmp_path / "small")
    assert held(tmp_path / "small").keys() == {key_text(name) for name in NAMES[1:]}


def test_a_target_that_may_not_be_written(bucket, cache):
    """Without permission nothing is copied, and one sentence says so."""
    bucket.add_fault("status", method="POST", status=403)
    said = ejcache("push", URL, "--dir", cache)
    assert said.status == 1
    assert "may not write to gs://bucket/a" in said.err


def test_a_source_without_entries(bucket, tmp_path):
    """Where programs that use a bucket keep what is theirs on this host, nothing has been stored; it is no other's."""
    for name in ("state", "tiers"):
        (tmp_path / "cache" / name).mkdir(parents=True)
    said = ejcache("push", URL, "--dir", tmp_path / "cache")
    assert (said.status, "no program has stored an entry there" in said.err) == (1, True), said.err


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_out_and_in(cache, tmp_path):
    """One file carries a cache, byte for byte."""
    assert copied("push", tmp_path / "all.tar", "--dir", cache) == (3, 0)
    assert copied("pull", tmp_path / "all.tar", "--dir", tmp_path / "image") == (3, 0)
    assert held(tmp_path / "image") == held(cache)
    assert copied("pull", tmp_path / "all.tar", "--dir", tmp_path / "image") == (0, 3)
    assert copied("pull", tmp_path / "all.tar", "--dir", tmp_path / "some", "--name", "jit_*t") == (1, 0)
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_a_file_has_tuned_records(cache, tmp_path):
    """Entries and records go into one file and come out of it; with `tuned`, only records do."""
    AutotuneStore(str(cache), seeds=()).publish(record())
    said = ejcache("push", tmp_path / "all.tar", "--dir", cache, "--json").json
    assert (said["copied_entries"], said["total_records"], said["written"]) == (3, 1, True)
    said = ejcache("tuned", "pull", tmp_path / "all.tar", "--dir", tmp_path / "one", "--json").json
    assert (said["copied_entries"], said["new_records"], held(tmp_path / "one")) == (0, 1, {})
    said = ejcache("pull", tmp_path / "all.tar", "--dir", tmp_path / "two", "--json").json
    assert (said["copied_entries"], said["new_records"]) == (3, 1)
    found = AutotuneStore(str(tmp_path / "two"), seeds=()).find(record().key)
    assert (found.record.configuration, held(tmp_path / "two")) == (record().configuration, held(cache))
    said = ejcache("tuned", "push", tmp_path / "tuned.tar", "--dir", cache, "--json").json
    assert (said["copied_entries"], said["total_records"]) == (0, 1)
    again = ejcache("pull", tmp_path / "tuned.tar", "--dir", tmp_path / "two")
    assert (again.status, "copied 0 tuned records" in again.out) == (0, True)


def test_no_command_of_a_job_imports_jax(run_python, cache, tmp_path):
    """To import JAX takes ten times as long as to write the file or to read it, tuned records included."""
    AutotuneStore(str(cache), seeds=()).publish(record())
    commands = [
        (*group, *command)
        for group in ((), ("tuned",))
        for command in (("push", "ci.tar", "--dir", str(cache)), ("pull", "ci.tar", "--dir", "other"))
    ]
    run_python(
        f"""
        import sys
        from ejcache.cli.main import main
        assert [main(list(command)) for command in {commands}] == [0] * 4
        assert "jax" not in sys.modules
        """
    )


def names_in(path) -> set[str]:
    with path.open("rb") as file:
        return {parse_any_key(key_of_name(name)).name for name, _ in read_archive(file)}


def test_a_file_is_replaced(cache, tmp_path):
    """A second push to the same file has the entries selected now, and no others."""
    copied("push", tmp_path / "some.tar", "--dir", cache)
    assert copied("push", tmp_path / "some.tar", "--dir", cache, "--name", "jit_init") == (1, 0)
    assert names_in(tmp_path / "some.tar") == {"jit_init"}


def test_a_file_has_a_limit(tmp_path):
    """--max-size leaves out what was not used for longest; the file is hardly larger."""
    with LocalStore(tmp_path / "cache") as store:
        for name in NAMES:
            put(store, key_text(name), os.urandom(40_000))
    said = ejcache("push", tmp_path / "some.tar", "--dir", tmp_path / "cache", "--max-size", "90kB", "--json").json
    assert (said["copied_entries"], said["left_out_entries"]) == (2, 1)
    assert names_in(tmp_path / "some.tar") == set(NAMES[1:])
    assert (tmp_path / "some.tar").stat().st_size < 90_000


def test_only_if_changed(cache, tmp_path):
    """A file that has everything stays, which the exit status and JSON say; anything new makes another one."""
    file, options = tmp_path / "ci.tar", ("--dir", cache, "--if-changed", "--json")
    assert ejcache("push", file, *options).json["written"]
    before = file.stat()
    said = ejcache("push", file, *options)
    assert (said.status, said.json["written"], file.stat().st_ino) == (3, False, before.st_ino)
    assert ejcache("push", file, *options[:3]).out == f"{file} stays: it has all of {cache}\n"
    with LocalStore(cache) as store:
        put(store, module_text_key("0" * 64))  # a text alone is no news
    assert ejcache("push", file, *options).status == 3
    with LocalStore(cache) as store:
        put(store, key_text("jit_new"))
    assert (ejcache("push", file, *options).status, names_in(file) > {"jit_new"}) == (0, True)
    AutotuneStore(str(cache), seeds=()).publish(record())
    assert [ejcache("push", file, *options).status for _ in range(2)] == [0, 3]
    file.write_bytes(file.read_bytes()[:-2000])
    assert [ejcache("push", file, *options).status for _ in range(2)] == [0, 3]


@pytest.mark.parametrize("damaged", [b"EJC1", b"sha256:"])
def test_a_damaged_file_is_replaced_if_changed(cache, tmp_path, damaged):
    """One damaged entry or record makes a new file, or each run would compile and report it again."""
    AutotuneStore(str(cache), seeds=()).publish(record())
    file, options = tmp_path / "ci.tar", ("--dir", cache, "--if-changed", "--json")
    assert ejcache("push", file, *options).status == 0
    whole = file.read_bytes()
    file.write_bytes(flipped(whole, 8 * (whole.index(damaged) + (200 if damaged == b"EJC1" else 10))))
    assert [ejcache("push", file, *options).status for _ in range(2)] == [0, 3]
    assert ejcache("pull", file, "--dir", tmp_path / "other").status == 0


def test_an_entry_of_a_later_version_is_no_damage(cache, tmp_path):
    """Nothing says that it is not as another version has stored it: the file stays."""
    file = tmp_path / "ci.tar"
    file.write_bytes(archive(*((key, of_a_later_version(data)) for key, data in held(cache).items())))
    assert ejcache("push", file, "--dir", cache, "--if-changed").status == 3


def test_a_cache_that_no_program_has_used(monkeypatch, tmp_path):
    """The first job of a new repository has an empty file, and no failure."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "none"))
    assert ejcache("push", tmp_path / "ci.tar", "--if-changed").status == 0
    assert ejcache("push", tmp_path / "ci.tar", "--if-changed").status == 3
    assert copied("pull", tmp_path / "ci.tar", "--dir", tmp_path / "other") == (0, 0)


def test_parts_are_merged(tmp_path):
    """Jobs of a matrix push a part each; one that pulls them all has everything once."""
    for number in range(3):
        fill(tmp_path / f"job{number}", "jit_common", f"jit_{number}")
        assert ejcache("push", tmp_path / f"part{number}.tar", "--dir", tmp_path / f"job{number}").status == 0
        assert ejcache("pull", tmp_path / f"part{number}.tar", "--dir", tmp_path / "merged").status == 0
    assert copied("push", tmp_path / "all.tar", "--dir", tmp_path / "merged") == (4, 0)


def test_from_and_to_a_bucket(bucket, cache, tmp_path):
    """A file is made of a bucket, and fills one."""
    copied("push", URL, "--dir", cache)
    assert copied("push", tmp_path / "all.tar", "--dir", URL) == (3, 0)
    bucket.reset()
    assert copied("pull", tmp_path / "all.tar", "--dir", URL) == (3, 0)
    assert held(URL) == held(cache)


def test_a_push_that_fails_writes_no_file(bucket, cache, tmp_path):
    """If an entry cannot be read, the file stays as it was."""
    copied("push", URL, "--dir", cache)
    bucket.add_fault("status", method="GET", path="/download/.*jit_init", status=400)
    said = ejcache("push", tmp_path / "all.tar", "--dir", URL, "--json")
    assert (said.status, said.json["copied_entries"], len(said.json["failed"])) == (1, 2, 1)
    assert (said.json["written"], [path.name for path in tmp_path.glob("*.tar*")]) == (False, [])


def test_a_damaged_file(cache, tmp_path):
    """What is intact is copied; the rest is reported, and the exit status is 1."""
    AutotuneStore(str(cache), seeds=()).publish(record())
    copied("push", tmp_path / "all.tar", "--dir", cache)
    whole = (tmp_path / "all.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:-1500])
    said = ejcache("pull", tmp_path / "cut.tar", "--dir", tmp_path / "cut", "--json")
    assert (said.status, said.json["copied_entries"], said.json["complete"]) == (1, 2, False)
    assert "the archive is cut off" in said.err
    for where, words in (
        (whole.rindex(b"EJC1") + 200, "damaged and not copied"),
        (whole.index(b"sha256:") + 10, "autotune/"),
    ):
        (tmp_path / "flipped.tar").write_bytes(flipped(whole, 8 * where))
        said = ejcache("pull", tmp_path / "flipped.tar", "--dir", tmp_path / words[:3])
        assert (said.status, words in said.err) == (1, True), said
        assert held(tmp_path / words[:3]).items() <= held(cache).items()


def socket_at(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def device_at(path):
    require("root")
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))


NAME = f"ejcache-test-{os.getpid()}.tar"
LINKS = [partial(os.symlink, target) for target in ("real.tar", "node.tar", "not-there.tar", f"/dev/{NAME}")]


@pytest.mark.parametrize("make", [os.mkfifo, socket_at, device_at, *LINKS])
@pytest.mark.parametrize("through_link", [False, True])
def test_what_is_no_file_is_not_replaced(cache, tmp_path, make, through_link):
    """A device, a pipe, a socket or a link stays what it is, also behind a link; one sentence says so."""
    (tmp_path / "real.tar").write_text("old")
    target = tmp_path / ("link.tar" if through_link else "node.tar")
    make(tmp_path / "node.tar")
    if through_link:
        target.symlink_to("node.tar")
    before = {path: path.lstat()[:2] for path in tmp_path.iterdir()}
    said = ejcache("push", target, "--dir", cache)
    assert said.status == 2
    (line,) = said.err.splitlines()
    linked = f"it is a symbolic link to {target.readlink()}; name that file" if target.is_symlink() else ""
    assert line == f"ejcache: {target} cannot be written: {linked or f'{target} is not a regular file'}"
    assert {path: path.lstat()[:2] for path in tmp_path.iterdir()} == before
    assert (tmp_path / "real.tar").read_text() == "old"


def test_a_place_of_the_system_is_refused(cache):
    """No file is created below /dev or /proc."""
    for target in (f"/dev/{NAME}", f"/proc/{NAME}"):
        assert ejcache("push", target, "--dir", cache).status == 2
    assert not (Path("/dev") / NAME).exists()


def test_a_directory_may_be_reached_through_a_link(cache, tmp_path):
    """The file is written where the link leads."""
    (tmp_path / "below").mkdir()
    (tmp_path / "above").symlink_to("below")
    assert copied("push", tmp_path / "above" / "other.tar", "--dir", cache) == (3, 0)
    assert (tmp_path / "below" / "other.tar").read_bytes()[:11] == b"v1/entries/"


def test_a_job_that_has_compiled_nothing(tmp_path):
    """The directory of its cache holds what a start notes, and no entry: that is a cache without entries."""
    state_directory().mkdir(parents=True, exist_ok=True)
    (state_directory() / "starts.jsonl").touch()
    assert ejcache("push", tmp_path / "cache.tar", "--if-changed").status == 0
    assert ejcache("push", tmp_path / "cache.tar", "--if-changed").status == 3
