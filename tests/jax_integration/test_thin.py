"""The thin form: a store of ours behind JAX's own cache, on every JAX on which the full form is not proven."""

from __future__ import annotations

import json
import textwrap
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest
from archives import flipped
from buckets import GcsServer
from capabilities import needs
from forking import Forked
from jax.experimental.compilation_cache import compilation_cache
from small_disk import on_small_disk
from soak_turns import some

import ejcache
from ejcache import entry, entry_encoding, jax_integration
from ejcache.jax_integration import forms, is_proven
from ejcache.jax_integration.forms import ChosenForm, Form

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from helpers import Finished

PROGRAM = """
import json, sys, warnings
import jax, jax.numpy as jnp
from jax._src import compilation_cache, compiler, config, lru_cache
{change}
import ejcache
cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
values = [float(jax.jit(lambda x: (jnp.sin(x) * n).sum())(jnp.arange(8.0))) for n in (2, 3)]
stats = ejcache.stats()
print(json.dumps({{"values": values, "hits": stats.hits, "misses": stats.misses, "stores": stats.stores,
                   "active": ejcache.active() is not None}}))
"""
NEXT = 'jax.__version__ = jax.version.__version__ = "99.1.0"'
"""A higher version with the same internals."""


@pytest.fixture
def start(run_python: Callable[..., Finished], tmp_path: Path) -> Callable[..., tuple[dict[str, Any], str]]:
    """Run the program once, with a change of JAX; what it counted, and what it said."""

    def run(change: str = NEXT, place: str | None = None, **options: Any) -> tuple[dict[str, Any], str]:
        text = textwrap.dedent(PROGRAM.format(change=change))
        done = run_python(text, str(tmp_path / "c") if place is None else place, **options)
        return json.loads(done.stdout), done.stderr

    return run


@pytest.mark.parametrize(
    ("version", "proven"),
    [
        ("0.10.0", True),
        ("0.12.0.1", True),
        ("0.12.0+local", True),
        ("0.12.1.dev20270101", False),
        ("0.12.1rc1", False),
        ("0.13.0", False),
        ("0.9.2", False),
        ("0.4.38", False),
        ("1.0", False),
        ("0.100.0", False),
        ("", False),
    ],
)
def test_the_full_form_is_for_releases_of_listed_versions(version, proven):
    """A version that is later, earlier, or no release gets the thin one."""
    assert is_proven(version) is proven


def test_the_installed_jax_gets_the_full_form():
    """The suite runs with it, so it is one of those in the list."""
    assert forms.choose_form() == ChosenForm(Form.FULL, jax.__version__)


SHUFFLED = {
    "module-gone": "sys.modules['jax._src.lib.mlir'] = None",
    "higher-version": NEXT,
    "functions-renamed": """
compiler.read_from_cache, compiler._get_key = compiler._cache_read, compiler._get_cache_key
import types
source = compiler.compile_or_get_cached.__code__
names = {"_cache_read": "read_from_cache"}
compiler.compile_or_get_cached.__code__ = source.replace(co_names=tuple(names.get(n, n) for n in source.co_names))
del compiler._cache_read
""",
    "other-parameters": """
read = compiler._cache_read
compiler._cache_read = lambda *arguments, **named: read(*arguments, **named)
""",
    "flag-gone": "config.config_states.pop('jax_compilation_cache_max_size')",
    "one-function-with-other-parameters": NEXT
    + """
own = compilation_cache.get_file_cache
def get_file_cache(path: str, *, flavour: str = "lru") -> "tuple[CacheInterface, str] | None":
    return own(path)
compilation_cache.get_file_cache = get_file_cache
""",
}


@pytest.mark.parametrize("name", some(SHUFFLED, every=6))
def test_a_jax_of_other_internals_gets_the_thin_form(start, name):
    """All hits in the second start, equal values, and one line that says what it gets and what it lacks."""
    first, said = start(SHUFFLED[name])
    second, _ = start(SHUFFLED[name])
    assert (first["active"], second["hits"], second["misses"]) == (True, first["misses"], 0)
    assert first["misses"] == first["stores"] >= 2
    assert first["values"] == second["values"]
    assert said.count("\n") == said.count("gets the thin form") == 1
    assert "need JAX 0.10 to 0.12" in said


