"""The question that a command asks a person before it deletes much."""

from __future__ import annotations

import sys

import typer

from ejcache.cli import output
from ejcache.errors import UsageError
from ejcache.util.log import printable


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask before all or most entries are removed.

    Raises:
        UsageError: nobody can answer, and `--yes` was not given.
        typer.Exit: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty() or as_json:
        raise UsageError("this asks before it removes everything: give --yes where nobody can answer")
    if not typer.confirm(printable(question), err=True):
        output.warn("nothing was removed")
        raise typer.Exit(1)
