"""python -m bench: run every case beside its peer, and print ratios, medians, p95 and the machine."""

from __future__ import annotations

import argparse
import compileall
import json
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench.context import ROOT, Context
from bench.machine import describe_machine
from bench.outcome import Outcome
from bench.registry import Case, SkipCase, all_cases
from bench.report import case_as_data, case_as_tables, machine_as_text
from bench.results import page, with_numbers, write_results

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DATA = ROOT / "bench" / "results.json"
PAGE = ROOT / "bench" / "RESULTS.md"
README = ROOT / "README.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 when every case ran or was skipped, 1 when one failed, 2 for a usage error. Bars do not decide."""
    cases = all_cases()
    options = _options(cases, arguments)
    if options.page:
        _write_pages(write_results(DATA, {}, order=[case.name for case in cases]))
        return 0
    chosen = _chosen(cases, options.cases, options.only)
    if options.list:
        for case in chosen if options.cases or options.only else cases:
            print(f"{case.name:20} {case.title}")
        return 0
    # Where PYTHONDONTWRITEBYTECODE is set, each process would compile what has changed of ejcache, and nothing of JAX.
    for directory in ("src", "bench"):
        compileall.compile_dir(ROOT / directory, quiet=2)
    where = Path(options.dir) if options.dir else None
    machine = describe_machine(where or Path(tempfile.gettempdir()))
    out, err = Console(), Console(stderr=True)
    if not options.json:
        out.print(machine_as_text(machine), style="dim", highlight=False)
    context = Context(quick=options.quick, say=lambda _: None, rounds=options.rounds, parent=where)
    outcomes: dict[str, Outcome] = {}
    try:
        for case, outcome in _run_all(chosen, context, err):
            outcomes[case.name] = outcome
            if not options.json:
                out.print(case_as_tables(case, outcome), highlight=False)
    finally:
        context.clean_up()
    if options.json:
        print(json.dumps(_as_json(machine, chosen, outcomes, quick=options.quick), indent=1))
    if options.write:
        when = datetime.now(UTC).strftime("%Y-%m-%d")
        measured = {
            case.name: case_as_data(case, outcomes[case.name], machine=machine, when=when)
            for case in chosen
            if not outcomes[case.name].failed
        }
        _write_pages(write_results(DATA, measured, order=[case.name for case in cases]))
    return 1 if any(outcome.failed for outcome in outcomes.values()) else 0


def _write_pages(data: dict[str, Any]) -> None:
    """Write what says the numbers in words: RESULTS.md, and the table on the first screen of the README."""
    PAGE.write_text(page(data), encoding="utf-8")
    README.write_text(with_numbers(README.read_text(encoding="utf-8"), data), encoding="utf-8")


def _chosen(cases: Sequence[Case], words: Sequence[str], names: Sequence[str]) -> list[Case]:
    if not words and not names:
        return [case for case in cases if not case.when_named]
    return [case for case in cases if case.name in names or any(case.is_meant_by(word) for word in words)]


def _run_all(cases: Sequence[Case], context: Context, err: Console) -> Iterator[tuple[Case, Outcome]]:
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    ) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:

            def say(text: str, case: Case = case) -> None:
                progress.update(task, description=f"{case.name}: {text}")

            say("starting")
            yield case, _run(case, replace(context, say=say))
            progress.advance(task)


def _run(case: Case, context: Context) -> Outcome:
    outcome = Outcome()
    start = time.perf_counter()
    try:
        case.run(context, outcome)
    except SkipCase as exc:
        outcome.skipped = str(exc)
    except Exception as exc:
        # The others still run; the trace is for the person at the terminal, its kind alone is kept.
        traceback.print_exc(file=sys.stderr)
        outcome.failed = type(exc).__name__
    outcome.seconds = time.perf_counter() - start
    return outcome


def _as_json(
    machine: dict[str, Any], cases: Sequence[Case], outcomes: dict[str, Outcome], *, quick: bool
) -> dict[str, Any]:
    found = [{"name": case.name, "title": case.title, **outcomes[case.name].to_dict()} for case in cases]
    return {"quick": quick, "machine": machine, "cases": found}


def _rounds(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("there are none")
    return number


def _options(cases: Sequence[Case], arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [case.name for case in cases]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "cases",
        metavar="CASE",
        nargs="*",
        help="these cases, or all whose names begin so (start: start-4, start-tiny, …); without one, those that have "
        f"no asterisk: {', '.join(case.name + '*' * case.when_named for case in cases)}",
    )
    parser.add_argument("--only", metavar="CASE", action="append", default=[], help="this case and no other")
    parser.add_argument("--quick", action="store_true", help="measure less, to see that it works: rough numbers")
    parser.add_argument(
        "--rounds", metavar="N", type=_rounds, help="so many rounds of processes that start by turns (start, reuse)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument(
        "--write",
        action="store_true",
        help="bring bench/results.json, RESULTS.md and the README up to date with what was measured",
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="write RESULTS.md and the README's numbers from results.json and measure nothing",
    )
    parser.add_argument("--dir", metavar="DIRECTORY", help="measure on the file system of this directory")
    parser.add_argument("--list", action="store_true", help="name the cases and measure nothing")
    options = parser.parse_args(arguments)
    unknown = {word for word in options.cases if not any(case.is_meant_by(word) for case in cases)}
    unknown |= set(options.only) - set(names)
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if options.write and options.quick:
        parser.error("--write: the numbers of --quick are too rough to be kept")
    if options.dir and not Path(options.dir).is_dir():
        parser.error(f"--dir: {options.dir} is not a directory")
    return options


if __name__ == "__main__":
    sys.exit(main())
