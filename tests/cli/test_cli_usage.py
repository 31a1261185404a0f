"""Bad input: one sentence that names the setting and what it accepts, no traceback, nothing made, nothing removed."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from cli_helpers import Terminal, ejcache, files, fill
from forking import ForkedWithChildren
from helpers import run_program

from ejcache.cli import output

LOOKING = [["stats"], ["ls"], ["ls", "x"], ["verify"], ["prune", "-n", "--max-size", "0"]]
CHANGING = [["prune", "--max-size", "0"], ["prune", "--all", "--yes"], ["verify", "--fix"], ["stats", "--reset"]]


def one_sentence(said):
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("ejcache: ")
    assert said.out == ""
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prune", "--max-size", "much"], ["--max-size", "'much'", "10GB", "10GiB"]),
        (["prune", "--max-size", "-1"], ["--max-size", "'-1'", "10GB"]),
        (["prune", "--older-than", "3"], ["--older-than", "'3'", "90s, 15m, 36h or 14d"]),
        (["prune", "--unused-for", "soon"], ["--unused-for", "'soon'", "14d"]),
        (["prune", "--max-entries", "-3"], ["--max-entries", "'-3'", "whole number"]),
        (["prune", "--max-entries", "9" * 5_000], ["--max-entries", "whole number"]),
        (["prune", "--max-size", "9" * 400 + "GB"], ["--max-size", "10GB"]),
        (["config", "set", "--dir", "gs://b/a", f"max_entries={'9' * 5_000}"], ["max_entries"]),
        (["config", "set", "--dir", "gs://b/a", f"older_than={'9' * 400}d"], ["older_than"]),
        (["prune", "--unknown"], ["--unknown"]),
        (["ls", "--sort", "colour"], ["--sort", "'colour'", "'size', 'age', 'used', 'name'"]),
        (["ls", "--limit", "many"], ["--limit", "'many'", "whole number"]),
        (["ls", "--dir"], ["--dir"]),
        (["stats", "surplus"], ["surplus"]),
        (["tuned", "show"], ["KEY"]),
        (["nonsense"], ["nonsense"]),
        (["stats", "--dir", "nonsense://bucket"], ["--dir", "'nonsense://bucket'", "a directory"]),
        (["prune", "--all", "--yes", "--dir", ""], ["--dir", "''", "a directory or a URL"]),
        (["ls", ""], ["KEY", "''", "name"]),
        (["prune", "--all", ""], ["KEY", "''"]),
        (["why", ""], ["KEY", "''", "name"]),
        (["run", "--dir", "", __file__], ["--dir", "''"]),
        (["run", "--max-size", "much", "nothing.py"], ["nothing.py"]),
        (["config", "--dir", "nonsense://bucket"], ["--dir", "'nonsense://bucket'", "a directory"]),
        (["config", "set", "--dir", "nonsense://bucket", "max_size=1"], ["'nonsense://bucket'", "a directory"]),
        (["run", "--dir", "nonsense://bucket", __file__], ["--dir", "'nonsense://bucket'"]),
        (["--dir", "nonsense://bucket", "tuned", "tune", "absent.py"], ["'nonsense://bucket'"]),
        (["run", "--min-compile-seconds", "soon", __file__], ["--min-compile-seconds", "'soon'", "seconds"]),
        (["prune", "jit_eval"], ["add --all"]),
        (["prune", "--all", "--name", "x"], ["leave out", "--name"]),
        (["ls", "x", "--limit", "1"], ["leave out", "--limit"]),
        (["tuned", "rm"], ["KEY", "--all"]),
        (["config", "set", "max_size=-5"], ["max_size cannot be"]),
    ],
)
def test_bad_input_is_one_sentence(arguments, words):
    """Each mistake is one line on stderr with exit status 2, or 1 if what it names does not exist."""
    said = ejcache(*arguments)
    sentence = one_sentence(said)
    assert said.status == (1 if "there is no " in sentence else 2)
    assert [word for word in words if word not in sentence] == []


@pytest.mark.parametrize("command", [*LOOKING, *CHANGING])
def test_a_place_without_a_cache(tmp_path, command):
    """No command creates a cache in a missing directory; the files of one that is no cache stay as they are.

    A path that is a file, or leads through one, is not a cache.
    """
    for name in ("empty", "notes.txt", "model-cache"):
        (tmp_path / name).mkdir()
    for name in ("notes.txt", "model-cache"):
        (tmp_path / name / name).write_text("precious")
    (tmp_path / "file").write_text("mine")
    before = files(tmp_path)
    for name in (
        "nowhere",
        "empty",
        "notes.txt",
        "model-cache",
        *(("file", "file/below") if command in LOOKING else ()),
    ):
        said = ejcache(*command, "--dir", tmp_path / name)
        why = ": the directory does not exist" if name == "nowhere" else ""
        assert said.status == 1, name
        assert one_sentence(said).startswith(f"ejcache: there is no cache at {tmp_path / name}{why}")
        assert files(tmp_path) == before, name
    assert not (tmp_path / "nowhere").exists()


def test_a_reader_that_stops_reading(tmp_path):
    """`ejcache ls | head` ends quietly."""
    fill(tmp_path / "cache", *(f"jit_{number}" for number in range(20)))
    program = "import sys; from ejcache.cli.main import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "ls", "--json", "--dir", str(tmp_path / "cache")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert complaint == ""


def test_a_closed_stdout(tmp_path):
    """A program runs as under `python`, without one; a command says that it cannot answer."""
    (tmp_path / "program.py").write_text("import sys; print('ran', sys.stdout, file=sys.stderr)")

    def closed(*arguments):
        command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, *arguments]
        return run_program(command, cwd=tmp_path, check=False)

    for options in ([], ["--quiet"]):
        ran = closed("-m", "ejcache", "run", *options, "program.py")
        assert (ran.returncode, ran.stderr.splitlines()[0]) == (0, "ran None")
    said = closed("-c", COMMANDS, "config", "--help", "config --json")
    assert said.stderr == "ejcache: stdout cannot be written: Bad file descriptor\n1\n" * 3


COMMANDS = """
import os, sys
from ejcache.cli.main import main
for command in sys.argv[1:]:
    process = os.fork()
    if not process:
        os._exit(main(command.split()))
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), file=sys.stderr)
"""


def test_a_full_disk_under_the_output(tmp_path):
    """If stdout cannot be written, one sentence says so, and the exit status is 1."""
    no_room = ["sh", "-c", 'ulimit -f 0; exec "$@" >out', "sh", sys.executable, "-B"]
    done = run_program([*no_room, "-m", "ejcache", "config"], cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (1, "ejcache: stdout cannot be written: File too large\n")
    done = run_program([*no_room, "-c", COMMANDS, "--help", "config --json", "--version"], cwd=tmp_path, check=False)
    assert done.stderr == "ejcache: stdout cannot be written: File too large\n1\n" * 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "nothing"],
        ["why", "nothing"],
        ["ls", "--dir", "/nonexistent/cache"],
        ["target", "show", "nothing"],
        ["report", "--html", "/nonexistent/page.html"],
        ["report", "--compare", "program=a", "program=b"],
        ["run", "nothing.py"],
        ["run", "--report", "/nonexistent/report.json", __file__],
        ["warm", "nothing.py:step", "--shapes", "f32[1]"],
    ],
    ids=" ".join,
)
def test_what_does_not_exist_is_status_1(tmp_path, monkeypatch, arguments):
    """Whatever a command line names: an entry, a cache, a target, a program, a directory or a start."""
    fill(tmp_path / "cache", "jit_train")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    assert ejcache(*arguments).status == 1


def test_version_and_directory_before_the_command(tmp_path):
    """`version` is `--version`, and --dir may stand before the command; with `run`, it is not the program's."""
    assert ejcache("version") == ejcache("--version")
    fill(tmp_path, "jit_f")
    assert ejcache("--dir", tmp_path, "ls", "--json") == ejcache("ls", "--json", "--dir", tmp_path)
    assert ejcache("-q", "--dir", tmp_path, "config", "get", "dir").out == f"{tmp_path}\n"
    (tmp_path / "program.py").write_text("import os, sys; print(os.environ['EJCACHE'], sys.argv[1:])")
    command = [sys.executable, "-m", "ejcache", "--dir", tmp_path / "c", "run", tmp_path / "program.py", "--dir", "x"]
    assert run_program(command, start=ForkedWithChildren).stdout == f"{tmp_path / 'c'} ['--dir', 'x']\n"


