"""python -m bench.programs.tracing PROGRAM SIZE: trace and lower the `step` of a program of `bench.programs.start`.

The answer has what both took, in seconds, and their processor time. This process has traced nothing before.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module

import jax


def main() -> None:
    function, arguments = import_module(f"bench.programs.start.{sys.argv[1]}").step(int(sys.argv[2]))
    jax.devices()
    seconds, processor = time.perf_counter(), time.thread_time()
    jax.jit(function).trace(*arguments).lower()
    print(json.dumps({"seconds": time.perf_counter() - seconds, "processor": time.thread_time() - processor}))


if __name__ == "__main__":
    main()
