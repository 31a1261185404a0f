"""Traces of programs that are started again and again, and how much of their compiling a store saves.

Sizes and seconds of compiling for each byte are spread as those of programs: `sigma` is of the logarithm of the latter;
1.1 is a mixture of all kinds of programs, 0.3 a suite of programs that are much alike.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final

from ejcache import entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.stores.base import Store

    Program = tuple[str, int, float]
    """Key, bytes and seconds of compiling."""
    Trace = tuple[Sequence[Program], int]
    """Programs in the order of their use, and the limit of the cache."""

_PADDING: Final = random.Random(0).randbytes(400_000)


def programs(number: int, sigma: float, chance: random.Random, prefix: str = "") -> list[Program]:
    """This many programs."""
    sizes = [int(min(max(20_000 * math.exp(chance.gauss(0, 1)), 2_000), 400_000)) for _ in range(number)]
    return [
        (f"{prefix}{n}", size, size * chance.lognormvariate(math.log(20e-6), sigma)) for n, size in enumerate(sizes)
    ]


def loop(sigma: float, seed: int) -> Trace:
    """A suite of 100 programs, six times, in a cache for 87 % of them."""
    suite = programs(100, sigma, random.Random(seed))
    return suite * 6, int(0.87 * sum(size for _, size, _ in suite))


def upgrade(sigma: float, seed: int) -> Trace:
    """A suite eight times, and then eight times another one, which an upgrade of JAX has made of it."""
    chance = random.Random(seed)
    before, after = programs(60, sigma, chance, "before"), programs(60, sigma, chance, "after")
    return before * 8 + after * 8, int(0.87 * max(sum(size for _, size, _ in suite) for suite in (before, after)))


def team(sigma: float, seed: int, *, starts: int = 400) -> Trace:
    """Forty projects, of which some are started often, in a cache for 30 % of them."""
    chance = random.Random(seed)
    projects = [programs(chance.randint(5, 20), sigma, chance, f"project{n} ") for n in range(40)]
    often = [1 / (n + 1) ** 1.3 for n in range(40)]
    trace = [program for project in chance.choices(projects, often, k=starts) for program in project]
    return trace, int(0.3 * sum(size for project in projects for _, size, _ in project))


def encoded(key: str, *, seconds: float, size: int) -> bytes:
    """An entry of this size that took so long to compile."""
    header = entry.Header(key=key, compile_seconds=seconds)
    return entry.encode(header, _PADDING[: size - len(entry.encode(header, b""))])


def saved(store: Store, trace: Sequence[Program]) -> float:
    """The share of the seconds that a cache without a limit would have saved."""
    done = possible = 0.0
    seen = set()
    for key, size, seconds in trace:
        possible += seconds * (key in seen)
        seen.add(key)
        if store.get(key) is not None:
            store.note_used(key)
            done += seconds
        else:
            store.put(key, encoded(key, seconds=seconds, size=size))
    return done / possible
