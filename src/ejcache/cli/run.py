"""`ejcache run`: runs an unchanged program, and every process that it starts, with the cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from ejcache.cli.options import Dir, MinCompileSeconds, warn_of_bytes
from ejcache.errors import JaxImportError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["REGISTRATION", "RunCommand", "absolute_url", "export", "run"]


class RunCommand(TyperCommand):
    """Parses no options after the program's name: they are the program's own, as with `python`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; called by the framework."""
        takes_value = {
            name for parameter in self.params if not getattr(parameter, "is_flag", False) for name in parameter.opts
        }
        return super().parse_args(ctx, self._end_options(args, takes_value))

    def program_begins(self, argument: str) -> bool:  # noqa: ARG002 (for commands that also run something else)
        """Whether this argument, the first that is not an option, is a program with options of its own."""
        return True

    def _end_options(self, arguments: Sequence[str], takes_value: set[str]) -> list[str]:
        """The arguments with `--` before the program, which may begin with `-m`, `-c` or `-`, as after `python`."""
        position = 0
        while position < len(arguments):
            argument = arguments[position]
            if not argument.startswith("-") or argument in ("-", "--") or argument[:2] in ("-m", "-c"):
                break
            position += 2 if argument in takes_value else 1
        program = arguments[position:]
        begins = bool(program) and program[0] != "--" and self.program_begins(program[0])
        return [*arguments[:position], *(["--"] if begins else []), *program]


REGISTRATION: Final = {"cls": RunCommand, "context_settings": {"allow_interspersed_args": False}}
"""How the application registers `run`."""


def run(
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROGRAM ARGS",
            help="A script, -m MODULE, -c CODE or - (stdin), as after `python`; or a command, such as pytest.",
            show_default=False,
        ),
    ] = None,
    directory: Dir = None,
    max_size: Annotated[
        str | None, typer.Option("--max-size", metavar="SIZE", help="Limit for all entries, such as 10GB; -1 for none.")
    ] = None,
    min_compile_seconds: MinCompileSeconds = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Read entries, but write none.")] = False,
    report: Annotated[
        str | None,
        typer.Option(
            "--report",
            metavar="off|line|json|PATH",
            help="The report at the end: a line or JSON on stderr, or a JSON file. Default: EJCACHE_REPORT, or line.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --report json.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The same as --report off.")] = False,
) -> int:
    """Run a program with the cache enabled in each of its processes that uses JAX, and report on all of them together.

    The options become environment variables (EJCACHE and those that `ejcache config` shows), so that every process that
    the program starts has them. What a process sets itself, with jax.config.update or ejcache.enable, goes first.
    Arguments, input, output, signals and exit status are those of the program.
    """
    from ejcache.cache.exit_report import absolute_destination, is_off
    from ejcache.cli.launch import command_of, replace_this_process, run_and_report

    command = command_of(program or [])
    warn_of_bytes("--max-size", max_size)
    given: dict[str, Any] = {
        "cache_dir": absolute_url(directory),
        "max_size": max_size,
        "min_compile_seconds": min_compile_seconds,
        "read_only": True if read_only else None,
        "report": "off" if quiet else "json" if as_json and report is None else report,
    }
    destination = absolute_destination(export({name: value for name, value in given.items() if value is not None}))
    if report is not None and destination is not None:
        _check_report(destination)
    if destination is None or is_off(destination):
        replace_this_process(command)
    return run_and_report(command, destination)


def _check_report(destination: str) -> None:
    """Refuse a file that could not be written, before the program runs for hours."""
    place = Path(destination).parent
    if Path(destination).is_absolute() and not place.is_dir():
        raise UsageError(f"--report {destination} could not be written: the directory {place} does not exist")


def absolute_url(directory: str | None) -> str | None:
    """`--dir`, from which the program may start processes in other directories."""
    from ejcache.stores.location import Location

    try:
        return None if directory is None else Location.parse(directory).url
    except UsageError as exc:
        raise UsageError(f"--dir: {exc}") from exc


def export(given: dict[str, Any]) -> str:
    """Put the options into the environment; returns where the report goes."""
    from ejcache.settings.environment import export_settings
    from ejcache.settings.resolve import command_line, resolve, set_command_line

    set_command_line(given)
    report = resolve().report or "line"
    export_settings({**command_line(), "report": "off"})
    set_command_line({})
    for problem in resolve().problems:
        if isinstance(problem, JaxImportError) or problem.setting == "EJCACHE":
            raise problem
    return str(report)
