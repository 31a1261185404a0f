"""The command line on buckets: ours and those of plain JAX, looked at and tended while others use them."""

from __future__ import annotations

import json
import tarfile
from collections import Counter

import pytest
import zstandard
from cli_helpers import be_patient, ejcache, key_text, put
from eviction_traces import encoded

from ejcache.bucket.object_names import entry_name
from ejcache.history.host_log import record_miss
from ejcache.journal.line import ProgramRecord
from ejcache.keys.key import parse_key
from ejcache.maintenance.stored_policy import POLICY
from ejcache.stores.opening import open_store

URL = "gs://bucket/a"
LONG_AGO = "2026-01-01T00:00:00.000Z"


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Limits of a shared cache are waited for on a busy machine, too."""
    be_patient(monkeypatch)


@pytest.fixture
def cache(bucket):
    """Three entries that were last used long ago, and counters; the keys by name."""
    keys = {name: key_text(name) for name in ("jit_train", "jit_eval", "jit_init")}
    with open_store(URL) as store:
        for key in keys.values():
            put(store, key)
        store.add_counters({"hits": 3, "misses": 1, "miss_absent": 1})
    age(bucket)
    bucket.clear_requests()
    return keys


def age(server, created=LONG_AGO):
    """Everything in the bucket was written long ago."""
    for stored in server.api.buckets["bucket"].objects.values():
        stored.created = created


def asked(server) -> Counter:
    """The requests since the last look, by method, place and prefix."""
    counted = Counter((r.method, r.path.split("/")[1], r.query.get("prefix", "")) for r in server.requests)
    server.clear_requests()
    return counted


def plain_jax(server, *names, atime=LONG_AGO) -> dict[str, str]:
    """Entries as plain JAX with a size limit writes them; their keys by name."""
    keys = {name: f"{name}-{'a' * 64}" for name in names}
    into = server.api.buckets["bucket"]
    for key in keys.values():
        data = zstandard.ZstdCompressor().compress(b"\x00\x00\x00\x09executable")
        into.insert(f"a/{key}-cache", data, {}, {}).created = LONG_AGO
        into.insert(f"a/{key}-atime", b"12345678", {}, {}).created = atime
    return keys


def names_left(server) -> set[str]:
    return {name.removeprefix("a/") for name in server.objects()}


def test_why_lists_once_and_reads_the_newest(bucket, cache, monkeypatch):
    """Several misses of one bucket cost one listing, and a request for each of the newest entries of a function."""
    monkeypatch.setattr("ejcache.history.known_entries.NEWEST", 4)
    with open_store(URL) as store:
        for number in range(9):
            put(store, key_text("jit_train", program=str(number)))
    for number in range(3):
        record_miss(
            ProgramRecord(
                time=2e9 + number,
                url=URL,
                reason="absent",
                outcome="stored",
                compile_seconds=1.0,
                key=f"jit_train-{number}",
                name="jit_train",
            )
        )
    bucket.clear_requests()
    said = ejcache("why", "--dir", URL, "--last", "3", "--json")
    assert [each["nearest_key"] is not None for each in said.json["explanations"]] == [True] * 3
    counted = asked(bucket)
    assert counted["GET", "storage", "a/v1/"] == 2  # whether anything is there at all, and the listing
    assert (
        counted["GET", "download", ""] <= 4 + 5
    )  # the entries; the policy twice, the snapshot of uses, and two journals


def test_why_without_the_cache(monkeypatch):
    """If the cache does not answer, `why` prints what the miss log of this host has, and asks the cache once."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
    for number in range(2):
        about = {"url": URL, "reason": "absent", "outcome": "stored", "compile_seconds": 1.5, "key": "k"}
        record_miss(ProgramRecord(time=2e9 + number, name=f"jit_{number}", **about))
    said = ejcache("why", "--last", "2")
    assert said.status == 0
    assert said.out.startswith("jit_1 was compiled because it is new here: no other program of this function")
    assert "127.0.0.1:1" in said.out
    assert "1.50 s" in said.out


