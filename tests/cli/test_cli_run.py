"""`ejcache run`: an unchanged program runs as `python` or a shell runs it, and all its processes use the cache."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import signal
import subprocess
import sys
import termios
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from capabilities import needs
from cli_helpers import ejcache
from forking import Forked, ForkedWithChildren
from helpers import run_program

# What a shell has put in the background ignores Ctrl-C, and so does all that it starts, these tests among it.
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
NOTHING = "ejcache: nothing was cached: "
HINT = "Does the program use JAX"
PROBE = """
import json, os, sys
def answer():
    module = sys.modules["__main__"]
    return {
        "name": __name__, "file": __file__, "argv": sys.argv, "first_path": sys.path[0], "package": __package__ or None,
        "spec": __spec__ and __spec__.name, "main": module.__dict__ is globals(), "builtins": len("x"),
        "jax": "jax" in sys.modules, "loader": type(__loader__).__name__,
    }
print(json.dumps(answer()))
"""


@pytest.fixture
def write(tmp_path):
    """Write a program text below the test's directory."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write


def ejcache_run(*arguments, start=Forked, **options):
    return run_program([sys.executable, "-m", "ejcache", "run", *arguments], start=start, **options)


jax_run = functools.partial(ejcache_run, start=ForkedWithChildren)
"""For programs that compile something."""


def both(tmp_path, *arguments, **options):
    """The same program under `python` and under `ejcache run`; what `ejcache run` itself says is taken away."""
    options = {"cwd": tmp_path, "check": False, **options}
    ours = ejcache_run(*arguments, **options)
    said = "".join(line for line in ours.stderr.splitlines(keepends=True) if not line.startswith(NOTHING))
    return run_program([sys.executable, *arguments], **options), replace(ours, stderr=said)


def test_a_script_sees_what_python_shows_it(tmp_path, write):
    """Name, file, arguments, path and main module are as under `python`; JAX is not imported before its time."""
    write("below/script.py", PROBE)
    plain, ours = both(tmp_path, "below/script.py", "--dir", "x", "-m")
    assert json.loads(ours.stdout) == json.loads(plain.stdout)
    assert json.loads(ours.stdout)["argv"] == ["below/script.py", "--dir", "x", "-m"]
    assert json.loads(ours.stdout)["jax"] is False
    assert ours.stderr == ""


def test_a_module_sees_what_python_shows_it(tmp_path, write):
    """A package's main sees itself as under `python -m`; options behind it are its own."""
    write("package/__init__.py", "")
    write("package/__main__.py", PROBE)
    plain, ours = both(tmp_path, "-m", "package", "--json", "-m", "x")
    assert json.loads(ours.stdout) == json.loads(plain.stdout)


def test_a_directory_with_a_main_module(tmp_path, write):
    """A directory runs as under `python`."""
    write("app/__main__.py", "from beside import x\nimport sys\nprint(x, __name__, sys.path[0])")
    write("app/beside.py", "x = 41")
    plain, ours = both(tmp_path, "app")
    assert (ours.returncode, ours.stdout) == (0, plain.stdout)


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(7)",
        "def f():\n    raise ValueError('of the program')\nf()",
        f"{INTERRUPTIBLE}\nimport os\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(60)",
        "import ejcache.errors as e\nraise e.UsageError('of the program')",
        ("-mnothing.here",),  # Python's own error
        ("-c", "1/0", "x"),
    ],
)
def test_endings_are_the_programs_own(tmp_path, write, program):
    """Exit status, output and traceback are those of `python`, to the letter."""
    write("script.py", str(program))
    plain, ours = both(tmp_path, *(program if isinstance(program, tuple) else ["script.py"]))
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no program is named: give a script, -m MODULE, -c CODE, - or a command"),
        (["none.py"], "there is no script none.py"),
        (["none/script"], "there is no script none/script"),
        (["none"], "there is no script and no command none"),
        (["home"], "the directory home has no __main__.py"),
        (["--dir"], "Option '--dir' requires an argument"),
        (["--dir", "gs://", "script.py"], "--dir: "),
        (["--report", "/none/r.json", "script.py"], "--report /none/r.json could not be written: the directory /none "),
        (["--max-size", "1XB", "script.py"], "--max-size cannot be '1XB': accepted is "),
    ],
)
def test_wrong_use(tmp_path, write, monkeypatch, arguments, complaint):
    """One sentence says what is wrong, the exit status is 2, or 1 for what does not exist, and nothing runs."""
    write("script.py", "print('ran')")
    monkeypatch.chdir(tmp_path)
    ours = ejcache("run", *arguments)
    is_absent = "none" in ours.err or "home" in ours.err
    assert (ours.status, ours.out, len(ours.err.splitlines())) == (1 if is_absent else 2, "", 1)
    assert ours.err.startswith(f"ejcache: {complaint}")


