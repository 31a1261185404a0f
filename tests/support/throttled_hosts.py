"""python throttled_hosts.py URL HOSTS PROGRAMS DIRECTORY: hosts that start together with programs that a bucket holds.

Each host is a fork with a local tier of its own, and looks for every program as a start does, one after the other. What
it does not find it "compiles" and stores. Prints a line of JSON for each host.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from ejcache import entry
from ejcache.bucket.breaker import breaker_for
from ejcache.cache.opening import open_cache_store
from ejcache.errors import StoreError
from ejcache.settings.resolve import resolve


def key_of(number: int) -> str:
    """The key of one program."""
    return f"jit_p{number}-cpu-plain-{number:064x}"


def data_of(number: int) -> bytes:
    """The entry of one program."""
    return entry.encode(entry.Header(key=key_of(number)), b"x" * 2000)


def start(url: str, programs: int, began: float) -> dict[str, object]:
    """One host's start, and what it counted."""
    store = open_cache_store(url, resolve())
    again = 0
    for number in range(programs):
        try:
            found = store.get(key_of(number))
        except StoreError:
            found = None
        if found is None:
            again += 1
            store.put(key_of(number), data_of(number))
    seconds = time.monotonic() - began
    counted = store.tier_counters()
    return {
        "again": again,
        "seconds": seconds,
        "opened": int(counted.get("shared_breaker_open", 0)) + breaker_for(store.shared.url).is_open,
        "uploads": int(counted.get("shared_uploads", 0)),
    }


def main() -> None:
    url, hosts, programs, directory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    # What a host imports is imported once, and not in each fork: 64 hosts have more than the cores of this one.
    os.environ["EJCACHE_LOCAL_DIR"] = str(directory / "none")
    open_cache_store(url, resolve()).close()
    children = []
    began = time.monotonic()
    for host in range(hosts):
        pid = os.fork()
        if not pid:
            os.environ["EJCACHE_LOCAL_DIR"] = str(directory / str(host))
            (directory / f"{host}.json").write_text(json.dumps(start(url, programs, began)))
            os._exit(0)  # what is written at exit is another matter
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    for host in range(hosts):
        print((directory / f"{host}.json").read_text())


if __name__ == "__main__":
    main()
