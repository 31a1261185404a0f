"""`ejcache demo`: a training step in two new processes; the second one loads what the first one stored."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ejcache.cli import output
from ejcache.cli.chosen_cache import open_cache
from ejcache.cli.listing import header_facts, list_entries
from ejcache.cli.options import Dir, Json, MinCompileSeconds, option, positive
from ejcache.util.worker_processes import python_of_ours

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROGRAM: Final = Path(__file__).parents[1] / "programs" / "demo_program.py"


def demo(
    directory: Dir = None,
    blocks: Annotated[str, option("--blocks", "N", "Transformer blocks. More blocks take longer to compile.")] = "24",
    min_compile_seconds: MinCompileSeconds = "0",
    as_json: Json = False,
) -> int:
    """Run one training step of a small transformer in two new processes, and compare their times.

    The program is run with `ejcache run`. Without --dir, the cache is a temporary directory that is deleted afterwards.
    Exits with 1 if the second process compiled a program or computed another result.
    """
    number = positive(blocks, option="--blocks")
    with tempfile.TemporaryDirectory(prefix="ejcache-demo-") as scratch:
        url = directory if directory is not None else f"{scratch}/cache"
        options = ["--dir", url, "--min-compile-seconds", min_compile_seconds or "0"]
        cold, warm = (_run(which, Path(scratch), options, number) for which in ("cold", "warm"))
        with open_cache(url) as target:
            entries = [row.fields() | header_facts(row, target) for row in list_entries(target)]
    same = cold["loss"] == warm["loss"]
    if as_json:
        runs = {"blocks": number, "cold": cold, "warm": warm, "same_loss": same}
        output.print_json({"url": url, **runs, "entries": entries})
    else:
        print_runs(cold, warm, blocks=number)
    return int(not same or warm["report"]["misses"] > 0 or not warm["report"]["hits"])


def print_runs(cold: Mapping[str, Any], warm: Mapping[str, Any], *, blocks: int) -> None:
    """Print what the two processes have measured, side by side, and whether they computed the same loss."""
    output.say(f"One training step of {blocks} transformer blocks, JAX {cold['jax']}, {cold['device']}\n")
    rows = []
    for phase in ("import", "trace_and_lower", "compile_or_load", "first_step", "process"):
        before, after = cold[f"{phase}_seconds"], warm[f"{phase}_seconds"]
        rows.append([phase.replace("_", " "), f"{before:.2f} s", f"{after:.2f} s", f"{before / after:.1f}x"])
    output.print_table(["", "cold", "warm", "faster"], rows, right=("cold", "warm", "faster"))
    output.say(f"\nBoth processes computed {'the same' if cold['loss'] == warm['loss'] else 'ANOTHER'} loss.")


def _run(which: str, scratch: Path, options: list[str], blocks: int) -> dict[str, Any]:
    """Run the demo's program with `ejcache run`, and return its times and the report."""
    output.warn(f"{which}: a training step of {blocks} transformer blocks, in a new process …")
    command = [*python_of_ours("-m", "ejcache"), "run", *options, "--report", f"{scratch / which}.json"]
    began = time.perf_counter()
    status = subprocess.run([*command, _PROGRAM, scratch / which, str(blocks)], check=False).returncode
    if status:
        raise typer.Exit(abs(status))  # the process has printed the reason
    measured, counted = (json.loads((scratch / name).read_text()) for name in (which, f"{which}.json"))
    return {**measured, "process_seconds": time.perf_counter() - began, "report": counted}
