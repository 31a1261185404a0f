"""python -m bench.programs.shared_prune URL LIMIT: one pass of maintenance, and how long it took."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from ejcache.maintenance.eviction import run_pass
from ejcache.maintenance.eviction_plan import EvictionPolicy
from ejcache.stores.opening import open_bucket


def main() -> None:
    bucket = open_bucket(sys.argv[1])
    bucket.read("v1/policy.json")  # gcsfs is imported now
    before, began = _forget_peak(), time.perf_counter()
    report = run_pass(bucket, EvictionPolicy(max_size=int(sys.argv[2])))
    seconds, peak = time.perf_counter() - began, _status("VmHWM")
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


def _forget_peak() -> int:
    """Bytes of memory that this process has; from here on its peak counts anew.

    Linux passes a parent's peak on to its children, so that what a small child adds could not be seen.
    """
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


if __name__ == "__main__":
    main()
