"""Runs the `ejcache` command: its table of commands and its exit status.

Only the module of the command that is called is imported: help, the version, a typing error and the completion of a
command's name import neither the others nor JAX.

Exit status: 0 if all is fine. 1 if something was found, failed or does not exist. 2 for bad usage: the command line or
a setting must be changed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import logging
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from ejcache._version import __version__
from ejcache.cli.options import examples, flag, option
from ejcache.cli.output import hide_progress, print_json, say, warn
from ejcache.errors import EjcacheError, NotFoundError, UsageError
from ejcache.util.log import log
from ejcache.util.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Command(NamedTuple):
    """A command or a group: where it is, its line in the list of commands, and examples for its help.

    Attributes:
        place: the function of a command, or the Typer application of a group, as `"module:attribute"`.
        short_help: its line in `ejcache --help`.
        examples: command lines that its help shows.
    """

    place: str
    short_help: str
    examples: tuple[str, ...]


COMMANDS: Final = {
    "run": Command(
        "ejcache.cli.commands.run:run",
        "Run a program with the cache.",
        ("run train.py --steps 100", "run --dir gs://bucket/prefix -m my_project.train"),
    ),
    "warm": Command(
        "ejcache.cli.commands.warm:warm",
        "Compile programs before a run needs them.",
        (
            "warm train.py:step --shapes 'f32[8,128] i32[8]'",
            "warm train.py:step --shapes @shapes.txt -j 8",
            "warm train.py --steps 1",
            "warm model.bin --target v5p-128",
        ),
    ),
    "target": Command(
        "ejcache.cli.commands.target:app",
        "Save and compare devices, to compile for them on other hosts.",
        ("target save v5p-128", "target diff v5p-128", "warm train.py:steps --target v5p-128"),
    ),
    "stats": Command(
        "ejcache.cli.commands.stats:stats",
        "Show what the cache holds, its hits and its misses.",
        ("stats", "stats --dir gs://my-bucket/compiled --json"),
    ),
    "ls": Command(
        "ejcache.cli.commands.ls:ls",
        "List the entries, or show one.",
        ("ls --sort size --limit 10", "ls --name 'jit_train*'", "ls jit_train_step", "ls 50a34c --json"),
    ),
    "why": Command(
        "ejcache.cli.commands.why:why",
        "Say why a program was compiled.",
        ("why", "why jit_train_step --full", "why --since 2h"),
    ),
    "advise": Command(
        "ejcache.cli.commands.advise:advise",
        "Say what to change in a program so that it starts faster.",
        ("advise", "advise train.py --steps 2", "advise --fresh --github train.py"),
    ),
    "prune": Command(
        "ejcache.cli.commands.prune:prune",
        "Remove entries by size, number, age, name or version, or all.",
        (
            "prune --max-size 10GB --dry-run",
            "prune --unused-for 30d --keep 'jit_train*' --yes",
            "prune --all",
            "prune --all jit_eval",
        ),
    ),
    "verify": Command(
        "ejcache.cli.commands.verify:verify",
        "Check every entry, and repair the cache.",
        ("verify", "verify --fix"),
    ),
    "recall": Command(
        "ejcache.cli.commands.recall:recall",
        "Take entries back from every host that has them.",
        (
            "recall jit_train_step --dir gs://my-bucket/compiled",
            "recall --by node-3",
            "recall --before 2h",
            "recall --all",
        ),
    ),
    "tuned": Command(
        "ejcache.cli.tuned.commands:app",
        "Look at, change and copy tuned configurations, and measure them.",
        ("tuned ls", "tuned tune train.py --steps 1", "tuned push gs://my-bucket/tuned"),
    ),
    "config": Command(
        "ejcache.cli.commands.config:app",
        "Show every setting, its value and its source.",
        ("config", "config set max_size=10GB", "config get dir"),
    ),
    "push": Command(
        "ejcache.cli.commands.push_pull:push",
        "Copy entries to another cache, or all into one file.",
        (
            "push gs://my-bucket/compiled",
            "push /mnt/shared --used-within 7d --dry-run",
            "push compiled.tar --max-size 1GB",
        ),
    ),
    "pull": Command(
        "ejcache.cli.commands.push_pull:pull",
        "Copy entries from another cache, or all from one file.",
        ("pull gs://my-bucket/compiled", "pull compiled.tar"),
    ),
    "key": Command(
        "ejcache.cli.commands.key:key",
        "Print a text for the name of an archive in CI.",
        ("key", "key --lock requirements.lock"),
    ),
    "doctor": Command(
        "ejcache.cli.commands.doctor:doctor",
        "Check whether a directory or bucket can hold a cache.",
        ("doctor", "doctor --dir gs://my-bucket/compiled"),
    ),
    "bench": Command(
        "ejcache.cli.commands.bench:bench",
        "Time the starts of a program, also with JAX's own cache.",
        ("bench train.py --steps 2", "bench --rounds 9 -m my_project.train"),
    ),
    "report": Command(
        "ejcache.reports.command:report",
        "Show where the time of starts went, what still compiles, and why.",
        (
            "report --since 7d",
            "report --html report.html --open",
            "report --compare jax=0.10.2 jax=0.12.0",
            "report --compare 2d..1d 1d..0s",
        ),
    ),
}
"""The commands by name, in the order in which help lists them."""


class _Commands(TyperGroup):
    """The commands by name: only their lines of help, until one is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, command in COMMANDS.items():
            self.add_command(TyperCommand(name, short_help=command.short_help))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that the first argument names, and make it."""
        name, known, rest = super().resolve_command(ctx, args)
        return name, None if name is None or known is None else load_command(name), rest


@functools.cache
def load_command(name: str) -> Any:
    """Import the command or the group of this name, and make it as typer calls it, once in a process."""
    command = COMMANDS[name]
    module, _, attribute = command.place.partition(":")
    target = getattr(import_module(module), attribute)
    shown: dict[str, Any] = {"short_help": command.short_help, "epilog": examples(*command.examples)}
    app = _application()
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=name, **shown)
        app.callback()(_root)  # typer makes a group of it, and the group that is wanted is its member
        return typer.main.get_group(app).commands[name]
    app.command(name, **shown, **getattr(sys.modules[target.__module__], "REGISTRATION", {}).get(name, {}))(target)
    return typer.main.get_command(app)


@functools.cache
def _every_command() -> Any:
    """Make the group of all commands as typer calls it, once in a process."""
    return typer.main.get_command(build())


def build() -> typer.Typer:
    """Make the application, without the modules of its commands."""
    app = _application(add_completion=True)
    app.callback(
        cls=_Commands,
        epilog="Exit status: 0 fine, 1 something was found, failed or does not exist, 2 bad usage. "
        "Sizes: 500000, 10GB (decimal), 10GiB (binary). Ages: 90s, 15m, 36h, 14d.\n\n"
        + examples("run train.py", "stats", "why jit_train_step", "help prune", "help shape_varies"),
    )(_root)
    return app


def _application(*, add_completion: bool = False) -> typer.Typer:
    return typer.Typer(
        name="ejcache",
        help="The persistent compilation cache and autotune store for JAX.",
        add_completion=add_completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ejcache {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, flag("--version", "-V", "Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    directory: Annotated[str | None, option("--dir", "URL", "The same as --dir of COMMAND.")] = None,
    verbose: Annotated[bool, flag("--verbose", "-v", "Also print log messages on stderr.")] = False,
    quiet: Annotated[bool, flag("--quiet", "-q", "Print no progress and no warnings.")] = False,
) -> None:
    """Keep the programs that JAX compiles, so that the next start loads them."""


FINE: Final = 0
FOUND: Final = 1
USAGE: Final = 2
_INTERRUPTED: Final = 130
_UNWRITTEN: Final = frozenset({errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE})
"""Errors of writing to stdout. Failures of a cache are StoreErrors."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and answer its exit status.

    Args:
        arguments: without the program's name; those of this process if not given.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    arguments, level = _take_verbosity(arguments)
    arguments = _rearrange(arguments)
    as_json = "--json" in arguments and arguments[0] != "run"  # behind `run` it is the program's, or asks for a report
    try:
        closed = contextlib.redirect_stdout(_ClosedStream()) if sys.stdout is None else contextlib.nullcontext()
        with closed, _printed_messages(level):
            if arguments[:1] == ["help"] and len(arguments) == 2 and arguments[1] not in COMMANDS:
                from ejcache.cli.help_topics import print_topic  # the door to a command

                return print_topic(arguments[1])
            outcome = _every_command().main(arguments or ["--help"], prog_name="ejcache", standalone_mode=False)
            sys.stdout.flush()
    except typer.Exit as exc:
        return exc.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except typer.TyperException as exc:
        return _report_usage(exc, next(filter(COMMANDS.__contains__, arguments), ""), as_json=as_json)
    except EjcacheError as exc:
        _report_error(exc, str(exc), as_json=as_json)
        is_usage = isinstance(exc, UsageError) and not isinstance(exc, NotFoundError)
        return USAGE if is_usage else FOUND
    except OSError as exc:
        if exc.filename is not None or exc.errno not in _UNWRITTEN:
            return _report_unexpected(exc, as_json=as_json)
        _drop_output()
        if not isinstance(exc, BrokenPipeError):  # otherwise the reader has stopped reading: `ejcache ls | head`
            warn(f"stdout cannot be written: {exc.strerror}")
        return FOUND
    except Exception as exc:
        return _report_unexpected(exc, as_json=as_json)
    return outcome if isinstance(outcome, int) else FINE