WITHOUT_PLACE = {
    "function-gone": "compilation_cache.own = compilation_cache.get_file_cache\ndel compilation_cache.get_file_cache",
    "another-signature": "compilation_cache.get_file_cache = lambda: None",
    "another-result": """
def get_file_cache(path: str) -> "CacheInterface":
    return lru_cache.LRUCache(path, max_size=-1)
compilation_cache.get_file_cache = get_file_cache
""",
    "interface-with-more": """
import abc
class CacheInterface(compilation_cache.CacheInterface):
    @abc.abstractmethod
    def list(self): ...
compilation_cache.CacheInterface = CacheInterface
""",
    "interface-gone": "del compilation_cache.CacheInterface",
    "never-called": """
def initialize(): pass
compilation_cache._initialize_cache = initialize
""",
    "module-gone": "del sys.modules['jax._src'].compilation_cache; sys.modules['jax._src.compilation_cache'] = None",
}


@pytest.mark.parametrize("name", some(WITHOUT_PLACE, every=7))
def test_a_jax_without_the_one_function_keeps_its_own_cache(run_python, tmp_path, name):
    """Nothing is raised, and it is said once why; `enable` returns a cache all the same."""
    done = run_python(
        f"""
        import sys
        import jax
        from jax._src import compilation_cache, lru_cache
        {NEXT}
        exec({WITHOUT_PLACE[name]!r})
        import ejcache
        for _ in range(2):
            with ejcache.enable({str(tmp_path / "c")!r}):
                print(ejcache.active())
        """
    )
    assert done.stdout.split() == ["None", "None"]
    assert done.stderr.count("JAX's own cache stays in charge") == 1


# -- within this process -----------------------------------------------------------------------------------------------


@pytest.fixture
def thin(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has a JAX that is not in the list."""

    def forget() -> None:
        jax_integration.why_not_full.cache_clear()
        forms.choose_form.cache_clear()
        for name in ejcache.__all__:
            vars(ejcache).pop(name, None)  # what was asked for before stays an attribute, of the form that there was

    forget()
    monkeypatch.setattr(jax_integration, "PROVEN", ("0.1",))
    yield
    ejcache.disable()
    monkeypatch.undo()
    forget()


def compile_one(number: float = 1.0) -> float:
    """Compile a program that this process may have compiled before."""
    jax.clear_caches()
    return float(jax.jit(lambda x: jnp.cos(x).sum() * number)(jnp.arange(6.0)))


@pytest.mark.usefixtures("thin")
def test_flags_are_put_back(tmp_path):
    """JAX goes by our directory and floor while it is enabled, and by its own values after that."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    ejcache.enable(tmp_path / "c")
    assert [getattr(jax.config, name) for name in names] == [str(tmp_path / "c"), 0.01]
    ejcache.disable()
    assert [getattr(jax.config, name) for name in names] == before


@pytest.mark.usefixtures("thin")
@pytest.mark.parametrize(("url", "floor"), [("memory://x", 0.01), ("gs://bucket/x", 0.1)])
def test_there_is_one_floor(url, floor):
    """0.01 s where this host keeps entries, 0.1 s where others read them; XLA's own caches are not below a URL."""
    ejcache.enable(url)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == floor
    assert jax.config.jax_persistent_cache_enable_xla_caches == "none"
    ejcache.disable()
    assert jax.config.jax_persistent_cache_enable_xla_caches != "none"


@pytest.mark.usefixtures("thin")
def test_a_floor_of_the_user_stays(tmp_path, monkeypatch):
    """By call or by variable, and it is JAX that goes by it."""
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 5.0)
    ejcache.enable(tmp_path / "c")
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 5.0
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    monkeypatch.setenv("EJCACHE_MIN_COMPILE_SECONDS", "7")
    ejcache.enable(tmp_path / "c")
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 7.0


@pytest.mark.usefixtures("thin")
def test_nested_blocks_and_disabled(tmp_path):
    """Each block has its place, and none is used in a block of `disabled`."""
    with ejcache.enable(tmp_path / "a", min_compile_seconds=0) as a:
        compile_one()
        with ejcache.enable(tmp_path / "b") as b:
            compile_one()
        with ejcache.disabled():
            compile_one()
        compile_one()
    assert (a.stats().stores, b.stats().stores) == (a.stats().misses, b.stats().misses)
    assert a.stats().hits == a.stats().misses > 0
    assert b.stats().hits == 0
    assert ejcache.active() is None


