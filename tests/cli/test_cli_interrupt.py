"""Ctrl-C ends a command within two seconds, whatever it is doing, with status 130, and leaves no process."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import textwrap
import time
import uuid
from pathlib import Path

import pytest
from capabilities import needs
from forking import Forked

from ejcache.cli.interrupt import GRACE_SECONDS, LIMIT_SECONDS

# What a shell has put in the background ignores Ctrl-C.
COMMAND = """
    import os, signal, sys
    os.getsid(0) == os.getpid() or os.setsid()  # what is forked has the session of its parent
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from ejcache.cli import interrupt
    interrupt.GRACE_SECONDS = {seconds}
    sys.exit(interrupt.main())
"""
UPLOADING = """
    import os, signal, sys, time
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from ejcache.cli.interrupt import main
    from ejcache.util.lifecycle import ExitPhase, at_exit
    def upload():
        print("uploading", flush=True)
        while True:
            time.sleep(0.1)
    at_exit(ExitPhase.UPLOAD, upload)
    sys.exit(main())
"""
PROGRAM = """
    import sys
    import jax, jax.numpy as jnp
    import ejcache

    @ejcache.autotuned(configs=[{"block": n} for n in (1, 2, 3, 4, 5, 6)], name="scaled", version=1)
    def scaled(x, *, block):
        for _ in range(20 * block):
            x = jnp.sin(x) @ x
        return x

    @jax.jit
    def step(x):
        for _ in range(60):
            x = jnp.cos(x @ x)
        return x

    if __name__ == "__main__":
        for size in (8, 16, 32):
            jax.block_until_ready(scaled(jnp.ones((size, size))))
            jax.block_until_ready(step(jnp.ones((size, size))))
"""
SAVING = """
    import signal, sys, time
    def save(*_):
        print("saving", flush=True)
        time.sleep({seconds})
        print("saved", flush=True)
        sys.exit(7)
    signal.signal(signal.SIGINT, save)
    print("ready", flush=True)
    while True:
        time.sleep(0.1)  # Python runs the handler of a signal that came just before a sleep only when that has ended
"""
WAITING = """
    import signal, subprocess, sys
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("ready", flush=True)
    import time; time.sleep(600)
"""
HANGING = """
    import sys, threading
    from ctypes import CDLL
    print("ready", file=sys.stderr, flush=True)
    while True:
        CDLL(None).sigsuspend(bytes([255] * 128))  # all signals are blocked in this thread
"""
LOSING = """
    import os, signal, sys, weakref
    class Thing: pass
    thing = Thing()
    reference = weakref.ref(thing, lambda _: (signal.raise_signal(signal.SIGINT), list(range(1000))))
    del thing  # Python prints the KeyboardInterrupt of such a callback, and goes on
    print("went on", file=sys.stderr)
"""
LATE = """
    import time
    import ejcache.cli.interrupt as watching
    from ejcache.util.lifecycle import ExitPhase, at_exit
    start = watching.start_daemon
    def after_the_commands_end(wait, **named):
        at_exit(ExitPhase.UPLOAD, lambda: (start(wait, **named), time.sleep(600)))
    watching.start_daemon = after_the_commands_end
