"""One answer per pod: processes with different stores run with the same configuration, always."""

from __future__ import annotations

import json
import threading

import pytest
from autotune_helpers import key, record
from forking import Forked
from pod import run_pod

from ejcache.autotune.call import Call
from ejcache.autotune.choice import Choice, ConfigurationMissingError
from ejcache.autotune.chooser import Chooser
from ejcache.autotune.measure.tuner import Tuner
from ejcache.autotune.pod import POD, DisagreementError, PodAgreement
from ejcache.autotune.records.json_values import ConfigurationError
from ejcache.autotune.records.record import Source
from ejcache.autotune.records.store import AutotuneStore
from ejcache.autotune.tuning_blocks import TuningPolicy
from ejcache.errors import StoreUnavailableError


class Notes:
    """A notice board for the threads of one process."""

    def __init__(self):
        self.notes = {}
        self.changed = threading.Condition()

    def of(self, process):
        return Reader(self, process)


class Reader:
    """One process's view of the board."""

    def __init__(self, board, process):
        self.board = board
        self.process = process
        self.processes = 2

    def set_once(self, name, value):
        with self.board.changed:
            if name in self.board.notes:
                return False
            self.board.notes[name] = value
            self.board.changed.notify_all()
            return True

    def get(self, name, *, timeout, what=""):
        with self.board.changed:
            self.board.changed.wait_for(lambda: name in self.board.notes, timeout)
            return self.board.notes.get(name)


def chooser(board, process, store, **options):
    reader = board.of(process) if board is not None else None
    return Chooser(store, agreement=PodAgreement(lambda: reader, **options))


class Asked(Call):
    """A call whose configurations are numbers of blocks; 99 is none that this process can use."""

    key = key()

    def __init__(self, guess=8, tune=None, policy=None):
        super().__init__((), {}, ())
        self.guess, self.tune, self.policy = guess, tune, policy or TuningPolicy("autotune" if tune else "heuristics")

    def default(self):
        return {"block": self.guess}

    def restored(self, stored, source):
        if stored["block"] == 99:
            raise ConfigurationError("99 is no candidate here")
        return stored

    def measured(self, known=None):
        return self.tune()

    def tuner(self):
        return Tuner()

    candidates = build = how = store = None


def test_ranks_with_different_records_use_the_same(tmp_path):
    """The rank that asks first decides for all, whatever the others have in their own stores."""
    stores = [AutotuneStore(str(tmp_path / str(rank))) for rank in range(2)]
    for rank, store in enumerate(stores):
        store.publish(record(block=rank + 1))
    board = Notes()
    choices = [chooser(board, rank, stores[rank]).choose(Asked()) for rank in range(2)]
    assert [c.configuration for c in choices] == [{"block": 1}] * 2
    assert [c.layer for c in choices] == [POD] * 2
    assert choices[1].record == choices[0].record
    assert stores[1].find(key()).record.configuration == {"block": 2}


def test_one_process_measures_and_the_others_wait(tmp_path):
    """While one process measures, the others wait for it and measure nothing."""
    board = Notes()
    measuring, finish, counted = threading.Event(), threading.Event(), []

    def tune():
        counted.append(threading.current_thread().name)
        measuring.set()
        assert finish.wait(120)
        return record(block=5)

    results = {}

    def run(rank):
        results[rank] = chooser(board, rank, AutotuneStore(str(tmp_path / str(rank)))).choose(Asked(tune=tune))

    first = threading.Thread(target=run, args=(0,))
    first.start()
    assert measuring.wait(120)
    others = [threading.Thread(target=run, args=(rank,)) for rank in (1, 2)]
    for thread in others:
        thread.start()
    finish.set()
    for thread in [first, *others]:
        thread.join(120)
    assert len(counted) == 1
    assert [results[rank].configuration for rank in range(3)] == [{"block": 5}] * 3
    assert all(results[rank].source is Source.TUNED for rank in range(3))


