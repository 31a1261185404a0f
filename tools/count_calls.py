"""Count the functions of ejcache that one compilation enters: a hit of a local store, of two tiers, and a miss.

    python tools/count_calls.py [--rows N] [--preload]

Only the thread that compiles counts, and only files of ejcache: what JAX and libraries do is left out. Each kind is
counted in a process of its own, after a few programs, so that everything is imported and remembered. Run it with
PYTHONPATH set to another checkout's `src` to compare the two. What is due by the clock (counters, uses) may be part of
a count, so take the least of several runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

KINDS = ("hit", "hit of two tiers", "miss")


def count(kind: str, directory: Path, *, preload: bool) -> Counter[str]:
    """The functions that are entered, by name, in this process."""
    cache_directory = directory / "cache"
    if kind == "hit of two tiers":
        os.environ["EJCACHE_LOCAL_DIR"] = str(directory / "tiers")
        (cache_directory / "v1" / "entries").mkdir(parents=True)  # as a host leaves it that shares the directory
    import jax
    import numpy as np

    import ejcache

    ours = str(Path(ejcache.__file__).parent)
    cache = ejcache.enable(str(cache_directory), min_compile_seconds=0, preload=preload)
    x = np.arange(8, dtype=np.float32)

    def program(number: int) -> Any:
        def multiplied(x: Any) -> Any:
            return jax.numpy.sin(x) * number + 1

        multiplied.__name__ = f"multiplied_by_{number}"
        return jax.jit(multiplied)

    programs = [program(number) for number in range(6)]
    for _ in range(3):
        jax.clear_caches()
        for each in programs[:-1]:
            each(x)
    jax.clear_caches()
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            calls[f"{frame.f_code.co_filename.removeprefix(ours)[1:]}:{frame.f_code.co_qualname}"] += 1

    before = cache.stats()
    sys.setprofile(note)
    programs[-1 if kind == "miss" else 2](x)
    sys.setprofile(None)
    after = cache.stats()
    if (after.hits - before.hits, after.misses - before.misses) != ((0, 1) if kind == "miss" else (1, 0)):
        raise SystemExit(f"this was no {kind}")
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=0, help="also print the functions that are entered most")
    parser.add_argument("--preload", action="store_true", help="with preload, as it is by default")
    parser.add_argument("--kind", choices=KINDS, help="count this kind in this process")
    given = parser.parse_args()
    if given.kind is None:
        for kind in KINDS:
            subprocess.run([sys.executable, *sys.argv, "--kind", kind], check=True)
        return
    with tempfile.TemporaryDirectory() as directory:
        calls = count(given.kind, Path(directory), preload=given.preload)
        print(json.dumps({"kind": given.kind, "functions": calls.total(), "different": len(calls)}))
        for name, number in calls.most_common(given.rows):
            print(f"{number:6} {name}")
        sys.stdout.flush()
        os._exit(0)  # the directory is gone before the process would write to it


if __name__ == "__main__":
    main()
