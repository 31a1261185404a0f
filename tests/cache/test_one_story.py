"""What happened is told once: `on_event`, `why`, `report` and `stats` say the same of a run, from the same lines."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from archives import flipped
from cli_helpers import ejcache
from helpers import SUPPORT
from jobs import run_job

from ejcache import entry
from ejcache.journal.line import HIT, STORED
from ejcache.journal.start_records import read_starts
from ejcache.keys.key import is_side_key
from ejcache.stores.local.store import LocalStore

LISTENING = """
import json, os, sys, jax, jax.numpy as jnp, numpy as np, ejcache
from ejcache.journal.recorder import START_LOG

heard = []
ejcache.on_event(lambda event: heard.append([type(event).__name__, event._asdict()]))

def tell():
    list(START_LOG.lines())  # what is recorded in the background is told before that is read
    print(json.dumps(heard), flush=True)

def step(x):
    return jnp.tanh(x @ x).sum()

x = np.ones((16, 16), np.float32)
"""
CALL = """
ejcache.enable(sys.argv[1], min_compile_seconds=float(sys.argv[2]), preload=False)
jax.jit(step)(x)
tell()
"""
PRELOADED = """
import time
cache = ejcache.enable(sys.argv[1], min_compile_seconds=0, preload=True)
jax.devices()
while "waits" in sys.argv and not cache.stats().to_dict()["preload"]["loaded"]:
    time.sleep(0.01)
jax.jit(step)(x)
tell()
"""
FORBIDDEN = """
ejcache.enable(sys.argv[1], min_compile_seconds=0)
with ejcache.forbid_compile():
    try:
        jax.jit(step)(x)
    except ejcache.CompileForbiddenError:
        tell()
"""
PGLE = f"""
sys.path.insert(0, {str(SUPPORT)!r})
from pgle_helpers import RUNS, program, watch
for flag, value in {{"jax_enable_pgle": True, "jax_pgle_profiling_runs": RUNS}}.items():
    jax.config.update(flag, value)
ejcache.enable(sys.argv[1], min_compile_seconds=0)
with watch():
    program(calls=RUNS + 2)