@pytest.mark.usefixtures("thin")
def test_entries_have_names_of_their_own(tmp_path):
    """JAX's key is a part of the name, and the codec is none: JAX has compressed the bytes."""
    cache = ejcache.enable(tmp_path / "c", min_compile_seconds=0)
    compile_one()
    keys = {info.key for info in cache.entries()}
    assert keys
    assert all("-thin-" in key for key in keys)
    ejcache.disable()
    with ejcache.open_store(str(tmp_path / "c")) as store:
        assert all(b'"codec":"none"' in store.get(key) for key in keys)


@pytest.mark.usefixtures("thin")
def test_another_namespace_is_another_name(tmp_path):
    """What one namespace has stored is no hit in another."""
    for namespace in ("", "new"):
        with ejcache.enable(tmp_path / "c", min_compile_seconds=0, namespace=namespace) as cache:
            compile_one()
            assert cache.stats().hits == 0


@pytest.mark.usefixtures("thin")
def test_a_failure_leaves_jax_its_own_cache(tmp_path, monkeypatch, caplog):
    """In the directory that the program gave to JAX, and it is said once."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    ejcache.enable()
    monkeypatch.setattr("ejcache.jax_integration.thin._Store", None)
    compile_one()
    assert list((tmp_path / "own").glob("*-cache"))
    assert caplog.text.count("JAX's own cache is used") == 1


@pytest.mark.usefixtures("thin")
@pytest.mark.parametrize("name", ["forbid_compile", "key_of", "warm", "would_hit", "target", "autotuned"])
def test_what_needs_more_says_so(name, monkeypatch):
    """Where it is called, and not where it is imported."""
    monkeypatch.delitem(vars(ejcache), name, raising=False)
    with pytest.raises(ejcache.UsageError, match=r"needs JAX 0\.10 to 0\.12"):
        getattr(ejcache, name)(None)
    monkeypatch.delitem(vars(ejcache), name, raising=False)


# -- damage, races and a full disk -------------------------------------------------------------------------------------


DAMAGES = {
    "truncated": lambda data, _: data[: len(data) // 2],
    "flipped": lambda data, _: flipped(data, -320),
    "foreign": lambda _, other: other,
    "no entry": lambda *_: b"not an entry",
    "refused by JAX": lambda data, _: entry_encoding.encode(entry.verify(data), b"no executable"),
}


def replace_all(place, change):
    """Replace each entry by what `change` makes of it and of another one; how many there are."""
    with ejcache.open_store(place) as store:
        keys = sorted(info.key for info in store.entries())
        whole = {key: store.peek(key) for key in keys}
        for key, other in zip(keys, [*keys[1:], keys[0]], strict=True):
            store.replace(key, change(whole[key], whole[other]))
    return len(keys)


@pytest.mark.usefixtures("thin")
@pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry:UserWarning")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_entries_are_misses_and_healed(tmp_path, damage):
    """The values are right, each is counted, and the next start hits what the one before has stored."""
    place = str(tmp_path / "c")
    with ejcache.enable(place, min_compile_seconds=0):
        values = [compile_one(number) for number in (2.0, 3.0)]
    damaged = replace_all(place, damage)
    with ejcache.enable(place, min_compile_seconds=0) as cache:
        assert [compile_one(number) for number in (2.0, 3.0)] == values
        stats = cache.stats()
        assert stats.misses == stats.stores == damaged
    with ejcache.enable(place, min_compile_seconds=0) as cache:
        assert [compile_one(number) for number in (2.0, 3.0)] == values
        assert cache.stats().misses == 0
        assert cache.stats().hits >= damaged


@pytest.mark.usefixtures("thin")
def test_an_error_reaches_the_program_only_if_it_asks(tmp_path):
    """With `raise_errors`, damage is an error of ours."""
    place = str(tmp_path / "c")
    with ejcache.enable(place, min_compile_seconds=0):
        compile_one()
    replace_all(place, DAMAGES["no entry"])
    with ejcache.enable(place, min_compile_seconds=0, raise_errors=True), pytest.raises(ejcache.EntryError):
        compile_one()


@pytest.mark.usefixtures("thin")
def test_contents_are_checked_as_in_jax(tmp_path):
    """Another executable under the key of a program is JAX's own error, when the program is compiled to be compared."""
    place = str(tmp_path / "c")
    with ejcache.enable(place, min_compile_seconds=0):
        compile_one()
    replace_all(place, lambda data, other: entry_encoding.encode(entry.verify(data), entry.decode(other).raw))
    jax.config.update("jax_compilation_cache_check_contents", True)
    jax.config.update("jax_raise_persistent_cache_errors", True)
    with ejcache.enable(place, min_compile_seconds=0), pytest.raises(RuntimeError, match="inconsistency"):
        compile_one()


