"""Eight processes, 90 % get and 10 % put, 500 resident entries of 50 kB under a limit that they just reach."""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.contestants import fill, key_of, open_contestant, peers, value_of
from bench.measure import summarize
from bench.outcome import OURS, at_least
from bench.registry import case

if TYPE_CHECKING:
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome

PROCESSES = 8
RESIDENT = 500
VALUE_BYTES = 50_000
PUTS_PER_TEN = 1
_WINDOW = range(16, 250)
"""How far back a get looks, in puts: so far that the put is done, and so near that every entry in it is used again long
before the entries older than it, half of the store, are evicted. So every contestant answers hits, and not the cheaper
misses, however fast it is."""


@dataclass(frozen=True, slots=True)
class _Round:
    """What one contestant did in one round, all processes together; times in seconds."""

    rate: float
    gets: list[float]
    puts: list[float]
    misses: int
    errors: int


@case("mixed", title="8 processes, 90 % get and 10 % put of 50 kB, 500 resident, with a size limit", order=30)
def mixed(context: Context, outcome: Outcome) -> None:
    """Each contestant has the machine for itself in its round, and the rounds take turns."""
    names = [OURS, *peers()]
    seconds = context.pick(3.0, 1.0)
    taken: dict[str, list[_Round]] = {name: [] for name in names}
    for number in range(context.pick(5, 1)):
        for name in names if number % 2 == 0 else reversed(names):
            context.say(f"round {number + 1}: {name}")
            with context.directory() as directory:
                taken[name].append(_one_round(name, directory, seconds))
    rates = {name: [one.rate for one in rounds] for name, rounds in taken.items()}
    outcome.line("throughput", {n: summarize(r, unit="op/s") for n, r in rates.items()})
    for what in ("gets", "puts"):
        latencies = {n: summarize(s for one in rounds for s in getattr(one, what)) for n, rounds in taken.items()}
        outcome.line(f"one {what[:-1]}", latencies)
    for peer in names[1:]:
        ratios = [ours / theirs for ours, theirs in zip(rates[OURS], rates[peer], strict=True)]
        outcome.ratio(f"throughput: {OURS} ÷ {peer}", statistics.median(ratios), at_least(10))
    worst = {name: max(max(one.gets + one.puts) for one in rounds) for name, rounds in taken.items()}
    for peer in names[1:]:
        outcome.ratio(f"worst operation: {peer} ÷ {OURS}", worst[peer] / worst[OURS])
    for name, rounds in taken.items():
        gets = sum(len(one.gets) for one in rounds)
        missed, errors = sum(one.misses for one in rounds), sum(one.errors for one in rounds)
        outcome.note(f"{name}: {gets:,} gets, {missed / max(gets, 1):.1%} of them misses; {errors} operations failed.")


def _one_round(name: str, directory: Path, seconds: float) -> _Round:
    place = directory / "store"
    fill(name, place, count=RESIDENT, size=VALUE_BYTES, step=lambda _: None)
    os.sync()
    # A fresh process has no threads of ours when it forks; preloading keeps importing JAX out of the round.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["bench.cases.mixed", "jax._src.lru_cache", "ejcache.stores.local.store"])
    ready, answers = processes.Barrier(PROCESSES), processes.SimpleQueue()
    newest = processes.Value("q", RESIDENT - 1)
    workers = [
        processes.Process(target=_work, args=(name, place, seconds, number, ready, newest, answers), daemon=True)
        for number in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    parts = [answers.get() for _ in workers]
    for worker in workers:
        worker.join()
    problems = [part for part in parts if isinstance(part, str)]
    if problems:
        raise RuntimeError(f"processes of {name} failed: {problems}")
    gets = [s for part in parts for s in part["gets"]]
    puts = [s for part in parts for s in part["puts"]]
    # The slowest process's last operation may end after the others stopped; the rate is over all of that time.
    lasted = max(part["end"] for part in parts) - min(part["start"] for part in parts)
    done = len(gets) + len(puts)
    return _Round(
        done / lasted, gets, puts, sum(part["misses"] for part in parts), sum(part["errors"] for part in parts)
    )


def _work(name: str, place: Path, seconds: float, number: int, ready: Any, newest: Any, answers: Any) -> None:
    try:
        answers.put(_operate(name, place, seconds, number, ready, newest))
    except BaseException as exc:
        ready.abort()
        answers.put(f"{type(exc).__name__}: {exc}")
        raise


def _operate(name: str, place: Path, seconds: float, number: int, ready: Any, newest: Any) -> dict[str, Any]:
    store = open_contestant(name, place, max_size=RESIDENT * VALUE_BYTES)
    chosen = random.Random(number)
    gets: list[float] = []
    puts: list[float] = []
    misses = errors = 0
    store.get(key_of(newest.value))
    ready.wait(timeout=60)
    start = now = time.monotonic()
    while now - start < seconds:
        is_put = chosen.randrange(10) < PUTS_PER_TEN
        with newest.get_lock():
            newest.value += is_put
            latest = newest.value
        value = value_of(latest, VALUE_BYTES) if is_put else b""
        key = key_of(latest if is_put else latest - chosen.choice(_WINDOW))
        began = time.monotonic()
        try:
            if is_put:
                store.put(key, value)
            else:
                misses += store.get(key) is None
        except Exception:
            # A lock that was not had in time, for one: counted, and its time stands.
            errors += 1
        now = time.monotonic()
        (puts if is_put else gets).append(now - began)
    return {"gets": gets, "puts": puts, "misses": misses, "errors": errors, "start": start, "end": now}
