"""The autotune store: layers, publication by many processes, hot reload, and trouble."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import subprocess
import sys
import textwrap

import pytest
from autotune_helpers import ENVIRONMENT, key, record
from buckets import GcsServerProcess, gcs_bucket
from forking import Forked
from helpers import SUPPORT, local_documents
from soak_turns import some

from ejcache.autotune.records.record import WITH_PROFILE, Source, encode_record
from ejcache.autotune.records.store import QUARANTINE, AutotuneStore, default_store, set_default_store
from ejcache.bucket.breaker import CircuitBreaker
from ejcache.errors import StoreReadOnlyError, UsageError
from ejcache.stores.documents import Documents, open_documents


@pytest.fixture(scope="module")
def gcs():
    with GcsServerProcess() as server:
        yield server


def test_published_records_are_found(tmp_path):
    """What one store publishes another one finds, at the path that the key says."""
    published = record()
    assert AutotuneStore(str(tmp_path)).publish(published)
    assert (tmp_path / published.key.path).exists()
    found = AutotuneStore(str(tmp_path)).find(published.key)
    assert (found.record, found.layer, found.source) == (published, "user", Source.TUNED)
    assert AutotuneStore(str(tmp_path)).find(key("softmax")) is None


def test_hot_reload(tmp_path):
    """A record that another process publishes is seen without a restart; one that was found stays until a reload."""
    store = AutotuneStore(str(tmp_path), refresh_seconds=0.0)
    assert store.find(key()) is None
    AutotuneStore(str(tmp_path)).publish(record(block=16, created=1.0))
    assert store.find(key()).record.configuration == {"block": 16}
    AutotuneStore(str(tmp_path)).publish(record(block=32, created=2.0))
    assert store.find(key()).record.configuration == {"block": 16}
    store.reload()
    assert store.find(key()).record.configuration == {"block": 32}


def test_absence_is_not_looked_up_again_at_once(tmp_path):
    """A key that is not there costs one look, and the next one only after a while."""
    store = AutotuneStore(str(tmp_path), refresh_seconds=60.0)
    assert store.find(key()) is None
    AutotuneStore(str(tmp_path)).publish(record())
    assert store.find(key()) is None
    store.reload()
    assert store.find(key()) is not None


def test_layers(tmp_path):
    """The user's record goes before the shared one, both before seeds, and a stronger one before a weaker one."""
    user, shared, seeds = (str(tmp_path / name) for name in ("user", "shared", "seeds"))
    for place, block in ((shared, 2), (seeds, 3)):
        AutotuneStore(place).publish(record(block=block))

    def store():
        return AutotuneStore(user, shared=shared, seeds=[seeds])

    assert [(f.layer, f.source, f.record.configuration["block"]) for f in store().find_all(key())] == [
        ("shared", Source.TUNED, 2),
        ("seeds", Source.IMPORTED, 3),
    ]
    AutotuneStore(user).publish(record(block=1))
    assert store().find(key()).layer == "user"
    profiled = record(block=2)
    measurement = {**profiled.measurement, WITH_PROFILE: True}
    AutotuneStore(shared).publish(dataclasses.replace(profiled, measurement=measurement))
    assert (store().find(key()).layer, store().find(key()).record.with_profile) == ("shared", True)


def test_publication_writes_every_writable_layer_and_no_seed(tmp_path):
    """User and shared layers get the record, seeds never do."""
    user, shared, seeds = (tmp_path / name for name in ("user", "shared", "seeds"))
    store = AutotuneStore(str(user), shared=str(shared), seeds=[str(seeds)])
    assert store.publish(record())
    path = record().key.path
    assert [(place / path).exists() for place in (user, shared, seeds)] == [True, True, False]
    assert store.delete(key())
    assert store.find(key()) is None


def test_default_store_follows_the_environment(tmp_path, monkeypatch):
    """EJKERNEL_PERSISTENT_CACHE_DIR is read when the store is used, not when the module is imported."""
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_DIR", str(tmp_path / "one"))
    assert default_store().url == str(tmp_path / "one")
    assert default_store() is default_store()
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_DIR", str(tmp_path / "two"))
    assert default_store().url == str(tmp_path / "two")
    monkeypatch.setenv("EJCACHE_AUTOTUNE_DIR", str(tmp_path / "four"))
    assert default_store().url == str(tmp_path / "four")
    mine = AutotuneStore(str(tmp_path / "three"))
    set_default_store(mine)
    assert default_store() is mine


