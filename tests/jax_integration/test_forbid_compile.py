"""`forbid_compile`: what the cache holds runs, and what it does not raises before anything is compiled."""

from __future__ import annotations

import asyncio
import threading
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cli_helpers import ejcache as command_line
from jobs import run_job

import ejcache
from ejcache.cache.reading import CacheReader

PACKAGE = str(Path(ejcache.__file__).parent)
X = np.ones((4, 4), np.float32)
Y = np.ones((5, 5), np.float32)


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """The number of programs that XLA has compiled in this test."""
    jax.clear_caches()
    made = []
    client = type(jax.devices()[0].client)
    original = client.compile_and_load

    def counting(*arguments, **named):
        made.append(1)
        return original(*arguments, **named)

    monkeypatch.setattr(client, "compile_and_load", counting)
    yield made
    ejcache.disable()


@pytest.fixture
def cache(tmp_path):
    return ejcache.enable(str(tmp_path / "cache"), min_compile_seconds=0)


@jax.jit
def step(x):
    return jnp.sin(x @ x)


def test_a_hit_runs_and_a_miss_raises(cache, compiled):
    """After `clear_caches`, the stored shape loads within the block; another shape raises, and XLA compiles nothing."""
    expected = np.asarray(step(X))
    jax.clear_caches()
    before = len(compiled)
    with ejcache.forbid_compile():
        assert np.asarray(step(X)).tobytes() == expected.tobytes()
        with pytest.raises(ejcache.CompileForbiddenError):
            step(Y)
        with pytest.raises(ejcache.CompileForbiddenError):
            step.lower(Y).compile()
    assert len(compiled) == before
    assert cache.stats().skipped == {"forbidden": 2}
    step(Y)
    assert len(compiled) == before + 1


def test_the_error_says_what_why_says(cache):
    """The message has the sentence of `ejcache why`, the program's name, the user's line, and what to do."""
    step(X)
    with ejcache.forbid_compile(), pytest.raises(ejcache.CompileForbiddenError) as raised:
        step(Y)
    error = raised.value
    sentence = (
        "jit_step would be compiled because argument x changed: f32[4,4] -> f32[5,5] (beside the call with f32[4,4])"
    )
    assert error.sentence == sentence
    assert error.program == "jit_step"
    assert error.caller.startswith(f"{__file__}:")
    for part in (sentence, error.caller, "compilations are forbidden here", "`ejcache why jit_step`"):
        assert part in str(error)
    assert isinstance(error, ejcache.EjcacheError)
    (said,) = command_line("why", "jit_step", "--dir", cache.url, "--json").json["explanations"]
    told = f"jit_step would be compiled because {said['sentence']} ({said['compared']})"
    assert (told, said["outcome"]) == (sentence, "forbidden")
    shown = command_line("why", "jit_step", "--dir", cache.url).out
    assert "by ejcache.forbid_compile" in shown
    # What was refused is not what the compilation is compared with, nor the same again.
    step(Y)
    assert ejcache.why("jit_step")[0].text == sentence.replace("would be", "was")


def test_no_frame_of_ours(cache):
    """The traceback shows the program's lines, and none of ours, with a cache and without one, decorated or not."""
    guarded = ejcache.forbid_compile()(lambda: step(X))
    for enabled in (True, False):
        if not enabled:
            ejcache.disable()
        with pytest.raises(ejcache.CompileForbiddenError) as raised:
            guarded()
        printed = "".join(traceback.format_exception(raised.value))
        assert __file__ in printed
        assert f'File "{PACKAGE}' not in printed


def test_without_a_cache_everything_is_forbidden(compiled):
    """Without a cache each compilation raises and says that none is enabled; what is compiled in the process runs."""
    step(X)
    before = len(compiled)
    with ejcache.forbid_compile():
        step(X)
        with pytest.raises(ejcache.CompileForbiddenError, match="no cache is enabled"):
            step(Y)
    assert len(compiled) == before
    step(Y)


@pytest.mark.parametrize("way", ["switched off", "disabled()"])
def test_a_cache_that_is_switched_off(cache, way, compiled):
    """Where caching is off, the refusal says so."""
    step(X)
    jax.clear_caches()
    off = ejcache.enable(max_size=0) if way == "switched off" else ejcache.disabled()
    with off, ejcache.forbid_compile(), pytest.raises(ejcache.CompileForbiddenError, match="switched off"):
        step(X)


def test_blocks_nest_and_can_be_entered_again(cache):
    """Compilations are forbidden until the outermost block ends, also by one guard that is entered twice."""
    guard = ejcache.forbid_compile()
    with guard:
        with guard, ejcache.forbid_compile():
            pass
        with pytest.raises(ejcache.CompileForbiddenError):
            step(X)
    step(X)
    with guard, pytest.raises(ejcache.CompileForbiddenError):
        step(Y)
    step(Y)


def test_a_block_that_raises_ends(cache):
    """An exception leaves the block as its end does."""
    with pytest.raises(ZeroDivisionError), ejcache.forbid_compile():
        _ = 1 / 0
    step(X)


def test_a_decorator(cache):
    """A decorated function is a block at each call, nested calls included, keeps its name, and gives its value."""

    @ejcache.forbid_compile()
    def serve(x, depth=2):
        """Docstring."""
        return serve(x, depth - 1) if depth else step(x)

    with pytest.raises(ejcache.CompileForbiddenError):
        serve(X)
    expected = step(X)
    jax.clear_caches()
    assert np.array_equal(serve(X), expected)
    assert (serve.__name__, serve.__doc__) == ("serve", "Docstring.")


