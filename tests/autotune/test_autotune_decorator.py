"""`@autotuned`: the whole loop for a user's own function, eagerly and under JAX's transformations."""

from __future__ import annotations

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autotune_calls import other_calls, recordable_calls
from autotune_helpers import QUICK
from helpers import ROOT
from memory_bucket import MemoryBucket

import ejcache
from ejcache.autotune import (
    AutotuneStore,
    ConfigurationMissingError,
    Source,
    TuningPolicy,
    autotuned,
    forward_only,
    overlay,
    policy_override,
    require,
)
from ejcache.autotune.call_documents import (
    RecordedNames,
    arguments_of,
    decode_call,
    encode_call,
    encode_value,
    import_path,
)
from ejcache.autotune.chooser import chooser_for
from ejcache.autotune.descriptions import Describer, code_digest
from ejcache.autotune.fingerprint import fingerprint
from ejcache.autotune.operation import BoundCall
from ejcache.autotune.recording import note
from ejcache.autotune.records.record import Record, Status, encode_record, pinned
from ejcache.autotune.tuning_blocks import current_policy
from ejcache.bucket.breaker import CircuitBreaker
from ejcache.errors import StoreUnavailableError, UsageError
from ejcache.stores.documents import Documents


@pytest.fixture(autouse=True)
def steps_take_time(runs_take):
    """A step counts as 10 µs, and what has no steps as 1 ms."""
    runs_take(lambda configuration: (configuration.get("steps", 100) if isinstance(configuration, dict) else 100) / 1e5)


def slow_or_quick(store, **options):
    """An operation whose default takes fifty times as long as its other configuration."""

    @autotuned(configs=[{"steps": 200}, {"steps": 4}], name="walk", store=store, tuner=QUICK, **options)
    def walk(x, *, steps):
        return x + 0 * jax.lax.fori_loop(0, steps, lambda _, y: jnp.tanh(y @ x), x)

    return walk


X = np.eye(8, dtype=np.float32)
XS = np.stack([X, 2 * X])


def sources(store):
    return [event.source.value for event in chooser_for(store).events if event.name == "chosen"]


def test_first_call_tunes_and_the_next_process_finds(store, tmp_path):
    """The fastest configuration is chosen, published, and found by another process without measuring."""
    walk = slow_or_quick(store)
    walk(X)
    assert walk.choose(X).configuration == {"steps": 4}
    record = store.find(walk.key(X)).record
    assert record.default == {"steps": 200}
    assert record.measurement["gain"] > 0.5
    assert [c.configuration["steps"] for c in record.candidates] == [4, 200]

    other = AutotuneStore(str(tmp_path / "store"))
    again = slow_or_quick(other)
    assert again.choose(X).source is Source.TUNED
    assert chooser_for(other).counters["tuning"] == 0


def test_the_callers_program_gets_nothing_added(store):
    """Tuning inside a trace measures execution, and the traced program is the chosen configuration's alone."""
    walk = slow_or_quick(store)
    traced = jax.make_jaxpr(walk)(X)
    assert store.find(walk.key(X)).record.configuration == {"steps": 4}
    alone = jax.make_jaxpr(lambda x: walk.function(x, steps=4))(X)
    assert str(traced) == str(alone)


def mapped_over_a_shard(function):
    spec = jax.sharding.PartitionSpec()
    return jax.jit(
        jax.shard_map(function, mesh=jax.make_mesh((1,), ("d",)), in_specs=spec, out_specs=spec, check_vma=False)
    )


@pytest.mark.parametrize(
    ("transform", "x"),
    [
        (lambda f: jax.jit(jax.grad(lambda x: f(x).sum())), X),
        (lambda f: jax.jit(jax.vmap(f)), XS),
        (jax.checkpoint, X),
        (mapped_over_a_shard, X),
    ],
    ids=["jit grad", "jit vmap", "checkpoint", "shard_map"],
)
def test_under_transformations(store, transform, x):
    """Under every transformation the configuration is measured, chosen, and the values are right."""
    walk = slow_or_quick(store)
    got = transform(walk)(x)
    expected = transform(functools.partial(walk.function, steps=4))(x)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert sources(store) == ["tuned"]


@dataclasses.dataclass(frozen=True)
class Blocks:
    rows: int