def test_a_directory_that_is_refused(run_forked, open_place):
    """Tuned configurations are kept in a directory of this user's own then: one sentence, and the line at exit."""
    open_place.chmod(0o755)
    refused, home = open_place / "tuned", open_place / "home"
    for each, mode in ((refused, 0o777), (home, 0o700)):
        each.mkdir()
        each.chmod(mode)
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(refused, 54321, -1)
    program = f"""
        import sys
        sys.path.insert(0, {str(SUPPORT)!r})
        import ejcache
        from autotune_helpers import key, record
        from ejcache.autotune.records.store import default_store
        from ejcache.util import directory_access
        directory_access.is_in_container = lambda: False
        ejcache.enable()
        store = default_store()
        print(store.find(key()) is not None, store.publish(record()), store.url)
    """
    own = home / "ejcache"
    variables = {"EJCACHE_AUTOTUNE_DIR": str(refused), "HOME": str(home), "XDG_CACHE_HOME": str(home)}
    for is_there in (False, True):
        done = run_forked(program, env={**variables, "EJCACHE_REPORT": "line"})
        assert done.stdout == f"{is_there} True {own}\n"
        said, line = done.stderr.splitlines()
        assert str(refused) in said
        assert ("Choose another directory (EJCACHE_AUTOTUNE_DIR)" if is_root else "`chmod -R go-w") in said
        assert said.endswith(f"This process uses {own} instead")
        assert line.endswith(f"({own}, tuned configurations in {own})")
    assert list(refused.iterdir()) == []


def test_an_unusable_url_in_the_environment_fails_no_program(monkeypatch, caplog):
    """A typing error in a job's environment costs the results, with one warning, and nothing else."""
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_DIR", "gs://")
    store = default_store()
    assert not store.publish(record())
    assert store.find(key()) is not None
    assert sum("cannot be opened" in r.message for r in caplog.records) == 1


@pytest.mark.parametrize(
    "data",
    [b"", b'{"truncated": ', b"[1, 2]", b'{"somebody": "else"}', encode_record(record())[:200], b"\xff\x00"],
    ids=["empty", "truncated", "list", "foreign", "cut", "binary"],
)
def test_damaged_records_are_misses_and_heal(tmp_path, data, caplog):
    """A damaged record is a counted miss with one warning, moved aside, and the next publication heals it."""
    path = tmp_path / key().path
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    store = AutotuneStore(str(tmp_path))
    assert store.find(key()) is None
    assert store.stats()["corrupt"] == 1
    assert not path.exists()
    assert (tmp_path / QUARANTINE / "-".join(path.parts[-3:])).read_bytes() == data
    assert sum(r.levelno == logging.WARNING for r in caplog.records) == 1
    assert store.publish(record())
    assert AutotuneStore(str(tmp_path)).find(key()) is not None


def test_a_record_that_cannot_be_merged_stops_no_other(tmp_path, caplog):
    """Where a document is there that no record can be merged with, that one is dropped, counted, and others go on."""
    body = json.loads(encode_record(record()))
    del body["checksum"]
    body["provenance"] = {"host": "\ud800"}
    body["source"] = "pinned"
    path = tmp_path / key().path
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(body))
    store = AutotuneStore(str(tmp_path), seeds=())
    assert not store.publish(record())
    assert store.publish(record(key("softmax")))
    store.close()
    assert (store.stats()["waiting"], store.stats()["errors"]) == (0, 1)
    assert AutotuneStore(str(tmp_path), seeds=()).find(key("softmax")) is not None
    assert sum("cannot be stored" in r.message for r in caplog.records) == 1


def test_records_of_a_later_version_are_left_alone(tmp_path):
    """A record that a later version wrote is a miss here, and neither moved nor overwritten."""
    path = tmp_path / key().path
    path.parent.mkdir(parents=True)
    later = b'{"ejcache": "autotune record", "schema": 99}'
    path.write_bytes(later)
    store = AutotuneStore(str(tmp_path))
    assert store.find(key()) is None
    store.publish(record())
    assert path.read_bytes() == later
    assert store.stats()["unknown"] == 1