def test_functions_that_run_later_are_refused():
    """A decorated generator or asynchronous function would run outside the block, so that it is a usage error."""

    async def serve():
        pass

    def serving():
        yield

    for function in (serve, serving):
        with pytest.raises(ejcache.UsageError, match=r"with ejcache\.forbid_compile"):
            ejcache.forbid_compile()(function)
    asyncio.run(serve())


def in_thread(work):
    """What `work` returns or raises in another thread."""
    results = []

    def run():
        try:
            results.append(work())
        except Exception as exc:
            results.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def test_other_threads_may_compile(cache):
    """The block holds for the thread that entered it; with `everywhere`, for all threads until it ends."""
    with ejcache.forbid_compile():
        assert np.shape(in_thread(lambda: step(X))) == X.shape
        jax.clear_caches()
        assert np.shape(step(X)) == X.shape, "what the other thread has stored is a hit"
    with ejcache.forbid_compile(everywhere=True):
        assert isinstance(in_thread(lambda: step(Y)), ejcache.CompileForbiddenError)
        with ejcache.forbid_compile(everywhere=True):
            pass
        assert isinstance(in_thread(lambda: step(Y)), ejcache.CompileForbiddenError)
    assert np.shape(in_thread(lambda: step(Y))) == Y.shape


def test_a_program_that_is_never_stored(cache):
    """A program with a host callback, which this JAX cannot store, says so; where JAX can, it is a miss like others."""

    def program(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(X.shape, X.dtype), x)

    with ejcache.forbid_compile(), pytest.raises(ejcache.CompileForbiddenError) as raised:
        jax.jit(program)(X)
    assert cache.stats().skipped == {"forbidden": 1}
    assert ("calls back into the process" in str(raised.value)) == (jax.__version_info__ < (0, 11))


def test_hits_are_not_recompiled_to_check_them(cache, compiled):
    """A hit passes also where hits would be recompiled: `check_contents` waits for the next hit outside the block."""
    with ejcache.enable(check_contents=True):
        step(X)
        jax.clear_caches()
        before = len(compiled)
        with ejcache.forbid_compile():
            step(X)
        assert len(compiled) == before
        jax.clear_caches()
        step(X)
        assert len(compiled) == before + 1


def test_the_error_passes_where_our_own_faults_do_not(cache, monkeypatch):
    """With a cache whose every step fails, the refusal is raised, and it is the refusal."""
    step(X)
    jax.clear_caches()

    def fail(*_, **__):
        raise OSError("broken")

    monkeypatch.setattr(CacheReader, "read", fail)
    monkeypatch.setattr("ejcache.history.why.cause_in", fail)
    with ejcache.forbid_compile(), pytest.raises(ejcache.CompileForbiddenError, match="the storage could not be read"):
        step(X)
    step(X)


def test_tuning_is_a_compilation(cache):
    """An operation that would be tuned raises before a candidate compiles; one with a tuned configuration runs."""

    @ejcache.autotuned(configs=[{"block": 1}, {"block": 2}], name="scaled_where_forbidden")
    def scaled(x, *, block):
        return x * 2 + 0 * block

    with ejcache.forbid_compile(), pytest.raises(ejcache.CompileForbiddenError, match="tuning it compiles") as raised:
        scaled(X)
    assert raised.value.program == "scaled_where_forbidden"
    expected = scaled(X)
    with ejcache.forbid_compile():
        assert np.array_equal(scaled(X), expected)


RANKS = """
import contextlib, json, sys, time
import jax, jax.numpy as jnp, numpy as np
import ejcache
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

forbids = str(jax.process_index()) in sys.argv[1]
guard = ejcache.forbid_compile if forbids else contextlib.nullcontext
mesh = Mesh(np.array(jax.devices()), ("a",))
sharding = NamedSharding(mesh, P("a"))

def call(number):
    x = jax.make_array_from_callback((4,), sharding, lambda i: np.arange(4, dtype=np.float32)[i])
    def program(x):
        return jnp.cumsum(x * number) + x.sum()
    program.__name__ = f"program_{number}"
    return jax.block_until_ready(jax.jit(program, out_shardings=NamedSharding(mesh, P()))(x))

call(1)
jax.clear_caches()
said = []
with guard():
    call(1)
    for number in (2, 3):
        try:
            call(number)
        except ejcache.CompileForbiddenError as exc:
            said.append([exc.program, exc.where])
call(2)
print(json.dumps(said))
"""


@pytest.mark.parametrize(
    ("forbidding", "share"),
    [
        pytest.param("01", False, id="both", marks=pytest.mark.soak),
        pytest.param("1", False, id="second"),
        pytest.param("0", True, id="first-of-shared", marks=pytest.mark.soak),
    ],
)
def test_ranks_raise_together(forbidding, share, tmp_path):
    """If one rank of a program forbids its compilation, every rank raises at once; hits pass; later they compile."""
    for rank, said in zip(*run_job(RANKS, forbidding, devices=2, places=tmp_path, sharing=share), strict=True):
        where = "here" if str(rank.rank) in forbidding else f"on rank {forbidding[0]}"
        assert said == [[f"jit_program_{number}", where] for number in (2, 3)]
        assert rank.stats["skipped"]["forbidden"] == 2
