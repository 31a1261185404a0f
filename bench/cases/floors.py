"""What the default floors keep: compile seconds served at the second start, and what a bucket costs small programs."""

from __future__ import annotations

import json
import resource
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.measure import paired_ratio, summarize
from bench.outcome import OURS, at_least, at_most
from bench.registry import SkipCase, case

if TYPE_CHECKING:
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome

NONE = "no cache"
WHOLE, CPU = "whole process", "processor time"
LATENCY = 0.03
PROGRAMS = {
    "real_diffrax": "diffrax",
    "real_equinox": "equinox",
    "real_flax": "flax",
    "real_haiku": "haiku",
    "real_keras": "keras",
    "real_linen": "flax",
    "real_numpyro": "numpyro",
    "real_optax": "optax",
    "real_optimistix": "optimistix",
    "real_stax": "jax",
}
"""Programs of `bench.programs.start`, and the libraries that they are written for."""


@case(
    "floors-served",
    title="ten programs of ten libraries on the default floors: compile seconds served at the next start",
    order=56,
    when_named=True,
)
def served_at_the_second_start(context: Context, outcome: Outcome) -> None:
    """Each program starts twice on one local directory; what the second start still compiles is not served."""
    size, first, second, taken = context.pick(10, 5), 0.0, 0.0, []
    for program in _programs_here():
        context.say(f"{program}, twice")
        with context.directory() as home:
            cold, warm = (_start(context, program, size, str(home / "cache"), home) for _ in range(2))
        if cold["digest"] != warm["digest"]:
            raise AssertionError(f"{program} computed something else at its second start")
        compiled, left = (run["stats"]["compile_seconds"] for run in (cold, warm))
        first, second = first + compiled, second + left
        taken.append(program)
        outcome.ratio(f"{program.removeprefix('real_')}: compile seconds served", 100 * (1 - left / compiled), unit="%")
    share = 100 * (1 - second / first)
    outcome.ratio(f"{len(taken)} programs: compile seconds served", share, at_least(97), unit="%")
    outcome.line("compiling, all programs", {"first start": summarize([first]), "second start": summarize([second])})


@case(
    "floors-bucket",
    title="a program of many small compilations on a bucket at 30 ms, on the default floors",
    order=91,
    when_named=True,
)
def many_small_programs(context: Context, outcome: Outcome) -> None:
    """NumPyro on no cache, on a bucket with nothing in it, and once more on the same host, in turns."""
    from bench.buckets import URL, BucketServer

    if find_spec("numpyro") is None:
        raise SkipCase("numpyro is not installed")
    size = context.pick(200, 50)
    names = (NONE, "first start", "second start", "another host")
    taken: dict[str, dict[str, list[float]]] = {what: {name: [] for name in names} for what in (WHOLE, CPU)}
    digests, requests, misses = set(), [], []
    for number in range(context.pick(7, 1)):
        context.say(f"round {number + 1}")
        with context.directory() as home, BucketServer(latency=LATENCY) as server:
            for name in names if number % 2 == 0 else (*names[1:], NONE):
                host = home / ("two" if name == "another host" else "one")
                env = server.variables | {"EJCACHE_LOCAL_DIR": str(host / "tier")}
                server.take_requests()
                found = _start(context, "real_numpyro", size, "none" if name == NONE else URL, host, env)
                for what, samples in taken.items():
                    samples[name].append(found[what])
                digests.add(found["digest"])
                if name == "second start":
                    requests.append(server.take_requests()["GET entry"])
                    misses.append(found["stats"]["misses_by_reason"])
    if len(digests) != 1:
        raise AssertionError("the processes computed different results")
    bars = {"first start": None, "second start": at_most(0.6), "another host": at_most(1.0)}
    for what, samples in taken.items():
        outcome.line(what, {name: summarize(seconds) for name, seconds in samples.items()})
        for name, bar in bars.items():
            value, interval = paired_ratio(zip(samples[name], samples[NONE], strict=True))
            comparison = f"{what}, {name}: {OURS} ÷ {NONE}"
            outcome.ratio(comparison, value, bar if what == WHOLE else None, interval=interval)
    outcome.ratio("entries asked for at the second start", max(requests), at_most(0), unit="")
    outcome.note(
        f"Programs that the second start compiled, by reason: {misses[-1]}. The bucket was empty before each round."
    )


def _programs_here() -> list[str]:
    found = [program for program, library in PROGRAMS.items() if find_spec(library) is not None]
    if len(found) < 2:
        raise SkipCase("none of the libraries is installed")
    return found


def _start(
    context: Context, program: str, size: int, url: str, home: Path, env: dict[str, str] | None = None
) -> dict[str, Any]:
    home.mkdir(parents=True, exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole, printed = context.start("-m", "bench.programs.served", program, size, url, home=home, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return answer | {WHOLE: whole, CPU: after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}
