"""Preload: what the last run used is loaded before it is asked for, and nothing else changes."""

from __future__ import annotations

import json
import textwrap
import threading
import time
from collections import Counter
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from archives import flipped

import ejcache
from ejcache import entry
from ejcache.cache.reading import CacheReader
from ejcache.cache.writing import EntryWriter
from ejcache.jax_integration import activate
from ejcache.jax_integration.preload import background_loader, preloader
from ejcache.jax_integration.preload.run_profile import RUN_PROFILE_KIND, decode_profile
from ejcache.jax_integration.seam import backends
from ejcache.keys.key import is_side_key
from ejcache.stores.local.store import LocalStore
from ejcache.util.scheduler import Scheduler

WAIT = 60.0
X = np.arange(4.0, dtype=np.float32)


@pytest.fixture(autouse=True)
def _preload(monkeypatch):
    monkeypatch.setenv("EJCACHE_PRELOAD", "1")


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture
def loads(monkeypatch):
    """Loads in the background: each tells `begun`, and goes on when `may_go` is set, as it is at first."""
    return Loads(monkeypatch)


class Loads:
    def __init__(self, monkeypatch):
        self.programs = 0
        self.begun = threading.Semaphore(0)
        self.may_go = threading.Event()
        self.may_go.set()
        load = backends.load_ahead

        def load_ahead(*arguments):
            self.programs += 1
            self.begun.release()
            assert self.may_go.wait(WAIT)
            return load(*arguments)

        monkeypatch.setattr(backends, "load_ahead", load_ahead)


def start(directory, **settings):
    jax.clear_caches()
    return ejcache.enable(directory, min_compile_seconds=0, **settings)


def run(factors):
    """Compile and run one program for each factor; the values are checked."""
    for factor in factors:
        value = jax.jit(lambda x, factor=factor: jax.numpy.sin(x) * factor)(X)
        assert np.allclose(value, np.sin(X) * factor)


def first_run(directory, factors, **settings):
    with start(directory, **settings):
        run(factors)
        settle()  # a run that ends before its profile was read writes none


def settle():
    """Wait until this process loads nothing in the background, and plans nothing."""
    preloader = activate.compiler_in_use().preloader
    assert preloader.drain(WAIT)
    return preloader


def profiles(directory):
    """Every run profile in the cache, and its key."""
    with LocalStore(directory) as store:
        keys = [info.key for info in store.entries() if info.key.startswith("run_profile-")]
        return {key: decode_profile(ejcache.entry.decode(store.peek(key), kind=RUN_PROFILE_KIND).raw) for key in keys}


def amounts(cache):
    return {name.removeprefix("preload_"): n for name, n in cache.stats().amounts.items() if name.startswith("preload")}


def test_programs_of_the_last_run_are_there_when_they_are_asked_for(directory):
    """They are hits, loaded in the background, and what the asking thread waits for is no load."""
    first_run(directory, [1, 2, 3])
    with start(directory) as cache:
        settle()
        run([1, 2, 3])
        assert cache.stats().hits == 3
        assert cache.stats().misses == 0
        assert amounts(cache)["hits"] == amounts(cache)["loaded"] == 3


def test_a_profile_on_this_host_is_read_by_the_thread_that_enables(directory, loads, monkeypatch):
    """With the small entries, decoded, so that the loading thread only loads."""
    first_run(directory, [1, 2, 3])
    loads.may_go.clear()
    decoded = []
    decode = entry.decode

    def note_decoded(*arguments, **named):
        found = decode(*arguments, **named)
        if found.header.kind == "executable":
            decoded.append(threading.current_thread())
        return found

    monkeypatch.setattr(entry, "decode", note_decoded)
    with start(directory):
        assert decoded == [threading.current_thread()] * 3
        loads.may_go.set()
        settle()
        assert loads.programs == 3
    assert len(decoded) == 3


def test_the_first_run_hashes_no_library_in_the_thread_that_enables(directory, monkeypatch):
    """There is nothing to load, and hashing may take seconds."""
    asked = []
    environment = preloader.environment

    def note(*arguments):
        asked.append(threading.current_thread())
        return environment(*arguments)

    monkeypatch.setattr(preloader, "environment", note)
    with start(directory):
        settle()
    assert len(asked) == 1
    assert asked[0] is not threading.current_thread()


