"""A recall of everything, and a cache that is off, on each kind of shared storage: what a host loads a minute later."""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
import uuid
from typing import ClassVar

import fsspec
import pytest
from buckets import S3Server
from cli_helpers import ejcache
from dead_ends import leads_to
from fsspec.implementations.memory import MemoryFileSystem

from ejcache import entry
from ejcache.bucket.breaker import forget_breakers
from ejcache.bucket.client_bucket import ClientBucket
from ejcache.bucket.object_names import entry_name
from ejcache.cache import shared_policy_watch
from ejcache.cache.opening import open_cache
from ejcache.cache.reading import CacheReader
from ejcache.cache.reasons import Miss
from ejcache.cache.writing import EntryWriter
from ejcache.maintenance.stored_policy import POLICY
from ejcache.settings.resolve import resolve
from ejcache.stores.opening import open_bucket
from ejcache.stores.sharing_detection import forget_filesystems
from ejcache.util.writer import user_and_host

DAY = 86_400.0
KEYS = [f"jit_{name}-cpu-plain-" + "0" * 64 for name in "abcdef"]


class Somewhere(MemoryFileSystem):
    """Storage that only fsspec knows, in this process's memory."""

    protocol = "somewhere"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("somewhere://", "/", 1))


class Fleet:
    """Hosts that use one cache; the operator is one of them."""

    def __init__(self, url, path, monkeypatch):
        self.url, self.path, self.monkeypatch = url, path, monkeypatch
        self.opened = []

    def start(self, host):
        self.monkeypatch.setenv("EJCACHE_LOCAL_DIR", str(self.path / host))
        settings = resolve(calls={"dir": self.url, "min_compile_seconds": 0.0})
        reader = CacheReader(self.url, open_store=lambda: open_cache(self.url, settings))
        assert reader.opened(settings, awaits_policy=False) is not None
        reader.is_off()  # waits for the answer, as a first lookup does
        self.opened.append(reader)
        return reader, settings

    def minute_passes(self):
        with self.monkeypatch.context() as later:
            later.setattr(shared_policy_watch, "FRESH_SECONDS", -1.0)
            for policy in self.opened:
                if policy.stored_policy is not None:
                    policy.stored_policy.look()

    def put(self, process, key, raw):
        policy, settings = process
        header = entry.Header(key=key, name=key[:5], compile_seconds=9.0)
        written = EntryWriter(policy).write(header, raw, settings)
        assert policy.flush(60)
        return written.skip

    def run(self, *command):
        said = ejcache(*command, "--dir", self.url)
        assert said.status == 0, said.err
        return said

    def forge(self, key, raw, *, folder="", **fields):
        """Write an entry as somebody does who knows the format and may write."""
        header = entry.Header(key=key, name=key[:5], compile_seconds=9.0, **fields)
        with open_bucket(self.url) as objects:
            objects.write(folder + entry_name(key), entry.encode(header, raw))

    def close(self):
        for policy in self.opened:
            policy.close()


def looked(process, key):
    policy, settings = process
    found = policy.read(key, settings)
    return found.raw if isinstance(found, entry.Entry) else found


@pytest.fixture(scope="module")
def s3():
    importlib.import_module("s3fs")  # which takes seconds on a busy machine, that no request gets
    with S3Server() as server:
        yield server


