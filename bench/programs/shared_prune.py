"""python -m bench.programs.shared_prune URL LIMIT: one pass of maintenance, and how long it took."""

from __future__ import annotations

import json
import sys
import time

from bench.programs.memory import forget_peak, memory
from ejcache.maintenance.eviction import run_pass
from ejcache.maintenance.eviction_plan import EvictionPolicy
from ejcache.stores.opening import open_bucket


def main() -> None:
    bucket = open_bucket(sys.argv[1])
    bucket.read("v1/policy.json")  # the connection is open now
    before, began = forget_peak(), time.perf_counter()
    report = run_pass(bucket, EvictionPolicy(max_size=int(sys.argv[2])))
    seconds, peak = time.perf_counter() - began, memory("VmHWM")
    bucket.close()
    answer = {
        "seconds": seconds,
        "peak": peak,
        "grown": peak - before,
        "entries": report.entries,
        "removed": report.removed,
        "journals": report.journals,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
