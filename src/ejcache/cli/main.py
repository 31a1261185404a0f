"""The `ejcache` command: its subcommands, and what it exits with.

0: fine. 1: something was found, or failed. 2: the command line or a setting cannot be used as it is.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Annotated, Final

import typer

from ejcache.cli import autotune, configuration, demo, doctor, look, run, tend, transfer, verify
from ejcache.cli.output import warn
from ejcache.cli.program import Program
from ejcache.cli.why import why
from ejcache.errors import EjcacheError, UsageError

__all__ = ["FINE", "FOUND", "USAGE", "app", "main"]

FINE: Final = 0
FOUND: Final = 1
USAGE: Final = 2
_INTERRUPTED: Final = 130
_UNWRITTEN: Final = frozenset({errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE})
"""What writing to stdout fails with; trouble with a cache is a StoreError."""
_BadUsage: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""What every mistake on the command line is; typer brings click along under different names in different versions."""

app = typer.Typer(
    name="ejcache",
    help="The persistent compilation cache and autotune store for JAX.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ejcache._version import __version__

        typer.echo(f"ejcache {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Exit status: 0 fine, 1 something was found or failed, 2 bad usage. "
    "Sizes: 500000, 10GB (decimal), 10GiB (binary). Ages: 90s, 15m, 36h, 14d."
)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Keep what JAX compiles, so that the second start is fast."""


app.command(
    cls=run.RunCommand,
    short_help="Run a program with the cache.",
    context_settings={"allow_interspersed_args": False},
)(run.run)
app.command(short_help="Show what the cache holds and what it did.")(look.stats)
app.command(short_help="List the entries.")(look.ls)
app.command(short_help="Show one entry.")(look.show)
app.command(short_help="Say why a program was compiled rather than loaded.")(why)
app.command(short_help="Remove entries by size, number, age, name or version.")(tend.prune)
app.command(short_help="Check every entry, and repair.")(verify.verify)
app.command(short_help="Remove all entries.")(tend.clear)
app.command(short_help="Keep an entry whatever is evicted.")(tend.pin)
app.command(short_help="Let a pinned entry be evicted again.")(tend.unpin)
app.add_typer(configuration.app, name="config", short_help="Show every setting and where its value came from.")
app.command(short_help="Copy entries to another cache.")(transfer.push)
app.command(short_help="Copy entries from another cache.")(transfer.pull)
app.command(short_help="Write entries into one file.")(transfer.export)
app.command("import", short_help="Copy the entries of such a file into the cache.")(transfer.import_bundle)
app.command(short_help="Try whether a place can hold a cache, and say what to do.")(doctor.doctor)
app.command(short_help="Run a training step cold and warm, and compare.")(demo.demo)
app.add_typer(autotune.app, name="autotune", short_help="Look at tuned configurations, tune, move them.")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and answer its exit status.

    Args:
        arguments: without the program's name; those of this process if not given.
    """
    outcome = _dispatch(sys.argv[1:] if arguments is None else arguments)
    if isinstance(outcome, Program):
        # Out here, so that what the program raises meets no handler but Python's own.
        outcome.run()
        return FINE
    return outcome


def _dispatch(arguments: list[str]) -> int | Program:
    try:
        # For the commands only: a program under `run` finds no stdout either, as under `python`.
        with contextlib.redirect_stdout(_Closed()) if sys.stdout is None else contextlib.nullcontext():
            command = typer.main.get_command(app)
            outcome = command.main(arguments or ["--help"], prog_name="ejcache", standalone_mode=False)
            sys.stdout.flush()
    except typer.Exit as exc:
        return exc.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except _BadUsage as exc:
        return _explain(exc)
    except EjcacheError as exc:
        warn(str(exc))
        return USAGE if isinstance(exc, UsageError) else FOUND
    except OSError as exc:
        if exc.filename is not None or exc.errno not in _UNWRITTEN:
            raise
        _drop_output()
        if not isinstance(exc, BrokenPipeError):  # else nobody reads any more, which is no trouble
            warn(f"stdout cannot be written: {exc.strerror}")
        return FOUND
    if isinstance(outcome, Program):
        return outcome
    return outcome if isinstance(outcome, int) else FINE


class _Closed(io.TextIOBase):
    """What Python puts in place of a stdout that was closed is None, which cannot even say so."""

    def write(self, _: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _drop_output() -> None:
    """Let what is still buffered go nowhere: it would fail again when Python exits, and change the exit status."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(exc: Exception) -> int:
    message = getattr(exc, "format_message", lambda: str(exc))()
    context = getattr(exc, "ctx", None)
    where = context.command_path if context is not None else "ejcache"
    warn(f"{message.rstrip('.').replace('Value error, ', '')} (see {where} --help)")
    return USAGE
