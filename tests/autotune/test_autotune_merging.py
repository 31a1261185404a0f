"""Merging: of the records that several processes publish for one call, the same one stays, however they arrive."""

from __future__ import annotations

import dataclasses
import functools
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from autotune_helpers import key
from forking import Forked
from hypothesis import given
from hypothesis import strategies as st

from ejcache.autotune import AutotuneStore, Candidate, Record, Source, Tuner, autotuned
from ejcache.autotune.records.record import (
    RETRY_SECONDS,
    WITH_PROFILE,
    Status,
    Timing,
    dated_after,
    decode_record,
    encode_record,
    merged,
    pinned,
    space_digest,
    unpinned,
)

MONTH = 30 * 86_400.0
SURE, UNSURE, FAILED = {"space": "a"}, {"space": "b", "unsure": "the budget ended"}, {"space": "c", "failed": True}

PROFILED = {"space": "a", WITH_PROFILE: True}
WRONG, RIGHT = ({"gradients": {'{"block":1}': right}} for right in (False, True))
PART = {"space": "d", "interrupted": True, "unsure": "the search has not ended"}


def tried(block, seconds, *, measured=1.0, **fields):
    timing = None if seconds is None else Timing(seconds, seconds, seconds, 4)
    return Candidate({"block": block}, seconds=timing, measured=measured, **fields)


candidates = st.builds(
    tried,
    block=st.integers(1, 3),
    seconds=st.sampled_from([0.1, 0.2]),
    measured=st.sampled_from([0.0, 1.0, MONTH]),
    status=st.sampled_from(Status),
    transient=st.booleans(),
)
records = st.builds(
    Record,
    key=st.just(key()),
    configuration=st.builds(lambda block: {"block": block}, st.integers(1, 3)),
    source=st.sampled_from([Source.PINNED, Source.TUNED, Source.IMPORTED]),
    candidates=st.lists(candidates, max_size=3, unique_by=lambda item: item.digest).map(tuple),
    measurement=st.sampled_from([{}, SURE, UNSURE, FAILED, PART, PROFILED, WRONG, RIGHT]),
    created=st.sampled_from([0.0, 1.0, MONTH]),
)