def test_pallas_kernel(store):
    """A kernel for TPUs with block sizes as its configurations: measured in interpret mode, where it is called so."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    @autotuned(configs=[Blocks(8), Blocks(16)], name="double", store=store, tuner=dataclasses.replace(QUICK, rounds=4))
    def double(x, *, config):
        def kernel(source, target):
            target[...] = source[...] * 2

        spec = pl.BlockSpec((config.rows, x.shape[1]), lambda i: (i, 0))
        return pl.pallas_call(kernel, out_shape=x, grid=(x.shape[0] // config.rows,), in_specs=[spec], out_specs=spec)(
            x
        )

    x = jnp.asarray(np.arange(256, dtype=np.float32).reshape(16, 16))
    with pltpu.force_tpu_interpret_mode():
        np.testing.assert_array_equal(double(x), x * 2)
        choice = double.choose(x)
    assert (choice.source, type(choice.configuration)) == (Source.TUNED, Blocks)
    assert [c.status.value for c in choice.record.candidates] == ["ok", "ok"]


def test_keys_name_what_matters(store):
    """Shapes, data types and values are in the key; the spelling of the call is not."""

    @autotuned(configs=[{"n": 1}], name="op", store=store)
    def op(x, scale=1.0, *, mode="a", n):
        return x

    base = op.key(X)
    assert op.key(x=X, scale=1.0, mode="a") == base
    assert op.key(jax.ShapeDtypeStruct(X.shape, X.dtype)) == base
    others = [op.key(X[:4]), op.key(X.astype(np.float16)), op.key(X, 2.0), op.key(X, mode="b")]
    assert len({k.digest for k in [base, *others]}) == 5
    assert base.call["arguments"] == {"x": "float32[8,8]", "scale": 1.0, "mode": "a"}


def test_what_cannot_be_described_is_neither_measured_nor_remembered(store):
    """Of two values with no description, neither call gets the other's configuration: each has its own guess."""

    class Opaque:
        __slots__ = ("most",)

        def __init__(self, most):
            self.most = most

    @autotuned(configs=lambda x, o, config=None: [{"n": n} for n in (64, 32) if n <= o.most], name="op", store=store)
    def op(x, o, *, config=None):
        assert config["n"] <= o.most
        return x * config["n"]

    for most in (64, 32, 64):
        np.testing.assert_array_equal(op(X, Opaque(most)), X * most)
    assert list(store.records()) == []
    counters = chooser_for(store).counters
    assert (counters["unhashable"], counters["tuning"], counters["memory"]) == (3, 0, 0)
    with require(), pytest.raises(ConfigurationMissingError, match="no key of its own"):
        op(X, Opaque(64))


def test_names_without_an_order_run_with_the_guess(store):
    """JAX takes no such dictionary apart, and the undecorated function runs with it."""
    op = autotuned(configs=[{"n": 1}, {"n": 2}], name="op", store=store)(lambda x, names, *, n: x * n * names["a"])
    np.testing.assert_array_equal(op(X, {"a": 3, 1: 4}), X * 3)
    assert list(store.records()) == []


def test_closures_over_graphs_have_keys_or_none_and_never_hang(store):
    """Links back are described by their place; a graph with too many paths counts as opaque."""

    class Node:
        def __init__(self, value):
            self.value = value
            self.links = []

    def over(nodes):
        start = nodes[0]
        return lambda x: x if start else -x

    def tree(value):
        parent, *children = nodes = [Node(value) for _ in range(4)]
        for child in children:
            parent.links.append(child)
            child.links.append(parent)
        return nodes

    def mesh(count):
        nodes = [Node(i) for i in range(count)]
        for node in nodes:
            node.links = list(nodes)
        return nodes

    op = autotuned(configs=[{"n": 1}], name="op", store=store)(lambda x, f, *, n: x)
    assert not op.bound((X, over(tree(1))), {}).unhashable
    assert op.key(X, over(tree(1))) == op.key(X, over(tree(1)))
    assert op.key(X, over(tree(1))) != op.key(X, over(tree(2)))
    itself = Node(1)
    itself.links.append(itself)
    assert op.key(X, itself).call["arguments"]["f"]["links"] == [{"cycle": 2}]
    (said,) = op.bound((X, over(mesh(12))), {}).unhashable
    assert "values of a call" in said


@jax.tree_util.register_pytree_node_class
class Quantised:
    """An array to look at, and more than that: as quantised weights are."""

    def __init__(self, values, group):
        self.values, self.group = values, group

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)

    def __repr__(self):
        return f"Quantised({self.values})"

    def tree_flatten(self):
        return (self.values,), self.group

    @classmethod
    def tree_unflatten(cls, group, children):
        return cls(*children, group)


@dataclasses.dataclass(frozen=True)
class Layer:
    """As a module of flax: it can be called and has a data type."""

    size: int
    dtype: object = jnp.float32

    def __call__(self, x):
        return x


def window(size):
    return lambda i, j: abs(i - j) < size


def adds(number, file, before=""):
    """A function that adds this number, as a file has it."""
    names = {}
    exec(compile(f"{before}def f(i): return i + {number}", file, "exec"), names)
    return names["f"]


