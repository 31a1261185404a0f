#!/usr/bin/env python3
"""Start a pod on this machine: N processes joined by `jax.distributed` over loopback, with gloo collectives on CPU.

    python tools/pod.py --processes 4 --devices 2 [--shared DIR | --separate DIR] program.py [ARGUMENTS]

Every process runs the program with ejcache enabled (unless `--no-cache`), after `jax.distributed.initialize`. With
`--shared` all use one cache directory or URL; with `--separate` each has `DIR/<rank>`. At the end a table shows what
each rank's cache did. Exit status 1 if any process failed or was still running at the deadline.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

BOOTSTRAP = """
import json, os, runpy, sys
rank, size, address = int(os.environ["POD_RANK"]), int(os.environ["POD_SIZE"]), os.environ["POD_ADDRESS"]
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, size, rank, initialization_timeout=300)
url = os.environ.get("POD_CACHE")
if url:
    import ejcache
    ejcache.enable(url, min_compile_seconds=float(os.environ.get("POD_FLOOR", "0")))
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    if url and ejcache.active() is not None:
        with open(os.environ["POD_REPORT"], "w") as file:
            json.dump(ejcache.active().stats().to_dict(), file)
"""


@dataclass
class Rank:
    """How one process of the pod ended."""

    rank: int
    returncode: int | None
    stdout: str
    stderr: str
    stats: dict[str, Any] = field(default_factory=dict)


def run_pod(
    program: str | Path,
    *arguments: str,
    processes: int = 2,
    devices: int = 1,
    cache: Callable[[int], str] | None = None,
    env: Callable[[int], Mapping[str, str]] | None = None,
    timeout: float = 400.0,
    start: Callable[..., Any] = subprocess.Popen,
) -> list[Rank]:
    """Run `program` (a file, or a text with line breaks) in every process of a pod, and wait for all.

    Args:
        program: what to run; `jax.process_index()` tells the processes apart.
        arguments: its command line.
        processes: how many.
        devices: virtual CPU devices of each.
        cache: the cache URL of a rank; None for no cache.
        env: further environment of a rank.
        timeout: seconds until those that still run are killed (their return code is then None).
        start: starts a process as `subprocess.Popen` does.
    """
    with tempfile.TemporaryDirectory(prefix="pod-") as scratch:
        path = Path(program) if isinstance(program, Path) or "\n" not in program else Path(scratch, "program.py")
        if isinstance(program, str) and "\n" in program:
            path.write_text(program)
        address = f"127.0.0.1:{free_port()}"
        children = []
        for rank in range(processes):
            environment = {
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
                **(env(rank) if env else {}),
                "POD_RANK": str(rank),
                "POD_SIZE": str(processes),
                "POD_ADDRESS": address,
                "POD_REPORT": str(Path(scratch, f"{rank}.json")),
            }
            if cache:
                environment["POD_CACHE"] = cache(rank)
            # Files, not pipes: a rank that nobody reads yet must not block on a full pipe while another waits for it.
            out, err = Path(scratch, f"{rank}.out"), Path(scratch, f"{rank}.err")
            with out.open("wb") as stdout, err.open("wb") as stderr:
                children.append(
                    start(
                        [sys.executable, "-c", BOOTSTRAP, str(path), *arguments],
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        env=environment,
                    )
                )
        return [_wait(rank, child, Path(scratch), timeout) for rank, child in enumerate(children)]


def _wait(rank: int, child: Any, scratch: Path, timeout: float) -> Rank:
    returncode: int | None
    try:
        returncode = child.wait(timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        returncode = None
    report = scratch / f"{rank}.json"
    return Rank(
        rank,
        returncode,
        (scratch / f"{rank}.out").read_text(errors="replace"),
        (scratch / f"{rank}.err").read_text(errors="replace"),
        json.loads(report.read_text()) if report.exists() else {},
    )


def free_port() -> int:
    """A port that nobody uses, below those which systems give out by themselves.

    One of those could be given to any other program before the first process of the pod listens on it.
    """
    while True:
        port = random.randrange(15_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="how many processes")
    parser.add_argument("--devices", type=int, default=1, help="virtual CPU devices of each")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--shared", metavar="URL", help="one cache for all")
    where.add_argument("--separate", metavar="DIR", help="a cache of its own for each rank, below DIR")
    where.add_argument("--no-cache", action="store_true", help="no cache at all")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds until the pod is stopped")
    parser.add_argument("program", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    cache: Callable[[int], str] | None = None
    if options.shared:
        cache = lambda _: options.shared  # noqa: E731
    elif options.separate:
        cache = lambda rank: str(Path(options.separate, str(rank)))  # noqa: E731
    elif not options.no_cache:
        parser.error("one of --shared, --separate and --no-cache is needed")
    ranks = run_pod(
        options.program,
        *options.arguments,
        processes=options.processes,
        devices=options.devices,
        cache=cache,
        timeout=options.timeout,
    )
    from rich.console import Console
    from rich.table import Table

    table = Table("rank", "ended", "hits", "misses", "stores", "errors", "seconds saved", "last line")
    for rank in ranks:
        ended = "stopped at the deadline" if rank.returncode is None else str(rank.returncode)
        counts = [str(rank.stats.get(name, "-")) for name in ("hits", "misses", "stores", "errors", "seconds_saved")]
        table.add_row(str(rank.rank), ended, *counts, (rank.stdout.splitlines() or [""])[-1])
        if rank.returncode != 0:
            sys.stderr.write(f"--- rank {rank.rank}\n{rank.stderr}\n")
    Console().print(table)
    return int(any(rank.returncode != 0 for rank in ranks))


if __name__ == "__main__":
    sys.exit(main())
