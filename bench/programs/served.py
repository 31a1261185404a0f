"""python -m bench.programs.served PROGRAM SIZE URL: run a program of `bench.programs.start` on the cache's defaults.

URL is of the cache, or `none`. The answer has the results' digest, the seconds of this process, and what was counted.
"""

from __future__ import annotations

import time

began = time.perf_counter()

import hashlib  # noqa: E402 (all imports are timed)
import json  # noqa: E402
import sys  # noqa: E402
from importlib import import_module  # noqa: E402
from typing import Any  # noqa: E402


def main() -> None:
    program, size, url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    import jax
    import numpy as np

    cache: Any = None
    if url != "none":
        import ejcache

        cache = ejcache.enable(url)
    results = [call() for call in import_module(f"bench.programs.start.{program}").calls(size)]
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(results):
        digest.update(np.asarray(leaf).tobytes())
    seconds = time.perf_counter() - began
    counted = cache.stats().to_dict() if cache is not None else {}
    print(json.dumps({"digest": digest.hexdigest(), "seconds": seconds, "stats": counted}))


if __name__ == "__main__":
    main()