ZEROS, ONES = np.zeros((8, 8), np.int8), np.ones((8, 8), np.int8)
VALUES = {
    # name: (a value, one that means the same, another one)
    "closures": (window(2), window(2), window(3)),
    "jitted closures": (jax.jit(window(2)), jax.jit(window(2)), jax.jit(window(3))),
    "code": (adds(1, "/a.py"), adds(1, "/b.py", "\n\n"), adds(2, "/a.py")),
    "data types": (jnp.float32, jnp.float32, jnp.bfloat16),
    "names": ({1: 2, 3: 4}, {3: 4, 1: 2}, {1: 2, 3: 5}),
    "names of texts": ({1: 2}, {1: 2}, {"1": 2}),
    "names that are equal": ({1: 2}, {1: 2}, {True: 2}),
    "names of other kinds": ({(1,): 2}, {(1,): 2}, {None: 2}),
    "scalars": (np.int32(3), np.int32(3), np.float32(3)),
    "static parts": (Quantised(ZEROS, 2), Quantised(ONES, 2), Quantised(ZEROS, 4)),
    "leaves": (Quantised(ZEROS, 2), Quantised(ONES, 2), Quantised(ZEROS.astype(np.int16), 2)),
    "modules": (Layer(1), Layer(1), Layer(2)),
}


@pytest.mark.parametrize(("one", "same", "other"), VALUES.values(), ids=VALUES)
def test_values_have_the_key_of_what_they_mean(store, one, same, other):
    """A pytree is its leaves and what it says of itself; a function has no file and no line."""
    op = autotuned(configs=[{"n": 1}], name="op", store=store)(lambda x, value, *, n: x)
    assert op.key(X, one) == op.key(X, same)
    assert op.key(X, one) != op.key(X, other)


def test_a_configuration_of_what_a_pytree_and_a_scalar_say(store):
    """numpy's scalars are their values, as Python's are."""
    op = autotuned(configs=lambda x, w, config=None: [{"n": w.group}], name="op", store=store)(
        lambda x, w, *, config=None: x * config["n"]
    )
    for group in (2, 4):
        np.testing.assert_array_equal(op(X, Quantised(ZEROS, group)), X * group)
    times = autotuned(configs=lambda x, w, config=None: [{"n": int(w)}], name="times", store=store)(op.function)
    for value in (np.int32(3), np.int32(5), np.float32(3.0)):
        np.testing.assert_array_equal(times(X, value), X * int(value))


def test_functions_with_sets_have_one_key_in_every_process(run_forked, capsys):
    """A set among a function's constants is described in one order, whatever the hash seed, which is random."""
    program = """
from ejcache.autotune.descriptions import Describer
def f(x, mode="a"):
    return x if mode in {"causal", "full", "window"} or (mode, 1) in {("a", 1), ("b", 2), ("c", 3)} else -x
print(Describer().describe(f)["code"])
"""
    exec(program, {})
    assert run_forked(program).stdout == capsys.readouterr().out != ""


@pytest.mark.parametrize("name", [*recordable_calls(), *other_calls()])
def test_golden_keys_and_documents(store, name):
    """Keys of calls, and the documents that record them, are those of the first version."""
    golden = json.loads((ROOT / "tests" / "data" / "autotune" / "v1-calls.json").read_text())[name]
    operation = autotuned(lambda *args, n: args, configs=[{"n": 1}], name="golden", version=2, store=store)
    arguments = (recordable_calls() | other_calls())[name]
    key = operation.key(*arguments)
    assert dict(key.call) == golden["call"]
    assert (key.call_digest, key.device) == (golden["digest"], golden["device"])
    if name in recordable_calls():
        args = [encode_value(item) for item in arguments]
        call = {"operation": "golden", "how": {}, "args": args, "kwargs": {}}
        assert encode_call(call).decode() == golden["document"]
        args, kwargs = arguments_of(decode_call(golden["document"].encode()), RecordedNames(["autotune_calls"]))
        assert operation.key(*args, **kwargs) == key


