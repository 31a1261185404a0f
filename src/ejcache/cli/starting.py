"""Starts the program of `ejcache run`, and every process that it starts, with the cache.

Without a report, the program takes the place of this process. With one, this process stays as its parent, in the same
process group. It passes on the signals that it gets, stops and continues with the program, and ends with the program's
exit status or by the signal that killed it. If this process is killed, Linux kills the program.

Each start of a program waits for this module. So it imports nothing of the framework of commands, nor what makes the
report when the program has ended, nor the larger modules of the standard library: `subprocess`, `pathlib` and `typing`
would take as long as a second interpreter. Where nothing is set, not even the table of settings is needed.
"""

# No pathlib and no contextlib, as above.
# ruff: noqa: PTH100, PTH108, PTH110, PTH112, PTH113, PTH118, PTH120, PTH202, SIM105
from __future__ import annotations

import os
import signal
import sys

from ejcache.cache.report_destination import line_without_a_cache
from ejcache.settings.environment import child_environment, environment_variable, export_defaults
from ejcache.util.processes import following

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final, NoReturn


def take_options(program: Sequence[str], given: dict[str, Any]) -> tuple[list[str], str | None]:
    """Put the settings that were given into the environment; return the command, and where the report goes.

    Args:
        program: as it was given, with its arguments.
        given: settings by name; None for those that were not given.

    Raises:
        EjcacheError: no program is named, or a setting cannot be used.
    """
    command = command_of(program)
    report = given.get("report")
    is_plain = report in _WORDS and all(given.get(name) is None for name in given if name != "report")
    if is_plain and export_defaults():
        return command, report or _LINE
    from ejcache.cli.run_settings import use_settings  # the door to settings of a run

    return command, use_settings(given)


def start(command: Sequence[str], destination: str | None) -> int:
    """Run the program, and report if that is wanted; return its exit status, or die of the signal that killed it."""
    if destination != _LINE:
        from ejcache.cli.run_settings import has_report  # the door to settings of a run

        if not has_report(destination):
            replace_this_process(command)
    return run_and_report(command, "off" if destination is None else destination)


_RUN_COUNTS: Final = "EJCACHE_RUN_COUNTS"
"""`journal.run_log.RUN_COUNTS`, which a test compares."""
_LINE: Final = "line"
_WORDS: Final = (None, _LINE, "json", "off")
"""What `--report` may be without a look at the settings."""
_SCRIPTS: Final = (".py", ".pyw", ".pyz", ".zip")
_KEYS: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
"""Signals that a terminal sends to all processes in the foreground."""
_IN_WORDS: Final = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_LEFT: Final = _IN_WORDS | {signal.SIGKILL, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU}
_AWAITED: Final = {*signal.valid_signals()} - _LEFT


def command_of(program: Sequence[str]) -> list[str]:
    """Return the command that runs a program: a script, module, code or stdin by this Python, anything else as a shell
    would.

    Raises:
        UsageError: no program is named, or there is none of that name.
    """
    if not program or not program[0]:
        from ejcache.errors import UsageError  # the door to settings of a run

        raise UsageError("no program is named: give a script, -m MODULE, -c CODE, - or a command")
    name = program[0]
    if not name.startswith("-") and not _is_script(name):
        found = _command_named(name)
        if found is not None:
            return [found, *program[1:]]
    return [sys.executable, *_interpreter_options(), *program]


def _command_named(name: str) -> str | None:
    """Find the command; None if it is a file for this Python.

    Raises:
        NotFoundError: it is neither.
    """
    import shutil

    from ejcache.errors import NotFoundError  # the door to settings of a run

    # Of a virtual environment that is not activated, the commands are beside its Python.
    found = shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))
    if os.path.isdir(name) and (found is None or os.sep in name):
        raise NotFoundError(f"the directory {name} has no __main__.py")
    if found is None and not os.path.isfile(name):
        what = "script" if name.endswith(_SCRIPTS) or os.sep in name else "script and no command"
        raise NotFoundError(f"there is no {what} {name}")
    return found


def _interpreter_options() -> list[str]:
    """Return the options of this interpreter, such as `-X dev`, which are meant for the program."""
    first = sys.orig_argv[1:2]
    if first == ["-m"] or (first and not first[0].startswith("-")):
        return []  # what the environment says, the program reads there
    import subprocess

    options: list[str] = vars(subprocess)["_args_from_interpreter_flags"]()
    return options


def _is_script(name: str) -> bool:
    """True if Python runs it: a file of Python's, a directory with a main module, or a file that is not executable."""
    if os.path.isdir(name):
        return os.path.exists(os.path.join(name, "__main__.py"))
    return os.path.isfile(name) and (name.endswith(_SCRIPTS) or not os.access(name, os.X_OK))


def replace_this_process(command: Sequence[str]) -> NoReturn:
    """Become the program."""
    _give_back_signals()
    try:
        os.execv(command[0], list(command))  # noqa: S606 (the user's program)
    except OSError as exc:
        raise _cannot_be_run(command, exc) from exc


