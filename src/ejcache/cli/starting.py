"""Starts the program of `ejcache run`, and every process that it starts, with the cache.

Without a report, the program takes the place of this process. With one, this process stays as its parent, in the same
process group. It passes on the signals that it gets, stops and continues with the program, and ends with the program's
exit status or by the signal that killed it. If this process is killed, Linux kills the program.

Each start of a program waits for this module, so it imports nothing of the framework of commands, and what makes the
report when the program has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ejcache.errors import EjcacheError, JaxImportError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ejcache.journal.run_log import RunTotal


def take_options(program: Sequence[str], given: dict[str, Any]) -> tuple[list[str], str | None]:
    """Put the settings that were given into the environment; return the command, and where the report goes.

    Args:
        program: as it was given, with its arguments.
        given: settings by name; None for those that were not given.

    Raises:
        EjcacheError: no program is named, or a setting cannot be used.
    """
    from ejcache.cache.report_destination import absolute_destination

    command = command_of(program)
    known = {name: value for name, value in given.items() if value is not None}
    if "dir" in known:
        known["dir"] = absolute_url(known["dir"])
    destination = absolute_destination(export(known))
    if given.get("report") is not None and destination is not None:
        _check_report(destination)
    return command, destination


def start(command: Sequence[str], destination: str | None) -> int:
    """Run the program, and report if that is wanted; return its exit status, or die of the signal that killed it."""
    from ejcache.cache.report_destination import is_off

    if destination is None or is_off(destination):
        replace_this_process(command)
    return run_and_report(command, destination)


def _check_report(destination: str) -> None:
    """Refuse a file that could not be written, before the program runs for hours."""
    place = Path(destination).parent
    if Path(destination).is_absolute() and not place.is_dir():
        raise NotFoundError(f"--report {destination} could not be written: the directory {place} does not exist")


def absolute_url(directory: str | None) -> str | None:
    """Return `--dir`, from which the program may start processes in other directories."""
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


_RUN_COUNTS: Final = "EJCACHE_RUN_COUNTS"
"""`journal.run_log.RUN_COUNTS`, which a test compares."""
_SCRIPTS: Final = (".py", ".pyw", ".pyz", ".zip")
_KEYS: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
"""Signals that a terminal sends to all processes in the foreground."""
_FAULTS: Final = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_LEFT: Final = _FAULTS | {signal.SIGKILL, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU}
_AWAITED: Final = signal.valid_signals() - _LEFT


def command_of(program: Sequence[str]) -> list[str]:
    """Return the command that runs a program: a script, module, code or stdin by this Python, anything else as a shell
    would.

    Raises:
        UsageError: no program is named, or there is none of that name.
    """
    if not program or not program[0]:
        raise UsageError("no program is named: give a script, -m MODULE, -c CODE, - or a command")
    name, path = program[0], Path(program[0])
    found = None
    if not name.startswith("-") and not _is_script(path):
        # Of a virtual environment that is not activated, the commands are beside its Python.
        import shutil

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
    with _starting(command):
        for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored_by_python, signal.SIG_DFL)
        os.execv(command[0], list(command))  # noqa: S606 (the user's program)


def run_and_report(command: Sequence[str], destination: str) -> int:
    """Run the program, report on its processes, and return its exit status, or die of the signal that killed it."""
    try:
        counts = _new_counts()
    except OSError as exc:
        from ejcache.cli.output import warn

        warn(f"there will be no report: {exc}")
        replace_this_process(command)
    status, total = _run_and_count(command, counts)
    from ejcache.cache.exit_report import report_run

    report_run(total, destination, status=status)
    return end_as(status)


def end_as(status: int) -> int:
    """Return the exit status of a program that has ended so; if a signal killed it, this process dies of the same."""
    return _die_of(-status) if status < 0 else status


def _new_counts() -> str:
    from ejcache.settings.environment import environment_variable

    # Where `tempfile` looks first; its import takes a tenth of what a start waits for.
    place = environment_variable("TMPDIR") or "/tmp"  # noqa: S108 (a new file of a random name)
    counts = os.path.join(os.path.abspath(place), f"ejcache-run-{os.urandom(8).hex()}")  # noqa: PTH100, PTH118
    try:
        os.close(os.open(counts, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError:
        import tempfile

        descriptor, counts = tempfile.mkstemp(prefix="ejcache-run-")
        os.close(descriptor)
    return counts


def _run_and_count(command: Sequence[str], counts: str) -> tuple[int, RunTotal]:
    from ejcache.settings.environment import child_environment, environment_variable

    try:
        status = _run(command, child_environment({_RUN_COUNTS: counts}))
        from ejcache.journal.run_log import read_counts

        return status, read_counts(counts, also_append_to=environment_variable(_RUN_COUNTS))
    finally:
        with contextlib.suppress(OSError):  # a cleaner of temporary files may have removed it
            os.unlink(counts)  # noqa: PTH108


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Return the exit status of the program; negative for the signal that killed it. Afterwards, signals stay
    blocked.
    """
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
    """Return the next signal that this process gets, and whether to pass it on: the terminal's have reached the
    program.
    """
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(_AWAITED)
        return info.si_signo, info.si_code <= 0
    number = signal.sigwait(_AWAITED)
    return number, number not in _KEYS or not os.isatty(2)


def _preparation(mask: set[Any]) -> Callable[[], None]:
    """Make the function that the new process calls before it becomes the program."""
    from ejcache.util.process_tree import following

    follow = following(os.getpid())

    def follow_unblocked() -> None:
        follow()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return follow_unblocked


def _die_of(number: int) -> int:
    """End this process by a signal; returns the exit status of shells if that is not possible, as for process 1."""
    import resource

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