def test_unwritable_places_cost_one_warning(tmp_path, caplog):
    """Where nothing can be written, this process keeps its results, says so once, and goes on."""
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    store = AutotuneStore(str(blocked / "below"))
    assert not store.publish(record())
    assert not store.publish(record(key("softmax")))
    assert store.find(key()).record.configuration == {"block": 16}
    assert sum(r.levelno == logging.WARNING for r in caplog.records) == 1
    assert store.stats()["waiting"] == 2


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch, caplog):
    """What could not be written is kept, and written with the next publication."""
    store = AutotuneStore(str(tmp_path))
    full = True
    real = os.fsync

    def fsync(fd):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    assert not store.publish(record())
    full = False
    # What is there can still be read while nothing can be written.
    assert store.layers[0].read(key("other")) is None
    assert store.layers[0].counters["errors"] == 1
    assert store.publish(record(key("softmax")))
    again = AutotuneStore(str(tmp_path))
    assert again.find(key()) is not None
    assert again.find(key("softmax")) is not None
    assert sum(r.levelno == logging.WARNING for r in caplog.records) == 1


def test_what_one_layer_cannot_take_is_offered_again(tmp_path):
    """A shared layer that fails for a while gets what it missed with the next publication."""
    blocked = tmp_path / "shared"
    blocked.write_text("in the way")
    store = AutotuneStore(str(tmp_path / "user"), shared=str(blocked), seeds=())
    assert store.publish(record())
    assert store.stats()["waiting"] == 1
    blocked.unlink()
    assert store.publish(record(key("softmax")))
    assert store.stats()["waiting"] == 0
    assert AutotuneStore(str(blocked)).find(key()) is not None


