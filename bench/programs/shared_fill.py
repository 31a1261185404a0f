"""python -m bench.programs.shared_fill COUNT: a bucket of COUNT entries, served until a line comes; then what is left.

Every entry was used once, in an order that is not that of their creation; a twentieth once more, and some a moment
ago. The first line is the server's URL, the second says what a limit of
half their bytes is.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from datetime import UTC, datetime

from bench.context import ROOT
from ejcache.bucket.object_names import ENTRIES, entry_name, key_of_name
from ejcache.journal.format import JOURNALS, SNAPSHOT, encode_journal
from ejcache.journal.line import EntryUse

sys.path.append(str(ROOT / "tools"))

from gcs_server import GcsServer

DAY = 86_400.0
FEW = 50
SIZE = 200
PREFIX = "cache/"
ENVIRONMENT = 24 * "e"


def _uses(times: dict[str, float]) -> dict[str, EntryUse]:
    return {key: EntryUse(when) for key, when in times.items()}


def main() -> None:
    count = int(sys.argv[1])
    chosen, now = random.Random(0), time.time()
    programs = (hashlib.sha256(n.to_bytes(8)).hexdigest()[:40] for n in range(count))
    keys = [f"jit_step_{n}-cpu-plain-{program}-{ENVIRONMENT}" for n, program in enumerate(programs)]
    used = {key: now - DAY - age for age, key in enumerate(chosen.sample(keys, count))}
    by_age = sorted(used, key=used.__getitem__)
    in_use = by_age[:FEW]
    with GcsServer(log_limit=100_000) as server:
        bucket = server.api.buckets["bucket"]

        def put(name: str, data: bytes, created: float) -> None:
            stored = bucket.insert(PREFIX + name, data, {}, {})
            at = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
            stored.created = stored.updated = at

        created = {entry_name(key): now - 30 * DAY + number / 10 for number, key in enumerate(keys)}
        for name in sorted(created):
            put(name, bytes(SIZE), created[name])
        put(SNAPSHOT, encode_journal(_uses(used), compress=True), now - DAY)
        again = chosen.sample(keys, count // 20)
        for number in range(0, len(again), FEW):
            uses = dict.fromkeys(again[number : number + FEW], now - 3600 + number)
            used |= uses
            put(f"{JOURNALS}2026-01-01/host-1-{number:032x}-0", encode_journal(_uses(uses)), now - 3600)
        uses = dict.fromkeys(in_use, now)
        used |= uses
        put(f"{JOURNALS}2026-01-01/host-1-{count:032x}-0", encode_journal(_uses(uses)), now)
        print(server.url, flush=True)
        print(json.dumps({"limit": count * SIZE // 2}), flush=True)
        sys.stdin.readline()
        left = {key_of_name(name.removeprefix(PREFIX)) for name in bucket.objects if name.startswith(PREFIX + ENTRIES)}
        gone = [used[key] for key in keys if key not in left]
        stayed = [used[key] for key in keys if key in left]
        answer = {
            "left": len(left),
            "spared": sum(key in left for key in in_use),
            "in_order": bool(gone) and max(gone) <= min(stayed),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