def test_a_cache_that_cannot_be_opened_enables_as_ever(tmp_path):
    """Reading the profile fails before the program runs, and the program does not notice."""
    (tmp_path / "file").write_bytes(b"")
    with start(str(tmp_path / "file" / "cache")):
        run([1])


@pytest.mark.parametrize("preload", [True, False])
def test_who_asks_for_errors_gets_the_one_that_preload_has_met(tmp_path, preload):
    """The cache cannot be opened, which planning finds out first: each program raises why, as with JAX's own cache."""
    (tmp_path / "file").write_text("")
    with start(str(tmp_path / "file"), raise_errors=True, preload=preload):
        for _ in range(2):
            with pytest.raises(ejcache.StoreError, match="file"):
                run([1.0])


def test_a_load_that_takes_long_is_not_begun_anew(directory, loads, monkeypatch):
    """The thread that asks waits until it is done: no patience ends, as if the clock stood behind each of them."""

    waits = threading.Event()

    class Impatient(threading.Event):
        def wait(self, timeout=None):
            waits.set()
            return self.is_set() if timeout is not None else super().wait()

    first_run(directory, [1])
    clock = SimpleNamespace(Event=Impatient, RLock=threading.RLock, stack_size=threading.stack_size)
    monkeypatch.setattr(background_loader, "threading", clock)
    loads.may_go.clear()
    with start(directory) as cache:
        assert loads.begun.acquire(timeout=WAIT)
        asking = threading.Thread(target=run, args=([1],))
        asking.start()
        assert waits.wait(WAIT)
        loads.may_go.set()
        asking.join(WAIT)
        assert amounts(cache)["hits"] == 1
        assert loads.programs == cache.stats().hits == 1


def test_a_program_whose_turn_has_not_come_is_loaded_by_the_one_who_asks(directory, loads, monkeypatch):
    """The background does not load it as well."""
    first_run(directory, [1, 2])
    loads.may_go.clear()
    monkeypatch.setattr("ejcache.jax_integration.preload.background_loader.cores", lambda: 2)
    with start(directory) as cache:
        assert loads.begun.acquire(timeout=WAIT)
        run([2])
        assert cache.stats().hits == 1
        loads.may_go.set()
        run([1])
        settle()
        assert cache.stats().hits == 2
        assert amounts(cache)["hits"] == loads.programs == 1


def test_what_is_loaded_and_not_asked_for_is_no_use(directory):
    """`ls` and eviction see one use of what the program asked for, and none of what was only loaded."""
    first_run(directory, [1, 2])
    with LocalStore(directory) as store:
        before = {info.key: info.last_used for info in store.entries() if not is_side_key(info.key)}
    with start(directory):
        settle()
        run([1])
    with LocalStore(directory) as store:
        used = [info.last_used > before[info.key] for info in store.entries() if info.key in before]
    assert sorted(used) == [False, True]


def test_unused_programs_are_released_and_leave_the_profile(directory):
    """After three runs that did not use it, a program is no longer loaded."""
    first_run(directory, [1, 2])
    for loaded in (2, 2, 2, 1, 1):
        with start(directory) as cache:
            preloader = settle()
            run([1])
        assert (amounts(cache)["loaded"], amounts(cache)["hits"]) == (loaded, 1)
        assert amounts(cache).get("unused", 0) == loaded - 1
        assert preloader.loader.held == 0


def test_the_memory_that_is_held_stays_below_its_limit(directory, loads, monkeypatch):
    """The next program is loaded when one has been handed over."""
    first_run(directory, range(1, 5))
    (profile,) = profiles(directory).values()
    (uses,) = profile.environments.values()
    limit = 2 * 26 * max(use.size for use in uses)
    monkeypatch.setattr("ejcache.jax_integration.preload.background_loader.LOADED_BYTES", limit)
    with start(directory) as cache:
        preloader = settle()
        assert loads.programs == 2
        for factor in range(1, 5):
            run([factor])
            assert preloader.loader.held <= limit
            settle()
        assert amounts(cache)["hits"] == 4


def await_release(cache):
    """Wait until the one program that was loaded has been released."""
    deadline = time.monotonic() + WAIT
    while amounts(cache).get("unused") != 1:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert activate.compiler_in_use().preloader.loader.held == 0


