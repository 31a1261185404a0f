"""python -m bench.programs.keying CACHE BLOCKS REPEATS FIRST compile|stop: time keys where JAX makes its own.

JAX's own cache is on, so that it asks for a key, with everything that a real compilation passes. `stop` ends the
process there; `compile` goes on and times the compilation.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax
import numpy as np
from jax._src import compilation_cache

from bench.measure import quiet_collector, timed
from bench.outcome import OURS
from ejcache.jax_integration.compilation import KeyRequest
from ejcache.jax_integration.lowering.key import make_key
from ejcache.settings.resolve import resolve
from examples import training_step

JAX = "JAX"


def main() -> None:
    cache, blocks, repeats, first, then = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    jax.config.update("jax_compilation_cache_dir", cache)
    parameters = training_step.initial_parameters(blocks)
    tokens = np.zeros((training_step.BATCH, training_step.LENGTH + 1), np.int32)
    lowered = jax.jit(training_step.train_step).lower(parameters, tokens)

    original = compilation_cache.get_cache_key
    answer: dict[str, Any] = {OURS: [], JAX: []}
    spent = 0.0

    def get_cache_key(module: Any, devices: Any, options: Any, backend: Any, *rest: Any) -> Any:
        nonlocal spent
        start = time.perf_counter()
        settings = resolve()

        def ours() -> object:
            return make_key(KeyRequest(module, devices, options, backend), settings)

        calls = {OURS: ours, JAX: lambda: original(module, devices, options, backend, *rest)}
        names = [first, *(name for name in calls if name != first)]
        with quiet_collector():
            for _ in range(repeats + 1):
                for name in names:
                    answer[name].append(timed(calls[name]))
        if then == "stop":
            answer["compile_seconds"] = None
            print(json.dumps(answer), flush=True)
            sys.exit()
        spent += time.perf_counter() - start
        return original(module, devices, options, backend, *rest)

    compilation_cache.get_cache_key = get_cache_key
    start = time.perf_counter()
    lowered.compile()
    answer["compile_seconds"] = time.perf_counter() - start - spent
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