@pytest.mark.parametrize("command", ["advise", "bench", "tuned tune", "warm"])
def test_other_commands_that_run_a_program(command):
    """Their sentence names no command that the user has not called."""
    ours = ejcache(*command.split(), "none.py")
    assert (ours.status, ours.err) == (1, "ejcache: there is no script none.py\n")


def test_a_command_that_cannot_be_run(tmp_path, write):
    """An executable file that is none is one sentence."""
    write("broken", "\x00").chmod(0o755)
    ours = ejcache_run("./broken", cwd=tmp_path, check=False)
    assert (ours.returncode, ours.stderr) == (1, "ejcache: ./broken cannot be run: Exec format error\n")


@pytest.mark.parametrize("report", ["line", "off"])
def test_commands(tmp_path, write, report):
    """Commands of the path, executable scripts and stdin run as from a shell."""
    write("tool.sh", "#!/bin/sh\necho $0 $1 $EJCACHE\nexit 4\n").chmod(0o755)
    options = ["--dir", "cache", "--report", report]
    assert ejcache_run(*options, "echo", "-m", "x", cwd=tmp_path).stdout == "-m x\n"
    tool = ejcache_run(*options, "./tool.sh", "--dir", cwd=tmp_path, check=False)
    assert (tool.returncode, tool.stdout) == (4, f"./tool.sh --dir {tmp_path / 'cache'}\n")
    code = ejcache_run(*options, "-", "x", cwd=tmp_path, input="import sys\nprint(sys.argv)")
    assert code.stdout == "['-', 'x']\n"


def test_a_command_beside_our_python(tmp_path, write):
    """A command of a virtual environment that is not activated is found, but that of the path goes first."""
    beside = Path(sys.executable).parent
    found = ejcache_run("python", "-c", "import sys; print(sys.executable)", cwd=tmp_path, env={"PATH": "/nowhere"})
    assert found.stdout == f"{beside / 'python'}\n"
    write("bin/python", "#!/bin/sh\necho another").chmod(0o755)
    path = f"{tmp_path / 'bin'}:/bin:/usr/bin"
    assert ejcache_run("python", cwd=tmp_path, env={"PATH": path}).stdout == "another\n"


def test_options_of_the_interpreter(tmp_path):
    """Options of the Python that runs `ejcache run` are the program's, too."""
    code = "import sys; print(sys.flags.dev_mode, sys.flags.optimize)"
    done = run_program([sys.executable, "-X", "dev", "-O", "-m", "ejcache", "run", "-c", code], cwd=tmp_path)
    assert done.stdout == "True 1\n"


# A signal may arrive while the line before is being written, and `print` cannot be called again within itself.
SIGNALLED = """
import os, signal, sys, time
def handle(number, frame):
    os.write(1, f"got {number}\\n".encode())
    if number == signal.SIGTERM:
        sys.exit(3)
signal.signal(signal.SIGUSR1, handle)
if sys.argv[1:] == ["handle"]:
    signal.signal(signal.SIGTERM, handle)
os.write(1, f"ready {os.getpid()}\\n".encode())
while True:
    time.sleep(0.1)  # Python runs the handler of a signal that came just before a sleep only when that has ended
"""


