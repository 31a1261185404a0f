"""python -m bench.programs.first_hit WHO CACHE: the first hit of a process, and what is imported for it.

WHO is `ejcache` or `JAX`. JAX and NumPy are imported before the clock starts. The answer has the seconds of enabling a
cache; of the modules that are imported after that and until the first call has returned, JAX's own left out; and of
that call, which makes the backend, traces, looks up, loads and runs.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any


class Imports:
    """Times the loading of modules in the thread that makes this object; of nested ones, the outermost counts."""

    def __init__(self) -> None:
        # importlib's own: a finder of ours would not see when a module has been executed.
        import _frozen_importlib as importlib

        self.seconds = 0.0
        self.names: list[str] = []
        self._depth = 0
        self._thread = threading.get_ident()
        self._load = vars(importlib)["_load_unlocked"]
        vars(importlib)["_load_unlocked"] = self._timed

    def _timed(self, spec: Any) -> Any:
        if self._depth or threading.get_ident() != self._thread or spec.name.partition(".")[0] in {"jax", "jaxlib"}:
            return self._load(spec)
        self._depth += 1
        began = time.perf_counter()
        try:
            return self._load(spec)
        finally:
            self.seconds += time.perf_counter() - began
            self.names.append(spec.name)
            self._depth -= 1


def main() -> None:
    who, cache = sys.argv[1:3]
    import jax
    import numpy as np

    began = time.perf_counter()
    if who == "ejcache":
        import ejcache

        ejcache.enable(cache)
    else:
        jax.config.update("jax_compilation_cache_dir", cache)
    enabled = time.perf_counter()
    imports = Imports()
    called = time.perf_counter()
    jax.block_until_ready(jax.jit(lambda x: x * 2 + 1)(np.ones(8, np.float32)))
    ended = time.perf_counter()
    print(json.dumps({"enable": enabled - began, "imports": imports.seconds, "first": ended - called}), flush=True)


if __name__ == "__main__":
    main()