@given(st.lists(records, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_records_merge_to_the_same_in_any_order_and_grouping(made, order):
    """Also if some arrive twice, and if others were merged with each other before."""
    wanted = encode_record(functools.reduce(merged, made))
    shuffled = [*made, order.choice(made)]
    order.shuffle(shuffled)
    while len(shuffled) > 1:
        one, other = shuffled.pop(order.randrange(len(shuffled))), shuffled.pop(order.randrange(len(shuffled)))
        shuffled.append(decode_record(encode_record(merged(one, other))))
    assert encode_record(shuffled[0]) == wanted


def test_a_sure_choice_counts_before_an_unsure_one_and_that_before_a_failure():
    """And then the later one, whatever the clocks say."""
    made = [
        Record(key(), {"block": 1}, measurement=SURE, created=1.0, candidates=(tried(1, 0.1),)),
        Record(key(), {"block": 2}, measurement=SURE, created=2.0, candidates=(tried(1, 0.3), tried(2, 0.2))),
        Record(key(), {"block": 3}, measurement=UNSURE, created=MONTH, candidates=(tried(3, 0.05, measured=MONTH),)),
        Record(key(), {"block": 1}, measurement=FAILED, created=2 * MONTH,
               candidates=(tried(2, None, status=Status.FAILED, measured=2 * MONTH),)),
    ]  # fmt: skip
    found = functools.reduce(merged, made)
    assert (found.configuration, found.works) == ({"block": 2}, True)


@pytest.mark.parametrize("ahead", [-MONTH, MONTH, 1.7e308])
def test_who_replaces_a_record_knowingly_succeeds(tmp_path, ahead):
    """`tune` measures again and its result stays, although the record was made by a host whose clock was ahead."""
    store = AutotuneStore(str(tmp_path), seeds=())

    @autotuned(configs=[{"n": 1}, {"n": 2}], name="replaced", store=store, tuner=Tuner(rounds=4))
    def op(x, *, n):
        return x + 0 * n

    first = op.tune(1.0)
    foreign = [dataclasses.replace(item, measured=time.time() + ahead) for item in first.candidates]
    store.delete(first.key)
    # Unsure, because a sure record stays where the new measurement is unsure.
    unsure = {**first.measurement, "unsure": "the host was busy"}
    created = time.time() + ahead
    store.publish(dataclasses.replace(first, created=created, candidates=tuple(foreign), measurement=unsure))
    store.reload()
    again = op.tune(1.0)
    found = AutotuneStore(str(tmp_path), seeds=()).find(first.key).record
    if ahead < 1e300:
        assert found.measurement == again.measurement
        assert {item.digest: item.seconds for item in found.candidates} == {
            item.digest: item.seconds for item in again.candidates
        }
    assert store.find(first.key).record.configuration == again.configuration


def test_pins_and_failures_count_whatever_clock_dated_them():
    """A pin is dated after the record that it fixes; a failure that may have passed is not kept by a date ahead."""
    ahead = Record(key(), {"block": 1}, source=Source.PINNED, created=time.time() + MONTH)
    assert merged(ahead, pinned(ahead, {"block": 2}, now=time.time())).configuration == {"block": 2}
    late = tried(1, None, status=Status.TIMEOUT, measured=time.time() + MONTH)
    assert late.expired(time.time())
    assert not tried(1, None, status=Status.TIMEOUT, measured=time.time() - RETRY_SECONDS / 2).expired(time.time())
    record = Record(key(), {"block": 1}, candidates=(late,), created=1.0)
    newer = tried(1, None, status=Status.TIMEOUT, measured=time.time())
    assert merged(record, dated_after(dataclasses.replace(record, candidates=(newer,)), [record])).candidates[0] != late


def test_a_choice_that_was_found_to_fail_is_not_used():
    """The sure choice of one process failed in another one, which was not sure of its own: measure again."""
    one = Record(key(), {"block": 1}, measurement=SURE, candidates=(tried(1, 0.1), tried(2, 0.2)), created=1.0)
    wrong = tried(1, None, status=Status.FAILED, measured=2.0)
    other = Record(key(), {"block": 2}, measurement=UNSURE, candidates=(wrong, tried(2, 0.2)), created=2.0)
    both = merged(one, other)
    assert (both.configuration, both.works, both.failed) == ({"block": 1}, False, False)


TUNES = """
import sys, time
shift, unsure, place = float(sys.argv[1]), sys.argv[2] == "unsure", sys.argv[3]
clock = time.time
time.time = lambda: clock() + shift
import jax, numpy as np
from ejcache.autotune import AutotuneStore, Tuner, autotuned
from ejcache.autotune.records.record import encode_record

store = AutotuneStore(place, seeds=())

@autotuned(configs=[{"n": 1}, {"n": 2}, {"n": 3}], name="shared", store=store,
           tuner=Tuner(rounds=8, min_gain=0.9, budget=1e-9 if unsure else 60.0))
def op(x, *, n):
    return x + 0 * n

record = op.bound((np.ones(4, np.float32),), {}).measured()
assert store.publish(record)
print(encode_record(record).decode())
"""


def test_processes_that_tune_one_operation_keep_one_sure_record(run_forked, tmp_path):
    """Their clocks are a month apart, and most have too little time to be sure."""
    order = random.Random(0)
    place = str(tmp_path / "store")

    def tune(number):
        shift = str(order.uniform(-MONTH, MONTH))
        done = run_forked(TUNES, shift, "unsure" if number else "sure", place)
        return decode_record(done.stdout.encode())

    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(tune, range(3)))
    assert {bool(record.unsure) for record in made} == {True, False}
    found = AutotuneStore(place, seeds=()).find(made[0].key).record
    assert not found.unsure
    order.shuffle(made)
    assert encode_record(found) == encode_record(functools.reduce(merged, made))


def test_a_pin_that_is_let_go_gives_back_the_choice():
    """Also a default that won although another candidate's time was a little less, and after two pins."""
    candidates = (tried(8, 0.1), tried(16, 0.099))
    chosen = Record(key=key(), configuration={"block": 8}, default={"block": 8}, candidates=candidates, created=1.0)
    fixed = pinned(pinned(chosen, {"block": 16}, now=2.0), {"block": 32}, now=3.0)
    back = unpinned(decode_record(encode_record(fixed)), now=4.0)
    assert (back.configuration, back.source, back.measurement) == ({"block": 8}, Source.TUNED, {})
    assert unpinned(back, now=5.0) is None


def test_a_part_of_a_measurement_does_not_count_as_its_end():
    """A process is killed while it measures new candidates: the next one sees that they were not all measured."""
    ended = Record(key(), {"block": 1}, measurement=SURE, candidates=(tried(1, 0.1),), created=1.0)
    listed = [{"block": block} for block in (1, 2, 3)]
    part = Record(
        key(),
        {"block": 1},
        measurement=PART | {"space": space_digest(listed)},
        candidates=(tried(1, 0.1), tried(2, 0.2)),
        created=2.0,
    )
    both = merged(ended, part)
    assert (both.interrupted, both.unsure, len(both.candidates)) == (False, "", 2)
    assert not both.covers(listed)
    assert merged(dataclasses.replace(part, created=1.0), part).interrupted
    whole = dataclasses.replace(part, measurement={"space": space_digest(listed), "unsure": "the rounds ended"})
    assert merged(whole, dataclasses.replace(part, created=3.0)).covers(listed)
    assert not merged(whole, dataclasses.replace(part, created=3.0)).interrupted


WRITES = """
import sys
sys.path[:0] = sys.argv[3:]
from autotune_helpers import candidate, key, record
from forking import Forked
from ejcache.autotune import AutotuneStore

store, writer = AutotuneStore(sys.argv[1], seeds=()), int(sys.argv[2])
for step in range(1_000_000):
    device = f"device {step % 5}"
    block = 1_000 * writer + step
    if store.publish(record(key(device=device), block=block, candidates=(candidate(block, 0.001),))):
        print(block, flush=True)
"""


@pytest.mark.parametrize("count", [3, pytest.param(10, marks=pytest.mark.soak)])
def test_writers_that_are_killed_lose_nothing(tmp_path, count):
    """Processes write what they measure of one call on five devices, and are killed; one damaged file costs one."""
    place, helpers = tmp_path / "store", str(Path(__file__).parents[1] / "support")
    command = [sys.executable, "-c", WRITES, str(place)]
    writers = [Forked([*command, str(number), helpers], stdout=subprocess.PIPE, text=True) for number in range(count)]
    said = []
    for number, writer in enumerate(writers):
        said += [int(writer.stdout.readline()) for _ in range(5 + number)]
        writer.kill()
        said += [int(line) for line in writer.stdout if line.endswith("\n")]
        writer.stdout.close()
        writer.wait()
    store = AutotuneStore(str(place), seeds=())
    found = {item.record.key.device: item.record for item in store.records()}
    assert len(found) == 5
    kept = {item.configuration["block"] for record in found.values() for item in record.candidates}
    assert set(said) <= kept
    damaged = place / found["device 2"].key.path
    damaged.write_bytes(damaged.read_bytes()[:-40])
    store.reload()
    assert store.find(key(device="device 2")) is None
    assert {item.record.key.device for item in store.near(key(device="device 9"))} == set(found) - {"device 2"}
    for device in set(found) - {"device 2"}:
        assert store.find(key(device=device)).record == found[device]
    store.close()