def test_why_of_an_entry_reads_its_function_only(bucket, cache):
    """By the beginning of a digest, on a host that missed nothing."""
    said = ejcache("why", parse_key(cache["jit_eval"]).logical[:8], "--dir", URL, "--json")
    assert [(each["key"], each["url"]) for each in said.json["explanations"]] == [(cache["jit_eval"], URL)]
    assert not [r for r in bucket.requests if "jit_train" in r.path]


def test_last_use_is_everybodys(bucket, cache):
    """`ls` shows the last use by any process, without a second listing."""
    with open_store(URL) as store:
        store.journal.note(cache["jit_eval"], when=1_780_000_000.0)
    age(bucket)
    bucket.clear_requests()
    used = {row["name"]: row["last_used"] for row in ejcache("ls", "--dir", URL, "--json").json["entries"]}
    assert used["jit_eval"] == 1_780_000_000.0
    assert used["jit_init"] < 1_780_000_000.0
    assert asked(bucket)["GET", "storage", "a/v1/"] == 2  # whether anything is there at all, and the listing


def test_prune_leaves_what_was_replaced_meanwhile(bucket, cache):
    """An entry that changes between listing and removal is another one than was to go."""
    bucket.add_fault("latency", method="POST", path="/batch/", seconds=0.0)
    name = f"a/{entry_name(cache['jit_train'])}"
    listed = bucket.api.buckets["bucket"].objects[name].generation

    class Changing(dict):
        """The server's objects; the entry is replaced when the batch looks at it."""

        def get(self, wanted, default=None):
            if wanted == name and super().get(name).generation == listed:
                super().get(name).generation += 1
            return super().get(wanted, default)

    bucket.api.buckets["bucket"].objects = Changing(bucket.api.buckets["bucket"].objects)
    done = ejcache("prune", "--dir", URL, "--max-entries", "0", "--json").json
    assert (done["removed_entries"], done["failed"]) == (2, [])
    assert name in bucket.objects()


def test_the_order_that_is_stored(bucket, monkeypatch, tmp_path):
    """A dry run shows both orders by what journals say, and reads no entry; the cache or a setting chooses one.

    A file that is too small for all entries leaves out what comes first in this order.
    """

    def pushed():
        file = tmp_path / "some.tar"
        assert ejcache("push", file, "--dir", URL, "--max-size", "1kB").status == 0
        with tarfile.open(file) as archive:
            return [name for name in ("jit_slow", "jit_quick") if any(name in each for each in archive.getnames())]

    def planned():
        asked = ejcache("prune", "--dir", URL, "--max-size", "1kB", "-n", "--json")
        return [(each["order"], each["chosen"], each["compile_seconds"]) for each in asked.json["orders"]]

    slow, quick = (key_text(name) for name in ("jit_slow", "jit_quick"))
    with open_store(URL) as store:
        store.put(slow, encoded(slow, seconds=2.0, size=800))
        store.put(quick, encoded(quick, seconds=0.5, size=800))
    with open_store(URL) as store:
        store.note_used(quick)
    by_use, by_cost = ([("lru", lru, 2.0), ("cost", not lru, 0.5)] for lru in (True, False))
    assert (planned(), pushed()) == (by_use, ["jit_quick"])
    with monkeypatch.context() as patch:
        patch.setenv("EJCACHE_EVICT", "cost")
        assert planned() == by_cost
    assert ejcache("config", "set", "--dir", URL, "evict=cost").status == 0
    bucket.clear_requests()
    assert planned() == by_cost
    assert not [request for request in bucket.requests if "jit_" in request.path]
    assert pushed() == ["jit_slow"]
    monkeypatch.setenv("EJCACHE_EVICT", "lru")
    assert (planned(), pushed()) == (by_cost, ["jit_slow"])
    assert ejcache("config", "set", "--dir", URL, "evict=random").status == 2


def test_a_policy_that_cannot_be_read(bucket, cache):
    """A damaged policy and one of a later version are reported, remove nothing and are not changed."""
    into = bucket.api.buckets["bucket"]
    for text in (b"{}", json.dumps({"format": "ejcache-policy", "version": 9}).encode()):
        into.insert(f"a/{POLICY}", text, {}, {})
        said = ejcache("prune", "--dir", URL)
        assert said.status == 2
        assert "cannot be read" in said.err
        assert ejcache("config", "--dir", URL).status == 0
        assert ejcache("config", "set", "--dir", URL, "max_size=1GB").status == 1
    assert len([name for name in bucket.objects() if "/entries/" in name]) == 3