def test_what_nobody_asks_for_is_released(directory, monkeypatch):
    """After a time without requests no memory is held."""
    monkeypatch.setattr("ejcache.jax_integration.preload.background_loader.IDLE_SECONDS", 0.01)
    first_run(directory, [1])
    with start(directory) as cache:
        settle()
        await_release(cache)
        run([1])
        assert cache.stats().hits == 1


def test_what_is_being_loaded_when_nobody_has_asked_for_long_is_released(directory, loads, monkeypatch):
    """The time is up while the load is under way; it is released when it has ended."""
    monkeypatch.setattr("ejcache.jax_integration.preload.background_loader.IDLE_SECONDS", 0.01)
    first_run(directory, [1])
    loads.may_go.clear()
    looked = threading.Semaphore(0)
    later = Scheduler.later

    def note(scheduler, seconds, task):
        if seconds == background_loader.IDLE_SECONDS:
            looked.release()
        return later(scheduler, seconds, task)

    monkeypatch.setattr(Scheduler, "later", note)
    with start(directory) as cache:
        assert loads.begun.acquire(timeout=WAIT)
        assert looked.acquire(timeout=WAIT)  # planned; the one thread looks at the time when it has loaded the program
        assert "unused" not in amounts(cache)
        loads.may_go.set()
        await_release(cache)


@pytest.mark.parametrize("payload", [b"", b"not an entry", b"EJC1" + b"\xff" * 100])
def test_a_damaged_profile_is_none_and_is_replaced(directory, payload, loads):
    """The run after it preloads again."""
    first_run(directory, [1])
    (key,) = profiles(directory)
    with LocalStore(directory) as store:
        store.replace(key, payload)
    with start(directory) as cache:
        settle()
        run([1])
        assert cache.stats().hits == 1
        assert cache.stats().errors == loads.programs == 0
    assert key in profiles(directory)


def test_a_damaged_entry_is_a_miss_of_the_request(directory):
    """Preloading neither counts nor quarantines it; the request does, once."""
    first_run(directory, [1, 2])
    with LocalStore(directory) as store:
        (key, *_) = [info.key for info in store.entries() if info.key.startswith("jit")]
        store.replace(key, flipped(store.peek(key), -8))
    with start(directory) as cache:
        settle()
        assert cache.stats().corrupt == 0
        run([1, 2])
        assert (cache.stats().corrupt, cache.stats().misses_by_reason) == (1, {"corrupt": 1})
        assert (cache.stats().hits, cache.stats().stores) == (1, 1)


def test_an_entry_that_is_gone_costs_nothing(directory):
    """It was evicted: the program compiles as ever."""
    first_run(directory, [1])
    with LocalStore(directory) as store:
        for key in [info.key for info in store.entries() if info.key.startswith("jit")]:
            store.delete(key)
    with start(directory) as cache:
        settle()
        run([1])
        assert cache.stats().misses_by_reason == {"absent": 1}
        assert cache.stats().errors == 0


@pytest.mark.parametrize("broken", ["raw_options", "load_ahead"])
def test_no_failure_of_preload_reaches_the_program(directory, monkeypatch, broken):
    """Neither when it records nor when it hands over."""
    first_run(directory, [1])
    with start(directory) as cache:
        settle()
        monkeypatch.setattr(backends, broken, None)
        run([1, 2])
        assert (cache.stats().hits, cache.stats().misses, cache.stats().errors) == (1, 1, 0)


@pytest.mark.parametrize("settings", [{"preload": False}, {"check_contents": True}])
def test_settings_that_switch_it_off(directory, loads, settings):
    """Checks want to see what is stored, so nothing is loaded before they look."""
    first_run(directory, [1])
    with start(directory, **settings):
        settle()
        run([1])
    assert loads.programs == 0


def test_a_read_only_cache_is_preloaded_and_no_profile_is_written(directory):
    """The profile that is there is used."""
    first_run(directory, [1])
    before = profiles(directory)
    with start(directory, read_only=True) as cache:
        settle()
        run([1, 2])
        assert amounts(cache)["hits"] == 1
    assert profiles(directory) == before