def test_a_dead_tuner_costs_the_deadline(tmp_path):
    """If the one who claimed the question never answers, all settle on the guess, a late answer too."""
    board = Notes()
    board.of(0).set_once(f"ejcache/autotune/{key().digest}/claim", b"0")
    late = chooser(board, 1, AutotuneStore(str(tmp_path / "1")), deadline=0.01)
    assert late.choose(Asked()).configuration == {"block": 8}
    again = chooser(board, 2, AutotuneStore(str(tmp_path / "2")))
    assert again.choose(Asked(guess=7)).configuration == {"block": 8}


def test_the_one_who_answers_too_late_follows_the_others(tmp_path):
    """A process whose measurement took longer than the others waited runs with what they settled on."""
    board = Notes()

    settled = []

    def settle():
        other = chooser(board, 1, AutotuneStore(str(tmp_path / "1")), deadline=0.01)
        settled.append(other.choose(Asked()).configuration)

    def tune():
        other = threading.Thread(target=settle)
        other.start()
        other.join(120)
        return record(block=5)

    slow = chooser(board, 0, AutotuneStore(str(tmp_path / "0")))
    choice = slow.choose(Asked(tune=tune))
    assert settled == [{"block": 8}]
    assert (choice.configuration, choice.source) == ({"block": 8}, Source.HEURISTIC)
    assert slow.choose(Asked()) is choice
    # What was measured is kept for the next job.
    assert AutotuneStore(str(tmp_path / "0")).find(key()).record.configuration == {"block": 5}


def test_failure_is_agreed_too(tmp_path):
    """Where a tuned configuration is required and the one who answers has none, all of them fail."""
    board = Notes()
    stores = [AutotuneStore(str(tmp_path / str(rank))) for rank in range(2)]
    stores[1].publish(record())
    for rank in range(2):
        with pytest.raises(ConfigurationMissingError):
            chooser(board, rank, stores[rank]).choose(Asked(policy=TuningPolicy("error")))


def test_processes_that_run_other_code_are_told(tmp_path):
    """A process that cannot use what was agreed says so instead of running something else."""
    board = Notes()
    store = AutotuneStore(str(tmp_path / "0"))
    first = Chooser(store, agreement=PodAgreement(lambda: board.of(0)))
    first.choose(Asked(guess=99))
    with pytest.raises(DisagreementError, match="99"):
        chooser(board, 1, AutotuneStore(str(tmp_path / "1"))).choose(Asked())


def test_without_a_board_each_process_guesses(tmp_path):
    """If the coordination service fails, no process uses what only it has stored."""

    class Broken(Reader):
        def set_once(self, name, value):
            raise StoreUnavailableError("gone")

    store = AutotuneStore(str(tmp_path))
    store.publish(record(block=1))
    broken = Chooser(store, agreement=PodAgreement(lambda: Broken(Notes(), 0)))
    assert broken.choose(Asked()).configuration == {"block": 8}


def test_a_program_of_one_process_asks_nobody(tmp_path):
    """Without jax.distributed the choice is made here."""
    store = AutotuneStore(str(tmp_path))
    store.publish(record(block=1))
    choice = Chooser(store, agreement=PodAgreement(lambda: None)).choose(Asked())
    assert isinstance(choice, Choice)
    assert (choice.configuration, choice.layer) == ({"block": 1}, "memory")


