"""Measurement: what is timed, on what inputs, who wins, and what happens to candidates that misbehave."""

from __future__ import annotations

import random
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autotune_helpers import key

import ejcache
from ejcache.autotune import Tuner, decide
from ejcache.autotune.calls import UnrecordableError, encode_value, import_path
from ejcache.autotune.decide import Verdict, gains, median, quantile, timing, verdict
from ejcache.autotune.isolated import screened
from ejcache.autotune.measure_calls import decode_value
from ejcache.autotune.measure_inputs import split_arguments
from ejcache.autotune.measure_thread import CleanThread, TookTooLongError
from ejcache.autotune.records import Status
from ejcache.errors import EntryCorruptError, UsageError

QUICK = Tuner(sample_seconds=0.0005, confirm=False)


def noisy(seconds, rounds, *, seed, spread=0.1, spikes=0.15):
    """Samples of a machine that other programs use: every one a little off, some of them far too long."""
    generator = random.Random(seed)
    return [
        seconds
        * generator.lognormvariate(0, spread)
        * (generator.uniform(1.5, 6) if generator.random() < spikes else 1)
        for _ in range(rounds)
    ]


def decided(candidate, reference, *, min_gain=0.03, looks=(8, 15, 25, 40, 60)):
    """The verdict that a race comes to, look by look."""
    for look in looks:
        found = verdict(gains(candidate[:look], reference[:look]), min_gain=min_gain)
        if found is not Verdict.OPEN:
            return found
    return Verdict.OPEN


def test_a_real_difference_wins_on_a_noisy_machine():
    """30 % faster is found in nearly all of 200 simulated races, 1 % in none that is confirmed."""
    wins = sum(
        decided(noisy(0.7, 60, seed=2 * i), noisy(1.0, 60, seed=2 * i + 1)) is Verdict.BETTER for i in range(200)
    )
    assert wins >= 190
    false = sum(
        decided(noisy(0.99, 60, seed=4 * i), noisy(1.0, 60, seed=4 * i + 1)) is Verdict.BETTER
        and decided(noisy(0.99, 60, seed=4 * i + 2), noisy(1.0, 60, seed=4 * i + 3)) is Verdict.BETTER
        for i in range(1000)
    )
    assert false == 0


def test_too_few_samples_decide_nothing():
    """With six rounds even a perfect record is open; with seven it is not."""
    assert verdict([0.5] * 6, min_gain=0.03) is Verdict.OPEN
    assert verdict([0.5] * 7, min_gain=0.03) is Verdict.BETTER
    assert verdict([0.0] * 7, min_gain=0.03) is Verdict.NOT_BETTER
    assert verdict([], min_gain=0.03) is Verdict.OPEN


def test_quantiles():
    """Medians and quantiles are the textbook's."""
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
    assert quantile([0, 10], 0.2) == 2
    assert (timing([1, 2, 3, 4, 5]).p20, timing([1, 2, 3, 4, 5]).p80) == (1.8, 4.2)
    assert decide.hopeless([2, 2, 2], [1, 1, 1])
    assert not decide.hopeless([1.2] * 3, [1, 1, 1])


def test_inputs_are_the_callers_own_or_seeded():
    """Arrays with a value are used as they are; for others, seeded ones of the same kind are made."""
    own = np.arange(4.0, dtype=np.float32)
    stand_ins = {
        "f": jax.ShapeDtypeStruct((3, 4), jnp.bfloat16),
        "i": jax.ShapeDtypeStruct((50,), jnp.int32),
        "b": jax.ShapeDtypeStruct((50,), jnp.bool_),
        "c": jax.ShapeDtypeStruct((2,), jnp.complex64),
        "k": jax.ShapeDtypeStruct((), jax.random.key(0).dtype),
    }
    inputs = split_arguments((own, "static", None), {"tree": stand_ins}, names=["x", "mode", "nothing"])
    assert inputs.names == ("x", "mode", *(f"tree['{n}']" for n in sorted(stand_ins)))
    made, again, other = inputs.concrete(seed=1), inputs.concrete(seed=1), inputs.concrete(seed=2)
    np.testing.assert_array_equal(made[0], own)
    args, kwargs = inputs.rebuild(made)
    assert args[1:] == ("static", None)
    for name, stand_in in stand_ins.items():
        assert (kwargs["tree"][name].shape, kwargs["tree"][name].dtype) == (stand_in.shape, stand_in.dtype)
    np.testing.assert_array_equal(made[4], again[4])
    assert not np.array_equal(made[4], other[4])
    integers = np.asarray(kwargs["tree"]["i"])
    assert integers.min() >= 0
    assert integers.max() < 2


def test_initialisers_make_inputs_by_name():
    """An argument whose values matter, such as a table of pages, has a function that makes it."""
    stand_in = jax.ShapeDtypeStruct((4,), jnp.int32)
    inputs = split_arguments((stand_in,), {"lengths": {"q": stand_in, "k": stand_in}}, names=["pages"])
    made = inputs.concrete(
        initialisers={
            "pages": lambda shape, dtype, generator: np.arange(shape[0]),
            "lengths": lambda shape, dtype, generator: np.full(shape, 7),
            "lengths['k']": lambda shape, dtype, generator: np.full(shape, 9),
        }
    )
    assert [array.tolist() for array in made] == [[0, 1, 2, 3], [9] * 4, [7] * 4]
    assert made[0].dtype == jnp.int32


