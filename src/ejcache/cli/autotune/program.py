"""Runs the program of `ejcache autotune run --program`, which records its calls of operations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperCommand

from ejcache.cli.run.launch import command_of
from ejcache.settings.environment import child_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ProgramCommand", "run_recorded"]

_OPTION: Final = "--program"
_END_SECONDS: Final = 30.0


class ProgramCommand(TyperCommand):
    """Passes all that follows `--program` to it: these are the program and its own arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; called by the framework."""
        if _OPTION in args:
            position = args.index(_OPTION)
            program = args[position + 1 :] or [""]
            args = [*args[:position], *(f"{_OPTION}={argument}" for argument in program)]
        return super().parse_args(ctx, args)


def run_recorded(
    program: Sequence[str], place: str, directory: str | None, *, seconds: float | None, quiet: bool
) -> int:
    """Run the program so that it records its calls and measures nothing; returns its exit status.

    Args:
        program: the script or command, and its arguments.
        place: takes the recorded calls.
        directory: of the tuned configurations; None for those that the settings name.
        seconds: end the program after so many, with the status 0.
        quiet: let the program write to standard error instead of standard output.

    Raises:
        UsageError: there is no such program.
    """
    command = command_of(program)
    changes = {"EJCACHE_AUTOTUNE_RECORD": place, "EJCACHE_AUTOTUNE_POLICY": "heuristics"}
    if directory is not None:
        changes["EJCACHE_AUTOTUNE_DIR"] = directory
    # As Python does for the program, so that its modules can be imported for the measurements.
    if Path(program[0]).is_file():
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
    elif program[0] == "-m":
        sys.path.insert(0, str(Path.cwd()))
    child = subprocess.Popen(command, env=child_environment(changes), stdout=2 if quiet else None)
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return 0
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