@pytest.fixture(params=["gcs", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("s3", "directory", "fsspec"))])
def fleet(request, tmp_path, bucket, monkeypatch):
    """A cache on this storage, which holds nothing."""
    name = uuid.uuid4().hex
    url = f"gs://bucket/{name}"
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        # To make this client takes seconds of a processor, which a busy machine may not have in time.
        monkeypatch.setattr(ClientBucket, "make_seconds", 60.0)
        for variable, value in leads_to("s3", server.url).items():
            monkeypatch.setenv(variable, value)
        url = f"s3://bucket/{name}"
    elif request.param == "directory":
        url = str(tmp_path / "mount")
        (tmp_path / "mount" / "v1" / "entries").mkdir(parents=True)  # as another host has it, on a mount
    elif request.param == "fsspec":
        monkeypatch.setenv("EJCACHE_UNTESTED_SCHEMES", "1")
        metadata = tmp_path / "site" / "somewhere-1.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: somewhere\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text("[fsspec.specs]\nsomewhere = somewhere:Somewhere\n")
        monkeypatch.syspath_prepend(str(metadata.parent))
        fsspec.register_implementation("somewhere", Somewhere, clobber=True)
        url = f"somewhere://{name}/cache"
    made = Fleet(url, tmp_path, monkeypatch)
    yield made
    made.close()
    forget_breakers()
    forget_filesystems()


@pytest.mark.parametrize("clock", [0.0, DAY, -DAY])
def test_nothing_that_was_recalled_is_loaded(fleet, clock, monkeypatch):
    """Whatever its header claims and whoever still uploads it; what hosts that know store then is a hit, whatever their
    clocks say."""
    old, operator = fleet.start("old"), fleet.start("operator")
    for key in KEYS[:3]:
        assert fleet.put(old, key, b"poison") is None
    fleet.forge(KEYS[3], b"poison", created=time.time() + 300 * DAY, extra={"recall": 2**53 - 1, "number": 2**36})
    assert [looked(operator, key) for key in KEYS[:4]] == [b"poison"] * 4
    real = time.time
    with monkeypatch.context() as shifted:
        shifted.setattr(time, "time", lambda: real() + clock)
        fleet.run("recall", "--all", "--yes")
    fleet.put(old, KEYS[4], b"poison")  # it does not know yet
    fleet.forge(KEYS[3], b"poison", created=time.time() + 300 * DAY, extra={"recall": 2**53 - 1})
    fleet.minute_passes()
    hosts = [old, operator, fleet.start("old"), fleet.start("new")]
    for process in hosts:
        assert {looked(process, key) for key in KEYS} == {Miss.ABSENT}
    with monkeypatch.context() as shifted:
        shifted.setattr(time, "time", lambda: real() - clock)
        for process, key in zip(hosts, KEYS, strict=False):
            assert fleet.put(process, key, b"good") is None
    for process in (*hosts, fleet.start("newer")):
        assert {looked(process, key) for key in KEYS[:4]} == {b"good"}
    assert all(policy.tally.totals().get("errors", 0) == 0 for policy in fleet.opened)


def test_what_a_killed_process_left_to_upload_is_not_found(fleet, monkeypatch):
    """The next process of its host, which knows of the recall, does not send it."""
    killed = fleet.start("old")
    tiers = killed[0].opened(killed[1])
    with monkeypatch.context() as held:
        held.setattr(tiers.worker, "submit", lambda _: False)
        header = entry.Header(key=KEYS[0], name="jit_a", compile_seconds=9.0)
        assert EntryWriter(killed[0]).write(header, b"poison", killed[1]).skip is None
    fleet.opened.clear()  # it never gets to its end
    fleet.put(fleet.start("operator"), KEYS[1], b"poison")
    fleet.run("recall", "--all", "--yes")
    fleet.minute_passes()
    for note in fleet.path.rglob("scratch/policy"):
        note.unlink()
    late = fleet.start("old")
    assert looked(late, KEYS[0]) is Miss.ABSENT
    assert fleet.put(late, KEYS[2], b"good") is None
    assert looked(fleet.start("new"), KEYS[0]) is Miss.ABSENT


