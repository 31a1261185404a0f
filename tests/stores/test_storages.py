"""Every kind of shared storage that is supported, behind a host's own copies: cold, warm, at exit, dead."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest
from dead_ends import Silent, leads_to
from forking import ForkedWithClientsToTheEnd
from storages import STORAGES, running, why_not

from ejcache.stores.opening import open_store

PROGRAM = """
import json, sys
from ejcache import entry
from ejcache.cache.opening import open_cache_store
from ejcache.settings.resolve import resolve

url, count, rest = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
store = open_cache_store(url, resolve())
found = 0
for n in range(count):
    key = f"jit_f{n}-cpu-plain-{n:064x}"
    if "meet" in rest and n == 3:
        print("half", flush=True)
        sys.stdin.readline()
    try:
        data = store.get(key)
    except OSError:
        data = None
    if data is None:
        store.put(key, entry.encode(entry.Header(key=key), b"x" * 1000))
    else:
        found += 1
if "flush" in rest:
    assert store.flush(60)
store.add_counters({"hits": found, "runs": 1})
if "count" in rest:
    assert store.counters()["runs"] >= 1  # what is counted now is sent before it is summed
print(json.dumps({"found": found, "client": store.shared.bucket.is_prepared}))
"""


FIRST = pytest.mark.parametrize(
    "kind",
    [STORAGES[0], *(pytest.param(name, marks=pytest.mark.soak) for name in STORAGES[1:])],
    scope="module",
    indirect=True,
)
"""The host's part in it is the same whatever the storage is; `make test` shows it with one.

What each protocol is asked is in test_shared_stores.py.
"""


@pytest.fixture(scope="module")
def kind(request):
    if why_not(request.param):
        pytest.skip(why_not(request.param))
    return request.param


@pytest.fixture(scope="module")
def server(kind):
    with running(kind) as storage:
        yield storage


@pytest.fixture
def storage(server, tmp_path, monkeypatch):
    """A cache of the test's own on that server."""
    storage = copy.copy(server)
    storage.url += f"/{tmp_path.name}"
    for name, value in storage.variables.items():
        monkeypatch.setenv(name, value)
    return storage


@pytest.fixture
def run(run_client, run_client_to_the_end, tmp_path, storage):
    """One run on the host of this name; what it printed. It must not say a word, unless `said` is None."""

    def run(host, count, *rest, said="", to_the_end=False, **env):
        variables = {"EJCACHE_LOCAL_DIR": str(tmp_path / host), **env}
        start = run_client_to_the_end if to_the_end else run_client
        finished = start(PROGRAM, storage.url, str(count), *rest, env=variables)
        assert said is None or finished.stderr == said
        assert "Traceback" not in finished.stderr
        return json.loads(finished.stdout)

    return run


def entries(storage):
    return {name.rpartition("/")[2].partition("-")[0] for name in storage.names("v1/entries/")}


def counted(storage):
    with open_store(storage.url, read_only=True) as store:
        return store.counters()


@FIRST
def test_cold_and_warm(run, storage):
    """What one host has stored another one finds; where all is on the host, no client is made."""
    assert run("one", 6, "flush", to_the_end=True) == {"found": 0, "client": True}
    assert len(entries(storage)) == 6
    assert run("two", 6, to_the_end=True) == {"found": 6, "client": True}
    assert run("two", 6) == {"found": 6, "client": False}


@FIRST
def test_what_is_not_finished_at_exit_is_sent_by_the_next_run(run, storage):
    """A cold program that ends at once loses nothing: neither entries, nor uses, nor counters, nor a lease."""
    for number in range(2):
        run(f"host {number}", 6)
    for number in range(2):
        # This one asks for an entry that nobody has, and has time to send what is left.
        run(f"host {number}", 7, "flush", "count")
    assert len(entries(storage)) == 7
    assert storage.names("v1/leases/") == []
    assert counted(storage)["runs"] == 4
    assert storage.names("v1/journal/")


@FIRST
def test_full(run, storage):
    """Without room in the storage, everything is on its host, and arrives there when there is room."""
    if not hasattr(storage.server, "fill"):
        pytest.skip(f"{storage.kind}:// has no size that can be full")
    storage.server.fill()
    assert run("one", 6, said=None)["found"] == 0
    assert not entries(storage)
    storage.server.free()
    assert run("one", 7, "flush")["found"] == 6
    assert len(entries(storage)) == 7


@FIRST
def test_dead_in_the_middle(kind, run_client, tmp_path, monkeypatch):
    """A program whose storage dies ends as it should, and all that it has compiled is on its host."""
    monkeypatch.setenv("EJCACHE_LOCAL_DIR", str(tmp_path / "host"))
    with running(kind) as storage:
        for name, value in storage.variables.items():
            monkeypatch.setenv(name, value)
        command = [sys.executable, "-c", PROGRAM, storage.url, "6", "meet"]
        with ForkedWithClientsToTheEnd(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout.readline() == b"half\n"
            storage.die()
            printed, said = process.communicate(b"\n", timeout=240)
        assert process.returncode == 0, said
        assert b"Traceback" not in said
        assert json.loads(printed)["found"] == 0
        again = run_client(PROGRAM, storage.url, "6")
        assert json.loads(again.stdout)["found"] == 6


@FIRST
def test_unreachable_then_there(kind, run_client, run_client_to_the_end, tmp_path, monkeypatch):
    """What a host kept while its storage gave no answer, and what it counted, arrives when there is an answer again."""
    monkeypatch.setenv("EJCACHE_LOCAL_DIR", str(tmp_path / "host"))
    with running(kind) as storage, Silent() as silent:
        away = leads_to(kind, silent.url)
        for number, found in enumerate((0, 6)):
            finished = run_client(PROGRAM, storage.url, "6", env=away)
            assert json.loads(finished.stdout)["found"] == found
            # Later runs may end before they have asked for anything.
            assert finished.stderr.count("cannot be reached") == len(finished.stderr.splitlines()) <= 1
            assert finished.stderr or number
            assert {note.read_text() for note in tmp_path.rglob("scratch/storage")} == {"failed\n"}
        for name, value in storage.variables.items():
            monkeypatch.setenv(name, value)
        assert run_client_to_the_end(PROGRAM, storage.url, "7", "flush").stderr == ""
        assert len(entries(storage)) == 7
        assert {note.read_text() for note in tmp_path.rglob("scratch/storage")} == {"served\n"}
        # A program that ends on a slow host leaves what it has counted; the next one that asks for something sends it.
        run_client(PROGRAM, storage.url, "8", "flush", "count")
        assert counted(storage)["runs"] == 4