def test_verbose_and_quiet(tmp_path, caplog):
    """-v prints what is logged, -q hides warnings and no result, before or behind the command, and for one command."""
    caplog.set_level(logging.WARNING, logger="ejcache")
    fill(tmp_path, "jit_f")
    said = {}
    for options in ((), ("-q",), ("-v",), ("-q", "-v"), ("verify", "-q"), ("verify", "-v")):
        (index,) = tmp_path.glob("v1/local/order-*/cache.db")
        index.write_bytes(b"damaged" * 100)
        rest = ["verify"] if "verify" not in options else []
        said[options] = ejcache(*options, *rest, "--fix", "--dir", tmp_path)
    assert said[()].err.startswith("ejcache: ")
    assert said["-q",].err == said["verify", "-q"].err == ""
    assert said["-q",].out == said[()].out
    for verbose in (("-v",), ("verify", "-v")):
        assert set(said[()].err.splitlines()) <= set(said[verbose].err.splitlines())
    assert logging.getLogger("ejcache").level == logging.WARNING


def test_quiet_hides_bars(monkeypatch, tmp_path):
    """With -q there is no bar, also where stderr is a terminal."""
    monkeypatch.setattr("sys.stderr", Terminal())
    output.hide_progress(True)
    try:
        with output.progress("reading", 2, after=0.0) as advance:
            advance()
    finally:
        output.hide_progress(False)
    assert sys.stderr.getvalue() == ""


def test_help_and_version():
    """No arguments is a request for help; neither it nor the version is a failure."""
    assert ejcache().out.startswith("Usage: ejcache")
    assert ejcache().status == 0
    assert (ejcache("target").status, ejcache("target").err) == (0, "")
    assert ejcache("--version").out.startswith("ejcache ")


def test_an_option_that_lacks_a_value_sends_to_the_help_of_its_command():
    said = ejcache("report", "--compare", "a")
    assert said.status == 2
    assert "see ejcache report --help" in said.err
