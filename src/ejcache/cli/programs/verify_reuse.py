"""`ejcache verify --reuse`: runs a program under three hash seeds, and says whether it traces the same programs."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Final

from ejcache.cli import output
from ejcache.cli.commands.run import absolute_url, command_of
from ejcache.errors import UsageError
from ejcache.reuse.log import read_notes
from ejcache.settings.environment import child_environment
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.journal.line import ReuseNote

_RUNS: Final = 3
_COMPARED: Final = frozenset({"proven", "compared", "wrong"})


def verify_reuse(program: Sequence[str], directory: str | None, *, as_json: bool) -> int:
    """Run the program three times, print what it traced differently, and return the exit status.

    Args:
        program: the words behind the options.
        directory: the value of `--dir`.
        as_json: print JSON.

    Raises:
        UsageError: there is no such program.
    """
    if not program:
        raise UsageError("verify --reuse needs a program: a script, -m MODULE or a command")
    command = command_of(program)
    began = time.time()
    status = _run(command, directory)
    functions, compared = _traced_since(began)
    wrong = [each for each in functions.values() if each.did == "wrong"]
    # What is never reused need not be compared.
    left = [each for each in functions.values() if each.function not in compared and each.did != "plain"]
    if as_json:
        output.print_json(
            {
                "status": status,
                "clean": not status and not wrong and not left,
                "functions": [
                    {
                        "function": each.function,
                        "did": each.did,
                        "why": each.sentence,
                        "compared": each.function in compared,
                    }
                    for each in functions.values()
                ],
            }
        )
    else:
        for each in functions.values():
            output.say(f"{each.function} was {each.words}")
            if each.advice:
                output.say(f"  {each.advice}")
        counted = f"{len(wrong)} traced differently, {len(left)} not compared"
        output.say(f"{plural(len(functions), 'function')}: {counted}")
    if left:
        output.warn("a function is compared if two runs have the same inputs: see what differs, and reuse_ignore")
    if not functions and not status:
        output.warn("there was nothing to compare: each function of @ejit is traced in no time, or none was called")
    if status:
        output.warn(f"the program ended with status {status}")
    return int(bool(status or wrong or left))


def _run(command: Sequence[str], directory: str | None) -> int:
    """Run the program three times, until it fails, and return its exit status."""
    url = absolute_url(directory)
    environment = child_environment(
        {
            "EJCACHE_REUSE_LOWERING": "1",
            "EJCACHE_REUSE_CHECK_ONE_IN": "1",
            **({} if url is None else {"EJCACHE_DIR": url}),
        }
    )
    environment.pop("PYTHONHASHSEED", None)  # without it, each process has its own
    status = 0
    for number in range(_RUNS):
        output.warn(f"run {number + 1} of {_RUNS}")
        status = status or subprocess.run(command, env=environment, stdout=2, check=False).returncode
    return status


def _traced_since(began: float) -> tuple[dict[str, ReuseNote], set[str]]:
    """Find what was done last with each function, and which of them had a trace compared with another one."""
    functions: dict[str, ReuseNote] = {}
    compared: set[str] = set()
    for note in read_notes():  # the latest first
        if note.time >= began and (note.did == "wrong" or note.function not in functions):
            functions[note.function] = note
        if note.time >= began and note.did in _COMPARED:
            compared.add(note.function)
    return functions, compared
