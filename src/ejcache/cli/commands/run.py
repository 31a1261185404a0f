"""`ejcache run`: runs an unchanged program, and every process that it starts, with the cache (`cli.starting`).

`cli.entry` reads the ordinary options without this module, which has all of them, their help and their completion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from typer.core import TyperCommand

from ejcache.cli.interrupt import watch_no_longer
from ejcache.cli.options import Dir, MinCompileSeconds, argument, flag, option, warn_of_bytes
from ejcache.cli.starting import command_of, start, take_options

if TYPE_CHECKING:
    from collections.abc import Sequence


class RunCommand(TyperCommand):
    """Parses no options after the program's name: they are the program's own, as with `python`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; called by the framework."""
        takes_value = {
            name for parameter in self.params if not getattr(parameter, "is_flag", False) for name in parameter.opts
        }
        return super().parse_args(ctx, self._end_options(args, takes_value))

    def program_begins(self, argument: str) -> bool:  # noqa: ARG002 (for commands that also run something else)
        """True if this argument, the first that is not an option, is a program with options of its own."""
        return True

    def _end_options(self, arguments: Sequence[str], takes_value: set[str]) -> list[str]:
        """Return the arguments with `--` before the program, which may begin with `-m`, `-c` or `-`, as after
        `python`.
        """
        position = 0
        while position < len(arguments):
            argument = arguments[position]
            if not argument.startswith("-") or argument in ("-", "--") or argument[:2] in ("-m", "-c"):
                break
            position += 2 if argument in takes_value else 1
        program = arguments[position:]
        begins = bool(program) and program[0] != "--" and self.program_begins(program[0])
        return [*arguments[:position], *(["--"] if begins else []), *program]


BEFORE_A_PROGRAM: Final = {"cls": RunCommand, "context_settings": {"allow_interspersed_args": False}}
REGISTRATION: Final = {"run": BEFORE_A_PROGRAM}
"""How the application registers commands, by their names."""


def run(
    program: Annotated[
        list[str] | None,
        argument(
            "PROGRAM ARGS",
            "A script, -m MODULE, -c CODE or - (stdin), as after `python`; or a command, such as pytest.",
        ),
    ] = None,
    directory: Dir = None,
    max_size: Annotated[
        str | None, option("--max-size", "SIZE", "Limit for all entries, such as 10GB; -1 for none.")
    ] = None,
    min_compile_seconds: MinCompileSeconds = None,
    read_only: Annotated[bool, flag("--read-only", "Read entries, but write none.")] = False,
    compare: Annotated[
        bool,
        flag(
            "--compare",
            "Also compile what the cache has, and compare the results of the first calls: is the cache wrong?",
        ),
    ] = False,
    report: Annotated[
        str | None,
        option(
            "--report",
            "off|line|json|PATH",
            "The report at the end: a line or JSON on stderr, or a JSON file. Default: the setting report, or line.",
        ),
    ] = None,
    as_json: Annotated[bool, flag("--json", "The same as --report json.")] = False,
    quiet: Annotated[bool, flag("--quiet", "-q", "The same as --report off.")] = False,
) -> int:
    """Run a program with the cache enabled in each of its processes that uses JAX, and report on all of them together.

    The options become environment variables (EJCACHE and those that `ejcache config` shows), so that every process that
    the program starts has them. What a process sets itself, with jax.config.update or ejcache.enable, overrules them.
    Arguments, input, output, signals and exit status are those of the program. With --compare, `ejcache run` exits with
    1 if the program succeeded, but the cache returned a wrong compiled program.
    """
    command_of(program or [])
    warn_of_bytes("--max-size", max_size)
    given: dict[str, Any] = {
        "dir": directory,
        "max_size": max_size,
        "min_compile_seconds": min_compile_seconds,
        "read_only": True if read_only else None,
        "compare": True if compare else None,
        "report": "off" if quiet else "json" if as_json and report is None else report,
    }
    command, destination = take_options(program or [], given)
    watch_no_longer()
    return start(command, destination)