def test_another_cache_is_not_preloaded_from_this_one(directory, tmp_path):
    """A program that changes its cache gets the entries of the one that it names."""
    first_run(directory, [1])
    with start(directory) as cache:
        settle()
        other = ejcache.enable(str(tmp_path / "other"))
        run([1])
        assert (cache.stats().hits, other.stats().misses) == (0, 1)


def test_a_program_that_clears_its_backends_begins_with_none(program, directory):
    """What the next backend holds is what the program compiled for it; the first one's profile and results stay."""
    clearing = """
        import jax.extend, jax._src.api
        for _ in range(2):
            assert float(jax.jit(lambda x: jax.numpy.tanh(x) * 3)(1.0)) > 2
            jax._src.api.clear_backends()
            assert jax.extend.backend.get_backend().live_executables() == []
    """
    program(clearing)
    before = profiles(directory)
    counted, _ = program(LOADED, clearing)
    assert counted["preload_hits"] == 1
    assert counted["hits"] == 3
    assert profiles(directory).keys() == before.keys()


def test_a_deep_program_is_not_loaded_by_a_thread_with_a_small_stack(program):
    """XLA descends through it, and the process would end; the thread that asks for it loads it."""
    small = "import threading; threading.stack_size(128 * 1024)"
    deep = PROGRAM.replace(
        "value = ",
        """
    def product(x):
        for _ in range(100):
            x = jax.numpy.sin(x) @ x
        return x

    jax.jit(product)(np.ones((2, 2), np.float32))
    value = """,
    )
    program(text=deep)
    counted, _ = program(small, LOADED, text=deep)
    assert (counted["hits"], counted["preload_hits"]) == (2, 1)


def test_quick_programs_are_in_the_profile_and_are_not_loaded(directory, loads):
    """They are marked, because no storage has them."""
    with ejcache.enable(directory, min_compile_seconds=1000):
        jax.clear_caches()
        run([1])
        settle()
    (profile,) = profiles(directory).values()
    ((use,),) = profile.environments.values()
    assert use.quick > 0
    assert not use.stored
    with start(directory):
        settle()
    assert loads.programs == 0


# -- in processes of their own ---------------------------------------------------------------------------------------

PROGRAM = """
    import json, os, sys, time
    import jax, numpy as np
    import ejcache

    cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
    {before}
    value = jax.jit(lambda x: jax.numpy.cos(x) * {factor})(np.arange(4, dtype=np.float32))
    assert np.allclose(value, np.cos(np.arange(4)) * {factor}), value
    {after}
    # On a busy machine a program this short ends before its profile is read, and then it writes none.
    compiler = sys.modules["ejcache.jax_integration.activate"].compiler_in_use()
    assert compiler is None or compiler.preloader.drain(60)
    print(json.dumps(dict(cache.stats().amounts)))
"""

LOADED = """
    jax.devices()
    for _ in range(60_000):
        if cache.stats().amounts.get("preload_loaded"):
            break
        time.sleep(0.001)
"""


@pytest.fixture
def program(run_forked, directory, tmp_path):
    """Run a script, whose path names its profile."""

    def run(*before, after="", factor="2", text=PROGRAM, env=None):
        path = tmp_path / "program.py"
        whole = textwrap.dedent(text)
        begin = "\n".join(textwrap.dedent(part) for part in before)
        for name, part in (("{before}", begin), ("{after}", after), ("{factor}", factor)):
            whole = whole.replace(name, textwrap.dedent(part).strip())
        path.write_text(whole)
        done = run_forked(path, directory, env=env)
        return json.loads(done.stdout.splitlines()[-1]), done

    return run


CALLBACK = PROGRAM.replace(
    "jax.numpy.cos(x) * {factor}",
    "jax.pure_callback(lambda y: np.cos(y) * {factor}, jax.ShapeDtypeStruct((4,), np.float32), x)",
)


def test_programs_with_host_callbacks_are_never_loaded_ahead(program, directory):
    """Without its callbacks such a program ends the process; the other programs of the run are preloaded."""
    other = "jax.jit(lambda x: x * 7)(1.0)"
    for _ in range(2):
        program(other, text=CALLBACK)
    for profile in profiles(directory).values():
        for uses in profile.environments.values():
            assert [use.key.partition("-")[0] for use in uses] == ["jit__lambda"]
            assert len(uses) == 1
    counted, _ = program(LOADED, other, text=CALLBACK)
    assert counted["preload_loaded"] == counted["preload_hits"] == 1


