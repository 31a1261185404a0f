"""`ejcache run`: runs an unchanged program, and every process that it starts, with the cache.

Without a report, the program takes the place of this process. With one, this process stays as its parent, in the same
process group. It passes on the signals that it gets, stops and continues with the program, and ends with the program's
exit status or by the signal that killed it. If this process is killed, Linux kills the program.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

from typer.core import TyperCommand

from ejcache.cache.exit_report import report_run
from ejcache.cli.interrupt import watch_no_longer
from ejcache.cli.options import Dir, MinCompileSeconds, argument, flag, option, warn_of_bytes
from ejcache.cli.output import warn
from ejcache.errors import EjcacheError, JaxImportError, NotFoundError, UsageError
from ejcache.journal.run_log import RUN_COUNTS, read_counts
from ejcache.settings.environment import child_environment, environment_variable
from ejcache.util.process_tree import following

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ejcache.journal.run_log import RunTotal


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
    report: Annotated[
        str | None,
        option(
            "--report",
            "off|line|json|PATH",
            "The report at the end: a line or JSON on stderr, or a JSON file. Default: EJCACHE_REPORT, or line.",
        ),
    ] = None,
    as_json: Annotated[bool, flag("--json", "The same as --report json.")] = False,
    quiet: Annotated[bool, flag("--quiet", "-q", "The same as --report off.")] = False,
) -> int:
    """Run a program with the cache enabled in each of its processes that uses JAX, and report on all of them together.

    The options become environment variables (EJCACHE and those that `ejcache config` shows), so that every process that
    the program starts has them. What a process sets itself, with jax.config.update or ejcache.enable, goes first.
    Arguments, input, output, signals and exit status are those of the program.
    """
    from ejcache.cache.exit_report import absolute_destination, is_off
    from ejcache.cli.commands.run import command_of, replace_this_process, run_and_report

    command = command_of(program or [])
    warn_of_bytes("--max-size", max_size)
    given: dict[str, Any] = {
        "dir": absolute_url(directory),
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
        raise NotFoundError(f"--report {destination} could not be written: the directory {place} does not exist")


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


_SCRIPTS: Final = (".py", ".pyw", ".pyz", ".zip")
_KEYS: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
"""Signals that a terminal sends to all processes in the foreground."""
_FAULTS: Final = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_LEFT: Final = _FAULTS | {signal.SIGKILL, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU}
_AWAITED: Final = signal.valid_signals() - _LEFT


def command_of(program: Sequence[str]) -> list[str]:
    """The command that runs a program: a script, module, code or stdin by this Python, anything else as a shell would.

    Raises:
        UsageError: no program is named, or there is none of that name.
    """
    if not program or not program[0]:
        raise UsageError("no program is named: give a script, -m MODULE, -c CODE, - or a command")
    name, path = program[0], Path(program[0])
    found = None
    if not name.startswith("-") and not _is_script(path):
        # Of a virtual environment that is not activated, the commands are beside its Python.
        found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
        if path.is_dir() and (found is None or os.sep in name):
            raise NotFoundError(f"the directory {name} has no __main__.py")
        if found is None and not path.is_file():
            what = "script" if path.suffix in _SCRIPTS or os.sep in name else "script and no command"
            raise NotFoundError(f"there is no {what} {name}")
    if found is not None:
        return [found, *program[1:]]
    # Options of this interpreter, such as -X dev, are meant for the program.
    flags: list[str] = vars(subprocess)["_args_from_interpreter_flags"]()
    return [sys.executable, *flags, *program]


def _is_script(path: Path) -> bool:
    """True if Python runs it: a file of Python's, a directory with a main module, or a file that is not executable."""
    if path.is_dir():
        return (path / "__main__.py").exists()
    return path.is_file() and (path.suffix in _SCRIPTS or not os.access(path, os.X_OK))


def replace_this_process(command: Sequence[str]) -> NoReturn:
    """Become the program."""
    watch_no_longer()
    with _starting(command):
        for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored_by_python, signal.SIG_DFL)
        os.execv(command[0], list(command))  # noqa: S606 (the user's program)


def run_and_report(command: Sequence[str], destination: str) -> int:
    """Run the program, report on its processes, and return its exit status, or die of the signal that killed it."""
    try:
        counts = _new_counts()
    except OSError as exc:
        warn(f"there will be no report: {exc}")
        replace_this_process(command)
    status, total = _run_and_count(command, counts)
    report_run(total, destination, status=status)
    return end_as(status)


def end_as(status: int) -> int:
    """The exit status of a program that has ended so; if a signal killed it, this process dies of the same."""
    return _die_of(-status) if status < 0 else status


def _new_counts() -> str:
    descriptor, counts = tempfile.mkstemp(prefix="ejcache-run-")
    os.close(descriptor)
    return counts


def _run_and_count(command: Sequence[str], counts: str) -> tuple[int, RunTotal]:
    try:
        status = _run(command, child_environment({RUN_COUNTS: counts}))
        return status, read_counts(counts, also_append_to=environment_variable(RUN_COUNTS))
    finally:
        with contextlib.suppress(OSError):  # a cleaner of temporary files may have removed it
            os.unlink(counts)  # noqa: PTH108


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """The exit status of the program; negative for the signal that killed it. Afterwards, signals stay blocked."""
    watch_no_longer()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # some parents ignore it, and then there would be no exit status
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    with _starting(command):
        child = subprocess.Popen(
            command,
            env=environment,
            preexec_fn=_preparation(before),  # noqa: PLW1509 (no threads)
        )
    # The reader of a pipe must see its end when the program closes its output.
    for descriptor in (0, 1):
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    while True:
        number, passed_on = _next_signal()
        if number != signal.SIGCHLD:
            if passed_on:
                os.kill(child.pid, number)
            continue
        pid, status = os.waitpid(child.pid, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
        elif pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode


def _next_signal() -> tuple[int, bool]:
    """The next signal that this process gets, and whether to pass it on: the terminal's have reached the program."""
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(_AWAITED)
        return info.si_signo, info.si_code <= 0
    number = signal.sigwait(_AWAITED)
    return number, number not in _KEYS or not os.isatty(2)


def _preparation(mask: set[Any]) -> Callable[[], None]:
    """Make the function that the new process calls before it becomes the program."""
    follow = following(os.getpid())

    def follow_unblocked() -> None:
        follow()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return follow_unblocked


def _die_of(number: int) -> int:
    """End this process by a signal; returns the exit status of shells if that is not possible, as for process 1."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # the program has left its own core
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


@contextlib.contextmanager
def _starting(command: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise EjcacheError(f"{command[0]} cannot be run: {exc.strerror}") from exc
