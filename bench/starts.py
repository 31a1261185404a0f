"""Processes that start a program with each cache in turn, and where their time goes."""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench.context import ChildError
from bench.outcome import OURS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.context import Context

__all__ = [
    "AT_ONCE",
    "BEHIND",
    "CALLED",
    "CPU",
    "DEFAULTS",
    "DONE",
    "JAX",
    "JAX_DEFAULTS",
    "LEAST",
    "MEASURES",
    "NONE",
    "PARTS",
    "PLAIN",
    "PRELOAD",
    "UNSET",
    "WHOLE",
    "Contestant",
    "Start",
    "Work",
    "known_to_preload",
    "on_a_gpu",
    "on_one_core",
    "pairs_of",
    "parts_of",
    "start_by_turns",
    "start_once",
]

_FLOORS = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
_MAIN = (
    "import",
    "enable",
    "backend",
    "own work",
    "trace",
    "lower",
    "key",
    "fetch",
    "load",
    "compile",
    "store",
    "run",
    "exit",
)
BEHIND = {"fetch, behind": "fetch", "load, behind": "load"}
WHOLE = "whole process"
PARTS = (*_MAIN, WHOLE, *BEHIND)
"""The parts of a start in their order: of the main thread, then what other threads did meanwhile."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A cache and how it is set.

    Attributes:
        who: as `bench.programs.start_up` names caches.
        env: its settings.
    """

    name: str
    who: str
    env: Mapping[str, str] = field(default_factory=dict, hash=False)


NONE = Contestant("no cache", "none", {"JAX_ENABLE_COMPILATION_CACHE": "false"})
JAX = Contestant("JAX", "JAX", _FLOORS)
JAX_DEFAULTS = Contestant("JAX, defaults", "JAX")
PLAIN = Contestant(f"{OURS}, no preload", "ejcache", _FLOORS | {"EJCACHE_PRELOAD": "0"})
PRELOAD = Contestant(f"{OURS}, preload", "ejcache", _FLOORS | {"EJCACHE_PRELOAD": "1"})
UNSET = Contestant(f"{OURS}, preload unset", "ejcache", _FLOORS)
DEFAULTS = Contestant(f"{OURS}, defaults", "ejcache")
LEAST = Contestant("the least preload", "least", _FLOORS)
"""No cache: a bound for every preload that loads in a thread of Python (`bench/programs/least_preload.py`)."""


_MOST_ROUNDS = {JAX_DEFAULTS: 7, DEFAULTS: 7}


@dataclass(frozen=True, slots=True)
class Work:
    """What a program does between its backend and its first call, and under what it starts.

    Attributes:
        units: of `bench.programs.start_up.work`.
        one_core: all its threads share one core.
        env: as `bench.programs.start_up` reads it.
        under: the command that runs the interpreter.
    """

    name: str
    units: int
    one_core: bool = False
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    under: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """One process; all times in seconds.

    Attributes:
        seconds: from its start to its end.
        cpu: what it took of all processors, user and system.
        phases: where the time of the main thread went; `behind` is of other threads.
        called: from before `enable()` to the return of the first call; not for real programs.
        done: to the last result.
        called_cpu: what the process took of all processors during its calls.
        collections: full collections of garbage in the main thread, by phase.
        collecting: what these took.
    """

    seconds: float
    cpu: float
    phases: dict[str, float]
    behind: dict[str, float]
    counts: dict[str, int]
    called: float
    done: float
    called_cpu: float
    collections: dict[str, int]
    collecting: float
    digest: str


AT_ONCE = "at once"
CPU, CALLED, DONE = "processor time", "enable() to the first call's return", "enable() to the last result"
MEASURES: dict[str, Callable[[Start], float]] = {
    WHOLE: lambda start: start.seconds,
    CPU: lambda start: start.cpu,
    CALLED: lambda start: start.called,
    DONE: lambda start: start.done,
}


def on_a_gpu() -> bool:
    """Whether the programs start on one."""
    return os.environ.get("JAX_PLATFORMS", "cpu").split(",")[0] in {"cuda", "gpu", "rocm"}


@contextmanager
def on_one_core(*, really: bool = True) -> Iterator[None]:
    """Let processes that are started meanwhile have one core."""
    before = os.sched_getaffinity(0)
    if really:
        os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def known_to_preload() -> bool:
    """Whether this ejcache has the setting."""
    from ejcache.settings.resolve import resolve

    return hasattr(resolve(), "preload")


