"""`ejcache run`: an unchanged program, with the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from ejcache.cli.after_jax import after_jax_import
from ejcache.cli.options import Dir  # noqa: TC001 (typer reads the annotations)
from ejcache.cli.program import Program
from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RunCommand", "run"]

_MODULE: Final = ("-m", "--module")


class RunCommand(TyperCommand):
    """Options end where the program begins: at the script, or, as for `python`, behind `-m MODULE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments that are left, as the framework asks for them."""
        takes_value = {
            name for parameter in self.params if not getattr(parameter, "is_flag", False) for name in parameter.opts
        }
        return super().parse_args(ctx, _end_options(args, takes_value))


def _end_options(arguments: Sequence[str], takes_value: set[str]) -> list[str]:
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if argument.startswith("-m") and not argument.startswith("--") and len(argument) > 2:
            return [*arguments[:position], "-m", argument[2:], "--", *arguments[position + 1 :]]
        if argument in _MODULE:
            end = position + 2
            return [*arguments[:end], "--", *arguments[end:]]
        if not argument.startswith("-") or argument == "--":
            break
        position += 2 if argument in takes_value else 1
    return list(arguments)


def run(
    program: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT ARGS", help="The script and its arguments.")
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "-m", "--module", metavar="MODULE", help="Run a module, as `python -m` does; arguments follow it."
        ),
    ] = None,
    directory: Dir = None,
    max_size: Annotated[
        str | None, typer.Option("--max-size", metavar="SIZE", help="Bytes of all entries, such as 10GB; -1: no limit.")
    ] = None,
    min_compile_seconds: Annotated[
        str | None,
        typer.Option("--min-compile-seconds", metavar="SECONDS", help="Compilations below it are not stored."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Read entries, never write any.")] = False,
    report: Annotated[
        str | None,
        typer.Option(
            "--report",
            metavar="off|line|json|PATH",
            help="What is said at exit, on stderr or in a JSON file. Default: EJCACHE_REPORT, or line.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --report json.")] = False,
) -> Program:
    """Run a Python program as `python` does, with the cache enabled when its import of JAX has completed.

    The program is not changed: its arguments, exit status and tracebacks are its own, and what it sets itself
    (jax.config.update, ejcache.enable) goes before these options. A program that never imports JAX runs as it is.
    Processes that it starts are on their own.
    """
    from ejcache.reporting import absolute_destination
    from ejcache.settings import resolve, set_command_line
    from ejcache.stores.opening import check_url, local_path

    given = list(program or [])
    if module is not None:
        target = Program(module, tuple(given), as_module=True)
    elif given:
        target = Program(given[0], tuple(given[1:]))
    else:
        raise UsageError("run needs a script, or -m and a module")
    target.check()
    if directory is not None:
        try:
            # What is relative is so to where the command was given, wherever the program goes.
            directory = local_path(check_url(directory)) or directory
        except UsageError as exc:
            raise UsageError(f"--dir: {exc}") from exc
    given_values: dict[str, Any] = {
        "cache_dir": directory,
        "max_size": max_size,
        "min_compile_seconds": min_compile_seconds,
        "read_only": True if read_only else None,
        "report": "json" if as_json and report is None else absolute_destination(report),
    }
    values = {name: value for name, value in given_values.items() if value is not None}
    set_command_line(values)
    if resolve().report is None:
        set_command_line({**values, "report": "line"})
    after_jax_import(_enable)
    return target


def _enable() -> None:
    from ejcache.jaxside.activate import enable

    enable()
