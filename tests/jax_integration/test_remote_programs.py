"""Programs whose cache directory is a bucket: what they compute, how often they ask it, and what its trouble costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from buckets import GcsServer
from cli_helpers import PYTHON
from forking import ForkedWithClients, ForkedWithClientsToTheEnd
from helpers import variables_to_clear

PROGRAM = """
    import sys
    import jax, numpy as np
    import ejcache
    cache = ejcache.enable(min_compile_seconds=0)
    x = np.arange(6, dtype=np.float32)
    def compute(numbers):
        for number in numbers:
            assert np.array_equal(jax.jit(lambda: x * number)(), x * number), number
    def stop_at(place):
        print(place, flush=True)
        sys.stdin.readline()
"""

STATS = """
import json
print(json.dumps(cache.stats().to_dict()), flush=True)
"""


def started(server, disk, lines, *, start=ForkedWithClients, **env) -> subprocess.Popen:
    """A program with its cache in the bucket and its local tier on `disk`, which then does what `lines` say."""
    cleared = {name: value for name, value in os.environ.items() if name not in variables_to_clear(os.environ)}
    variables = {
        **cleared,
        "JAX_PLATFORMS": "cpu",
        "EJCACHE_PRELOAD": "0",  # its requests would be counted
        "JAX_COMPILATION_CACHE_DIR": "gs://bucket/a",
        "STORAGE_EMULATOR_HOST": server.url,
        "EJCACHE_LOCAL_DIR": str(disk),
        "HOME": str(disk),
        **env,
    }
    return start(
        [PYTHON, "-c", textwrap.dedent(PROGRAM) + lines],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process, *, timeout=300) -> tuple[dict, str]:
    """What the program counted, and what it said on stderr, once it has ended as it should."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1]), err


def run(server, disk, lines, **env) -> dict:
    """What a program counted that was run to its end without a word on stderr."""
    counted, err = finished(started(server, disk, lines + STATS, **env))
    assert err == ""
    return counted


def asked(server) -> Counter:
    """The requests since the last look, by what they were for."""
    counted: Counter = Counter()
    for record in server.requests:
        kind = next((kind for kind in ("entries", "leases", "used", "counters", "policy") if kind in record.path), "")
        if record.method == "POST" and not kind:
            kind = "writes"
        counted[record.method, kind or record.path] += 1
    server.clear_requests()
    return counted


def entries(server) -> set[str]:
    """Names of the compiled programs in the bucket, without the texts that explain them."""
    return {name for name in server.objects() if "/entries/" in name and "module_text" not in name}


def written(server) -> Counter:
    """What there is in the bucket, by kind."""
    return Counter(name.split("/")[2] for name in server.objects())


def test_cold_and_warm(server, tmp_path):
    """A cold start publishes, a warm one fetches once, a third on that host asks nothing; nobody lists."""
    server.reset()
    work = "compute([2, 3])\n"
    cold = run(server, tmp_path / "one", work, start=ForkedWithClientsToTheEnd)
    assert (cold["misses"], cold["stores"], cold["hits"]) == (2, 2, 0)
    requests = asked(server)
    assert requests["GET", "entries"] == 2
    # An entry and, of what took a tenth of a second to compile, the text that explains it; each in one request.
    assert len(entries(server)) == 2
    assert 2 <= written(server)["entries"] <= 4
    # A lease for each program, a journal, and counters: after 1, 2, 4, … seconds, so there are many on a busy machine.
    assert requests["POST", "writes"] <= 2 * 2 + 2 + 1 + 10
    assert not [path for method, path in requests if method == "GET" and path.endswith("/o")]

    before = server.objects()
    warm = run(server, tmp_path / "two", work, start=ForkedWithClientsToTheEnd, EJCACHE_READ_ONLY="1")
    assert (warm["hits"], warm["misses"], warm["errors"]) == (2, 0, 0)
    # A host asks once a minute whether the cache is turned off.
    assert asked(server) == {("GET", "entries"): 2, ("GET", "policy"): 1}
    assert server.objects() == before

    again = run(server, tmp_path / "two", work)
    assert (again["hits"], again["misses"]) == (2, 0)
    assert again["tiers"]["local"]["hits"] == 2
    requests = asked(server)
    assert requests["GET", "entries"] == 0
    assert set(requests) <= {("POST", "writes"), ("GET", "policy")}


def test_leases_that_are_asked_for_ahead(server, tmp_path):
    """Where every answer counts as slow: cold, a lease for each program, as ever; of what is there, none is left."""
    server.reset()
    slow = (
        "from ejcache.stores.tiered.store import TieredStore\n"
        "TieredStore.__init__.__kwdefaults__['slow_seconds'] = 0.0\n"
    )
    cold = run(server, tmp_path / "one", f"{slow}compute([2, 3])\n")
    assert (cold["misses"], cold["stores"], cold["hits"]) == (2, 2, 0)
    taken = [record for record in server.requests if record.method == "POST" and "/leases/" in record.name]
    assert {record.status for record in taken} == {200}
    assert len({record.name for record in taken}) == 2
    # After a miss, a look-up asks for a lease, too: for what is there after all, and for what is not.
    server.clear_requests()
    mixed = run(server, tmp_path / "two", f"{slow}compute([5, 6, 2, 3])\n")
    assert (mixed["hits"], mixed["misses"], mixed["stores"]) == (2, 2, 2)
    taken = {record.name for record in server.requests if record.method == "POST" and "/leases/" in record.name}
    assert len(taken) == 3
    assert [name for name in server.objects() if "/leases/" in name] == []
    assert len(entries(server)) == 4


