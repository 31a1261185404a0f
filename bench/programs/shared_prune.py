"""python -m bench.programs.shared_prune URL LIMIT: one pass of upkeep, and what it took."""

from __future__ import annotations

import json
import resource
import sys
import time

from ejcache.stores.opening import open_bucket_at
from ejcache.upkeep.plan import Policy
from ejcache.upkeep.shared_pass import run_pass


def main() -> None:
    bucket = open_bucket_at(sys.argv[1])
    bucket.read("v1/policy.json")  # gcsfs is imported now
    before, began = _peak(), time.perf_counter()
    report = run_pass(bucket, policy=Policy(max_size=int(sys.argv[2])))
    seconds = time.perf_counter() - began
    bucket.close()
    answer = {
        "seconds": seconds,
        "peak": _peak(),
        "grown": _peak() - before,
        "entries": report.entries,
        "removed": report.removed,
        "journals": report.journals,
    }
    print(json.dumps(answer))


def _peak() -> int:
    """Bytes of memory that this process had at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
