"""Begins the `ejcache` process: `ejcache run PROGRAM` starts with the standard library, all else with typer.

Each start of a program waits for `ejcache run`, and the framework of commands takes longer than all else that it does.
So its ordinary options are read here. Where a command line has anything else (help, another option, a fault), nothing
is done here, and `interrupt` runs it as any command: there is one text for each error, and one place with all options.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # each start of a program would wait for `typing`
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final

_FLAGS: Final = {
    "--read-only": "read_only",
    "--compare": "compare",
    "--json": "json",
    "--quiet": "quiet",
    "-q": "quiet",
}
_VALUES: Final = ("--dir", "--report")
_INTERRUPTED: Final = 130


def main() -> int:
    """Run the command line of this process and answer its exit status; the entry point `ejcache`."""
    arguments = sys.argv[1:]
    status = _run(arguments[1:]) if arguments[:1] == ["run"] else None
    if status is not None:
        return status
    from ejcache.cli.interrupt import main as command_line  # the door to a command

    return command_line()


def _run(arguments: Sequence[str]) -> int | None:
    """Run a program; None if nothing was done, because the arguments are not ordinary ones or there is an error."""
    asked = ordinary_arguments(arguments)
    if asked is None:
        return None
    try:
        from ejcache.cli.starting import start, take_options  # the door to a run
        from ejcache.settings.environment import RestoredAfterErrors  # the door to a run

        with RestoredAfterErrors():
            command, destination = take_options(*asked)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception:
        return None  # the commands meet it again, and say it
    try:
        return start(command, destination)
    except Exception as exc:
        from ejcache.errors import EjcacheError  # the door to a command

        if not isinstance(exc, EjcacheError):
            raise
        from ejcache.cli.output import warn  # the door to a command

        warn(str(exc))
        return 1


def ordinary_arguments(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]] | None:
    """Read what follows `run`: the program with its arguments, and the given settings; None for anything else."""
    found: dict[str, Any] = {}
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        name = arguments[position]
        if name == "-" or name[:2] in ("-m", "-c"):
            break
        if name in _FLAGS:
            found[_FLAGS[name]] = True
        elif name in _VALUES and position + 1 < len(arguments):
            position += 1
            found[name[2:]] = arguments[position]
            if not arguments[position] or arguments[position].startswith("-"):
                return None
        else:
            return None
        position += 1
    program = list(arguments[position:])
    if not program or not program[0]:
        return None
    report = "off" if "quiet" in found else found.get("report", "json" if "json" in found else None)
    settings = {name: found.get(name) for name in ("dir", "read_only", "compare")}
    return program, settings | {"report": report}
