"""python -m bench.programs.autotune_writer WHO FILE WORKER COUNT: put COUNT configurations after a line on stdin."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.outcome import OURS


def main() -> None:
    who, file, worker, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    cache: Any
    if who == OURS:
        from ejcache.autotune.ejkernel import PersistentCache as Ours
        from ejcache.autotune.records.store import AutotuneStore

        cache = Ours("operation", path=str(file), store=AutotuneStore(str(file.parent), seeds=()))
    else:
        cache = import_module("ejkernel.ops.config.persistent").PersistentCache("operation", path=str(file))
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(count):
        cache.put("cpu|cpu", "operation@v1", f"{worker:08x}{i:08x}", {"block": worker * count + i})


if __name__ == "__main__":
    main()