def _take_verbosity(arguments: list[str]) -> tuple[list[str], int]:
    """Return the arguments without -q and -v, and the level of the messages to print.

    Both may be before or behind the command. What is behind a command that runs a program belongs to the program, or to
    the command itself.
    """
    levels = {"-q": logging.ERROR, "--quiet": logging.ERROR, "-v": logging.DEBUG, "--verbose": logging.DEBUG}
    first = next((number for number, each in enumerate(arguments) if each not in levels), len(arguments))
    command = arguments[first:]
    if command[:1] == ["--dir"]:
        command = command[2:]
    end = len(arguments) - len(command) if _runs_a_program(command) else len(arguments)
    given = [levels[each] for each in arguments[:end] if each in levels]
    rest = [each for each in arguments[:end] if each not in levels]
    return rest + arguments[end:], given[-1] if given else logging.WARNING


def _rearrange(arguments: list[str]) -> list[str]:
    """Return `help COMMAND`, `version` and `--dir URL COMMAND` as the options that they stand for."""
    if arguments[:1] == ["help"] and (len(arguments) != 2 or arguments[1] in COMMANDS):
        return [*arguments[1:], "--help"]  # else a topic
    if arguments == ["version"]:
        return ["--version"]
    if arguments[:1] == ["--dir"] and len(arguments) > 2:
        directory, (command, *rest) = arguments[:2], arguments[2:]
        if not _runs_a_program([command, *rest]):
            return [command, *rest, *directory]
        # Behind the program, an option would be the program's.
        group, rest = ([command], rest) if command == "run" else ([command, rest[0]], rest[1:])
        return [*group, *directory, *rest]
    return arguments


