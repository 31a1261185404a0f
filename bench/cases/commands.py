"""What commands cost beside a Python that does nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from bench.context import ChildError, child_environment
from bench.measure import summarize, take_turns
from bench.outcome import OURS, at_most
from bench.registry import case

if TYPE_CHECKING:
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome

BARE = "python -c pass"


@case("commands", title="ejcache ls and stats of a local cache with 100 entries, beside python -c pass", order=62)
def commands(context: Context, outcome: Outcome) -> None:
    """Whole processes, which take turns."""
    with context.directory() as home:
        context.say("making entries")
        _fill(home / "cache", 100)

        def command(name: str) -> Any:
            return lambda: context.start("-m", "ejcache", name, "--dir", home / "cache", home=home)

        calls = {
            BARE: (lambda: context.start("-c", "pass", home=home), 2),
            "ejcache ls": (command("ls"), 1),
            "ejcache stats": (command("stats"), 1),
        }
        context.say("starting interpreters")
        take_turns(calls, rounds=1)
        samples = take_turns(calls, rounds=context.pick(15, 3))
        first = [
            (name, summarize(_first_output(name, home) for _ in range(context.pick(15, 3)))) for name in ("ls", "stats")
        ]
    found = {name: summarize(taken) for name, taken in samples.items()}
    outcome.line("a process", found)
    for name in ("ejcache ls", "ejcache stats"):
        outcome.ratio(f"{name} ÷ {BARE}", found[name].median / found[BARE].median, at_most(15))
    for name, taken in first:
        outcome.line(f"ejcache {name}: to its first output", {OURS: taken})
        outcome.ratio(f"ejcache {name}: to its first output", taken.median * 1e3, at_most(200), unit="ms")


def _first_output(name: str, home: Path) -> float:
    command = [sys.executable, "-m", "ejcache", name, "--dir", str(home / "cache")]
    start = time.perf_counter()
    with subprocess.Popen(command, env=child_environment(home), cwd=home, stdout=subprocess.PIPE) as process:
        if process.stdout is None or not process.stdout.read(1):
            raise ChildError(f"ejcache {name} said nothing")
        seconds = time.perf_counter() - start
        process.stdout.read()
    return seconds


def _fill(directory: Path, count: int) -> None:
    """Entries as JAX programs leave them, of 20 kB each."""
    from bench.contestants import value_of
    from ejcache import open_store
    from ejcache.entry import Header, encode

    now = time.time()
    with open_store(directory) as store:
        for number in range(count):
            key = f"jit_step_{number}-cpu-plain-{number:040x}-{24 * 'e'}"
            header = Header(
                key=key,
                name=f"jit_step_{number}",
                compile_seconds=0.1 + number / 100,
                created=now - number,
                platform="cpu",
                jax="0.10.2",
                jaxlib="0.10.2",
                logical_key=f"{number:040x}",
            )
            store.put(key, encode(header, value_of(number, 20_000)))