@pytest.mark.usefixtures("thin")
def test_reset_cache_and_set_cache_dir(tmp_path):
    """A directory that is set later is used once the cache was reset, as in JAX."""
    first = ejcache.enable(tmp_path / "a", min_compile_seconds=0)
    compile_one()
    compilation_cache.set_cache_dir(str(tmp_path / "b"))
    compile_one()
    assert (first.stats().hits, first.stats().stores) == (first.stats().misses, first.stats().misses)
    compilation_cache.reset_cache()
    compile_one()
    assert ejcache.active().url == str(tmp_path / "b")
    assert ejcache.stats().stores == first.stats().stores


@pytest.mark.usefixtures("thin")
def test_a_limit_of_jax_is_ours(tmp_path):
    """Entries are evicted, and with a limit of 0 nothing is kept, not even by JAX."""
    jax.config.update("jax_compilation_cache_max_size", 6_000)
    cache = ejcache.enable(tmp_path / "c", min_compile_seconds=0)
    for number in range(2, 7):
        compile_one(number)
    assert cache.stats().stores > len(list(cache.entries())) > 0
    assert sum(info.size for info in cache.entries()) <= 6_000
    jax.config.update("jax_compilation_cache_max_size", 0)
    compilation_cache.reset_cache()
    compile_one(9)
    assert ejcache.active() is None
    assert not list(tmp_path.glob("**/*-cache"))


def test_two_processes_and_one_that_is_killed(start, tmp_path, run_forked):
    """One of two that start together is killed while it stores; the other, and the next start, have equal values."""
    killed = """
        import os, signal
        from ejcache.cache.policy import CachePolicy, Miss
        from ejcache.cache.writing import EntryWriter
        CachePolicy.read = lambda *_, **__: Miss.ABSENT  # it stores, even if the other was quicker
        write = EntryWriter.write
        def then_die(*arguments, **named):
            write(*arguments, **named)
            os.kill(os.getpid(), signal.SIGKILL)
        EntryWriter.write = then_die
    """
    text = textwrap.dedent(PROGRAM.format(change=NEXT + textwrap.dedent(killed)))
    with ThreadPoolExecutor(2) as pool:
        died = pool.submit(run_forked, text, str(tmp_path / "c"), check=False)
        first, _ = pool.submit(start, start=Forked).result()
    assert died.result().returncode == -9
    second, _ = start(start=Forked)
    assert second["values"] == first["values"]
    assert (second["hits"], second["misses"]) == (first["hits"] + first["misses"], 0)


def test_both_forms_in_one_cache(start):
    """Neither takes an entry of the other, and both hit their own."""
    for change in (NEXT, ""):
        first, said = start(change, start=Forked)
        assert ("gets the thin form" in said) == (change == NEXT)
        second, _ = start(change, start=Forked)
        assert first["hits"] == second["misses"] == 0
        assert first["values"] == second["values"]


def test_a_bucket(start, tmp_path):
    """Another host has what the first has published; a bucket that is down costs no value."""
    with GcsServer() as server:
        variables = {"STORAGE_EMULATOR_HOST": server.url}
        url = "gs://bucket/prefix"
        first, _ = start(place=url, env={**variables, "HOME": str(tmp_path / "one")}, start=Forked)
        second, _ = start(place=url, env={**variables, "HOME": str(tmp_path / "two")}, start=Forked)
    third, _ = start(place=url, env={**variables, "HOME": str(tmp_path / "three")}, start=Forked)
    assert (second["hits"], second["misses"]) == (first["misses"], 0)
    assert first["values"] == second["values"] == third["values"]


@needs("mount")
def test_a_full_disk(tmp_path):
    """The values are right, and it is said once that nothing is stored."""
    program = f"""
import contextlib
import jax
{NEXT}
with open("filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
    while True:
        filler.write(b"x" * 4096)
import ejcache
ejcache.enable("c", min_compile_seconds=0)
big = jax.numpy.arange(200_000.0)
print(float(jax.jit(lambda: (big * 2).sum())()))
print(ejcache.stats().stores, ejcache.stats().errors > 0)
"""
    disk = tmp_path / "disk"
    disk.mkdir()
    lines = on_small_disk(disk, program).split()
    assert float(lines[0]) == pytest.approx(4e10, rel=1e-3)
    assert lines[2] == "True"
