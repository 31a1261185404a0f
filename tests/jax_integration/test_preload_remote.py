"""Preload from a bucket: few round trips, none for what is known to be quick, and an end at the first refusal."""

from __future__ import annotations

import json
import textwrap
import time

import pytest

import ejcache.stores.local.store
from ejcache.entry import decode
from ejcache.jax_integration.preload.run_profile import decode_profile
from ejcache.stores.base import TwoTiers
from ejcache.stores.memory import MemoryStore
from ejcache.stores.shared.store import SharedStore
from ejcache.stores.tiered.store import TieredStore

PROGRAM = """
    import json, sys
    import jax, numpy as np
    import ejcache
    from ejcache.settings.table import Floors

    if sys.argv[1:] == ["all quick"]:
        # However slow the machine is, each program is above the one floor and below the others.
        Floors.of = classmethod(lambda cls, settings: cls(keep=0.0, publish=1000.0, ask=1000.0))
    cache = ejcache.enable("gs://bucket/a", {floor})
    jax.devices()
    # A busy machine reads the profile late; then the requests for the first programs, or the exit, do not wait for it.
    assert ejcache.jax_integration.activate.compiler_in_use().preloader.drain(60)
    x = np.arange(6, dtype=np.float32)
    for number in range({programs}):
        assert np.array_equal(jax.jit(lambda: x * number)(), x * number), number
    print(json.dumps(dict(cache.stats().amounts)))
"""


@pytest.fixture
def program(bucket, run_client, tmp_path):
    """Run one script with its cache in the bucket, on a host with the local tier of this name; what it counted."""

    def run(host, *arguments, floor="min_compile_seconds=0", programs=3, **env):
        path = tmp_path / "program.py"
        text = PROGRAM.replace("{floor}", floor).replace("{programs}", str(programs))
        path.write_text(textwrap.dedent(text))
        variables = {"EJCACHE_PRELOAD": "1", "EJCACHE_LOCAL_DIR": str(tmp_path / host), **env}
        done = run_client(path, *arguments, env=variables)
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def reads(bucket):
    """Requests for entries and profiles since the last look."""
    paths = [record.path for record in bucket.requests if record.method == "GET" and "entries" in record.path]
    bucket.clear_requests()
    return paths


def profile_in(bucket):
    (data,) = [data for name, data in bucket.objects().items() if "run_profile-" in name]
    return decode_profile(decode(data).raw)


def test_a_new_host_fetches_the_profile_and_then_the_entries(program, bucket):
    """One request for the profile, one for each entry; another start on that host makes none."""
    program("one")
    reads(bucket)
    counted = program("two")
    assert counted["preload_hits"] == counted["hits"] == 3
    assert len(reads(bucket)) == 4
    counted = program("two")
    assert counted["preload_hits"] == 3
    assert reads(bucket) == []


def test_a_new_host_asks_for_nothing_that_is_known_to_be_quick(program, bucket):
    """What other hosts compiled too quickly to publish it is in the profile."""
    program("one", floor="min_compile_seconds=1000")
    reads(bucket)
    (uses,) = profile_in(bucket).environments.values()
    assert len(uses) == 3
    assert all(use.quick and not use.stored for use in uses)
    counted = program("two", floor="min_compile_seconds=1000")
    # What took longer than 0.1 s here another host may have published.
    slow = sum(use.quick >= 0.1 for use in uses)
    # It is asked for here, unless this process knows by then that programs of its size are quick.
    asked = 3 - counted.get("miss_quick", 0)
    assert asked <= slow
    assert len(reads(bucket)) == 1 + asked


def test_a_new_host_asks_for_nothing_that_stayed_on_another_host(program, bucket):
    """On the default floors quick programs are stored on their own host only, and the profile says so."""
    program("one", "all quick", floor="")
    reads(bucket)
    (uses,) = profile_in(bucket).environments.values()
    assert [use.stored and 0 < use.quick < 1000 for use in uses] == [True] * 3
    counted = program("two", "all quick", floor="")
    assert counted["miss_quick"] == 3
    assert len(reads(bucket)) == 1


def test_a_bucket_that_fails_costs_the_preload_only(program, bucket):
    """The programs compile as without a cache."""
    program("one")
    bucket.add_fault("status", status=503)
    counted = program("two", programs=1)
    assert counted["misses"] == 1
    assert counted.get("preload_loaded", 0) == 0


# -- fetching ahead --------------------------------------------------------------------------------------------------


@pytest.fixture
def tiered(bucket, tmp_path):
    from buckets import gcs_bucket

    store = TieredStore(
        ejcache.stores.local.store.LocalStore(tmp_path / "tier"),
        SharedStore(gcs_bucket(bucket)),
        scratch=tmp_path / "scratch",
    )
    yield store
    store.close()


def fill(tiered, number):
    keys = [f"k{each}" for each in range(number)]
    for key in keys:
        tiered.shared.put(key, key.encode())
    return keys


def test_entries_are_brought_here(tiered):
    """Those that are here are known first; each is asked for once, and one that does not exist is not here."""
    assert isinstance(tiered, TwoTiers)
    keys = fill(tiered, 5)
    tiered.get(keys[3])
    found = list(tiered.prefetch([*keys, "none"], requests=4, wanted=lambda _: True))
    assert found[0] == (keys[3], True)
    assert dict(found) == {**dict.fromkeys(keys, True), "none": False}
    assert all(tiered.local.contains(key) for key in keys)


def test_what_nobody_wants_any_more_is_not_fetched(tiered):
    """The program has asked for it meanwhile, or has ended."""
    keys = fill(tiered, 3)
    found = dict(tiered.prefetch(keys, requests=2, wanted=lambda key: key == "k1"))
    assert found == {"k0": False, "k1": True, "k2": False}
    assert not tiered.local.contains("k0")


@pytest.mark.parametrize("status", [429, 503, 403])
def test_the_first_refusal_ends_it(tiered, bucket, status):
    """A bucket that asks to slow down, or refuses, is asked for nothing more."""
    keys = fill(tiered, 40)
    bucket.clear_requests()
    throttled = status != 403
    bucket.add_fault("status", status=status, method="GET", **({"count": 1} if throttled else {}))

    def wanted(key):
        # The other thread makes its request when the first one was throttled; a refusal it meets itself.
        deadline = time.monotonic() + 60
        while throttled and key != keys[0] and not tiered.shared.failed_tries():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return True

    found = dict(tiered.prefetch(keys, requests=2, wanted=wanted))
    assert len(found) == 40
    assert sum(found.values()) <= 3
    assert len(bucket.requests) <= 5


def test_memory_is_a_local_tier_too(bucket):
    """Without a disk, entries are brought into memory."""
    from buckets import gcs_bucket

    with TieredStore(MemoryStore(), SharedStore(gcs_bucket(bucket))) as store:
        keys = fill(store, 3)
        assert all(here for _, here in store.prefetch(keys, requests=2, wanted=lambda _: True))


def test_one_process_of_a_host_fetches_many_at_once(tiered, tmp_path):
    """Another one that has waited for long makes its requests one by one."""
    from ejcache.stores.tiered.host_fetches import HostFetches
    from ejcache.util.locks import exclusive

    fetches = HostFetches(tmp_path / "locks", patience=0.01)
    with fetches.many() as alone:
        assert alone
    with exclusive(tmp_path / "locks" / "many.lock", deadline=time.monotonic() + 60), fetches.many() as alone:
        assert not alone
    with HostFetches(None).many() as alone:
        assert alone