def _runs_a_program(arguments: list[str]) -> bool:
    """True if the command has a program behind its own options."""
    return arguments[:1] == ["run"] or arguments[:2] == ["tuned", "tune"]


class _MessagePrinter(logging.Handler):
    """Prints what the package logs as messages of the command, without control characters."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage().removeprefix("ejcache: "))


@contextlib.contextmanager
def _printed_messages(level: int) -> Iterator[None]:
    printer, before = _MessagePrinter(level), log.level
    log.addHandler(printer)
    if level < logging.WARNING:
        log.setLevel(level)
    hide_progress(level > logging.WARNING)
    try:
        yield
    finally:
        hide_progress(False)
        log.setLevel(before)
        log.removeHandler(printer)


class _ClosedStream(io.TextIOBase):
    """Stands in for a closed stdout, which Python replaces by None."""

    def write(self, _: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _drop_output() -> None:
    """Discard buffered output. Writing it when Python exits would fail again and change the exit status."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_error(exc: Exception, message: str, *, as_json: bool, kind: str = "") -> None:
    """Print a message on stderr, and with `--json` an object with it on stdout."""
    warn(message)
    if as_json:
        with contextlib.suppress(OSError):  # the exit status still says that the command failed
            print_json({"error": printable(message, keep="\n"), "kind": kind or type(exc).__name__})


def _report_usage(exc: typer.TyperException, command: str, *, as_json: bool) -> int:
    context = getattr(exc, "ctx", None)
    message = exc.format_message()
    if type(exc).__name__ == "NoArgsIsHelpError":
        say(message)
        return FINE
    # An option that lacks a value has no context, or that of all commands.
    path = context.command_path if context is not None else "ejcache"
    where = f"ejcache {command}".rstrip() if path == "ejcache" else path
    message = f"{message.rstrip('.').replace('Value error, ', '')} (see {where} --help)"
    _report_error(exc, message, as_json=as_json, kind=UsageError.__name__)
    return USAGE


def _arose_importing_jax(exc: BaseException) -> bool:
    """True if JAX is not installed, or if its own modules raised the error while they were imported."""
    if isinstance(exc, ModuleNotFoundError) and exc.name in {"jax", "jaxlib"}:
        return True
    frame = exc.__traceback__
    while frame is not None:
        code = frame.tb_frame
        if code.f_code.co_name == "<module>" and code.f_globals.get("__name__", "").partition(".")[0] in {
            "jax",
            "jaxlib",
        }:
            return True
        frame = frame.tb_next
    return False


def _report_unexpected(exc: Exception, *, as_json: bool) -> int:
    """Return one sentence for an error that no command expects; its traceback under `python -X dev`."""
    if sys.flags.dev_mode:
        raise exc
    if _arose_importing_jax(exc):
        message = f"JAX cannot be imported, {type(exc).__name__}: {exc}; repair its installation in {sys.prefix}"
    else:
        message = f"unexpected {type(exc).__name__}: {exc}; `python -X dev -m ejcache …` shows where, please report it"
    _report_error(exc, message, as_json=as_json)
    return FOUND
