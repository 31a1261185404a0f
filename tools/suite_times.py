"""Times a test suite with JAX's cache at floor 0 and with `pytest --ejcache`, the first run and later ones.

    python tools/suite_times.py [--warm 2] PYTHON DIRECTORY [ARGUMENT OF PYTEST …]

The caches are in a temporary directory. The runs of the two take turns, so that a busy machine slows both down.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

_OFF: Final = {"EJCACHE": "0", "JAX_PLATFORMS": "cpu"}
_FLOOR_0: Final = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def run(python: str, directory: str, arguments: list[str], environment: dict[str, str]) -> tuple[float, float, str]:
    """Wall and processor seconds of one run, and pytest's last lines."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    used, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, **_OFF, **environment}, capture_output=True, text=True, check=False
    )
    seconds, now = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    lines = [line for line in done.stdout.splitlines() if re.search(r"^ejcache: | (passed|failed).* in ", line)]
    return seconds, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, "\n    ".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm", type=int, default=2, help="runs with what the first one stored")
    parser.add_argument("python")
    parser.add_argument("directory")
    parser.add_argument("pytest", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        contestants = {
            "JAX, floor 0": ([], {**_FLOOR_0, "JAX_COMPILATION_CACHE_DIR": str(Path(scratch, "jax"))}),
            "pytest --ejcache": (["--ejcache-dir", str(Path(scratch, "ours"))], {}),
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
        for number in range(options.warm + 1):
            for name, (extra, environment) in contestants.items():
                seconds, cpu, lines = run(options.python, options.directory, [*extra, *options.pytest], environment)
                taken[name].append((seconds, cpu))
                print(f"{name}, run {number + 1}: {seconds:.1f} s, {cpu:.1f} s of CPU\n    {lines}", flush=True)
        for name, ((first, first_cpu), *later) in taken.items():
            seconds, cpu = (min(values) for values in zip(*later, strict=True))
            print(f"{name}: later run / first run {seconds / first:.2f}, of CPU {cpu / first_cpu:.2f}")


if __name__ == "__main__":
    main()
