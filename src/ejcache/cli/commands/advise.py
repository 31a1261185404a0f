"""`ejcache advise`: what to change in a program, and where, so that its starts take less time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Annotated, Final

from ejcache.cli import output
from ejcache.cli.commands.run import BEFORE_A_PROGRAM
from ejcache.cli.options import Json, argument, flag, option
from ejcache.cli.run_settings import absolute_url
from ejcache.cli.starting import command_of
from ejcache.errors import NotFoundError, UsageError
from ejcache.history.advise import SMALLEST, check_kinds, set_smaller_apart
from ejcache.history.advise import advise as findings_of
from ejcache.history.findings import KINDS, LEAST_SAVED, SmallerFindings, annotation, document, said_of_none
from ejcache.history.source_files import SourceFiles
from ejcache.journal.run_log import RUN_COUNTS, read_counts
from ejcache.journal.start_records import read_starts
from ejcache.settings.environment import child_environment, environment_variable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ejcache.history.findings import Advice
    from ejcache.history.nearest_program import Earlier
    from ejcache.journal.start_records import StartRecord

REGISTRATION: Final = {"advise": BEFORE_A_PROGRAM}
"""How the application registers the command."""


def advise(
    program: Annotated[
        list[str] | None,
        argument("PROGRAM ARGS", "Run this once first, as `ejcache run` does, and advise on that start."),
    ] = None,
    directory: Annotated[
        str | None, option("--dir", "URL", "The cache that PROGRAM uses. Default: as `ejcache config` shows.")
    ] = None,
    fresh: Annotated[bool, flag("--fresh", "Run PROGRAM with an empty cache, which is removed afterwards.")] = False,
    ignore: Annotated[
        list[str] | None, option("--ignore", "KIND", "Leave out findings of this kind; may be repeated.")
    ] = None,
    show_all: Annotated[
        bool, flag("--all", f"Also show findings that save from {SMALLEST} s to {LEAST_SAVED} s.")
    ] = False,
    github: Annotated[bool, flag("--github", "Print annotations for a workflow of GitHub.")] = False,
    as_json: Json = False,
) -> int:
    """Say what to change in a program, and where, so that its starts compile and trace less.

    The findings come from the records that each start leaves on this host. Without PROGRAM, `advise` looks at the last
    start of each program; with PROGRAM, only at the start of PROGRAM. Each finding names the line to change, what this
    line costs a start, and what to do. `ejcache help KIND` explains the kind. The comment `# ejcache: ignore[KIND]` on
    a line hides the findings of this kind about the line.

    The exit status is 1 if a finding is shown.
    """
    unknown = check_kinds(ignore or ())
    if unknown:
        raise UsageError(f"--ignore {unknown[0]}: accepted is one of {', '.join(KINDS)}")
    if fresh and directory is not None:
        raise UsageError("--fresh and --dir: pass one of them")
    started = _run(program, directory, fresh=fresh, is_apart=as_json or github) if program else None
    records = read_starts()
    only = None if started is None else _of_processes(records, *started)
    found = findings(records, ignore=ignore or (), only=only)
    found, smaller = (found, SmallerFindings()) if show_all else set_smaller_apart(found)
    if as_json:
        output.print_json(document(found, smaller))
    elif github:
        for finding in found:
            output.say(annotation(finding))
    else:
        output.print_lines(lines_of(found, smaller))
    return int(bool(found))


def findings(
    records: Sequence[StartRecord],
    *,
    ignore: Sequence[str] = (),
    only: Collection[str] | None = None,
    earlier: Earlier | None = None,
) -> list[Advice]:
    """Say what to change, also if it saves little, by these records.

    Args:
        records: start records of this host.
        ignore: kinds that are left out.
        only: the ids of the processes that are looked at; by default those of the last start of each program.
        earlier: the misses of this host with their texts, if somebody has read them.

    Raises NotFoundError if there is none.
    """
    if not records or (only is not None and not only):
        raise NotFoundError("no start was recorded" if only is None else "the program compiled nothing with JAX")
    sources = SourceFiles(until=time.time())
    return findings_of(records, lines_of=sources.lines, ignore=ignore, least=SMALLEST, only=only, earlier=earlier)


def lines_of(found: Sequence[Advice], smaller: SmallerFindings) -> list[str]:
    """Return the findings as the terminal shows them, the one that saves most first."""
    if not found:
        return [line for text in said_of_none(smaller) for line in output.wrapped_lines(text)]
    lines: list[str] = []
    for number, finding in enumerate(found, 1):
        head = output.wrapped_lines(f"{number}. {finding.place}: {finding.title} ({finding.function})")
        lines += [output.styled(line, "bold") for line in head]
        told = [f"{finding.sentence}.", f"What to do: {finding.what_to_do}.", finding.costs, finding.help]
        if finding.source:
            told.insert(0, f"  {finding.source}")
        lines += [line for text in told for line in output.wrapped_lines(f"   {text}")]
    return [*lines, *output.wrapped_lines(smaller.words)] if smaller.number else lines


def _run(
    program: Sequence[str], directory: str | None, *, fresh: bool, is_apart: bool
) -> tuple[float, Collection[int]]:
    """Run the program to its end; returns when it began, and the numbers of its processes that used JAX.

    With `is_apart`, what it prints goes to stderr.
    """
    command = command_of(program)
    with tempfile.TemporaryDirectory(prefix="ejcache-advise-") as empty:
        given = environment_variable("EJCACHE") or ""
        cache = f"{empty}/" if fresh else absolute_url(directory) or (given if "/" in given else "1")
        descriptor, counts = tempfile.mkstemp(dir=empty)
        os.close(descriptor)
        began = time.time()
        output_to = sys.stderr if is_apart else None
        environment = child_environment({"EJCACHE": cache, RUN_COUNTS: counts})
        done = subprocess.run(command, env=environment, stdout=output_to, check=False)
        processes = read_counts(counts).processes
    if done.returncode:
        output.warn(f"{program[0]} ended with status {done.returncode}; what it compiled until then counts")
    return began, processes


def _of_processes(records: Sequence[StartRecord], began: float, processes: Collection[int]) -> set[str]:
    """Return the ids of the records that these processes of this host have made since then."""
    host = socket.gethostname()
    return {
        each.process.id
        for each in records
        if each.process.pid in processes and each.process.began >= began and each.process.host == host
    }