tell()
"""
RANK = """
mesh = jax.make_mesh((jax.device_count(),), ("x",))
rows = jax.NamedSharding(mesh, jax.P("x"))
x = jax.make_array_from_callback((jax.device_count(), 4), rows, lambda _: np.ones((1, 4), np.float32))
jax.jit(step_of_all := lambda x: (x * 2).sum())(x)
tell()
"""


@pytest.fixture
def start(run_forked, tmp_path):
    """Runs a program with the cache; returns what it was told of, and what the totals became more by."""

    def start(program=CALL, *arguments):
        before = totals(tmp_path)
        done = run_forked(LISTENING + program, str(tmp_path / "cache"), *(arguments or ("0",)))
        return json.loads(done.stdout.splitlines()[-1]), Counter(totals(tmp_path)) - Counter(before)

    return start


def totals(tmp_path):
    """The counters of `ejcache stats --json`, with reasons and outcomes among them."""
    if not (tmp_path / "cache").exists():
        return {}
    said = ejcache("stats", "--dir", tmp_path / "cache", "--json").json
    counted = {name: said[name] for name in ("hits", "misses", "stores")}
    counted |= {f"miss {reason}": number for reason, number in said["misses_by_reason"].items()}
    return counted | {f"skip {reason}": number for reason, number in said["skipped"].items()}


def tell_alike(events, counted, *, processes=1):
    """Check that all four tell of the last processes what their lines do; returns outcomes and reasons."""
    records = read_starts()[-processes:]
    programs = [program for record in records for program in record.programs]
    hits = [program.name for program in programs if program.outcome == HIT]
    misses = [(program.name, program.reason, program.outcome) for program in programs if program.outcome != HIT]

    told = {kind: [fields for name, fields in events if name == kind] for kind in {name for name, _ in events}}
    assert Counter(each["name"] for each in told.get("ProgramLoaded", ())) == Counter(hits)
    compiled = [(each["name"], each["reason"], each["outcome"]) for each in told.get("ProgramCompiled", ())]
    assert Counter(compiled) == Counter(misses)
    stored = Counter(name for name, _, outcome in misses if outcome == STORED)
    assert Counter(each["name"] for each in told.get("ProgramStored", ())) == stored

    expected = Counter({"hits": len(hits), "stores": stored.total()})
    for _, reason, outcome in misses:
        expected += Counter({"misses": 1, f"miss {reason}": 1} if reason else {})
        expected += Counter({f"skip {outcome}": 1} if outcome != STORED else {})
    assert counted == +expected

    everything = [program for record in read_starts() for program in record.programs]
    report = ejcache("report", "--json").json["sums"]
    assert (report["hits"], report["misses"]) == (
        sum(program.outcome == HIT for program in everything),
        sum(program.outcome != HIT for program in everything),
    )
    assert report["preloaded"] == sum(program.preloaded for program in everything)
    if misses:
        explained = ejcache("why", "--last", str(len(misses)), "--json").json["explanations"]
        said = Counter((each["name"], each["reason"], each["outcome"]) for each in explained)
        assert said == Counter(misses)
    return sorted((program.outcome, program.reason) for program in programs)


def change(tmp_path, make):
    """Replace the stored executable of `step`."""
    with LocalStore(tmp_path / "cache") as store:
        keys = [info.key for info in store.entries() if not is_side_key(info.key)]
        (key,) = [key for key in keys if key.startswith("jit_step-")]
        store.replace(key, make(store.peek(key)))


def test_one_start_after_the_other(start, tmp_path):
    """A program that is forbidden, quick, stored, found, damaged, and refused by XLA."""
    assert tell_alike(*start(FORBIDDEN)) == [("forbidden", "absent")]
    assert tell_alike(*start(CALL, "1000")) == [("quick", "absent")]
    assert tell_alike(*start()) == [(STORED, "absent")]
    assert tell_alike(*start()) == [(HIT, "")]

    change(tmp_path, lambda data: flipped(data, -8))
    events, counted = start()
    assert tell_alike(events, counted) == [(STORED, "corrupt")]
    assert [fields["kind"] for name, fields in events if name == "CacheTrouble"] == ["use a damaged entry"]
    assert ejcache("report", "--json").json["trouble"] == {"use a damaged entry": 1}

    change(tmp_path, lambda data: entry.encode(entry.decode(data).header, b"no executable"))
    assert tell_alike(*start()) == [(STORED, "rejected")]


def test_what_is_preloaded(start):
    """A hit that was loaded before it was asked for is one, and all say so."""
    start(PRELOADED)
    events, counted = start(PRELOADED, "waits")
    assert tell_alike(events, counted) == [(HIT, "")]
    (loaded,) = [fields for name, fields in events if name == "ProgramLoaded"]
    assert loaded["preloaded"] is read_starts()[-1].programs[0].preloaded is True
    assert ejcache("report", "--json").json["sums"]["preloaded"] == 1


def test_pgle(start):
    """The variants of a program are compiled and stored, and the next start says which it loads."""
    told = tell_alike(*start(PGLE))
    assert {outcome for outcome, _ in told} == {STORED}
    assert len(told) >= 2
    assert (HIT, "") in tell_alike(*start(PGLE))


def test_ranks_that_agree(tmp_path):
    """Each rank tells of its own hit."""
    cache = str(tmp_path / "cache")
    for outcome in (None, HIT):
        before = totals(tmp_path)
        _, said = run_job(LISTENING + RANK, cache=lambda _: cache)
        events = [event for each in said for event in each]
        told = tell_alike(events, Counter(totals(tmp_path)) - Counter(before), processes=2)
        assert outcome is None or {each for each, _ in told} == {outcome}