@pytest.fixture(autouse=True)
def _not_immune():
    """Programs do not inherit that `nohup` has made these tests ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextlib.contextmanager
def running(tmp_path, *command):
    """A process that has said that it is ready, and the identifier of the program in it."""
    # A killed `ejcache run` leaves its file of counts behind.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Of its own, because the kernel drops SIGTSTP in a group of which no member has a parent outside of it, as
        # that of the tests may be; this one has the tests as its parent.
        process_group=0,
    ) as process:
        try:
            ready, pid = process.stdout.readline().split()
            assert ready == "ready"
            yield process, int(pid)
        finally:
            process.kill()


RUN = ("-m", "ejcache", "run")


@pytest.mark.parametrize(
    ("number", "report"), [(signal.SIGINT, "line"), (signal.SIGTERM, "off"), (signal.SIGHUP, "line")]
)
def test_a_signal_that_ends_the_program(tmp_path, write, report, number):
    """It reaches the program, and `ejcache run` ends by the same signal."""
    write("script.py", f"{INTERRUPTIBLE}\n{SIGNALLED}")
    with running(tmp_path, *RUN, "--report", report, "script.py") as (process, _):
        process.send_signal(number)
        _, said = process.communicate(timeout=240)
    assert process.returncode == -number
    assert (NOTHING in said) == (report == "line")
    assert HINT not in said  # the program did not come to its end


def test_signals_that_the_program_handles(tmp_path, write):
    """Each reaches the program once; the exit status is that of its handler."""
    write("script.py", SIGNALLED)
    with running(tmp_path, *RUN, "script.py", "handle") as (process, _):
        for _ in range(2):
            process.send_signal(signal.SIGUSR1)
            assert process.stdout.readline() == f"got {int(signal.SIGUSR1)}\n"
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=240)
    assert (rest, process.returncode) == (f"got {int(signal.SIGTERM)}\n", 3)


def test_a_killed_program(tmp_path, write):
    """The report is printed, and the exit status says by which signal the program was killed."""
    write("script.py", SIGNALLED)
    with running(tmp_path, *RUN, "script.py") as (process, pid):
        os.kill(pid, signal.SIGKILL)
        _, said = process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL
    assert said.startswith(NOTHING)


@needs("linux")  # it kills the children of a killed process if they ask for it
def test_no_program_outlives_a_killed_run(tmp_path, write):
    """`kill -9` of `ejcache run` kills the program, too."""
    write("script.py", SIGNALLED)
    with running(tmp_path, *RUN, "script.py") as (process, _):
        process.kill()
        assert process.stdout.read() == ""  # its end comes when the program, the other holder of the pipe, is gone


def read_terminal(terminal, until):
    """What a program has written to a terminal, until it has written this text or closed it."""
    seen = b""
    while until not in seen:
        try:
            part = os.read(terminal, 1000)
        except OSError:  # Linux says so when nobody has it open any more
            break
        if not part:
            break
        seen += part
    return seen.decode()


TERMINAL = f"""
{INTERRUPTIBLE}
import os, time
print(os.isatty(0), os.isatty(1), input("name? "))
try:
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
except KeyboardInterrupt:
    print("interrupted", input("again? "))
