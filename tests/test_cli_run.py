"""`ejcache run`: an unchanged program runs as `python` runs it, with the cache once it has imported JAX."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap

import pytest
from helpers import run_program

# What a shell has put in the background ignores Ctrl-C, and so does all that it starts, these tests among it.
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
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


def ejcache_run(*arguments, cwd, **options):
    return run_program([sys.executable, "-m", "ejcache", "run", *arguments], cwd=cwd, **options)


def both(tmp_path, *arguments, **options):
    """The same program under `python` and under `ejcache run`."""
    options = {"cwd": tmp_path, "check": False, **options}
    return run_program([sys.executable, *arguments], **options), ejcache_run(*arguments, **options)


def test_a_script_sees_what_python_shows_it(tmp_path, write):
    """Name, file, arguments, path and main module are as under `python`; JAX is not imported before its time."""
    write("below/script.py", PROBE)
    plain, ours = both(tmp_path, "below/script.py", "--dir", "x", "-m")
    assert json.loads(ours.stdout) == json.loads(plain.stdout)
    assert json.loads(ours.stdout)["argv"] == ["below/script.py", "--dir", "x", "-m"]
    assert json.loads(ours.stdout)["jax"] is False
    assert ours.stderr == ""


@pytest.mark.parametrize("name", ["package", "package.module"])
def test_a_module_sees_what_python_shows_it(tmp_path, write, name):
    """A module, or a package's main, sees itself as under `python -m`; options behind it are its own."""
    write("package/__init__.py", "")
    write("package/__main__.py", PROBE)
    write("package/module.py", PROBE)
    plain, ours = both(tmp_path, "-m", name, "--json", "-m", "x")
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
        "import sys; sys.exit('a reason')",
        "raise SystemExit",
        "def f():\n    raise ValueError('of the program')\nf()",
        f"{INTERRUPTIBLE}\nimport os\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(60)",
        "this is no Python",
        "import ejcache.errors as e\nraise e.UsageError('of the program')",
        "raise BrokenPipeError('of the program')",
        "import atexit\natexit.register(lambda: print(__name__, f()))\ndef f(): return 1",
        "import sys\nsys.excepthook = lambda *a: print('own hook', a[1], a[2].tb_frame.f_code.co_name)\n1/0",
    ],
)
def test_endings_are_the_programs_own(tmp_path, write, program):
    """Exit status, output and traceback are those of `python`, to the letter."""
    write("script.py", program)
    plain, ours = both(tmp_path, "script.py")
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_missing_modules(tmp_path, write):
    """A module that is not there is told from one that its program does not find."""
    write("broken.py", "import not_there")
    plain, ours = both(tmp_path, "-m", "broken")
    assert ours.returncode == plain.returncode == 1
    assert ours.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]
    _, ours = both(tmp_path, "-m", "nothing.here")
    assert (ours.returncode, ours.stderr) == (1, "ejcache: run: there is no module named nothing.here\n")