@pytest.mark.parametrize("change", ["truncated", "deleted", "future", "huge", "forgotten epoch", "backup"])
def test_off_stays_off_and_recalled_stays_recalled(fleet, change, caplog):
    """When the policy is damaged, gone, too new, too large, or an earlier one, hosts that knew it go on by it, and say
    so once; new hosts keep away unless they can read it."""
    host = fleet.start("old")
    fleet.put(host, KEYS[0], b"poison")
    fleet.run("config", "set", "max_size=5GB")
    with open_bucket(fleet.url) as objects:
        before = objects.read(POLICY).data
        fleet.run("recall", "--all", "--yes")
        fleet.run("config", "set", "enabled=false")
        fleet.forge(KEYS[0], b"poison")
        fleet.minute_passes()
        known = objects.read(POLICY).data
        assert looked(host, KEYS[0]) is Miss.DISABLED
        if change == "deleted":
            objects.delete(POLICY)
        else:
            objects.write(
                POLICY,
                {
                    "truncated": known[:40],
                    "future": known.replace(b'"version": 1\n}', b'"version": 2\n}'),
                    "huge": known + b" " * (128 << 10),
                    "forgotten epoch": known.replace(b'"epoch"', b'"epochs"', 1).replace(
                        b'"enabled": false', b'"enabled": true'
                    ),
                    "backup": before,
                }[change],
            )
    with caplog.at_level(logging.WARNING):
        fleet.minute_passes()
        fleet.minute_passes()
        late = fleet.start("old")
        said = [each.message for each in caplog.records if f"{fleet.url}/{POLICY}" in each.message]
    assert len(said) == 1, said
    expected = Miss.ABSENT if change == "backup" else Miss.DISABLED
    for process in (host, late):
        assert looked(process, KEYS[0]) is expected
    if change in ("truncated", "future", "huge"):
        new = fleet.start("new")
        assert (looked(new, KEYS[0]), new[0].epoch) == (Miss.ERROR, None)
        refused = ejcache("config", "set", "--dir", fleet.url, "max_size=6GB")
        assert refused.status == 1
        assert ("--replace" in refused.err) == (change != "future")


def test_push_and_pull_keep_out_what_was_recalled(fleet, tmp_path):
    """By the true headers of an archive from before; they read and write where the cache is."""
    host = fleet.start("old")
    for key in KEYS[:2]:
        fleet.put(host, key, b"poison")
    archive = tmp_path / "before.tar"
    assert ejcache("push", archive, "--dir", fleet.url).status == 0
    assert ejcache("pull", fleet.url, "--dir", tmp_path / "copy").status == 0
    fleet.run("recall", "--all", "--yes")
    fleet.forge(KEYS[2], b"poison")  # where it is over
    pulled = ejcache("pull", archive, "--dir", fleet.url, "--json").json
    pushed = ejcache("push", fleet.url, "--dir", tmp_path / "copy", "--json").json
    assert [(each["copied_entries"], each["recalled"]) for each in (pulled, pushed)] == [(0, 2), (0, 2)]
    fleet.minute_passes()
    assert fleet.put(host, KEYS[0], b"good") is None
    done = ejcache("pull", fleet.url, "--dir", tmp_path / "empty", "--json").json
    assert done["copied_entries"] == 1
    with contextlib.suppress(FileNotFoundError):
        assert ejcache("ls", "--dir", tmp_path / "empty", "--json").json["entries"][0]["key"] == KEYS[0]


def test_by_writer_and_the_host_can_store_again(fleet, monkeypatch):
    """Also if its clock is a day late; a late upload of what it had stored before is refused by every host."""
    real = time.time
    host = fleet.start("old")
    fleet.put(host, KEYS[0], b"poison")
    fleet.run("recall", "--by", user_and_host())
    fleet.forge(KEYS[1], b"poison", created=real() - 9, writer=f"{user_and_host()}/7-a")
    fleet.minute_passes()
    new = fleet.start("new")
    for process in (host, new):
        assert looked(process, KEYS[0]) in (Miss.ABSENT, Miss.RECALLED)
        assert looked(process, KEYS[1]) in (Miss.ABSENT, Miss.RECALLED)
    monkeypatch.setattr(time, "time", lambda: real() - DAY)
    assert fleet.put(host, KEYS[0], b"good") is None
    monkeypatch.setattr(time, "time", real)
    fleet.minute_passes()
    assert looked(fleet.start("newer"), KEYS[0]) == b"good"