"""


def test_a_terminal(tmp_path, write):
    """The program has the terminal, and gets a Ctrl-C once."""
    write("script.py", TERMINAL)
    terminal, theirs = os.openpty()
    command = [sys.executable, *RUN, "script.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    ) as process:  # fmt: skip
        os.close(theirs)
        read_terminal(terminal, b"name? ")
        os.write(terminal, b"Ada\n")
        assert "True True Ada" in read_terminal(terminal, b"ready")
        os.write(terminal, b"\x03")
        read_terminal(terminal, b"again? ")
        os.write(terminal, b"yes\n")
        rest = read_terminal(terminal, b"have ejcache?")
        assert "interrupted yes" in rest
        assert NOTHING in rest
        assert process.wait(timeout=240) == 0
    os.close(terminal)


def test_stopping_and_continuing(tmp_path, write):
    """A stopped program stops `ejcache run`, so that a shell sees it; continued, both go on."""
    write("script.py", SIGNALLED)
    with running(tmp_path, *RUN, "script.py", "handle") as (process, _):
        process.send_signal(signal.SIGTSTP)
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == f"got {int(signal.SIGUSR1)}\n"


def test_a_pipe_ends_when_the_program_closes_it(tmp_path, write):
    """`ejcache run` holds no end of the program's pipes."""
    write("script.py", "import os, sys, time\nprint('ready', os.getpid(), flush=True)\nos.close(1)\nsys.stdin.read()")
    with subprocess.Popen(
        [sys.executable, *RUN, "script.py"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert len(process.stdout.read().splitlines()) == 1
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(timeout=240) == 0


JAX_PROGRAM = """
import os
os.makedirs("elsewhere", exist_ok=True)
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.chdir("elsewhere")
import jax
jax_loader = type(jax.__spec__.loader).__module__
print(len(jax.devices()), jax_loader, jax.jit(lambda x: x * 2)(21.0))
"""


def test_an_unchanged_program_is_served(tmp_path, write):
    """The second process finds what the first stored; flags set before the import of JAX count; a line tells."""
    write("train.py", JAX_PROGRAM)
    options = ["--dir", "cache", "--min-compile-seconds", "0"]
    first = ejcache_run(*options, "train.py", cwd=tmp_path)  # an interpreter that has not imported JAX
    second = jax_run(*options, "train.py", cwd=tmp_path)
    assert first.stdout == second.stdout
    assert first.stdout.split()[:2] == ["2", "_frozen_importlib_external"]
    assert ": 0 hits, " in first.stderr
    assert ", 0 misses, 0 stored (" in second.stderr
    assert ": 0 hits" not in second.stderr


def test_the_report_as_json(tmp_path, write):
    """A report file has the statistics; `off` says nothing; the variable works without `run`."""
    write("train.py", JAX_PROGRAM)
    options = ["--dir", "cache", "--min-compile-seconds", "0"]
    ran = jax_run(*options, "--report", "report-{pid}.json", "train.py", cwd=tmp_path)
    assert ran.stderr == ""
    [path] = tmp_path.glob("report-*.json")
    report = json.loads(path.read_text())
    assert report["stores"] == report["misses"] > 0
    assert report["urls"] == [str(tmp_path / "cache")]
    assert report["processes"] == 1
    assert str(report["pid"]) in path.name
    write("quick.py", "1 + 1")
    assert ejcache_run(*options, "--quiet", "quick.py", cwd=tmp_path).stderr == ""
    assert ejcache_run(*options, "--report", "off", "quick.py", cwd=tmp_path).stderr == ""
    on_stderr = jax_run(*options, "--json", "train.py", cwd=tmp_path).stderr
    assert json.loads(on_stderr)["hits"] == report["misses"]
    write("enables.py", "import ejcache\nejcache.enable('cache', min_compile_seconds=0)\n" + JAX_PROGRAM)
    alone = run_program([sys.executable, "enables.py"], cwd=tmp_path, env={"EJCACHE_REPORT": "1"}, start=Forked)
    assert alone.stderr.startswith("ejcache: ")
    assert len(alone.stderr.splitlines()) == 1


@pytest.mark.parametrize("line", [
    "import ejcache; ejcache.enable({!r})",
    pytest.param("import jax; jax.config.update('jax_compilation_cache_dir', {!r})", marks=pytest.mark.soak),
])  # fmt: skip
def test_what_the_program_sets_goes_first(tmp_path, write, line):
    """A directory that the program chooses wins over the command line's."""
    write("train.py", line.format(str(tmp_path / "own")) + JAX_PROGRAM)
    jax_run("--dir", "given", "--min-compile-seconds", "0", "train.py", cwd=tmp_path)
    assert (tmp_path / "own" / "v1").is_dir()
    assert not (tmp_path / "given").exists()


@pytest.mark.parametrize("report", ["line", pytest.param("report.json", marks=pytest.mark.soak)])
def test_the_report_says_why_nothing_is_cached(tmp_path, write, report):
    """If nothing is cached, the report names the reason in place of the directory."""
    write("train.py", JAX_PROGRAM)
    environment = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    options = ["--dir", "cache", "--report", report, "train.py"]
    said = jax_run(*options, cwd=tmp_path, env=environment).stderr
    if report == "line":
        assert said.endswith("(nothing is cached: JAX_ENABLE_COMPILATION_CACHE is false)\n")
    else:
        said = json.loads((tmp_path / report).read_text())
        assert (said["urls"], said["disabled_reason"]) == ([], "JAX_ENABLE_COMPILATION_CACHE is false")


def test_a_program_without_jax(tmp_path, write):
    """The program is as without `ejcache run`, no directory is made, and a line says that nothing was cached."""
    write("script.py", "print('hello')")
    done = ejcache_run("--dir", "cache", "script.py", cwd=tmp_path)
    assert (done.stdout, done.stderr.startswith(NOTHING), len(done.stderr.splitlines())) == ("hello\n", True, 1)
    assert HINT in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "script.py"]
    as_json = ejcache_run("--json", "script.py", cwd=tmp_path).stderr
    assert json.loads(as_json)["processes"] == 0


def test_an_installation_without_jax(tmp_path, write):
    """A program whose import of JAX fails gets its own ImportError."""
    write("jax/__init__.py", "raise ImportError('broken installation')")
    write("script.py", "try:\n    import jax\nexcept ImportError as exc:\n    print(exc)")
    done = ejcache_run("--quiet", "script.py", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("broken installation\n", "")


def test_a_variable_that_jax_refuses(tmp_path, write):
    """One sentence names the variable, its value and what to write, instead of the traceback of `import jax`."""
    write("train.py", "import os\nprint('ran', os.environ.get('JAX_COMPILATION_CACHE_MAX_SIZE'))")
    fresh = {"env": {"JAX_COMPILATION_CACHE_MAX_SIZE": "10GB"}, "cwd": tmp_path, "start": subprocess.Popen}
    done = ejcache_run("train.py", check=False, **fresh)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "JAX_COMPILATION_CACHE_MAX_SIZE cannot be '10GB'" in done.stderr
    assert "write 10000000000" in done.stderr
    # The command line goes before the variable, which JAX does not get to see so.
    assert ejcache_run("--max-size", "10GB", "train.py", **fresh).stdout == "ran 10000000000\n"


def test_counts_that_a_cleaner_has_removed(tmp_path, write):
    """The exit status stays the program's."""
    write("script.py", "import os, sys\nos.unlink(os.environ['EJCACHE_RUN_COUNTS'])\nsys.exit(3)")
    done = ejcache_run("script.py", cwd=tmp_path, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)


def test_without_a_temporary_directory(tmp_path, write):
    """The program runs without a report."""
    write("script.py", "print('hello')")
    code = (
        "import sys, tempfile\nfrom ejcache.cli.main import main\n"
        "tempfile.tempdir = 'nowhere'\nsys.exit(main(['run', 'script.py']))"
    )
    done = run_program([sys.executable, "-c", code], cwd=tmp_path, env={"TMPDIR": "nowhere"})
    assert done.stdout == "hello\n"
    assert "there will be no report" in done.stderr