def test_another_device_is_no_hit_of_the_preload(program):
    """The key is the same for each device; what was loaded for the first one is dropped."""
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    place = "jax.config.update('jax_default_device', jax.devices()[{}])"
    check = "assert next(iter(value.devices())).id == {}"
    program(place.format(0), env=env)
    counted, _ = program(LOADED, place.format(1), env=env, after=check.format(1))
    assert (counted["hits"], counted["preload_unused"], counted.get("preload_hits", 0)) == (1, 1, 0)


def test_a_forked_child_preloads_nothing_and_works(program):
    """What the parent has loaded, or is loading, is not used in the child; the profile is the parent's."""
    child = """
        from ejcache.jax_integration.activate import compiler_in_use
        pid = os.fork()
        if pid == 0:
            compiler_in_use().preloader.close()
            os._exit(0 if compiler_in_use().preloader.loader is None else 1)
        assert os.waitpid(pid, 0)[1] == 0
    """
    unwritten = "assert not any(info.key.startswith('run_profile-') for info in cache.entries())"
    program(after=textwrap.dedent(child) + unwritten)
    counted, _ = program(LOADED, child)
    assert counted["preload_hits"] == 1


def test_a_child_that_is_forked_while_an_entry_is_loaded_works(program):
    """The fork waits for the load that is under way; the child reads the cache, and the parent's load is a hit."""
    forking = """
        import threading
        from ejcache.jax_integration.seam import backends

        load, begun, forks, ended = backends.load_ahead, threading.Event(), threading.Event(), []

        def load_ahead(*arguments):
            begun.set()
            assert forks.wait(60)
            loaded = load(*arguments)
            ended.append(True)
            return loaded

        backends.load_ahead = load_ahead
        # What is registered last is called first.
        os.register_at_fork(before=forks.set)
        key = next(info.key for info in cache.entries())
        jax.devices()
        assert begun.wait(60)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if ended and cache.get(key) else 1)
        assert ended
        assert os.waitpid(pid, 0)[1] == 0
    """
    program()
    counted, _ = program(forking)
    assert counted["preload_hits"] == counted["hits"] == 1


def test_a_program_may_end_while_entries_are_being_loaded(program):
    """It ends at once, as it would without them."""
    many = "[jax.jit(lambda x: x * each)(1.0) for each in range(12)]"
    program(many)
    _, done = program(text=PROGRAM.replace("value = ", "jax.devices(); print('{}'); sys.exit(); value = "))
    assert done.stderr == ""


def test_a_process_that_never_compiles_leaves_the_profile_alone(program, directory):
    """It says nothing about what the program uses."""
    program()
    before = profiles(directory)
    program(text=PROGRAM.replace("value = ", "jax.devices(); print('{}'); sys.exit(); value = "))
    assert profiles(directory) == before


def test_pgle_variants_are_preloaded_as_they_are_asked_for(program):
    """JAX asks for the optimised variant with the options of the plain one, and for the one to be profiled."""
    env = {"JAX_ENABLE_PGLE": "1", "JAX_PGLE_PROFILING_RUNS": "1"}
    several = """
        f = jax.jit(lambda x: jax.numpy.tanh(x) * 3)
        values = [np.asarray(f(np.arange(4, dtype=np.float32))) for _ in range(4)]
        assert all(np.array_equal(value, values[0]) for value in values)
    """
    program(env=env, after=several)
    counted, _ = program(LOADED, env=env, after=several)
    assert counted["hits"] >= 1
    assert counted.get("errors", 0) == 0


def test_a_miss_asks_once_whether_it_is_stored_and_where(directory, monkeypatch):
    """The publisher asks; the policy and preload are told."""
    asked = Counter()
    for kind, name in ((EntryWriter, "why_not_stored"), (CacheReader, "is_local_only")):
        original = getattr(kind, name)

        def counted(*arguments, name=name, original=original):
            asked[name] += 1
            return original(*arguments)

        monkeypatch.setattr(kind, name, counted)
    with start(directory) as cache:
        run([1.75])
        settle()
        assert cache.stats().stores >= 1
        assert asked == {"why_not_stored": cache.stats().stores, "is_local_only": cache.stats().stores}