def start_by_turns(
    context: Context,
    program: str,
    size: int,
    contestants: Sequence[tuple[Contestant, Work]],
    *,
    rounds: int,
) -> tuple[dict[str, Start], dict[tuple[str, str], list[Start]]]:
    """The first process of each contestant, which compiles, and the later ones by contestant and work, by rounds.

    A contestant without a cache compiles every time: where that takes long, it takes part in two rounds only. Those
    with default floors, one of which compiles much, take part in seven. The contestants of a round begin with another
    one each time, and every second round goes backwards.

    On a GPU all compile with the results of autotuning that one process without a cache has found. Otherwise each cache
    would hold an executable with kernels of its own, and one of them may need what the others do not.

    Raises:
        ChildError: a process failed, or computed other bits than the others: on CPU only, because two compilations of
            one program may choose different algorithms for a GPU.
    """
    with context.directory() as home:
        cold: dict[str, Start] = {}
        if on_a_gpu():
            contestants = _tuned_alike(context, program, size, contestants, home)
        caches = list({one.name: one for one, _ in contestants}.values())
        for one in caches:
            context.say(f"{one.name}: first start, which compiles")
            cold[one.name] = start_once(context, program, size, one, home)
            if one.who != "none":
                context.say(f"{one.name}: second start, which is not counted")
                start_once(context, program, size, one, home)
        warm: dict[tuple[str, str], list[Start]] = {(one.name, work.name): [] for one, work in contestants}
        for number in range(rounds):
            first = number // 2 % len(contestants)
            turn = [*contestants[first:], *contestants[:first]]
            for one, work in turn if number % 2 == 0 else reversed(turn):
                if number >= (2 if one.who == "none" and cold[one.name].seconds > 5 else _MOST_ROUNDS.get(one, rounds)):
                    continue
                context.say(f"round {number + 1} of {rounds}: {one.name}, {work.name}")
                warm[one.name, work.name].append(start_once(context, program, size, one, home, work))
    digests = {one.digest for one in (*cold.values(), *(start for starts in warm.values() for start in starts))}
    if len(digests) != 1 and not on_a_gpu():
        raise ChildError(f"{program}: the processes computed different results")
    return cold, warm


def _tuned_alike(
    context: Context, program: str, size: int, contestants: Sequence[tuple[Contestant, Work]], home: Path
) -> list[tuple[Contestant, Work]]:
    """The same contestants, which compile with one choice of kernels."""
    tuned = home / "autotuned.txt"
    context.say("choosing the kernels that all will use")
    dump = {"XLA_FLAGS": f"--xla_gpu_dump_autotune_results_to={tuned}"}
    start_once(context, program, size, replace(NONE, env={**NONE.env, **dump}), home)
    if not tuned.exists():
        return list(contestants)
    load = {"XLA_FLAGS": f"--xla_gpu_load_autotune_results_from={tuned}"}
    return [(replace(one, env={**one.env, **load}), work) for one, work in contestants]


def parts_of(starts: Sequence[Start]) -> dict[str, float]:
    """The medians of what a start took, phase by phase; they need not add up to the median of the whole."""
    samples = {
        **{name: [start.phases.get(name, 0.0) for start in starts] for name in _MAIN},
        **{name: [start.behind.get(phase, 0.0) for start in starts] for name, phase in BEHIND.items()},
        WHOLE: [start.seconds for start in starts],
    }
    return {name: statistics.median(taken) for name, taken in samples.items() if max(taken) >= 5e-4}


def pairs_of(
    warm: Mapping[tuple[str, str], Sequence[Start]], theirs: Contestant, ours: Contestant, moment: str, measure: str
) -> list[tuple[float, float]]:
    """A measure of both by round; the program's own work does not count, as long as the peer's process takes for it."""
    of = MEASURES[measure]
    peers = warm[theirs.name, moment]
    own = statistics.median(one.phases["own work"] for one in peers)
    rounds = zip(peers, warm[ours.name, moment], strict=False)
    return [(max(of(first) - own, 1e-3), max(of(second) - own, 1e-3)) for first, second in rounds]


def start_once(
    context: Context, program: str, size: int, one: Contestant, home: Path, work: Work | None = None
) -> Start:
    """Start `program` with the contestant's cache below `home`.

    Raises:
        ChildError: the process failed.
    """
    directory = home / one.name.replace(", ", "-").replace(" ", "-")
    directory.mkdir(exist_ok=True)
    work = work or Work("", 0)
    command = ("-m", "bench.programs.start_up", program, size, one.who, directory / "cache", work.units)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    with on_one_core(really=work.one_core):
        _, printed = context.start(
            *command, home=directory, env={**one.env, **work.env}, timeout=1200, under=work.under
        )
    ended = time.monotonic()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        answer: dict[str, Any] = json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError) as exc:
        raise ChildError(f"{program} answered no JSON: {printed[-500:]}") from exc
    return Start(
        seconds=ended - began,
        cpu=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        phases={**answer["phases"], "exit": ended - answer["ended"]},
        behind=answer["behind"],
        counts=answer["counts"],
        called=answer["called"],
        done=answer["done"],
        called_cpu=answer["called_cpu"],
        collections=answer["collections"],
        collecting=answer["collecting"],
        digest=answer["digest"],
    )
