"""A described space: searched without being listed, and with what lies outside of its axes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import tempfile
from collections import Counter

import autotune_simulation
import jax.numpy as jnp
import pytest
from autotune_helpers import QUICK, key
from cli_helpers import ejcache
from forking import ForkedWithChildren
from helpers import traced_memory
from soak_turns import some

from ejcache.autotune import AutotuneStore, ConfigurationError, Space, Tuner, TuningPolicy, autotuned, powers_of_two
from ejcache.autotune.measure.search import Search
from ejcache.autotune.records.json_values import canonical_json
from ejcache.autotune.records.record import Candidate, CandidateOrigin, Timing, decode_record, encode_record, pinned
from ejcache.errors import UsageError

pytestmark = pytest.mark.usefixtures("runs_take_the_same")


def large(values, checked):
    """Nine axes of so many values, and two constraints that count their calls."""
    axes = {f"axis{number}": range(1, values + 1) for number in range(9)}

    def first(config, rows):
        checked["calls"] += 1
        return config["axis0"] <= rows

    return Space(
        axes,
        default=dict.fromkeys(axes, 1),
        constraints=[first, lambda config, rows: config["axis1"] + config["axis2"] > 1],
    )


def searched(space, limit, rows=8):
    """A search of so many configurations, whose valley is at three fifths of each axis of ten."""
    search = Search(space.of_call((rows,), {}), starts=[space.default], limit=limit, patience=False)
    while asked := search.ask():
        assert all(config["axis0"] <= rows for config in asked)
        search.tell({canonical_json(c): 1 + sum(abs(math.log(v / 6)) for v in c.values()) for c in asked})
    return search


def test_a_search_costs_the_same_in_every_space():
    """In one of more points than an integer counts as in one of a hundred million.

    A search holds the coordinates of 540 points at most, beside those that it has measured. A space has to have so many
    neighbours and random points to be compared: one of few values on each axis has less, and takes less memory.
    """
    counts, peaks = [], []
    searched(large(8, Counter()), 8)  # what the first search imports is of none
    for size in (8, 1_000):
        checked = Counter()
        space = large(size, checked)
        with traced_memory() as peak:
            search = searched(space, 64, rows=4 * size // 5)
        peaks += peak
        assert len(search.times) == 64
        counts.append(checked["calls"])
        assert min(search.times.values()) < 0.5 * search.times[canonical_json(space.default)]
    assert max(counts) < 5 * 64, counts
    assert peaks[1] < 1.1 * peaks[0], peaks


def test_constraints_that_refuse_most_of_an_axis_cost_little():
    """The search knows least of what they refuse, and does not ask for it again and again."""
    checked = Counter()
    with traced_memory() as peak:
        assert len(searched(large(30, checked), 64, rows=9).times) == 64
    assert checked["calls"] < 12 * 64
    assert peak[0] < 4e6


@pytest.mark.parametrize(("most", "measured"), [(9, 20), (0, 1)])
def test_constraints_may_refuse_nearly_all(most, measured):
    """Where they allow one of a hundred, only such are measured; where they allow the default, the search ends."""

    def alike(config):
        return config["axis0"] == config["axis1"] == config["axis2"] <= most and config["axis3"] <= most

    axes = {f"axis{number}": range(10) for number in range(4)}
    space = Space(axes, default=dict.fromkeys(axes, 0), constraints=[alike])
    search = Search(space.of_call((), {}), starts=[space.default], limit=20, patience=False)
    while asked := search.ask():
        assert all(alike(config) for config in asked)
        search.tell({canonical_json(config): 1.0 for config in asked})
    assert len(search.times) == measured


BLOCKS = Space(
    {"block": powers_of_two(2, 16), "inner": {"fast": [False, True]}},
    default={"block": 2, "inner": {"fast": False}},
    constraints=[lambda config, x: x.shape[0] % config["block"] == 0],
)


def operation(store, tried, **options):
    @autotuned(configs=BLOCKS, name="space", store=store, tuner=QUICK, **options)
    def blocks(x, *, block, inner):
        tried.append((block, inner["fast"]))
        return 2 * x.reshape(block, -1).reshape(x.shape)

    return blocks


def test_an_operation_with_a_space_is_tuned(tmp_path):
    """Only what the constraints allow is measured, once, and the next process measures nothing."""
    tried = []
    blocks = operation(AutotuneStore(str(tmp_path), seeds=()), tried)
    blocks(jnp.ones(24))
    assert {block for block, _ in tried} == {2, 4, 8}
    tried.clear()
    again = operation(AutotuneStore(str(tmp_path), seeds=()), tried)
    assert again.choose(jnp.ones(24)).source.value == "tuned"
    assert tried == []


def test_a_configuration_may_lie_outside_of_the_axes_and_inside_the_constraints(tmp_path):
    """A person or a record names it."""
    store = AutotuneStore(str(tmp_path), seeds=(), refresh_seconds=0.0)
    blocks = operation(store, [], policy=TuningPolicy("heuristics"))
    x = jnp.ones(24)
    record = blocks.tune(x)
    for block, source in ((12, "pinned"), (7, "heuristic")):
        fixed = pinned(record, {"block": block, "inner": {"fast": True}}, now=1e10)
        store.layers[0].documents.replace(record.key.path, encode_record(fixed))
        blocks.forget()
        assert blocks.choose(x).source.value == source
    space = BLOCKS.of_call((x,), {})
    assert space.place({"block": 3, "inner": {"fast": True}}) == (0.5 / 3, 1.0)
    with pytest.raises(ConfigurationError):
        space.checked({"block": 7, "inner": {"fast": True}})


def test_a_candidate_says_where_it_came_from(tmp_path):
    """Of the operation, of a person, of this device in another environment, of another call, and of another device."""
    store = AutotuneStore(str(tmp_path), seeds=(), refresh_seconds=0.0)
    blocks = operation(store, [])
    x = jnp.ones(48)
    first = blocks.tune(x)
    assert {item.origin for item in first.candidates} == {CandidateOrigin.DEFAULT, CandidateOrigin.CONFIGS}
    store.delete(first.key)

    def publish(block, how=lambda record: record, **parts):
        configuration = {"block": block, "inner": {"fast": True}}
        candidates = [*first.candidates, Candidate(configuration, seconds=Timing(1e-9, 1e-9, 1e-9, 9))]
        chosen = dataclasses.replace(first, configuration=configuration, candidates=tuple(candidates))
        store.publish(how(dataclasses.replace(chosen, key=dataclasses.replace(first.key, **parts))))
        return canonical_json(configuration)

    wanted = {
        publish(1, device="another"): CandidateOrigin.DEVICE,
        publish(3, environment={**first.key.environment, "cores": "999"}): CandidateOrigin.ENVIRONMENT,
        publish(6, call={**first.key.call, "more": True}): CandidateOrigin.CALL,
    }
    fixed = {"block": 12, "inner": {"fast": False}}
    store.publish(pinned(first, fixed, now=1e10))
    store.reload()
    record = blocks.tune(x)
    found = {item.digest: item.origin for item in record.candidates}
    assert found[canonical_json(BLOCKS.default)] is CandidateOrigin.DEFAULT
    assert found[canonical_json(fixed)] is CandidateOrigin.USER
    assert {text: found.get(text) for text in wanted} == wanted
    assert decode_record(encode_record(record), path=record.key.path) == record
    store.delete(record.key)
    store.publish(record)
    shown = ejcache("tuned", "show", record.key.digest, "--dir", tmp_path, "--json").json["candidates"]
    assert {canonical_json(item["configuration"]): item["origin"] for item in shown} == found


PROGRAM = """
import jax, numpy as np
from ejcache.autotune import Space, Tuner, autotuned, implementations, powers_of_two

