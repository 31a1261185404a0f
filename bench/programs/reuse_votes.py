"""python -m bench.programs.reuse_votes RANKS STARTS: the votes of as many ranks on a real coordination service.

The ranks are threads, each with a client of its own. In each start of a job they vote on one call; in one of twenty the
lowest rank was drawn. The answer has by start what the ranks decided, whether the lowest one was drawn, and the seconds
until the last rank knew.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jax._src.lib import _jax

from ejcache.jax_integration.ranks.agreement import RankAgreement
from ejcache.jax_integration.seam.coordination_service import CoordinationClient
from ejcache.reuse.votes import Vote

PROGRAM = {"content": "a"}


def main() -> None:
    ranks, starts = int(sys.argv[1]), int(sys.argv[2])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    service = _jax.get_distributed_runtime_service(address, ranks)
    with ThreadPoolExecutor(ranks) as pool:
        clients = list(pool.map(lambda rank: _connected(address, rank), range(ranks)))
        agreements = [
            RankAgreement(CoordinationClient(client, process=rank, processes=ranks))
            for rank, client in enumerate(clients)
        ]
        chosen = random.Random(0)
        found = [_start(pool, agreements, number, is_drawn=chosen.randrange(20) == 0) for number in range(starts)]
    print(json.dumps({"starts": found}), flush=True)
    del service
    os._exit(0)  # without a barrier of all clients, which is not measured


def _connected(address: str, rank: int) -> Any:
    client = _jax.get_distributed_runtime_client(address, rank, init_timeout=60, use_compression=True)
    client.connect()
    return client


def _start(pool: ThreadPoolExecutor, agreements: list[RankAgreement], number: int, *, is_drawn: bool) -> dict[str, Any]:
    ready = threading.Barrier(len(agreements))

    def one(agreement: RankAgreement) -> tuple[bool, float, float]:
        vote = Vote(agreement, f"step {number}", tuple(range(len(agreements))))
        ready.wait()
        began = time.monotonic()
        if is_drawn and agreement.rank == 0:
            vote.trace()
            return False, began, time.monotonic()
        return vote.all_reuse(PROGRAM), began, time.monotonic()

    said = list(pool.map(one, agreements))
    return {
        "reused": sum(reuses for reuses, _, _ in said),
        "drawn": is_drawn,
        "seconds": max(ended for _, _, ended in said) - min(began for _, began, _ in said),
    }


if __name__ == "__main__":
    main()