FIRST_LEASE = """
import threading
from ejcache.coordination.shared_leases import StoreLeases
from ejcache.jax_integration import activate
from ejcache.jax_integration.pipeline import Compiler
from ejcache.stores.shared.store import SharedStore

looks, leased = threading.Event(), threading.Event()

def before(event, owner, name, which):
    original = getattr(owner, name)
    def wrapped(*args):
        if which(*args):
            event.set() if event is not None else None
        return original(*args)
    setattr(owner, name, wrapped)

before(looks, Compiler, "find", lambda *_: True)
before(leased, StoreLeases, "acquire", lambda *_: True)
before(None, activate, "open_cache", lambda *_: looks.wait(60))
before(None, SharedStore, "get", lambda _, key: key.startswith("jit_") and (leased.wait(60) or sys.exit("no lease")))
"""


def test_the_first_lease_is_asked_for_ahead(server, tmp_path):
    """Where the profile of earlier runs was missed slowly, also if the program looked before the store was open."""
    server.reset()
    slow = "TieredStore.__init__.__kwdefaults__['slow_seconds'] = 0.0\n"
    lines = f"{FIRST_LEASE}from ejcache.stores.tiered.store import TieredStore\n{slow}compute([2])\n"
    cold = run(server, tmp_path / "one", lines, EJCACHE_PRELOAD="1")
    assert (cold["misses"], cold["stores"], cold["errors"]) == (1, 1, 0)


def test_a_killed_programs_uploads(server, tmp_path):
    """What a killed program had yet to publish is published by the next one on that host."""
    server.reset()
    server.add_fault("stall", method="POST")
    alone = "from ejcache.cache.reading import CacheReader\nCacheReader.single_flight = lambda *_: None\n"  # no leases
    killed = started(server, tmp_path, f"{alone}compute([5, 6])\nstop_at('stored')\n")
    for line in killed.stdout:
        if line.strip() == "stored":
            break
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert entries(server) == set()
    server.clear_faults()
    counted = run(server, tmp_path, "compute([7])\n")
    assert counted["stores"] == 1
    assert len(entries(server)) == 3


def test_a_directory_between_hosts(server, tmp_path):
    """A directory on a network file system is shared as a bucket is: a second host hits, and has its own copies."""
    network = textwrap.dedent(
        """
        import ejcache.stores.sharing_detection as filesystems
        mounts = list(filesystems.mounts())
        filesystems.mounts = lambda _=None: [*mounts, ("NFS", "nfs4", "rw")]
        """
    ).replace("NFS", os.path.realpath(tmp_path / "nfs"))
    shared = str(tmp_path / "nfs" / "cache")
    work = network + "compute([2, 3])\n"
    cold = run(server, tmp_path / "one", work, JAX_COMPILATION_CACHE_DIR=shared)
    assert (cold["stores"], cold["errors"]) == (2, 0)
    warm = run(server, tmp_path / "two", work, JAX_COMPILATION_CACHE_DIR=shared)
    assert (warm["hits"], warm["misses"], warm["tiers"]["local"]["backfills"]) == (2, 0, 2)
    assert not list((tmp_path / "nfs").rglob("cache.db"))


CASES = [
    ("gone", "start"),
    ("stalling", "start"),
    ("gone", "middle"),
    ("stalling", "middle"),
    ("refusing", "end"),
    ("stalling", "end"),
]


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """What became of a program for each trouble at each moment; several run at once, because most of it is waiting."""

    def suffer(case) -> tuple[dict, str]:
        trouble, moment = case
        with GcsServer() as server:

            def begin() -> None:
                if trouble == "gone":
                    server.stop()
                elif trouble == "stalling":
                    server.add_fault("stall")
                else:
                    server.add_fault("status", status=503)

            lines = "compute([2])\nstop_at('middle')\ncompute([4])\nstop_at('end')\n" + STATS
            if moment == "start":
                begin()
            start = ForkedWithClientsToTheEnd if trouble == "stalling" else ForkedWithClients
            process = started(server, tmp_path_factory.mktemp("disk"), lines, start=start)
            for line in process.stdout:
                if line.strip() == moment:
                    begin()
                process.stdin.write("\n")
                process.stdin.flush()
                if line.strip() == "end":
                    break
            return finished(process)

    with ThreadPoolExecutor(len(CASES)) as pool:
        return dict(zip(CASES, pool.map(suffer, CASES), strict=True))


@pytest.mark.parametrize(("trouble", "moment"), CASES)
def test_trouble_is_the_buckets_own(troubled, trouble, moment):
    """The program is right, ends, keeps what it compiled nearby, and says what failed in at most one sentence.

    Only where storage is silent for more than five seconds, it first says for what it waits.
    """
    counted, err = troubled[trouble, moment]
    said = [line for line in err.splitlines() if not line.startswith("ejcache: waiting for the storage")]
    assert len(err.splitlines()) - len(said) <= (trouble == "stalling")
    assert (counted["hits"], counted["misses"], counted["stores"]) == (0, 2, 2)
    assert "Traceback" not in err
    assert len(said) == (0 if moment == "end" else 1)
    assert (counted["errors"] > 0) is (moment != "end")
    if moment != "end":
        assert "the program goes on without it" in err