def test_key_function(store):
    """The author decides what makes two calls the same."""

    @autotuned(configs=[{"n": 1}], name="op", store=store, key=lambda x, n=None: {"rows": x.shape[0] // 3})
    def op(x, *, n):
        return x

    assert op.key(X[:4]) == op.key(X[:5])
    assert op.key(X[:2]) != op.key(X[:5])


def test_a_configuration_by_position_is_an_override_too(store):
    """A parameter of the configuration that the call fills by its position counts as given."""

    @autotuned(configs=[{"block": 1}, {"block": 2}], name="by position", store=store, tuner=QUICK)
    def scaled(x, block=2, offset=0):
        return x * block + offset

    @autotuned(configs=[3, 4], name="config by position", store=store, tuner=QUICK)
    def configured(x, config=None, offset=0):
        return x * config + offset

    np.testing.assert_array_equal(scaled(X, 5), X * 5)
    np.testing.assert_array_equal(scaled(X, 5, 1), X * 5 + 1)
    np.testing.assert_array_equal(configured(X, 5, 1), X * 5 + 1)
    assert list(store.records()) == []
    assert np.asarray(configured(X, None, 1))[0, 0] in (4, 5)
    assert (
        configured.choose(X, None, offset=1).source
        is configured.choose(X, offset=1, config=None).source
        is Source.TUNED
    )
    assert len({configured.key(X, None, 1), configured.key(X, offset=1)}) == len(list(store.records())) == 1


def test_overlay(store):
    """In an overlay every call of the operation runs with its configuration, traced functions too."""
    walk = slow_or_quick(store)
    jitted = jax.jit(walk)
    tuned = jitted(2 * X)
    with overlay({"walk": {"steps": 1}}):
        np.testing.assert_allclose(walk(2 * X), walk.function(2 * X, steps=1), rtol=1e-6)
        inside = jitted(2 * X)
        with overlay({walk.key(X): {"steps": 2}}):
            assert walk.choose(X).configuration == {"steps": 2}
    np.testing.assert_allclose(inside, walk.function(2 * X, steps=1), rtol=1e-6)
    np.testing.assert_allclose(jitted(2 * X), tuned)
    assert [f.record.configuration for f in store.records()] == [{"steps": 4}]


def test_equal_overlays_share_what_was_traced(store):
    """Entering an overlay of the same content again traces nothing again."""
    walk = slow_or_quick(store)
    traces = []
    jitted = jax.jit(lambda x: (traces.append(1), walk(x))[1])
    for _ in range(3):
        with overlay({"walk": {"steps": 1}}):
            jitted(X)
    assert len(traces) == 1


def test_policies(store, monkeypatch):
    """With `heuristics` a miss runs the guess, which is not stored; a `with` block goes before the environment."""
    walk = slow_or_quick(store, heuristic=lambda x: {"steps": x.shape[0]})
    monkeypatch.setenv("EJKERNEL_AUTOTUNE_POLICY", "heuristics")
    choice = walk.choose(X)
    assert (choice.source, choice.configuration) == (Source.HEURISTIC, {"steps": 8})
    assert list(store.records()) == []
    with policy_override(on_miss="autotune"):
        assert walk.choose(X).source is Source.TUNED


def test_guesses_give_way_to_what_others_publish(store, tmp_path):
    """A process that runs on a guess takes a record that another process publishes, without a restart."""
    walk = slow_or_quick(store, policy=TuningPolicy("heuristics"))
    assert walk.choose(X).source is Source.HEURISTIC
    slow_or_quick(AutotuneStore(str(tmp_path / "store"))).tune(X)
    choice = walk.choose(X)
    assert (choice.source, choice.configuration) == (Source.TUNED, {"steps": 4})


def test_require_says_what_is_nearest(store):
    """With `require` a miss fails, naming the nearest record and what differs."""
    walk = slow_or_quick(store)
    walk.tune(X)
    with require(), pytest.raises(ConfigurationMissingError) as caught:
        walk(X[:4, :4])
    assert caught.value.differences == {"call.arguments.x": ("float32[4,4]", "float32[8,8]")}
    assert "float32[8,8]" in str(caught.value)
    with require():
        walk(X)


def test_a_call_whose_candidates_all_failed_is_not_the_nearest(store):
    """It has no configuration that could be used, so the nearest is another call, or none."""
    walk = slow_or_quick(store)
    record = walk.tune(X)
    all_failed = tuple(
        dataclasses.replace(each, status=Status.FAILED, seconds=None, error="no memory") for each in record.candidates
    )
    store.delete(record.key)
    store.publish(dataclasses.replace(record, candidates=all_failed, created=record.created + 60))
    with require(), pytest.raises(ConfigurationMissingError) as caught:
        walk(X[:4, :4])
    assert caught.value.nearest is None
    tuned = walk.tune(X[:2, :2])
    with require(), pytest.raises(ConfigurationMissingError) as caught:
        walk(X[:4, :4])
    assert caught.value.nearest == tuned.key


def test_records_of_another_toolchain_are_used_where_nothing_may_be_measured(store):
    """After an upgrade the old record serves a program that does not tune, and is measured again in one that does."""
    walk = slow_or_quick(store)
    record = walk.tune(X)
    old = dataclasses.replace(record.key, environment={**record.key.environment, "jaxlib": "0.1"})
    store.delete(record.key)
    store.publish(dataclasses.replace(record, key=old))
    with policy_override(on_miss="heuristics"):
        assert walk.choose(X).source is Source.SIMILAR
    assert walk.choose(X).source is Source.TUNED


def moved(record, **changes):
    """The record as if it had been measured elsewhere."""
    key = record.key
    device = changes.pop("device", key.device)
    return dataclasses.replace(
        record, key=dataclasses.replace(key, device=device, environment={**key.environment, **changes})
    )


def test_a_shipped_record_serves_other_cores_and_versions(store, tmp_path):
    """Nobody who installs the package measures anything, unless they ask for it."""
    record = slow_or_quick(store).tune(X)
    place = str(tmp_path / "shipped")
    AutotuneStore(place, seeds=()).publish(moved(record, cores="96", jaxlib="0.99", toolkit="cuda 99.1"))
    other = AutotuneStore(str(tmp_path / "user"), seeds=[place], refresh_seconds=0.0)
    shipped = slow_or_quick(other)
    choice = shipped.choose(X)
    assert (choice.source, choice.configuration) == (Source.SIMILAR, record.configuration)
    shipped(X)
    assert other.stats()["published"] == 0
    assert shipped.tune(X).source is Source.TUNED
    assert shipped.choose(X).source is Source.TUNED


def test_a_record_of_another_device_is_no_answer(store, caplog):
    """Where nothing may be measured the default is used, and one warning says for which devices there is a record."""
    walk = slow_or_quick(store)
    record = walk.tune(X)
    store.delete(record.key)
    store.publish(moved(record, device="NVIDIA H200"))
    with policy_override(on_miss="heuristics"):
        choice = walk.choose(X)
    assert (choice.source, choice.configuration) == (Source.HEURISTIC, {"steps": 200})
    assert "was tuned for NVIDIA H200 only" in caplog.text


def test_a_record_of_this_device_keeps_the_warning_away(store, caplog):
    """Beside a record of another device there is one of this device, with another CPU: it was not tuned there only."""
    walk = slow_or_quick(store)
    record = walk.tune(X)
    store.delete(record.key)
    for other in (moved(record, device="NVIDIA H200"), moved(record, cpu="another")):
        store.publish(other)
    with policy_override(on_miss="heuristics"):
        assert walk.choose(X).source is Source.HEURISTIC
    assert "was tuned for" not in caplog.text


def test_a_candidate_that_is_gone_is_not_used(store, tmp_path):
    """A stored configuration that is no candidate any more is passed over, and the known rest is chosen among."""
    slow_or_quick(store).tune(X)
    other = AutotuneStore(str(tmp_path / "store"))
    built = []

    @autotuned(configs=[{"steps": 200}], name="walk", store=other, tuner=QUICK)
    def walk(x, *, steps):
        built.append(steps)
        return x

    assert walk.choose(X).configuration == {"steps": 200}
    assert built == []
    assert chooser_for(other).counters["unusable"] == 1


def test_adding_a_candidate_measures_that_the_default_and_the_choice(store, tmp_path):
    """With one more candidate the times of the others are kept, and the new one races against the two that count."""

    @autotuned(configs=[{"steps": 200}, {"steps": 4}, {"steps": 199}], name="walk", store=store, tuner=QUICK)
    def before(x, *, steps):
        return x + 0 * jax.lax.fori_loop(0, steps, lambda _, y: jnp.tanh(y @ x), x)

    before.tune(X)
    other = AutotuneStore(str(tmp_path / "store"))
    built = set()

    configs = [{"steps": 200}, {"steps": 4}, {"steps": 199}, {"steps": 300}]

    @autotuned(configs=configs, name="walk", store=other, tuner=QUICK)
    def walk(x, *, steps):
        built.add(steps)
        return x + 0 * jax.lax.fori_loop(0, steps, lambda _, y: jnp.tanh(y @ x), x)

    assert walk.choose(X).configuration == {"steps": 4}
    assert built == {4, 200, 300}
    record = other.find(walk.key(X)).record
    assert sorted(c.configuration["steps"] for c in record.candidates) == [4, 199, 200, 300]
    assert record.candidates[0].configuration == {"steps": 4}
    assert record.measurement["measured"] == 3


def test_a_failing_candidate_is_remembered(store, tmp_path):
    """A candidate that fails is recorded with its error, and not tried again."""
    tried = []

    def make(where):
        @autotuned(configs=[{"n": 1}, {"n": 2}, {"n": 3}], name="op", store=where, tuner=QUICK)
        def op(x, *, n):
            tried.append(n)
            if n == 2:
                raise RuntimeError("out of shared memory")
            return x + 0 * n

        return op

    record = make(store).tune(X)
    failed = [c for c in record.candidates if c.seconds is None]
    assert [(c.configuration, c.status.value, c.error) for c in failed] == [
        ({"n": 2}, "failed", "RuntimeError: out of shared memory")
    ]
    tried.clear()
    make(AutotuneStore(str(tmp_path / "store"))).choose(X)
    assert tried == []


def test_when_every_candidate_fails_the_program_runs(store, caplog):
    """Then the guess is used, with one warning, and tuning is not tried again in this process."""

    @autotuned(configs=[{"n": 1}], name="op", store=store, heuristic={"n": 5}, tuner=QUICK)
    def op(x, *, n):
        if isinstance(x, jax.core.Tracer):
            raise TypeError("cannot be traced")
        return x * n

    for _ in range(3):
        np.testing.assert_array_equal(op(X), X * 5)
    assert chooser_for(store).counters["tuning"] == 1
    assert sum("could not be tuned" in r.message for r in caplog.records) <= 1
    with pytest.raises(UsageError):
        op.tune(X)


def test_pinned_configurations_stay(store, tmp_path):
    """What a person pins is used, also if it is no candidate, and no measurement replaces it."""
    walk = slow_or_quick(store)
    record = walk.tune(X)
    store.layers[0].documents.replace(record.key.path, encode_record(pinned(record, {"steps": 7}, now=1.0)))
    walk.forget()
    assert (walk.choose(X).source, walk.choose(X).configuration) == (Source.PINNED, {"steps": 7})
    slow_or_quick(AutotuneStore(str(tmp_path / "store"))).tune(X)
    walk.forget()
    assert walk.choose(X).configuration == {"steps": 7}


@pytest.mark.parametrize("plain", [{"steps": 7, "x": 1}, None])
def test_a_pin_that_the_function_cannot_take_is_passed_over(store, plain, caplog):
    """What a person pinned under another name fails no call: what is next in the chain is used, with one warning."""
    walk = slow_or_quick(store)
    record = walk.tune(X)
    store.layers[0].documents.replace(record.key.path, encode_record(pinned(record, plain, now=1.0)))
    walk.forget()
    with policy_override(on_miss="heuristics"):
        np.testing.assert_allclose(walk(X), walk.function(X, steps=200), rtol=1e-6)
        walk(X)
    assert sum("pinned" in r.message and "walk" in r.message for r in caplog.records) == 1


def test_reload_reaches_the_next_call(store):
    """After the store's `reload()` calls run with what the store says then, choices and guesses that are held too."""

    @autotuned(configs=[{"n": 1}, {"n": 2}, {"n": 3}], name="numbered", store=store, tuner=QUICK)
    def numbered(x, *, n):
        return jnp.full_like(x, n)

    def pin(n, record):
        store.layers[0].documents.replace(record.key.path, encode_record(pinned(record, {"n": n}, now=1.0)))

    with policy_override(on_miss="heuristics"):
        assert numbered(X)[0, 0] == 1
    pin(2, Record(numbered.key(X), {"n": 1}))
    store.reload()
    assert numbered(X)[0, 0] == 2
    pin(3, store.find(numbered.key(X)).record)
    assert numbered(X)[0, 0] == 2
    store.reload()
    assert numbered(X)[0, 0] == 3
    assert numbered.choose(X).source is Source.PINNED


def test_gradient_is_measured_where_asked(store):
    """Forward, or forward and backward, are different calls with records of their own."""
    walk = slow_or_quick(store, gradient=True)
    assert walk.tune(X).measurement["mode"] == "forward and backward"
    with forward_only():
        assert walk.key(X).call["mode"] == "forward"
        assert walk.tune(X).measurement["mode"] == "forward"
    assert len(list(store.records())) == 2


def test_nested_operations(store):
    """An operation that calls another tuned one, and one that calls itself, both end."""
    inner = slow_or_quick(store)

    @autotuned(configs=[{"n": 1}, {"n": 2}], name="outer", store=store, tuner=QUICK)
    def outer(x, *, n):
        return inner(x) if n == 1 else inner(outer(x), steps=400)

    assert np.isfinite(np.asarray(outer(X))).all()


def test_events_are_told_and_listeners_may_fail(tmp_path):
    """Every choice is an event; a listener that raises is counted and does no harm."""
    heard = []

    def listen(event):
        heard.append((event.name, event.source))
        raise RuntimeError("listener")

    store = AutotuneStore(str(tmp_path))
    chooser = chooser_for(store)
    chooser.on_event = listen
    walk = slow_or_quick(store)
    walk(X)
    assert heard == [("miss", None), ("tuning", None), ("tuned", None), ("chosen", Source.TUNED)]
    assert chooser.counters["listener_errors"] == 4


def test_recording_to_a_place_that_fails_asks_it_once(store, monkeypatch):
    """Calls go on without waiting for a place that could not take a recording a moment ago."""
    tried = []

    class Dead(MemoryBucket):
        def _write(self, name, *rest):
            tried.append(name)
            raise StoreUnavailableError("no answer")

    bucket = Dead()
    bucket.breaker = CircuitBreaker(failures=1)
    walk = slow_or_quick(store)
    monkeypatch.setattr(BoundCall, "how", lambda _: {})
    store.layers[0].documents = Documents(bucket)
    for x in (X, X, X.astype(np.int32)):
        assert not note(walk.bound((x,), {}))
    assert len(tried) == 1


def test_calls_that_cannot_be_recorded_are_described_once(store, monkeypatch):
    """A call that has no form that can be recorded is not tried again at every call."""
    described = []
    monkeypatch.setattr(BoundCall, "how", lambda _: described.append(1) or import_path(lambda: None))
    for _ in range(3):
        assert not note(slow_or_quick(store).bound((X,), {}))
    assert len(described) == 1


def test_steady_state_reads_nothing(store, monkeypatch):
    """Once chosen, a configuration costs no look at the layers."""
    walk = slow_or_quick(store)
    walk(X)
    for layer in store.layers:
        monkeypatch.setattr(layer, "read", None)
        monkeypatch.setattr(layer, "documents", None)
    for _ in range(3):
        walk(X)
    assert walk.choose(X).source is Source.TUNED


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"configs": []}, "at least one"),
        ({"configs": [{"block": object()}]}, "cannot be written"),
        ({"configs": [{"nope": 1}]}, "nope"),
        ({"configs": [3]}, "mapping"),
        ({"configs": lambda x: [{"block": 1}]}, "config"),
    ],
)
def test_bad_configurations_are_refused_at_once(options, said):
    """What can never work is said when the function is decorated."""
    with pytest.raises(UsageError, match=said):
        autotuned(name="op", **options)(lambda x, *, block: x)


