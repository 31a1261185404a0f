"""Operations in traces: `jax.eval_shape`, whose programs never run, and calls that `jax.vmap` maps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ejcache.autotune import Source, Tuner, TuningPolicy, autotuned, record, require, tune
from ejcache.autotune.choice import ConfigurationMissingError
from ejcache.autotune.chooser import chooser_for

pytestmark = pytest.mark.usefixtures("runs_take_the_same")

QUICK = Tuner(rounds=4, sample_seconds=0.0002)
X, W = jnp.ones((4, 8)), jnp.ones((8, 3))


def product(store, **options):
    """A matrix product with two configurations, each a number that is multiplied in."""

    @autotuned(configs=[{"n": 1}, {"n": 2}], store=store, **{"name": "product", "tuner": QUICK, **options})
    def op(x, w, *, n):
        return n * (x @ w)

    return op


def sources(store, name="product"):
    """The origin of each choice."""
    return [event.source for event in chooser_for(store).events if event.name == "chosen"]


def test_eval_shape_measures_nothing(store):
    """`jax.eval_shape` uses a stored configuration or the guess, and a later `jit` of the same function measures."""
    op = product(store, tuner=Tuner(rounds=4, sample_seconds=0.0002, check=False))
    inner = jax.jit(op)

    def model(x, w):
        return inner(x, w) + 1

    assert jax.eval_shape(op, X, W).shape == (4, 3)
    assert jax.eval_shape(model, X, W).shape == (4, 3)
    assert jax.eval_shape(inner, X, W).shape == (4, 3)
    assert list(store.records()) == []
    assert set(sources(store)) == {Source.HEURISTIC}
    assert "tuning" not in chooser_for(store).counters

    # The traces of `eval_shape` have the guess. The programs that run do not use them.
    with_guess = jax.jit(model)(X, W)
    (found,) = store.records()
    assert found.source is Source.TUNED
    np.testing.assert_array_equal(with_guess, found.record.configuration["n"] * (X @ W) + 1)

    op.forget()
    jax.eval_shape(op, X, W)
    assert sources(store)[-1] is Source.TUNED


def test_eval_shape_obeys_a_policy_that_requires_records(store):
    """Where a record is required, its absence is told by `jax.eval_shape`, too."""
    op = product(store)
    with require(), pytest.raises(ConfigurationMissingError):
        jax.eval_shape(op, X, W)


def test_eval_shape_is_jaxs_own_otherwise(store):
    """The function keeps its name, documentation and errors, and holds for its own thread and block only."""
    op = product(store, policy=TuningPolicy("heuristics"))
    assert jax.eval_shape.__name__ == "eval_shape"
    assert "no FLOPs" in jax.eval_shape.__doc__
    assert jax.eval_shape(lambda tree: {"y": tree["x"].T}, {"x": X})["y"].shape == (8, 4)
    with pytest.raises(TypeError):
        jax.eval_shape(lambda x: op(x, x), X)
    assert op(X, W).shape == (4, 3)


def test_batch_sizes_are_in_the_key(store):
    """A mapped call has the sizes of the axes and the arguments that have them in its key; others have no such part."""
    op = product(store, policy=TuningPolicy("heuristics"))
    keys = []

    def look(x, w):
        keys.append(op.key(x, w=w))
        return op(x, w)

    rows, matrices = jnp.ones((5, 4, 8)), jnp.ones((7, 8, 3))
    look(X, W)
    jax.vmap(look, in_axes=(0, None))(rows, W)

    @jax.make_jaxpr  # which compiles none of them
    def others(rows, matrices):
        jax.vmap(look, in_axes=(2, None))(jnp.ones((4, 8, 5)), W)
        jax.vmap(look, in_axes=(0, None))(jnp.ones((6, 4, 8)), W)
        jax.vmap(look, in_axes=(None, 0))(X, jnp.ones((5, 8, 3)))
        jax.vmap(lambda x: jax.vmap(look, in_axes=(None, 0))(x, matrices))(rows)
        jax.vmap(jax.grad(lambda x, w: look(x, w).sum()), in_axes=(0, None))(rows, W)
        jax.grad(lambda x: jax.vmap(look, in_axes=(0, None), axis_name="batch")(x, W).sum())(rows)

    others(rows, matrices)
    plain, five, across, six, other, both, inside, around = keys
    assert plain == op.key(X, W)
    assert "vmap" not in plain.call
    assert five.call["vmap"] == [{"size": 5, "arguments": ["x"]}]
    assert five == across == inside == around
    assert both.call["vmap"] == [{"size": 5, "arguments": ["x"]}, {"size": 7, "arguments": ["w"]}]
    assert len({key.digest for key in (plain, five, six, other, both)}) == 5
    assert {key.call["arguments"]["x"] for key in keys} == {"float32[4,8]"}


def test_mapped_calls_are_measured_as_they_run(store):
    """The candidates run for all elements, also with the name of the axis, and each size is measured once."""
    shapes = []

    def rows(shape, dtype, generator):
        shapes.append(shape)
        return np.ones(shape, dtype)

    @autotuned(configs=[{"n": 1}, {"n": 2}], name="mean", store=store, tuner=QUICK, initialisers={"x": rows})
    def mean(x, scale, *, n):
        return scale * jax.lax.pmean(x, "batch") + 0 * n

    mapped = jax.vmap(mean, in_axes=(0, None), axis_name="batch")
    batch = jnp.arange(24.0).reshape(6, 4)
    for _ in range(2):
        np.testing.assert_array_equal(mapped(batch, 2.0), jnp.broadcast_to(2 * batch.mean(0), (6, 4)))
    mapped(batch[:3], 2.0)
    found = {str(item.record.key.call["vmap"][0]["size"]): item.record for item in store.records()}
    assert set(found) == {"6", "3"}
    assert {candidate.status.value for item in found.values() for candidate in item.candidates} == {"ok"}
    assert set(shapes) == {(4,)}
    assert chooser_for(store).counters["tuning"] == 2


def test_the_quick_path_tells_batch_sizes_apart(store):
    """A call with the same shapes under another `vmap` does not get the configuration of the call before."""
    op = autotuned(
        lambda x, w, config=None: config * (x @ w),
        configs=lambda x, w, config=None: [1],
        heuristic=lambda x, w, config=None: 1,
        name="sized",
        store=store,
        policy=TuningPolicy("heuristics"),
    )
    op(X, W)
    jax.vmap(op, in_axes=(0, None))(jnp.ones((5, 4, 8)), W)
    jax.vmap(op, in_axes=(0, None))(jnp.ones((6, 4, 8)), W)
    assert len({event.key.digest for event in chooser_for(store).events if event.name == "chosen"}) == 3


def test_mapped_calls_are_not_recorded(store, tmp_path, caplog):
    """A recording has the shapes of arguments alone, so a call under `vmap` is left out, and that is said."""
    op = product(store, name="unrecorded", policy=TuningPolicy("heuristics"))
    with record(str(tmp_path / "calls")):
        jax.vmap(op, in_axes=(0, None))(jnp.ones((5, 4, 8)), W)
    assert list((tmp_path / "calls").rglob("*.json")) == []
    assert "this call of unrecorded is under jax.vmap" in caplog.text


def test_mapped_calls_of_a_program_are_tuned_before_it_runs(store):
    """`tune(program, …)` measures a mapped call as the program will make it, when the trace has ended."""

    @autotuned(configs=[{"n": 1}, {"n": 2}], name="ahead", store=store, tuner=QUICK)
    def centred(x, *, n):
        return x - jax.lax.pmean(x, "batch") + 0 * n

    program = jax.jit(jax.vmap(centred, axis_name="batch"))
    batch = jnp.arange(24.0).reshape(6, 4)
    (done,) = tune(program, batch)
    assert (done.outcome.value, done.problem) == ("tuned", "")
    np.testing.assert_array_equal(program(batch), batch - batch.mean(0))
    assert [found.record.key.call["vmap"][0]["size"] for found in store.records()] == [6]
    assert sources(store)[-1] is Source.TUNED
