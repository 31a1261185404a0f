"""Operations are tuned before the job: those that a function or a program calls are found and measured."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from ejcache import autotune
from ejcache.autotune import AutotuneStore, Policy, Source, Tuner, autotuned
from ejcache.autotune.records.record import encode_record
from ejcache.errors import UsageError

QUICK = Tuner(sample_seconds=0.0005, rounds=8, confirm=False, budget=600.0)


@pytest.fixture
def store(tmp_path):
    """A store of the test's own."""
    return AutotuneStore(str(tmp_path / "store"), refresh_seconds=0.0)


def scaled(store, name="scale", **options):
    """An operation with two configurations."""

    @autotuned(configs=[{"n": 1}, {"n": 2}], name=name, store=store, tuner=QUICK, check=False, **options)
    def scale(x, *, n):
        return x * n

    return scale


class Opaque:
    """A value without a description that is the same in each process."""

    __slots__ = ()

    def __repr__(self):
        return object.__repr__(self)


def outcomes(done):
    return sorted((call.operation, call.outcome.value) for call in done)


def test_a_program_is_tuned_before_it_runs(store):
    """Each kind of call of a jitted program is measured once, without running it; the next tuning finds records."""
    one, other = scaled(store, "one"), scaled(store, "other")
    ran = []

    @jax.jit
    def step(x, y):
        jax.debug.callback(lambda: ran.append(1))
        return one(x) + one(x) + other(x) + one(y).sum()

    stand_ins = jax.ShapeDtypeStruct((8,), jnp.float32), jax.ShapeDtypeStruct((4, 4), jnp.bfloat16)
    done = autotune.tune(step, *stand_ins)
    assert outcomes(done) == [("one", "tuned"), ("one", "tuned"), ("other", "tuned")]
    assert ran == []
    assert [item.record.key.digest for item in done if item.operation == "other"] == [other.key(jnp.ones(8)).digest]
    assert one.choose(jnp.ones(8)).source is Source.TUNED


def test_what_has_a_sure_record_is_not_measured_again(store):
    """An interrupted tuning goes on where it was: calls with a record are skipped, unless the record is unsure."""
    op = scaled(store)
    step = jax.jit(op)
    (call,) = autotune.tune(step, jnp.ones(8))
    for doubt, outcome in (("", "already tuned"), ("the budget ended", "tuned")):
        measurement = {name: value for name, value in call.record.measurement.items() if name != "unsure"}
        measurement |= {"unsure": doubt} if doubt else {}
        record = dataclasses.replace(call.record, measurement=measurement)
        store.layers[0].documents.replace(record.key.path, encode_record(record))
        store.reload()
        assert [item.outcome.value for item in autotune.tune(step, jnp.ones(8))] == [outcome]


def test_a_program_that_was_traced_before_is_traced_again(store):
    """A program that has run with guesses is tuned none the less, and runs with the tuned choice when traced anew."""
    op = scaled(store, policy=Policy("heuristics"))
    step = jax.jit(lambda x: op(x) + 1)
    step(jnp.ones(8))
    (call,) = autotune.tune(step, jnp.ones(8))
    assert call.outcome.value == "tuned"
    (call,) = autotune.tune(jax.jit(jax.grad(lambda x: op(x).sum())), jnp.ones(16))
    assert call.record.key == op.key(jnp.ones(16))


def test_a_function_that_is_not_jitted_keeps_its_static_arguments(store):
    """Arrays of a plain function are traced; texts and numbers stay what they are."""
    op = scaled(store)

    def step(x, count, *, kind):
        assert (count, kind) == (2, "add")
        return [op(x) for _ in range(count)]

    (call,) = autotune.tune(step, jnp.ones(8), 2, kind="add")
    assert call.record.key == op.key(jnp.ones(8))


def test_a_call_is_measured_under_the_settings_that_it_has_in_the_program(store):
    """The key has the matmul precision of the call, and so has the measurement."""
    seen = []

    @autotuned(configs=[{"n": 1}, {"n": 2}], name="precise", store=store, tuner=QUICK, check=False)
    def op(x, *, n):
        seen.append(jax.config.jax_default_matmul_precision)
        return x * n

    def step(x):
        with jax.default_matmul_precision("highest"):
            return op(x)

    (call,) = autotune.tune(step, jnp.ones(8))
    assert set(seen) == {"highest"}
    with jax.default_matmul_precision("highest"):
        assert op.key(jnp.ones(8)) == call.record.key
    assert op.key(jnp.ones(8)) != call.record.key


def test_values_that_the_program_closes_over_are_measured(store):
    """An array that is a constant of the program reaches the measurement with its values."""
    tables = []

    @autotuned(configs=[{"n": 1}, {"n": 2}], name="lookup", store=store, tuner=QUICK, check=False)
    def lookup(x, table, *, n):
        jax.debug.callback(lambda values: tables.append(values.tolist()), table)
        return x[table] * n

    table = jnp.array([7, 3, 5])
    (call,) = autotune.tune(jax.jit(lambda x: lookup(x, table)), jnp.ones(8))
    jax.effects_barrier()
    assert call.outcome.value == "tuned"
    assert all(values == [7, 3, 5] for values in tables)


def test_a_call_that_cannot_be_tuned_does_not_keep_others_from_it(store):
    """A failure has its reason and does not raise; an error of the program while it is traced does."""

    def no_input(*_):
        raise ValueError("no such input")

    broken, opaque, op = scaled(store, "broken", initialisers={"x": no_input}), scaled(store, "opaque"), scaled(store)
    opaque.key_of = lambda x: object.__new__(Opaque)

    @jax.jit
    def step(x):
        return broken(x) + opaque(x) + op(x)

    done = autotune.tune(step, jax.ShapeDtypeStruct((8,), jnp.float32))
    assert outcomes(done) == [("broken", "failed"), ("opaque", "failed"), ("scale", "tuned")]
    problems = {call.operation: call.problem for call in done}
    assert "no such input" in problems["broken"]
    assert "no key of its own" in problems["opaque"]

    def failing(x):
        raise ValueError("the program itself")

    with pytest.raises(ValueError, match="the program itself"):
        autotune.tune(failing, jnp.ones(8))


def test_what_is_no_function_is_refused(store):
    """A traced or lowered program has no functions any more, and the message says what to pass."""
    step = jax.jit(scaled(store))
    for program in (step.trace(jnp.ones(8)), step.lower(jnp.ones(8)), step.lower(jnp.ones(8)).compile(), 3):
        with pytest.raises(UsageError, match=r"pass the function itself, as in tune\(jax.jit"):
            autotune.tune(program)
