"""`ejcache demo`: a training step in two new processes; the second one loads what the first one stored."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ejcache.cli import output
from ejcache.cli.listing import header_facts, list_entries
from ejcache.cli.options import Dir, Json, MinCompileSeconds, count
from ejcache.cli.target import open_target
from ejcache.errors import UsageError
from ejcache.util.units import format_size
from ejcache.util.worker_processes import python_of_ours

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["demo"]

_PROGRAM: Final = Path(__file__).with_name("demo_program.py")
_PHASES: Final = (
    ("import jax", "import_seconds"),
    ("trace and lower", "trace_and_lower_seconds"),
    ("compile, or load", "compile_or_load_seconds"),
    ("first step", "first_step_seconds"),
    ("whole process", "process_seconds"),
)


def demo(
    directory: Dir = None,
    blocks: Annotated[
        str, typer.Option("--blocks", metavar="N", help="Transformer blocks. More blocks take longer to compile.")
    ] = "24",
    min_compile_seconds: MinCompileSeconds = "0",
    as_json: Json = False,
) -> None:
    """Run one training step of a small transformer in two new processes, and compare their times.

    The program is run with `ejcache run`. Without --dir, the cache is a temporary directory that is deleted afterwards.
    Exits with 1 if the second process compiled a program or computed another result.
    """
    number = count(blocks, option="--blocks") or 0
    if not number:
        raise UsageError("--blocks cannot be 0: accepted is a whole number, 1 or more")
    with _cache_url(directory) as cache, tempfile.TemporaryDirectory(prefix="ejcache-demo-") as scratch:
        runs = []
        for which in ("cold", "warm"):
            if not as_json:
                output.warn(f"{which}: a training step of {number} transformer blocks, in a new process …")
            runs.append(_run(Path(scratch), cache, blocks=number, min_compile_seconds=min_compile_seconds or "0"))
        stored = _stored_entries(cache)
    cold, warm = runs
    same = cold["loss"] == warm["loss"]
    fields = {"url": cache, "blocks": number, "cold": cold, "warm": warm, "same_loss": same, "entries": stored}
    if as_json:
        output.print_json(fields)
    else:
        _print_demo(fields, kept=directory is not None)
    if not same or warm["report"]["misses"] or not warm["report"]["hits"]:
        raise typer.Exit(1)


@contextlib.contextmanager
def _cache_url(directory: str | None) -> Iterator[str]:
    if directory is not None:
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="ejcache-demo-") as temporary:
        yield str(Path(temporary) / "cache")


def _run(scratch: Path, cache: str, *, blocks: int, min_compile_seconds: str) -> dict[str, Any]:
    measured, report = scratch / "measured.json", scratch / "report.json"
    command = [*python_of_ours("-m", "ejcache"), "run", "--dir", cache, "--report", str(report)]
    command += ["--min-compile-seconds", min_compile_seconds, str(_PROGRAM), str(measured), str(blocks)]
    began = time.perf_counter()
    finished = subprocess.run(command, check=False)
    seconds = time.perf_counter() - began
    if finished.returncode == 2:
        raise typer.Exit(2)  # the child process has printed the reason
    counted = json.loads(report.read_text()) if report.exists() else {}
    if finished.returncode or not measured.exists() or not counted.get("processes"):
        output.warn(_failure(finished.returncode))
        raise typer.Exit(1)
    fields: dict[str, Any] = json.loads(measured.read_text())
    fields |= {"process_seconds": seconds, "report": counted}
    measured.unlink()
    report.unlink()
    return fields


def _failure(status: int) -> str:
    if status:
        return f"the demo's program failed with exit status {status}"
    return "the demo's program ran without the cache, for the reason above"


def _stored_entries(cache: str) -> list[dict[str, Any]]:
    with open_target(cache) as target:
        return [row.fields() | header_facts(row, target) for row in list_entries(target) if not row.is_jax]


def _print_demo(fields: dict[str, Any], *, kept: bool) -> None:
    cold, warm = fields["cold"], fields["warm"]
    output.say(f"One AdamW step of {fields['blocks']} transformer blocks, JAX {cold['jax']}, {cold['device']}\n")
    rows = [[label, *_compared(cold[name], warm[name])] for label, name in _PHASES]
    rows += [
        [label, str(cold["report"][name]), str(warm["report"][name]), ""]
        for label, name in (("hits", "hits"), ("misses", "misses"), ("stored", "stores"))
    ]
    losses = [f"{float.fromhex(run['loss']):.6f}" for run in (cold, warm)]
    rows.append(["loss", *losses, "same bits" if fields["same_loss"] else "DIFFERENT"])
    output.print_table(["", "cold", "warm", ""], rows, right=("cold", "warm"))
    entries = fields["entries"]
    total = format_size(sum(entry["size"] for entry in entries))
    where = f" in {fields['url']}" if kept else ""
    output.say(f"\nThe cache holds {output.plural(len(entries), 'entry', 'entries')}, {total}{where}:")
    output.print_table(
        ["name", "platform", "size", "compile s"],
        [
            [entry["name"], entry["platform"], format_size(entry["size"]), output.seconds(entry["compile_seconds"])]
            for entry in sorted(entries, key=lambda entry: -entry["size"])
        ],
        right=("size", "compile s"),
        shrink=("name",),
    )
    if cold["report"]["hits"]:
        output.say("\nThe first process was not cold: an earlier run had left its entry in this cache.")


def _compared(cold: float, warm: float) -> list[str]:
    ratio = f"{cold / warm:.1f}x" if warm > 0 and cold / warm >= 1.5 else ""
    return [f"{cold:.2f} s", f"{warm:.2f} s", ratio]