def test_an_interrupt_from_outside(tmp_path, write):
    """Ctrl-C while the program works ends it as it ends `python`."""
    write("script.py", f"{INTERRUPTIBLE}\nprint('ready', flush=True)\nimport time\ntime.sleep(60)")
    statuses = []
    for command in ([], ["-m", "ejcache", "run"]):
        with subprocess.Popen(
            [sys.executable, *command, "script.py"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)
            _, complaint = process.communicate(timeout=60)
        statuses.append((process.returncode, complaint.splitlines()[-1]))
    assert statuses[0] == statuses[1] == (-signal.SIGINT, b"KeyboardInterrupt")


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
    first = ejcache_run(*options, "train.py", cwd=tmp_path)
    second = ejcache_run(*options, "train.py", cwd=tmp_path)
    assert first.stdout == second.stdout
    assert first.stdout.split()[:2] == ["2", "_frozen_importlib_external"]
    assert first.stderr.startswith("ejcache: 0 hits, ")
    assert ", 0 misses, 0 stored, " in second.stderr
    assert not second.stderr.startswith("ejcache: 0 hits")


def test_the_report_as_json(tmp_path, write):
    """A report file has the statistics; `off` says nothing; the variable works without `run`."""
    write("train.py", JAX_PROGRAM)
    options = ["--dir", "cache", "--min-compile-seconds", "0"]
    ran = ejcache_run(*options, "--report", "report-{pid}.json", "train.py", cwd=tmp_path)
    assert ran.stderr == ""
    [path] = tmp_path.glob("report-*.json")
    report = json.loads(path.read_text())
    assert report["stores"] == report["misses"] > 0
    assert report["urls"] == [str(tmp_path / "cache")]
    assert str(report["pid"]) in path.name
    assert ejcache_run(*options, "--report", "off", "train.py", cwd=tmp_path).stderr == ""
    on_stderr = ejcache_run(*options, "--json", "train.py", cwd=tmp_path).stderr
    assert json.loads(on_stderr)["hits"] == report["misses"]
    write("enables.py", "import ejcache\nejcache.enable('cache', min_compile_seconds=0)\n" + JAX_PROGRAM)
    alone = run_program([sys.executable, "enables.py"], cwd=tmp_path, env={"EJCACHE_REPORT": "1"})
    assert alone.stderr.startswith("ejcache: ")
    assert len(alone.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "line", ["import ejcache; ejcache.enable({!r})", "import jax; jax.config.update('jax_compilation_cache_dir', {!r})"]
)
def test_what_the_program_sets_goes_first(tmp_path, write, line):
    """A directory that the program chooses wins over the command line's."""
    write("train.py", line.format(str(tmp_path / "own")) + JAX_PROGRAM)
    ejcache_run("--dir", "given", "--min-compile-seconds", "0", "train.py", cwd=tmp_path)
    assert (tmp_path / "own" / "v1").is_dir()
    assert not (tmp_path / "given").exists()


@pytest.mark.parametrize(
    ("options", "environment", "where"),
    [
        (["--dir", "given"], {}, "given"),
        ([], {"COMPILE_FUNC_DIR": "compiled"}, "compiled"),
        ([], {}, "home/.cache/ejcache"),
    ],
)
def test_an_empty_variable_sets_nothing(tmp_path, write, options, environment, where):
    """While JAX_COMPILATION_CACHE_DIR is empty, the next source names the directory, as `ejcache config` says."""
    write("train.py", JAX_PROGRAM)
    done = ejcache_run(
        *options,
        "--min-compile-seconds",
        "0",
        "train.py",
        cwd=tmp_path,
        env={"JAX_COMPILATION_CACHE_DIR": "", **{name: str(tmp_path / path) for name, path in environment.items()}},
    )
    assert ", 0 stored" not in done.stderr
    assert (tmp_path / where / "v1").is_dir()


def test_the_report_says_why_nothing_is_cached(tmp_path, write):
    """Without a directory there is none to name: the reason stands in its place."""
    write("train.py", JAX_PROGRAM)
    environment = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    line = ejcache_run("--dir", "cache", "train.py", cwd=tmp_path, env=environment).stderr
    assert line.endswith("(nothing is cached: JAX_ENABLE_COMPILATION_CACHE is false)\n")
    report = ejcache_run("--dir", "cache", "--json", "train.py", cwd=tmp_path, env=environment).stderr
    assert json.loads(report)["urls"] == []
    assert json.loads(report)["disabled_reason"] == "JAX_ENABLE_COMPILATION_CACHE is false"


@pytest.mark.parametrize(
    "program",
    [
        "import ejcache\nprint(ejcache.active() is not None)",
        "from ejcache import ejit\nimport ejcache\nprint(ejcache.active() is not None)",
        "import jax.numpy\nimport ejcache\nprint(ejcache.active() is not None)",
        (
            "import threading\nthread = threading.Thread(target=__import__, args=['jax'])\nthread.start()"
            "\nthread.join()\nimport ejcache\nprint(ejcache.active() is not None)"
        ),
    ],
)
def test_however_jax_comes_in(tmp_path, write, program):
    """The cache is enabled whoever imports JAX first: the program, ejcache itself, another thread."""
    write("script.py", program)
    assert ejcache_run("--dir", "cache", "--report", "off", "script.py", cwd=tmp_path).stdout == "True\n"


def test_a_program_without_jax_is_left_alone(tmp_path, write):
    """No JAX, no cache, no report, no directory."""
    write("script.py", "print('hello')")
    done = ejcache_run("--dir", "cache", "script.py", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("hello\n", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "script.py"]


def test_a_cache_that_cannot_be_made_fails_nobody(tmp_path, write):
    """Where no directory can be made the program runs, with one warning."""
    write("train.py", JAX_PROGRAM)
    (tmp_path / "file").write_text("")
    done = ejcache_run("--dir", "file/cache", "--report", "off", "train.py", cwd=tmp_path)
    assert done.stdout.endswith("42.0\n")
    assert len(done.stderr.splitlines()) == 1
    assert "file/cache" in done.stderr


def test_an_installation_without_jax(tmp_path, write):
    """A program whose import of JAX fails gets its own ImportError."""
    write("jax/__init__.py", "raise ImportError('broken installation')")
    write("script.py", "try:\n    import jax\nexcept ImportError as exc:\n    print(exc)")
    done = ejcache_run("script.py", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("broken installation\n", "")
