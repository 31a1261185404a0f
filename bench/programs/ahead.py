"""python -m bench.programs.ahead SIZE URL WHAT: `use` SIZE tiny programs with the cache at URL, or load them `ahead`.

The answer has the seconds from the first backend until all of them are loaded, with the client of the cache made
before, and what was counted when the program has used them.
"""

from __future__ import annotations

import json
import sys
import time

PATIENCE = 60.0


def main() -> None:
    size, url, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    import jax

    import ejcache
    from bench.programs.start.tiny import calls

    programs = calls(size)
    cache = ejcache.enable(url, min_compile_seconds=0)
    cache.contains("nothing")
    began = time.perf_counter()
    jax.devices()
    while what == "ahead" and cache.stats().amounts.get("preload_loaded", 0) < size:
        if time.perf_counter() - began > PATIENCE:
            raise TimeoutError(f"loaded after {PATIENCE:.0f} s: {cache.stats().to_dict()['preload']}")
        time.sleep(0.001)
    seconds = time.perf_counter() - began
    for call in programs:
        call()
    print(json.dumps({"seconds": seconds, "stats": cache.stats().to_dict()}))


if __name__ == "__main__":
    main()