def _give_back_signals() -> None:
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)


def run_and_report(command: Sequence[str], destination: str) -> int:
    """Run the program, report on its processes, and return its exit status, or die of the signal that killed it."""
    try:
        counts = _new_counts()
    except OSError as exc:
        from ejcache.cli.output import warn  # the door to settings of a run

        warn(f"there will be no report: {exc}")
        replace_this_process(command)
    try:
        status = _run(command, counts)
        status = _report(status, counts, destination)
    finally:
        try:
            os.unlink(counts)
        except OSError:
            pass  # a cleaner of temporary files may have removed it
    return end_as(status)


def _report(status: int, counts: str, destination: str) -> int:
    """Write the report, and return the exit status: the program's, or 1 if it succeeded and a comparison failed."""
    try:
        is_empty = os.path.getsize(counts) == 0
    except OSError:
        is_empty = True
    if is_empty and destination == _LINE:
        try:
            print(line_without_a_cache(status=status), file=sys.stderr)  # noqa: T201 (that is what it is for)
        except (OSError, ValueError):
            pass  # stderr is closed; the exit status must not change
        return status
    from ejcache.cache.exit_report import report_run  # the door to a report
    from ejcache.journal.comparison_results import BLAMED  # the door to a report
    from ejcache.journal.run_log import read_counts  # the door to a report

    total = read_counts(counts, also_append_to=environment_variable(_RUN_COUNTS))
    report_run(total, destination, status=status)
    return status or int(any(each.fault in BLAMED for each in total.differences))


def end_as(status: int) -> int:
    """Return the exit status of a program that has ended so; if a signal killed it, this process dies of the same."""
    return _die_of(-status) if status < 0 else status


def _new_counts() -> str:
    # Where `tempfile` looks first; its import takes a tenth of what a start waits for.
    place = environment_variable("TMPDIR") or "/tmp"  # noqa: S108 (a new file of a random name)
    counts = os.path.join(os.path.abspath(place), f"ejcache-run-{os.urandom(8).hex()}")
    try:
        os.close(os.open(counts, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError:
        import tempfile

        descriptor, counts = tempfile.mkstemp(prefix="ejcache-run-")
        os.close(descriptor)
    return counts


def _run(command: Sequence[str], counts: str) -> int:
    """Return the exit status of the program, negative for the signal that killed it; signals stay blocked then."""
    environment = child_environment({_RUN_COUNTS: counts})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # some parents ignore it, and then there would be no exit status
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    program = _begin(command, environment, before)
    # The reader of a pipe must see its end when the program closes its output.
    for descriptor in (0, 1):
        try:
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        except OSError:
            pass  # it was closed already
    while True:
        number, passed_on = _next_signal()
        if number != signal.SIGCHLD:
            if passed_on:
                os.kill(program, number)
            continue
        pid, status = os.waitpid(program, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
        elif pid:
            ended = os.waitstatus_to_exitcode(status)
            if ended < 0:
                from ejcache.autotune.records.crash_journal import note_signal  # a room that no hit needs

                note_signal(program, -ended)
            return ended


def _begin(command: Sequence[str], environment: dict[str, str], mask: set[Any]) -> int:
    """Start the program, which has the signals of `mask` blocked; its process. It dies with this one.

    Raises:
        EjcacheError: it cannot be run.
    """
    follow = following(os.getpid())
    reading, writing = os.pipe()  # closed by `execve`; otherwise it says why that failed
    process = os.fork()
    if process == 0:
        try:
            follow()
            _give_back_signals()
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # one that waits must not raise before the program begins
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execve(command[0], list(command), environment)  # noqa: S606 (the user's program)
        except OSError as exc:
            os.write(writing, str(exc.errno).encode())
        finally:
            os._exit(127)
    os.close(writing)
    failed = os.read(reading, 16)
    os.close(reading)
    if failed:
        os.waitpid(process, 0)
        raise _cannot_be_run(command, OSError(int(failed), os.strerror(int(failed))))
    return process


def _next_signal() -> tuple[int, bool]:
    """Return the next signal that this process gets, and whether to pass it on: the terminal's have reached the
    program.
    """
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(_AWAITED)
        return info.si_signo, info.si_code <= 0
    number = signal.sigwait(_AWAITED)
    return number, number not in _KEYS or not os.isatty(2)


def _die_of(number: int) -> int:
    """End this process by a signal; returns the exit status of shells if that is not possible, as for process 1."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # the program has left its own core
    try:
        signal.signal(number, signal.SIG_DFL)
    except (OSError, ValueError):
        pass  # some cannot be handled, and so are as they should be
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


def _cannot_be_run(command: Sequence[str], exc: OSError) -> Exception:
    from ejcache.errors import EjcacheError  # the door to settings of a run

    return EjcacheError(f"{command[0]} cannot be run: {exc.strerror}")