def test_measuring_in_a_trace_measures_execution():
    """Inside `jit` the number is that of an execution, and the inputs are concrete."""
    seen = []

    def f(x):
        seen.append(type(x))
        return jax.lax.fori_loop(0, 300, lambda _, y: jnp.tanh(y @ x), x)

    x = jnp.eye(64)
    inside = []
    jaxpr = jax.make_jaxpr(lambda x: (inside.append(QUICK.measure(f, x)), x)[1])(x)
    assert len(jaxpr.eqns) == 0
    # Tracing alone takes far longer than this; what matters is that it is not next to nothing, either.
    assert inside[0].p50 > 1e-5
    assert inside[0].samples >= 8


def test_ambient_settings_reach_the_candidates():
    """What the caller set for compilation holds in the measurement too."""
    precisions = []

    def f(x):
        precisions.append(jax.config.jax_default_matmul_precision)
        return x

    with jax.default_matmul_precision("float32"):
        QUICK.measure(f, jnp.ones(4))
    assert precisions == ["float32"]


def test_a_call_that_takes_too_long_is_left_behind():
    """A hanging call costs its timeout, and the next call has a thread of its own."""
    stuck = threading.Event()
    thread = CleanThread()
    with pytest.raises(TookTooLongError):
        thread.run(stuck.wait, timeout=0.05)
    assert thread.run(lambda: 5, timeout=30) == 5
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda: 1 // 0, timeout=30)
    thread.close()
    stuck.set()


def tuned(function, candidates, *args, tuner=QUICK, default=None, **options):
    return tuner.tune(
        lambda n: lambda *a, **k: function(*a, n=n, **k),
        args,
        {},
        key=key(),
        candidates=candidates,
        default=candidates[0] if default is None else default,
        **options,
    )


def test_a_candidate_that_hangs_is_a_timeout():
    """A candidate that does not end in time is out, and the others are measured."""
    released = threading.Event()

    def f(x, n):
        if n == 2:
            released.wait(60)
        return x * n

    record = tuned(f, [1, 2, 3], jnp.ones(8), tuner=Tuner(timeout=1.0, confirm=False, sample_seconds=0.0005))
    released.set()
    assert {c.configuration: c.status for c in record.candidates} == {1: Status.OK, 2: Status.TIMEOUT, 3: Status.OK}


def test_no_record_without_a_candidate_that_works():
    """If nothing works there is nothing to keep."""

    def f(x, n):
        raise RuntimeError(n)

    assert tuned(f, [1, 2], jnp.ones(8)) is None


def test_a_default_that_fails_is_replaced():
    """If the default itself does not work, the fastest of the others wins."""

    def f(x, n):
        if n == 1:
            raise RuntimeError("no")
        return x * n

    assert tuned(f, [1, 2], jnp.ones(8)).configuration == 2


def test_beyond_the_budget_only_what_may_win_is_timed():
    """Out of time, each candidate has one round, and the one that promises to win as many as a verdict takes."""

    def f(x, n):
        return jax.lax.fori_loop(0, n, lambda _, y: jnp.tanh(y @ x), x)

    def samples(record):
        return {c.configuration: c.seconds.samples for c in record.candidates}

    x, hurried = jnp.eye(64), Tuner(budget=0.0, sample_seconds=0.0005)
    best_first = tuned(f, [4, 1000, 2000], x, tuner=hurried)
    assert (best_first.configuration, samples(best_first)) == (4, {4: 1, 1000: 1, 2000: 1})
    best_last = tuned(f, [2000, 1000, 4], x, tuner=hurried)
    assert best_last.configuration == 4
    assert best_last.measurement["confirmed"]
    assert samples(best_last) == {4: decide.fewest_rounds(), 1000: 1, 2000: decide.fewest_rounds()}


def test_gradients_fall_back_to_the_forward_pass():
    """Where nothing has a gradient, the forward pass is timed, and the record says so."""
    tuner = Tuner(gradient=True, confirm=False, sample_seconds=0.0005)
    assert tuned(lambda x, n: x * n, [1], jnp.ones(8), tuner=tuner).measurement["mode"] == "forward and backward"
    assert tuned(lambda x, n: x * n, [1], jnp.ones(8, jnp.int32), tuner=tuner).measurement["mode"] == "forward"
    stopped = tuned(lambda x, n: (x > 0) * n, [1], jnp.ones(8), tuner=tuner)
    assert stopped.measurement["mode"] == "forward"


