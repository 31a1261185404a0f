"""`ejcache advise`: what to change in a program, and where, so that its starts take less time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Annotated, Final

from ejcache.advice.advise import SMALLEST, check_kinds, set_smaller_apart
from ejcache.advice.advise import advise as findings_of
from ejcache.advice.findings import KINDS, LEAST_SAVED, SmallerFindings, annotation, document, said_of_none
from ejcache.cli import output
from ejcache.cli.commands.run import BEFORE_A_PROGRAM, absolute_url, command_of
from ejcache.cli.options import Json, argument, flag, option
from ejcache.errors import NotFoundError, UsageError
from ejcache.jax_integration.forms import what_is_needed
from ejcache.journal.recorder import read_starts
from ejcache.misses.log import recall_programs
from ejcache.misses.program_text import SourceFiles
from ejcache.settings.environment import child_environment, environment_variable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.advice.findings import Advice
    from ejcache.journal.line import StartRecord

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
        list[str] | None, option("--ignore", "KIND", "Leave out findings of this kind; may be given again.")
    ] = None,
    show_all: Annotated[bool, flag("--all", f"Also show findings that save less than {LEAST_SAVED} s.")] = False,
    github: Annotated[bool, flag("--github", "Print annotations for a workflow of GitHub.")] = False,
    as_json: Json = False,
) -> int:
    """Say what to change in a program, and where, so that its starts compile and trace less.

    The findings are made of the records that each start leaves on this host, and of the texts of its programs. Without
    PROGRAM, the last start of each program is looked at. Each finding names the line to change, what it costs a start,
    what the change saves, and how that is known. The comment `# ejcache: ignore[KIND]` on a line silences it there.

    The exit status is 1 if something is shown.
    """
    unknown = check_kinds(ignore or ())
    if unknown:
        raise UsageError(f"--ignore {unknown[0]}: accepted is one of {', '.join(KINDS)}")
    if fresh and directory is not None:
        raise UsageError("--fresh and --dir: pass one of them")
    since = _run(program, directory, fresh=fresh, is_apart=as_json or github) if program else 0.0
    found = findings(read_starts(), ignore=ignore or (), since=since)
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
    since: float = 0.0,
) -> list[Advice]:
    """Say what to change, also if it saves little, by the last starts of these records.

    Raises NotFoundError if none began after `since`.
    """
    if not any(record.process.began >= since for record in records):
        nothing = "no start was recorded" if not since else "the program compiled nothing with JAX"
        raise NotFoundError("; ".join(filter(None, (nothing, what_is_needed("advise")))))
    sources = SourceFiles(until=time.time())
    return findings_of(
        records,
        recall_programs,
        lines_of=sources.lines,
        ignore=ignore,
        least=SMALLEST,
        since=since,
    )


def lines_of(found: Sequence[Advice], smaller: SmallerFindings) -> list[str]:
    """The findings as the terminal shows them, the one that saves most first."""
    if not found:
        return said_of_none(smaller)
    lines: list[str] = []
    for number, finding in enumerate(found, 1):
        lines.append(output.styled(f"{number}. {finding.place}: {finding.title} ({finding.function})", "bold"))
        lines += [f"   {line}" for line in output.wrapped_lines(f"{finding.message}.")]
        lines.append(f"   {finding.costs}")
        for sign, code in (("-", finding.before), ("+", finding.after)):
            lines += [f"     {sign} {line}" for line in code.splitlines()]
        lines.append(f"   {finding.link}")
    return [*lines, smaller.words] if smaller.number else lines


def _run(program: Sequence[str], directory: str | None, *, fresh: bool, is_apart: bool) -> float:
    """Run the program to its end; returns when it began. With `is_apart`, what it prints goes to stderr."""
    command = command_of(program)
    with tempfile.TemporaryDirectory(prefix="ejcache-advise-") as empty:
        given = environment_variable("EJCACHE") or ""
        cache = f"{empty}/" if fresh else absolute_url(directory) or (given if "/" in given else "1")
        began = time.time()
        output_to = sys.stderr if is_apart else None
        done = subprocess.run(command, env=child_environment({"EJCACHE": cache}), stdout=output_to, check=False)
    if done.returncode:
        output.warn(f"{program[0]} ended with status {done.returncode}; what it compiled until then counts")
    return began
