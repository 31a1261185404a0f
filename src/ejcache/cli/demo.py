"""`ejcache demo`: a training step in two new processes; the second one loads what the first one stored."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ejcache.cli import output
from ejcache.cli.listing import header_facts, list_entries, open_target
from ejcache.cli.options import Dir, Json, MinCompileSeconds, count, option
from ejcache.errors import EjcacheError, UsageError
from ejcache.util.text import format_size, plural
from ejcache.util.worker_processes import python_of_ours

_PROGRAM: Final = Path(__file__).with_name("demo_program.py")
_PHASES: Final = ("import", "trace_and_lower", "compile_or_load", "first_step", "process")


def demo(
    directory: Dir = None,
    blocks: Annotated[str, option("--blocks", "N", "Transformer blocks. More blocks take longer to compile.")] = "24",
    min_compile_seconds: MinCompileSeconds = "0",
    as_json: Json = False,
) -> None:
    """Run one training step of a small transformer in two new processes, and compare their times.

    The program is run with `ejcache run`. Without --dir, the cache is a temporary directory that is deleted afterwards.
    Exits with 1 if the second process compiled a program or computed another result.
    """
    number = count(blocks, option="--blocks")
    if not number:
        raise UsageError("--blocks cannot be 0: accepted is a whole number, 1 or more")
    with tempfile.TemporaryDirectory(prefix="ejcache-demo-") as scratch:
        url = directory if directory is not None else f"{scratch}/cache"
        options = ["--dir", url, "--min-compile-seconds", min_compile_seconds or "0"]
        cold, warm = (_run(which, Path(scratch), options, number, quiet=as_json) for which in ("cold", "warm"))
        with open_target(url) as target:
            entries = [row.fields() | header_facts(row, target) for row in list_entries(target) if not row.is_jax]
    same = cold["loss"] == warm["loss"]
    if as_json:
        fields = {"url": url, "blocks": number, "cold": cold, "warm": warm, "same_loss": same, "entries": entries}
        output.print_json(fields)
    else:
        output.say(f"One AdamW step of {number} transformer blocks, JAX {cold['jax']}, {cold['device']}\n")
        output.print_table(["", "cold", "warm", ""], _rows(cold, warm, same=same), right=("cold", "warm"))
        size = format_size(sum(entry["size"] for entry in entries))
        names = ", ".join(sorted({entry["name"] for entry in entries}))
        output.say(f"\nThe cache holds {plural(len(entries), 'entry', 'entries')}, {size}: {names}")
        if cold["report"]["hits"]:
            output.say("The first process was not cold: an earlier run had left its entry in this cache.")
    if not same or warm["report"]["misses"] or not warm["report"]["hits"]:
        raise typer.Exit(1)


def _run(which: str, scratch: Path, options: list[str], blocks: int, *, quiet: bool) -> dict[str, Any]:
    """What the program has measured, with the report of `ejcache run`."""
    if not quiet:
        output.warn(f"{which}: a training step of {blocks} transformer blocks, in a new process …")
    measured, report = scratch / f"{which}.json", scratch / f"{which}-report.json"
    command = [*python_of_ours("-m", "ejcache"), "run", *options, "--report", str(report)]
    began = time.perf_counter()
    status = subprocess.run([*command, _PROGRAM, measured, str(blocks)], check=False).returncode
    seconds = time.perf_counter() - began
    if status == 2:
        raise typer.Exit(2)  # the child process has printed the reason
    counted = json.loads(report.read_text()) if report.exists() else {}
    if status or not counted.get("processes"):
        raise EjcacheError(f"the demo's program failed with exit status {status}, or ran without the cache")
    fields: dict[str, Any] = json.loads(measured.read_text())
    return fields | {"process_seconds": seconds, "report": counted}


def _rows(cold: dict[str, Any], warm: dict[str, Any], *, same: bool) -> list[list[str]]:
    rows = []
    for phase in _PHASES:
        before, after = cold[f"{phase}_seconds"], warm[f"{phase}_seconds"]
        ratio = f"{before / after:.1f}x" if after > 0 and before / after >= 1.5 else ""
        rows.append([phase.replace("_", " "), f"{before:.2f} s", f"{after:.2f} s", ratio])
    rows += [[name, str(cold["report"][name]), str(warm["report"][name]), ""] for name in ("hits", "misses", "stores")]
    losses = [f"{float.fromhex(run['loss']):.6f}" for run in (cold, warm)]
    return [*rows, ["loss", *losses, "same bits" if same else "DIFFERENT"]]