"""
MOMENTS = 20
COMMANDS = {
    "tune": ["tuned", "tune", "--force", "--dir", "tuned", "prog.py"],
    "warm": ["warm", "prog.py:step", *(f"--shapes=f32[{n},{n}]" for n in range(8, 16)), "-j", "2"],
    "push": ["push", "copied.tar"],
    "verify": ["verify"],
    "report": ["report"],
    "advise": ["advise", "prog.py"],
}


def command_text(grace: float = GRACE_SECONDS) -> str:
    """The command, which may clean up for so many seconds."""
    return textwrap.dedent(COMMAND.format(seconds=grace))


class Command:
    """A command in a session of its own, as in a terminal; Ctrl-C reaches it and its programs, and not its workers."""

    def __init__(
        self, place: Path, *arguments: str, prefix: tuple[str, ...] = ("-c", command_text()), start=subprocess.Popen
    ):
        self.mark = f"EJCACHE_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        aborting = {"PYTHONFAULTHANDLER": "1"} if start is subprocess.Popen else {}
        self.process = start(
            [sys.executable, *prefix, *arguments],
            cwd=place,
            env={**os.environ, name: value, "JAX_PLATFORMS": "cpu", **aborting},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said = ""

    def wait_for(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if text in line:
                return
        raise AssertionError(self.said)

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def left(self) -> list[str]:
        """The processes that this command, or one of its processes, has started and that still run."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (place / "environ").read_bytes():
                    found.append((place / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def end(self) -> int:
        """Return the exit status as a shell shows it."""
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return 128 - status if status < 0 else status


def interrupted(place: Path, arguments: list[str], moment: float) -> tuple[int, float, list[str], str]:
    command = Command(place, *arguments)
    time.sleep(moment)
    began = time.monotonic()
    try:
        command.interrupt()
    except ProcessLookupError:
        return 130, 0.0, [], ""
    try:
        command.process.wait(8)
    except subprocess.TimeoutExpired:
        os.kill(command.process.pid, signal.SIGABRT)
    took, left = time.monotonic() - began, command.left()
    said = command.process.communicate()[0]
    return command.end(), took, left, said


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "prog.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.setenv("EJCACHE", f"{tmp_path}/cache/")
    monkeypatch.setenv("EJCACHE_MIN_COMPILE_SECONDS", "0")
    return tmp_path


@needs("linux")  # /proc says what is left
@pytest.mark.parametrize("group", [True, False], ids=["the terminal's", "the command's alone"])
def test_a_program_that_obeys_no_signal_is_ended(tmp_path, group):
    """`tune` ends a program that ignores Ctrl-C and SIGTERM, and what that has started."""
    (tmp_path / "prog.py").write_text(textwrap.dedent(WAITING))
    tune = ["tuned", "tune", "--dir", "tuned", "prog.py"]
    command = Command(tmp_path, *tune, prefix=("-c", command_text(0.1)), start=Forked)
    command.wait_for("ready")
    command.interrupt() if group else command.process.send_signal(signal.SIGINT)

    assert command.end() == 130
    assert command.left() == []


@needs("linux")  # /proc says what is left
def test_a_main_thread_that_never_returns_to_python_is_ended(tmp_path):
    """A call of C++ that goes on for ever, as a compilation of XLA may: the thread that watches ends the process."""
    (tmp_path / "hanging.py").write_text(textwrap.dedent(HANGING))
    tune = ["tuned", "tune", "--dir", "tuned", "--module", "hanging.py"]
    command = Command(tmp_path, *tune, prefix=("-c", command_text(0.1)), start=Forked)
    command.wait_for("ready")
    command.interrupt()

    assert command.end() == 130
    assert command.left() == []


@pytest.mark.parametrize("thread", ["watches", "runs late"])
def test_an_interrupt_that_python_loses_counts(tmp_path, thread):
    """In the callback of a weak reference, as when garbage is collected: the command ends with 130 all the same.

    A thread that runs only when the main thread has taken the signal, and is in an upload that does not end, ends it.
    """
    (tmp_path / "losing.py").write_text(textwrap.dedent(LOSING))
    code = command_text(0.1)
    if thread != "watches":
        code = textwrap.dedent(LATE) + code
    tune = ["tuned", "tune", "--dir", "tuned", "--module", "losing.py", "--calls", "."]
    command = Command(tmp_path, *tune, prefix=("-c", code), start=Forked)
    said = command.process.communicate(timeout=60)[0]

    assert "Exception ignored in" in said
    assert "went on" in said
    assert command.process.returncode == 130


def test_an_interrupt_of_an_upload_at_the_end_counts(tmp_path):
    """It ends the upload and the command with 130, and Python prints nothing of it."""
    command = Command(tmp_path, "--version", prefix=("-c", textwrap.dedent(UPLOADING)), start=Forked)
    command.wait_for("uploading")
    command.interrupt()
    said = command.process.communicate(timeout=60)[0]

    assert "Exception ignored" not in said
    assert command.process.returncode == 130


@needs("linux")  # /proc says what is left
def test_a_worker_ends_with_its_parent(tmp_path):
    """Also one of a command that was killed, in the middle of a request."""
    (tmp_path / "hanging.py").write_text(textwrap.dedent(HANGING))
    command = Command(tmp_path, "warm", "hanging.py:step", "--shapes", "f32[]", start=Forked)
    command.wait_for("ready")
    command.process.kill()

    command.process.communicate()  # the worker holds stdout open
    assert command.left() == []


def in_a_terminal(place: Path, *command: str) -> tuple[list[str], int]:
    """Type Ctrl-C when a command has said "ready"; returns what it says then, and its exit status."""
    keyboard, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=place,
        stdin=terminal,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY),  # noqa: PLW1509 (it takes no lock)
    ) as process:
        os.close(terminal)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.write(keyboard, b"\x03")
        said = process.stdout.read().splitlines()[:2]
    os.close(keyboard)
    return said, process.returncode


@pytest.mark.parametrize("options", [[], ["--report", "off"]], ids=["a parent", "replaced"])
@pytest.mark.parametrize("seconds", [0.1, pytest.param(10, marks=pytest.mark.soak)])
def test_the_program_of_run_decides(tmp_path, options, seconds):
    """A program that saves when it is interrupted does so under `run` as under `python`, with one status."""
    (tmp_path / "prog.py").write_text(textwrap.dedent(SAVING.format(seconds=seconds)))
    run = ["-c", command_text(), "run", *options, "prog.py"]
    assert in_a_terminal(tmp_path, "prog.py") == in_a_terminal(tmp_path, *run) == (["saving", "saved"], 7)


@needs("linux")  # /proc says what is left
@pytest.mark.soak
@pytest.mark.parametrize("name", COMMANDS)
def test_at_twenty_moments(project, name):
    """Each command, at moments all over its time: 130, at most two seconds, no abort, and nothing is left."""
    Command(project, "-c", "1", prefix=("prog.py",)).end()
    whole = Command(project, *COMMANDS[name])
    began = time.monotonic()
    whole.process.communicate(timeout=300)
    seconds = time.monotonic() - began
    wrong = []
    for number in range(MOMENTS):
        moment = seconds * (number + 0.5) / MOMENTS
        status, took, left, said = interrupted(project, COMMANDS[name], moment)
        ended_before = status in (0, 1) and took < 1  # the interrupt came when it had ended
        if (status != 130 and not ended_before) or took > LIMIT_SECONDS or left or "rethrown" in said:
            wrong.append((round(moment, 2), status, round(took, 2), left, said[-3000:]))
    assert not wrong, wrong