@pytest.mark.parametrize(("stamp", "wanted"), [("hash", "mine/walk@v1:"), ("json", "configuration"), ("none", None)])
def test_labels_in_profiles(store, monkeypatch, stamp, wanted):
    """The stamp labels the operation in the compiled program, the prefix begins the label."""
    walk = slow_or_quick(store, policy=TuningPolicy("heuristics"), heuristic={"steps": 4})
    monkeypatch.setenv("EJKERNEL_OPS_STAMP", stamp)
    monkeypatch.setenv("EJKERNEL_OPS_PREFIX", "mine/")
    text = jax.jit(walk).lower(X).as_text(debug_info=True)
    assert (wanted in text) if wanted else ("walk@v1" not in text)


def test_settings_of_jax_that_change_programs_are_in_the_key(store):
    """A call under another precision has another record, also in the quick path; defaults are left out of the key."""
    from jax.experimental.pallas import tpu as pltpu

    walk = slow_or_quick(store)
    plain = walk.key(X)
    walk(X)
    assert "settings" not in plain.call
    with jax.default_matmul_precision("highest"):
        assert walk.key(X).call["settings"] == {"jax_default_matmul_precision": "highest"}
        walk(X)
    walk(X)
    assert len(list(store.records(operation="walk"))) == 2
    with pltpu.force_tpu_interpret_mode():
        assert list(walk.key(X).call["settings"]) == ["pallas_tpu_interpret_mode_context_manager"]
    assert walk.key(X) == plain