blocks = Space(
    {"block": powers_of_two(2, 16), "inner": {"fast": [False]}},
    default={"block": 2, "inner": {"fast": False}},
    constraints=[lambda config, x: x.shape[0] % config["block"] == 0],
)
quick = Tuner(sample_seconds=0.0005, rounds=8)

@autotuned(configs=blocks, name="space", tuner=quick)
def in_blocks(x, *, block, inner):
    return 2 * x.reshape(block, -1).reshape(x.shape)

@implementations({"doubled": lambda x: x + x, "blocks": in_blocks}, name="several", tuner=quick)
def several(x): ...

if __name__ == "__main__":
    jax.jit(lambda x: in_blocks(x) + several(x))(np.ones(24, np.float32))
"""


def test_the_command_tunes_a_space_and_its_implementations(tmp_path, run_python):
    """`ejcache tune` finds the calls of both, and the constraints hold for what is measured."""
    (tmp_path / "program.py").write_text(PROGRAM)
    place = tmp_path / "place"
    command = "from ejcache.cli.main import main; main()"
    run_python(command, "tuned", "tune", "--dir", place, "program.py", start=ForkedWithChildren)
    store = AutotuneStore(str(place), seeds=())
    records = {found.record.key.operation: found.record for found in store.records()}
    store.close()
    assert set(records) == {"space", "several"}
    assert {item.configuration["block"] for item in records["space"].candidates} == {2, 4, 8}
    tried = [item.configuration for item in records["several"].candidates]
    assert {item["implementation"] for item in tried} == {"doubled", "blocks"}
    assert {item["configuration"]["block"] for item in tried if item["configuration"]} == {2, 4, 8}


def test_spaces_that_cannot_be_are_refused():
    """An axis without values, a default with other names, powers that are none, and prune=."""
    for wrong in (
        lambda: Space({"block": []}, default={"block": 1}),
        lambda: Space({"block": [1]}, default={"other": 1}),
        lambda: powers_of_two(3, 16),
        lambda: powers_of_two(16, 2),
        lambda: operation(None, [], prune=lambda candidates, x: candidates),
    ):
        with pytest.raises(UsageError):
            wrong()


class KilledError(BaseException):
    """The process ends here."""


def test_a_search_that_is_killed_goes_on_where_it_was(tmp_path, monkeypatch):
    """Ten times: what was measured is not measured again, but for the default and those that race at the end."""
    store = AutotuneStore(str(tmp_path), seeds=(), refresh_seconds=0.0)
    built, kills = Counter(), []
    space = Space({"a": range(1, 12), "b": range(1, 12)}, default={"a": 1, "b": 1})
    autotune_simulation.Machine(lambda _: 1e-3).install(monkeypatch)

    def keep(part):
        store.publish(part)
        if len(kills) < 10:
            raise KilledError

    def build(config):
        built[canonical_json(config)] += 1
        return config

    while True:
        store.reload()
        known = store.find(key())
        try:
            record = Tuner(exhaustive=48, rounds=4).tune(
                build, (jnp.ones(4),), {}, key=key(), candidates=[space.default], default=space.default,
                space=space.of_call((), {}), known=None if known is None else known.record, keep=keep,
            )  # fmt: skip
            break
        except KilledError:
            kills.append(1)
    assert len(kills) == 10
    assert not record.measurement.get("interrupted")
    again = {text: count for text, count in built.items() if count > 1}
    assert len(again) <= 1 + 6  # the default, and those that race at the end
    assert len(record.candidates) >= 48
    assert all(count <= 2 for text, count in again.items() if text != canonical_json(space.default))


def far_from_four(stored):
    return 1e-3 * (1 + sum(abs(math.log(value / 4)) for value in stored.values()))


def searched_until(place, end_after=None):
    """The record that a search leaves which ends after so many parts or by itself, and how many parts it had."""
    space = Space({"a": range(1, 12), "b": range(1, 12), "c": range(1, 6)}, default={"a": 1, "b": 1, "c": 1})
    store = AutotuneStore(str(place), seeds=(), refresh_seconds=0.0)
    tuner = Tuner(exhaustive=32, rounds=8)
    op = autotuned(configs=space, name="op", store=store, tuner=tuner)(lambda x, *, a, b, c: x)
    kept = []
    publish = store.publish

    def keep(part):
        published = publish(part)
        kept.append(part)
        if part.interrupted and len(kept) == end_after:
            raise KilledError
        return published

    with pytest.MonkeyPatch.context() as patch:
        autotune_simulation.Machine(far_from_four).install(patch)
        patch.setattr(store, "publish", keep)
        with contextlib.suppress(KilledError):
            op.choose(jnp.ones(4))
    return store.find(op.key(jnp.ones(4))).record, len(kept)


@functools.cache
def whole():
    """What a search leaves that is not killed."""
    with tempfile.TemporaryDirectory() as place:
        return searched_until(place)


@pytest.mark.parametrize("killed", some(range(1, 11), every=4))
def test_a_search_that_is_killed_gives_the_record_of_one_that_is_not(tmp_path, killed):
    """Killed at any tenth: the same candidates are measured, the record says no false reason, and no other history."""
    wanted, parts = whole()
    assert searched_until(tmp_path, max(1, round(killed / 10 * (parts - 1))))[0].interrupted
    again, _ = searched_until(tmp_path)
    assert not again.interrupted
    assert {item.digest for item in again.candidates} >= {item.digest for item in wanted.candidates}
    assert again.configuration == wanted.configuration
    assert (again.unsure, again.measurement["searched"]) == (wanted.unsure, wanted.measurement["searched"])
