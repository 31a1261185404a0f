"""python -m bench.programs.start_up PROGRAM SIZE WHO CACHE UNITS: start PROGRAM with WHO's cache, and time it.

PROGRAM is a module of `bench.programs.start`, SIZE what it takes, WHO `ejcache`, `JAX`, `least` (`least_preload.py`) or
`none`, CACHE a directory, and UNITS how much work of its own the program does between its backend and its first call.
The answer has the seconds of each phase in the main thread and behind it, the full collections of garbage, and when
this process ended by the machine's monotonic clock.

With BENCH_NO_COLLECTOR the collector is off. With BENCH_OBJECTS the program makes so many objects of its own after it
imported JAX. With BENCH_AS_CUDA ejcache treats the CPU as CUDA's: XLA's own caches, and the digests and versions of the
plug-in's libraries.
"""

from __future__ import annotations

import time

began = time.perf_counter()

import gc  # noqa: E402 (all imports are timed)
import hashlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from importlib import import_module  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

from bench.phases import Phases  # noqa: E402
from bench.programs.least_preload import LeastPreload  # noqa: E402

_TOLD = 1000
"""Larger results are not compared: the parameters of a model follow from the loss of the next step."""


def main() -> None:
    if os.environ.get("BENCH_NO_COLLECTOR"):
        gc.disable()
    program, size, who, cache, units = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
    import jax

    own: list[object] = [[] for _ in range(int(os.environ.get("BENCH_OBJECTS", "0")))]
    phases = Phases()
    least = LeastPreload(cache) if who == "least" else None
    phases.watch_loads()
    phases.listen()
    is_real = program.startswith("real_")
    if is_real:
        # As people write it; some libraries compile when they are imported.
        enabling = _enable(who, cache, phases, least)
    module = import_module(f"bench.programs.start.{program}")
    calls = module.calls(size)
    imported = time.perf_counter()
    if not is_real:
        enabling = _enable(who, cache, phases, least)
    enabled = time.perf_counter()
    jax.devices()
    if least is not None:
        least.begin()
    backend = time.perf_counter()
    for _ in range(units):
        work()
    worked = time.perf_counter()
    before, processor = dict(phases.main), time.process_time()
    results, called = [], 0.0
    for call in calls:
        results.append(call())
        called = called or time.perf_counter()
        jax.block_until_ready(results[-1])
    done, processor = time.perf_counter(), time.process_time() - processor
    del own  # not earlier
    if least is not None:
        least.end()
    during = {name: seconds - before.get(name, 0.0) for name, seconds in phases.main.items()}
    outer = [("import", imported), ("enable", enabled), ("backend", backend), ("own work", worked), ("run", done)]
    answer = {
        "import": enabled - began - enabling,
        "enable": enabling,
        "backend": backend - enabled,
        "own work": worked - backend,
        **during,
        "run": done - worked - sum(during.values()),
    }
    print(
        json.dumps(
            {
                "phases": answer,
                "behind": phases.behind,
                "counts": phases.counts,
                "called": called - imported,
                "done": done - imported,
                "called_cpu": processor,
                "collections": phases.collections_by(outer),
                "collecting": phases.collecting,
                "digest": _digest(results),
                "ended": time.monotonic(),
            }
        ),
        flush=True,
    )


def work() -> None:
    """A unit of what programs do before their first step: NumPy, which lets other threads run, and Python."""
    random = np.random.default_rng(0)
    for _ in range(4):
        np.sort(random.standard_normal(40_000))
    sum(number * number % 7 for number in range(30_000))


def _enable(who: str, cache: str, phases: Phases, least: LeastPreload | None) -> float:
    start = time.perf_counter()
    if who == "ejcache":
        import ejcache

        if os.environ.get("BENCH_AS_CUDA"):
            _treat_as_cuda()
        ejcache.enable(cache)
    elif who == "JAX":
        import jax

        jax.config.update("jax_compilation_cache_dir", cache)
    elif least is not None:
        least.enable()
    seconds = time.perf_counter() - start
    phases.watch_compiler()
    return seconds


def _treat_as_cuda() -> None:
    from ejcache.jax_integration import pipeline
    from ejcache.jax_integration.lowering import key, native_libraries

    vars(pipeline)["_PLATFORMS_WITH_CACHES"] = ("cpu", "cuda")
    for module in (key, native_libraries):
        of = module.native_libraries
        vars(module)["native_libraries"] = lambda platform, of=of: of("cuda" if platform == "cpu" else platform)


def _digest(results: Any) -> str:
    """Equal for equal bits."""
    import jax

    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(results):
        array = np.asarray(leaf)
        if array.size <= _TOLD:
            digest.update(array.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