class Projection:
    """A layer with weights and a mode, whose best block depends on both."""

    def __init__(self, size, mode="a"):
        self.weights = np.ones((4, size), np.float32)
        self.mode = mode


def method_of(kind, store):
    """An operation that is a method of `kind`; its candidates are divisors of the weights' size."""

    def configs(self, x, config=None):
        return [{"block": block} for block in (96, 48, 8) if self.weights.shape[1] % block == 0]

    def apply(self, x, *, config=None):
        assert self.weights.shape[1] % config["block"] == 0
        return x * config["block"]

    operation = autotuned(apply, configs=configs, name="projection", store=store, policy=TuningPolicy("heuristics"))
    return type("Method", (kind,), {"apply": operation})


def test_methods_of_different_objects_are_different_calls(store):
    """The shapes and values that an object has are part of the key of its methods."""
    kind = method_of(Projection, store)
    keys = {kind(size, mode).apply.key(X) for size in (96, 48) for mode in "ab"}
    assert len(keys) == 4
    assert kind(96).apply.key(X) == kind(96).apply.key(X)
    for size in (96, 48, 8, 96):
        np.testing.assert_array_equal(kind(size).apply(X), X * size)


def test_an_object_that_changes_is_another_call(store):
    """After a value of an argument or of `self` has changed, the configuration is chosen again."""
    layer = method_of(Projection, store)(96)
    np.testing.assert_array_equal(layer.apply(X), X * 96)
    layer.weights = np.ones((4, 48), np.float32)
    np.testing.assert_array_equal(layer.apply(X), X * 48)

    operation = autotuned(
        lambda x, options, config=None: x * config,
        configs=lambda x, options, config=None: [len(options.mode)],
        name="mutable",
        store=store,
    )
    options = Projection(4, "a")
    np.testing.assert_array_equal(operation(X, options), X)
    options.mode = "abc"
    np.testing.assert_array_equal(operation(X, options), 3 * X)