def test_candidates_are_compiled_through_the_cache(tmp_path):
    """With the compilation cache active, tuning the same candidates again compiles nothing."""
    x = jnp.ones((16, 16))
    cache = ejcache.enable(str(tmp_path / "cache"), min_compile_seconds=0.0, min_entry_size=0)
    try:

        def f(x, n):
            return jnp.tanh(x @ x) * n

        tuned(f, [1, 2, 3], x)
        stored = cache.stats().stores
        jax.clear_caches()
        tuned(f, [1, 2, 3], x)
        assert stored >= 3
        assert cache.stats().stores == stored
        assert cache.stats().hits >= 3
    finally:
        ejcache.disable()


OPERATION = """
import os, signal, time
from ejcache.autotune import autotuned, Tuner

@autotuned(configs=[{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}], name="isolated", tuner=Tuner(isolate=True, confirm=False))
def op(x, *, n):
    if n == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    if n == 3:
        raise RuntimeError("no such block")
    if n == 4:
        os._exit(3)
    return x * n
"""


INITIALISED = """
import jax, numpy as np
from ejcache.autotune import autotuned

def checked(pages):
    if (np.asarray(pages) != 77).any():
        raise ValueError("no such page")
    return np.asarray(pages)

@autotuned(configs=[{"n": 1}], name="initialised", initialisers={"pages": lambda shape, dtype, _: np.full(shape, 77)})
def op(x, pages, *, n):
    return x.sum() * n + jax.pure_callback(checked, jax.ShapeDtypeStruct(pages.shape, pages.dtype), pages)
"""


@pytest.fixture
def operation(tmp_path, monkeypatch):
    """A module with an operation some of whose candidates end the process that tries them."""
    (tmp_path / "isolated_operation.py").write_text(OPERATION)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_DIR", str(tmp_path / "store"))
    import isolated_operation

    yield isolated_operation.op
    import sys

    del sys.modules["isolated_operation"]


def test_a_candidate_that_crashes_ends_only_its_own_process(operation):
    """Tried in a process of its own first, a candidate that crashes is recorded and this process lives."""
    record = operation.tune(np.ones(4, np.float32))
    found = {c.configuration["n"]: (c.status.value, c.error) for c in record.candidates}
    assert found == {
        1: ("ok", ""),
        2: ("crashed", "it ended its process with SIGSEGV"),
        3: ("failed", "RuntimeError: no such block"),
        4: ("crashed", "it ended its process with status 3: it said nothing"),
    }
    assert record.configuration == {"n": 1}


def test_a_candidate_that_hangs_in_its_own_process_is_killed(operation):
    """The process of a candidate that takes too long is ended."""
    call = {"how": {"kind": "autotuned", "object": "isolated_operation:op"}, "args": [], "kwargs": {}}
    status, error = screened(call, {"n": 1}, timeout=0.01)
    assert status is Status.TIMEOUT
    assert "0.01 s" in error


def test_initialisers_reach_a_process_of_its_own(tmp_path, monkeypatch):
    """Where a candidate is tried in another process, its positional arguments are made as here, by their names."""
    (tmp_path / "initialised_operation.py").write_text(INITIALISED)
    monkeypatch.syspath_prepend(str(tmp_path))
    call = {
        "how": {"kind": "autotuned", "object": "initialised_operation:op"},
        "args": [encode_value(np.ones(4, np.float32)), encode_value(np.ones(2, np.int32))],
        "kwargs": {},
    }
    assert screened(call, {"n": 1}, timeout=120) == (Status.OK, "")


def test_isolation_needs_a_call_that_can_be_made_elsewhere():
    """A local function cannot be tried in another process, and is then not tried here either."""
    with pytest.raises(UsageError):
        tuned(lambda x, n: x, [1], jnp.ones(4), tuner=Tuner(isolate=True))


def test_values_are_recorded_and_made_again():
    """Arrays become stand-ins; data types, enumerations, functions and containers come back as they were."""
    values = [
        None, True, 3, 2.5, float("inf"), "text", (1, [2, {"a": (3,)}]), jnp.float32, jnp.dtype("bfloat16"),
        jax.lax.Precision.HIGH, np.sum, QUICK.__class__, np.int32(3), np.bool_(False), np.float32("inf"),
    ]  # fmt: skip
    for value in values:
        import json

        made = decode_value(json.loads(json.dumps(encode_value(value))))
        assert (type(made), made) == (type(value), value)
    stand_in = decode_value(encode_value(np.ones((2, 3), np.int8)))
    assert (stand_in.shape, stand_in.dtype) == ((2, 3), np.int8)
    assert decode_value(encode_value(jax.random.key(0))).dtype == jax.random.key(0).dtype


def test_what_cannot_be_made_again_is_said():
    """Local functions and arbitrary objects are refused by name; malformed documents are corrupt."""
    for value in (lambda: None, object(), {1: 2}):
        with pytest.raises(UnrecordableError, match="mask"):
            encode_value(value, name="mask")
    with pytest.raises(UnrecordableError):
        import_path(test_what_cannot_be_made_again_is_said.__call__)
    for value in (
        {"array": "nope", "shape": []},
        {"tuple": 3},
        {"other": 1},
        {"object": "json:loads", "fields": {"x": 1}},
    ):
        with pytest.raises((EntryCorruptError, UsageError)):
            decode_value(value)