PROGRAM = """
import json, sys
from dataclasses import replace
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from ejcache.autotune import AutotuneStore, Tuner, autotuned
from ejcache.autotune import chooser_for
from ejcache.autotune.records.record import Record

rank, place, shape = jax.process_index(), sys.argv[1], 8
store = AutotuneStore(f"{place}/{rank}")

# -- what each rank could measure alone
@autotuned(configs=[{"n": 1}, {"n": 2}, {"n": 3}], name="op", store=store, tuner=Tuner(rounds=8))
def op(x, *, n):
    return x * n

@autotuned(configs=[{"n": 1}, {"n": 2}], name="other", store=store, tuner=Tuner(rounds=8))
def other(x, *, n):
    return x * n

x = np.ones((shape, shape), np.float32)
# Rank 1 has a record of its own that rank 0 has not.
if rank == 1:
    store.publish(Record(op.key(x), {"n": 3}, created=1.0))
jax.jit(op)(x)
other(x)
agreed = {"op": op.choose(x).configuration, "other": other.choose(x).configuration,
          "layers": [op.choose(x).layer, other.choose(x).layer], "tuned": chooser_for(store).counters["tuning"],
          "record": op.choose(x).record.configuration}

# -- what spans the ranks
everywhere, here = Mesh(np.array(jax.devices()), ("d",)), Mesh(np.array(jax.local_devices()), ("d",))

def tuned(name):
    return autotuned(configs=[{"c": 1}, {"c": 2}], name=name, heuristic={"c": 2}, store=store,
                     tuner=Tuner(rounds=8))

def summed(x, c, mesh):
    return jax.shard_map(lambda y: jax.lax.psum(y * c, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)

@tuned("eager")
def eager(x, *, c):
    return summed(x, c, everywhere)

@tuned("traced")
def traced(x, *, c):
    return summed(x, c, everywhere)

@tuned("nested")
def nested(x, *, c):
    # The mesh is in a jaxpr within a jaxpr, and the candidate's own inputs and results are on one device.
    def step(carry, _):
        return jax.jit(lambda v: summed(v, c, everywhere).sum())(jnp.ones(4)) + carry, None
    return jax.lax.scan(step, x.sum(), None, length=2)[0]

@tuned("local")
def local(x, *, c):
    return summed(x, c, here)

x = jax.make_array_from_process_local_data(NamedSharding(everywhere, P("d")), np.full((4,), rank + 1.0, np.float32))
value = lambda y: np.asarray(y.addressable_data(0)).tolist()
said = {}
said["eager"] = value(eager(x))
said["traced"] = value(jax.jit(traced)(x))
said["nested"] = value(jax.jit(nested)(np.zeros((), np.float32)))
said["local"] = local.choose(np.ones(4, np.float32)).source.value
after = jax.jit(lambda x: summed(x, 10, everywhere))
said["after"] = [value(after(x)) for _ in range(3)]
events = chooser_for(store).events
said["errors"] = {event.key.operation: event.detail for event in events if event.name == "error"}
print("SAID " + json.dumps({"agreed": agreed, "spanning": said}), flush=True)
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two real processes of a JAX job says, whose local stores differ."""
    place = str(tmp_path_factory.mktemp("ranks"))
    home = {"HOME": place, "XDG_CACHE_HOME": f"{place}/.cache"}
    ranks = run_pod(PROGRAM, place, processes=2, env=lambda _: home, timeout=280, start=Forked)
    assert [rank.returncode for rank in ranks] == [0, 0], [rank.stderr for rank in ranks]
    return [json.loads(rank.stdout.partition("SAID ")[2].splitlines()[0]) for rank in ranks]


def test_two_ranks_of_a_job(ranks):
    """They trace the same program; each key is tuned once."""
    said = [rank["agreed"] for rank in ranks]
    assert said[0]["op"] == said[1]["op"]
    assert said[0]["other"] == said[1]["other"]
    assert said[0]["record"] == said[1]["record"]
    assert said[0]["layers"] == said[1]["layers"] == ["pod", "pod"]
    # `op` once, or not at all if the one that had a record came first; `other` once.
    assert 1 <= said[0]["tuned"] + said[1]["tuned"] <= 2


def test_what_spans_processes_is_not_measured(ranks):
    """A candidate with a collective is never run by one rank alone: all take the guess, and the program is right."""
    said = [dict(rank["spanning"]) for rank in ranks]
    errors = said[0].pop("errors") | said[1].pop("errors")
    assert said[0] == said[1]
    assert said[0] == {
        "eager": [6.0] * 4,
        "traced": [6.0] * 4,
        "nested": 16.0,
        "local": "tuned",
        "after": [[30.0] * 4] * 3,
    }
    assert set(errors) == {"eager", "traced", "nested"}
    assert all("devices of other processes" in detail for detail in errors.values())