def test_bound_methods_can_be_asked_and_tuned(store):
    """A method that is bound to an object has `choose`, `key` and `tune`, and runs under `jit`."""
    layer = method_of(Projection, store)(48)
    assert layer.apply.choose(X).configuration == {"block": 48}
    assert layer.apply.tune(X).key == layer.apply.key(X)
    assert layer.apply.name == "projection"
    np.testing.assert_array_equal(jax.jit(layer.apply)(X), layer.apply(X))


def test_a_number_that_changes_each_step_is_said(store, caplog):
    """If calls that differ in one number only are measured one by one, one warning names it and the remedy."""

    @autotuned(configs=[{"n": 1}, {"n": 2}], name="stepping", store=store, tuner=QUICK)
    def op(x, step, scale=1.0, *, n):
        return x + 0 * n * step

    for step in range(3):
        op(X, step)
    assert "for each value" not in caplog.text
    for step in range(3, 6):
        op(X, step)
    assert caplog.text.count("stepping is measured again for each value of the number step") == 1


def test_a_record_of_other_code_is_said(store, tmp_path, caplog):
    """If the code changed and the version did not, or two functions share a name, one warning says so."""

    def operation(function):
        where = AutotuneStore(str(tmp_path / "store"), seeds=())
        return autotuned(configs=[{"n": 1}, {"n": 2}], name="shared", store=where, tuner=QUICK)(function)

    operation(lambda x, *, n: x + 0 * n)(X)
    operation(lambda x, *, n: x + 0 * n)(X)
    assert "was measured" not in caplog.text
    operation(lambda x, *, n: x + 0 * n + 1)(X)
    operation(lambda x, *, n: x + 0 * n + 2)(X)
    assert caplog.text.count("the code of shared is not that for which") == 1