def test_what_is_waiting_is_published_when_the_program_ends(run_forked, tmp_path):
    """What could not be written when it was found is offered once more at the end, however lately that failed."""
    run_forked(
        """
        import sys
        sys.path.insert(0, {tests!r})
        from autotune_helpers import record
        from pathlib import Path
        from ejcache.autotune.records.store import default_store
        Path({place!r}).write_text("in the way")
        assert not default_store().publish(record())
        Path({place!r}).unlink()
        """.format(tests=str(SUPPORT), place=str(tmp_path / "place")),
        env={"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "place")},
    )
    assert AutotuneStore(str(tmp_path / "place"), seeds=()).find(key()) is not None


def test_a_place_that_gives_no_answer_does_not_keep_the_program(run_forked, tmp_path):
    """At the end a write that hangs is left behind."""
    run_forked(
        """
        import sys, threading
        sys.path.insert(0, {tests!r})
        from autotune_helpers import record
        from ejcache.autotune.records import store
        from ejcache.errors import StoreUnavailableError
        from ejcache.bucket.files import FileBucket
        from ejcache.stores.documents import Documents
        from ejcache.util.threads import call_with_timeout

        class Hanging(Documents):
            ending = False
            def create(self, path, data):
                if self.ending:
                    threading.Event().wait()
                raise StoreUnavailableError("not now")

        call_with_timeout("a thread", int, 60.0)
        store._EXIT_SECONDS = 0.1
        documents = Hanging(FileBucket({place!r}, local=True, documents=True))
        store.set_default_store(store.AutotuneStore(documents, seeds=()))
        assert not store.default_store().publish(record())
        documents.ending = True
        """.format(tests=str(SUPPORT), place=str(tmp_path / "place"))
    )


def test_configurations_that_json_cannot_hold_lose_nothing_else(tmp_path):
    """A record that cannot be written is refused, and others are published before and after it."""
    store = AutotuneStore(str(tmp_path))
    bad = record()
    object.__setattr__(bad, "configuration", {"block": object()})
    with pytest.raises(UsageError):
        store.publish(bad)
    assert store.publish(record(key("softmax")))
    assert store.find(key()) is None


def test_read_only_stores_publish_nothing(tmp_path):
    """A read-only store keeps results for this process and leaves the directory alone."""
    store = AutotuneStore(str(tmp_path / "store"), read_only=True)
    assert not store.publish(record())
    assert store.find(key()) is not None
    assert not (tmp_path / "store").exists()
    with pytest.raises(StoreReadOnlyError):
        open_documents(str(tmp_path), read_only=True).create("a.json", b"")


def test_a_public_bucket_is_only_read(gcs, monkeypatch):
    """Nothing is written to a bucket that is read without credentials, even if it would take it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    store = AutotuneStore("gs://bucket/public?anonymous")
    assert not store.publish(record())
    monkeypatch.setenv("EJCACHE_DIR", "gs://bucket/public?anonymous")
    of_cache = AutotuneStore()
    of_cache.publish(record())
    assert [layer.writable for layer in of_cache.layers] == [True, False]
    assert list(gcs_bucket(gcs, "public").walk("")) == []


READS = """
import sys
sys.path.insert(0, {support!r})
import numpy as np
import ejcache
from autotune_helpers import record
from ejcache.autotune.records.store import AutotuneStore, default_store

@ejcache.autotuned(configs=[{{"n": 1}}, {{"n": 2}}], name="op", version=1)
def op(x, *, n):
    return x * n / n

ejcache.enable()
op(np.ones(8, np.float32))
store, one = default_store(), record()
print(store.publish(one), AutotuneStore().publish(one), store.find(one.key) is not None)
"""


@pytest.mark.parametrize(
    ("variables", "written"),
    [
        ({}, set()),
        ({"EJCACHE_AUTOTUNE_DIR": "cache/tuned", "EJCACHE_AUTOTUNE_RECORD": "cache/calls"}, set()),
        ({"EJCACHE_AUTOTUNE_DIR": "link", "EJCACHE_AUTOTUNE_RECORD": "link"}, set()),
        ({"EJCACHE_AUTOTUNE_DIR": "tuned"}, {"tuned/autotune", "tuned/autotune-recorded"}),
        ({"EJCACHE_AUTOTUNE_RECORD": "calls"}, {"calls/autotune-recorded"}),
        ({"EJCACHE_DIR": "gs://bucket/shared"}, {"home/ejcache/autotune", "home/ejcache/autotune-recorded"}),
        ({"EJCACHE_AUTOTUNE_DIR": "gs://bucket/shared", "EJCACHE_DIR": "home/ejcache"}, set()),
    ],
    ids=["the cache", "in the cache", "a link", "a directory", "calls elsewhere", "a bucket", "beside a bucket"],
)
def test_the_setting_read_only(variables, written, run_forked, gcs, tmp_path):
    """Neither the cache nor a bucket gets tuned records or recorded calls; a directory of the user's does."""
    root = tmp_path / "root"
    for place in (root, root / "cache", root / "home"):
        place.mkdir(mode=0o700)
    (root / "link").symlink_to("cache")
    program = root / "program.py"  # calls of what has no file are not recorded
    program.write_text(READS.format(support=str(SUPPORT)))
    given = {"EJCACHE_DIR": "cache", "EJCACHE_AUTOTUNE_RECORD": "1", **variables}
    places = {name: value if value == "1" or "://" in value else str(root / value) for name, value in given.items()}
    done = run_forked(
        program,
        env={
            **places,
            "EJCACHE_READ_ONLY": "1",
            "EJCACHE_AUTOTUNE_POLICY": "heuristics",
            "STORAGE_EMULATOR_HOST": gcs.url,
            "XDG_CACHE_HOME": str(root / "home"),
        },
    )
    kept = any(path.endswith("/autotune") for path in written)
    assert done.stdout == f"{kept} {kept} True\n"
    found = {path.parent for path in root.rglob("autotune*/*")}
    assert {str(path.relative_to(root)) for path in found} == written
    assert not any(name.startswith("autotune") for name in (info.name for info in gcs_bucket(gcs, "shared").walk("")))
    recorded = any(path.endswith("-recorded") for path in written)
    assert done.stderr.count("tuned configurations are not kept") == (not kept)
    assert done.stderr.count("calls are not recorded") == (not recorded)


def test_records_of_a_call_lie_together(tmp_path):
    """Those of other versions and cores on such a device are similar; those of other devices are only listed."""
    store = AutotuneStore(str(tmp_path))
    store.publish(record(key(environment={**ENVIRONMENT, "jaxlib": "0.9", "cores": "64"}), block=4))
    store.publish(record(key(environment={**ENVIRONMENT, "XLA_FLAGS": "--xla_other"}), block=5))
    store.publish(record(key(device="NVIDIA H200"), block=6))
    store.publish(record(key(x="float32[9,9]"), block=7))
    assert store.find(key()) is None
    here = store.near(key(), same_call=True)
    sources = {5: Source.TUNED, 4: Source.SIMILAR, 6: Source.TUNED}
    assert {f.record.configuration["block"]: f.source for f in here} == sources
    assert len({(tmp_path / f.record.key.path).parent for f in here}) == 1
    # What differs least comes first: the size of an array, then one part of the environment, then two.
    everything = [(f.record.configuration["block"], f.source) for f in store.near(key())]
    assert everything[0] == (7, Source.TUNED)
    assert everything[-1] == (4, Source.SIMILAR)
    assert set(everything[1:]) == set(sources.items())
    assert [f.record.configuration for f in store.records(operation="matmul", device="NVIDIA H200")] == [{"block": 6}]
    assert list(store.records(operation="other")) == []


def test_a_damaged_record_of_a_call_costs_none_of_the_others(tmp_path):
    """They lie in one folder, one file for each device and environment."""
    store = AutotuneStore(str(tmp_path))
    keys = [key(environment={**ENVIRONMENT, "jaxlib": f"0.{minor}"}) for minor in range(4)]
    for block, each in enumerate(keys):
        store.publish(record(each, block=block))
    (tmp_path / keys[1].path).write_bytes(b"{")
    assert {f.record.configuration["block"] for f in store.near(key(), same_call=True)} == {0, 2, 3}
    assert store.stats()["corrupt"] == 1


def test_a_bucket_that_cannot_be_reached_costs_one_deadline(tmp_path, caplog):
    """A layer that fails is left alone for a while, with a warning of it and of its bucket, and the others serve."""
    bucket = gcs_bucket("http://127.0.0.1:9", "gone", deadline=0.5)
    bucket.breaker = CircuitBreaker(failures=1)
    documents = Documents(bucket)
    store = AutotuneStore(str(tmp_path), shared=documents, seeds=())
    for operation in ("a", "b", "c"):
        assert store.find(key(operation)) is None
    assert store.publish(record())
    assert store.find(key()) is not None
    assert store.layers[1].counters["errors"] == 1
    warned = [r.name for r in caplog.records if r.levelno == logging.WARNING]
    assert sorted(warned) == ["ejcache", "ejcache.autotune"]


WRITER = textwrap.dedent("""
    import errno, fcntl, os, sys
    sys.path.insert(0, {tests!r})
    kind, place, worker, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    from ejcache.autotune.ejkernel import PersistentCache
    from ejcache.autotune.records.store import AutotuneStore
    from ejcache.bucket.files import FileBucket
    from ejcache.bucket.retry import RetryPolicy
    from ejcache.stores.documents import Documents
    path = None
    if kind == "gcs":
        from buckets import gcs_bucket
        documents = Documents(gcs_bucket(place, "shared", deadline=60.0))
        path = os.devnull + "/none/operation.json"
    else:
        policy = RetryPolicy(deadline=60.0)
        documents = Documents(FileBucket(place, policy=policy, local=kind == "local", documents=True))
        path = place + "/operation.json"
    if kind == "nfs":
        def refuse(*arguments):
            raise OSError(errno.ENOLCK, "No locks available")
        fcntl.flock = refuse
    cache = PersistentCache("operation", path=path, store=AutotuneStore(documents, seeds=()))
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for i in range(count):
        cache.put("cpu|cpu", "operation@v1", f"{{worker:08x}}{{i:08x}}", {{"block": worker * 100 + i}})
""").format(tests=str(SUPPORT))


@pytest.mark.parametrize("kind", some(["local", "nfs", "gcs"], every=3))
def test_concurrent_writers_lose_nothing(kind, tmp_path, request):
    """Six processes that put ten configurations each into one operation at the same time: all 60 are there."""
    place = request.getfixturevalue("gcs").url if kind == "gcs" else str(tmp_path / "store")
    workers, count = 6, 10
    processes = [
        Forked(
            [sys.executable, "-c", WRITER, kind, place, str(worker), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for worker in range(workers)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.communicate("go\n", timeout=120)
        assert process.returncode == 0
    documents = Documents(gcs_bucket(place, "shared")) if kind == "gcs" else local_documents(place)
    blocks = {
        f.record.configuration["block"] for f in AutotuneStore(documents, seeds=()).records(operation="operation")
    }
    assert len(blocks) == workers * count
    if kind == "local":
        assert len(json.loads((tmp_path / "store" / "operation.json").read_text())) == workers * count


def test_cache_without_a_directory(run_forked):
    """A program that sets JAX's cache directory to None has its tuned configurations in the user's own directory."""
    done = run_forked(
        """
        import jax, ejcache
        ejcache.enable()
        jax.config.update("jax_compilation_cache_dir", None)
        print(ejcache.AutotuneStore().layers[0].name)
        """
    )
    assert done.stdout == "user\n"