def test_settings_of_a_file_beside_limits_that_are_refused(bucket, cache, tmp_path, monkeypatch):
    """`config set` has then changed nothing, the configuration file neither."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("EJCACHE", URL)
    bucket.api.buckets["bucket"].insert(f"a/{POLICY}", b"{}", {}, {})
    said = ejcache("config", "set", "max_size=1GB", "preload=false")
    assert said.status == 1
    assert not (tmp_path / "settings").exists()


@pytest.mark.usefixtures("doctor_is_told")
def test_files_of_jax_stay(bucket, cache):
    """No removal, sweep or eviction touches what JAX's own cache, or another cache, has there; a doctor counts it."""
    plain_jax(bucket, "jit_a", "jit_b")
    bucket.api.buckets["bucket"].insert("b/v1/entries/aa/other", b"x", {}, {})
    before = {name for name in names_left(bucket) if not name.startswith("v1/")}
    checks = ejcache("doctor", "--dir", URL, "--json").json["checks"]
    (said,) = [check["detail"] for check in checks if check["name"] == "plain JAX"]
    assert said.startswith("2 entries of JAX's own cache")
    assert f"gcloud storage rm '{URL}/*-cache' '{URL}/*-atime'" in said
    age(bucket)
    for command in (["verify", "--fix"], ["prune", "--max-size", "0"], ["prune", "--all", "--yes"]):
        assert ejcache(*command, "--dir", URL).status == 0
    assert {name for name in names_left(bucket) if not name.startswith("v1/")} == before
    assert not [name for name in names_left(bucket) if name.startswith("v1/entries/")]


def test_many_entries(bucket):
    """Pruning a large bucket is one listing in pages, and removals in batches."""
    into = bucket.api.buckets["bucket"]
    for number in range(3_000):
        name = f"a/{entry_name(key_text(f'jit_{number % 7}', program=str(number)))}"
        into.insert(name, b"x" * 100, {}, {}, throttle=False)
    age(bucket)
    done = ejcache("prune", "--dir", URL, "--max-size", "150kB", "--json").json
    assert (done["removed_entries"], done["left_size"]) == (1_500, 150_000)
    assert asked(bucket) == {
        ("GET", "storage", "a/v1/"): 1 + 3,  # whether anything is there, and the listing
        # The policy, for where the entries are, where they were, and the limits; the snapshot of uses.
        ("GET", "download", ""): 4,
        ("POST", "upload", ""): 1 + 1,  # the snapshot, and an object that shows the storage's clock
        ("GET", "storage", ""): 1,  # when the storage made that object
        ("DELETE", "storage", ""): 1,
        ("POST", "batch", ""): 15,
    }


def test_many_are_not_all_shown(bucket):
    """The table for a person ends somewhere; the sum does not."""
    into = bucket.api.buckets["bucket"]
    for number in range(250):
        into.insert(f"a/{entry_name(key_text('jit_f', program=str(number)))}", b"x", {}, {}, throttle=False)
    age(bucket)
    said = ejcache("prune", "--dir", URL, "--max-entries", "1")
    assert "and 49 more" in said.out
    assert "removed 249 entries" in said.out


def test_a_bucket_that_fails(bucket, cache):
    """Removals that the storage refuses are counted as failed, and the rest is not waited for."""
    bucket.add_fault("status", method="POST", path="/batch/", status=400)
    said = ejcache("prune", "--dir", URL, "--max-entries", "0", "--json")
    assert said.status == 1
    assert (said.json["removed_entries"], len(said.json["failed"]), said.json["left_entries"]) == (0, 3, 3)


def test_a_bucket_that_may_not_be_written(bucket, cache):
    """Without the permission to remove, one sentence says so."""
    bucket.add_fault("status", method="POST", path="/batch/", status=403)
    said = ejcache("prune", "--dir", URL, "--max-entries", "0")
    assert said.status == 1
    assert "may not write to gs://bucket/a" in said.err