KERNEL_FILE = """
import functools, jax
from jax.experimental import pallas as pl

SCALE = 2

def helper(value):
    return value * SCALE

def body(x, out, *, n):
    out[...] = helper(x[...])

@jax.jit
def scaled(x):
    return x * 3

def op(x, *, n):
    def call(x):
        return pl.pallas_call(functools.partial(body, n=n), out_shape=x, interpret=True)(x)
    return scaled(call(x)) if n else op(x, n=1)
"""


@pytest.mark.parametrize(
    ("was", "now"),
    [("helper(x[...])", "helper(x[...]) + 1"), ("SCALE = 2", "SCALE = 3"), ("x * 3", "x * 4"), ("n=n", "n=n + 1")],
)
def test_the_digest_of_the_code_has_the_functions_of_its_file(was, now):
    """The body of a kernel, what that calls and a jitted helper count, and functions that name each other end."""

    def digest(source):
        names = {"__name__": "kernels"}
        exec(compile(source, "kernels.py", "exec"), names)
        return code_digest(names["op"])

    assert digest(KERNEL_FILE) == digest("# moved\n" + KERNEL_FILE)
    assert len(digest(KERNEL_FILE)) == 20
    assert digest(KERNEL_FILE) != digest(KERNEL_FILE.replace(was, now))


@pytest.mark.parametrize("traced", [False, True])
def test_a_reference_is_refused_in_one_line(store, caplog, traced):
    """A call with a `jax.Ref` gets the guess; it is not measured, because that would change what it refers to."""

    @autotuned(configs=[{"n": 1}, {"n": 2}], name="adds", store=store, tuner=QUICK)
    def op(ref, *, n):
        ref[...] += 1.0
        return ref[...] + 0 * n

    ref = jax.new_ref(jnp.zeros(3))
    for _ in range(2):
        (jax.jit(op) if traced else op)(ref)
    assert (ref[...] == 2.0).all()
    assert list(store.records()) == []
    assert caplog.text.count("ref is a jax.Ref, which a measurement would change") == 1


@dataclasses.dataclass(frozen=True)
class Partly:
    size: int
    block: int = dataclasses.field(default=1, compare=False)
    inner: object = None


class Loose:
    """Equal to each other one of its name."""

    def __init__(self, name, block):
        self.name, self.block = name, block

    def __eq__(self, other):
        return self.name == other.name

    def __hash__(self):
        return hash(self.name)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["meta"])
@dataclasses.dataclass
class Node:
    x: object
    meta: object


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: Node(X, v), lambda v: Partly(1, 1, ((v,),))])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Partly(1, 1), Partly(1, 2)),
        (frozenset([Partly(1, 1)]), frozenset([Partly(1, 2)])),
        (functools.partial(max, Partly(1, 1)), functools.partial(max, Partly(1, 2))),
        (Loose("a", 1), Loose("a", 2)),
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
    ],
    ids=["uncompared", "in a set", "in a partial", "own __eq__", "bool", "float", "zero"],
)
def test_equal_values_with_other_keys_have_other_fingerprints(wrap, one, other):
    """Also as the static part of a pytree's node: Python's `==` is not what a key compares."""
    one, other = wrap(one), wrap(other)
    assert str(Describer().describe(one)) != str(Describer().describe(other))
    assert fingerprint((X, one), {}) != fingerprint((X, other), {})
    assert fingerprint((X, one), {}) == fingerprint((X, one), {}) is not None


def test_values_without_end_have_no_fingerprint():
    """Such a call is looked up by its key."""
    endless = Loose("a", 1)
    endless.block = endless
    assert fingerprint((X, endless), {}) is None
    assert fingerprint((X, Loose("a", list(range(100_000)))), {}) is None


def test_a_word_that_is_no_policy_is_said_where_it_is_read(monkeypatch, caplog):
    """Also where nothing but tuned operations is used: they measure, which the word was to keep them from."""
    monkeypatch.setenv("EJKERNEL_AUTOTUNE_POLICY", "heuristic")

    assert [current_policy().on_miss for _ in range(2)] == ["autotune"] * 2
    assert caplog.text.count("EJKERNEL_AUTOTUNE_POLICY cannot be 'heuristic'") == 1


def test_the_policy_that_the_program_gives_to_enable_counts(tmp_path):
    with ejcache.enable(str(tmp_path), autotune_policy="heuristics"):
        assert current_policy().on_miss == "heuristics"
