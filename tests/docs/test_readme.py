"""Every block of the README, run as it is written, on a home directory of its own."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import site_terminal
from cli_helpers import ejcache
from forking import ForkedWithChildren, forked_commands
from helpers import ROOT, Finished, run_program
from test_site import OF_THE_SITE

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
SHELL = [text for language, text in BLOCKS if language == "sh"]
CONSOLE = [text for language, text in BLOCKS if language == "console"]


def commands(text):
    """The commands of a block, without comments."""
    return [line.partition(" #")[0].strip() for line in text.splitlines() if line.strip() and line[0] != "#"]


@pytest.fixture
def run(tmp_path):
    def run(command, **env):
        return typed(command, tmp_path, **env)

    (tmp_path / "train.py").write_text(PYTHON[0])
    return run


def typed(command, place, **env):
    words = shlex.split(command)
    if words[0] == "ejcache":
        words = [sys.executable, "-m", *words]
    start = ForkedWithChildren if words[0] == sys.executable else subprocess.Popen
    return run_program(words, cwd=place, env=env, check=False, start=start)


@dataclass(frozen=True)
class FirstScreen:
    """The home directory of somebody who has typed the first screen, and the commands with what each printed."""

    home: Path
    steps: tuple[tuple[str, str, Finished], ...]


@pytest.fixture(scope="module")
def first_screen():
    # Not in a directory of pytest, whose name may be so long that a path does not fit on a line of the site's terminal.
    with tempfile.TemporaryDirectory(prefix="me-") as name:
        home = Path(name)
        (home / "train.py").write_text(PYTHON[0])
        steps = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", CONSOLE[0], flags=re.MULTILINE)
        env = {"HOME": str(home), "XDG_CACHE_HOME": None}
        yield FirstScreen(home, tuple((command, said, typed(command, home, **env)) for command, said in steps))


@pytest.fixture
def user(first_screen, monkeypatch):
    """Commands of this test are typed by that person, and change nothing there."""
    monkeypatch.setenv("HOME", str(first_screen.home))
    monkeypatch.delenv("XDG_CACHE_HOME")
    return first_screen


@pytest.mark.parametrize("number", range(1, len(PYTHON)))
def test_python_block(number, run_forked):
    """It runs, the second time from the cache, with nothing on stderr; the first block is that of the first screen."""
    program = PYTHON[number].replace("/tmp/my-cache", "my-cache")
    if "stats().hits" in program:
        assert run_forked(program).stdout.startswith("0 hits, ")
        assert re.fullmatch(r"[1-9]\d* hits, 0 misses\n", run_forked(program).stdout)
    else:
        said = run_forked(program).stderr + run_forked(program).stderr
        # Progress, on a slow machine.
        assert [line for line in said.splitlines() if not line.startswith("measuring the candidates")] == []


def test_the_first_screen(first_screen):
    """The first block prints what the README says; times, and the number of programs, depend on the machine and JAX."""

    def comparable(text):
        text = text.replace(str(first_screen.home), "/home/me")
        text = re.sub(r"saved \d+\.\d of \d+\.\d s", "saved N of N s", text)
        # A program that compiles in about 0.01 s is stored at its first or at its second run.
        text = re.sub(r", \d+ not stored \(\d+ quick\)", "", text)
        text = re.sub(r"\d+\w ago in [\d.]+ s", "N ago in N s", text)
        text = re.sub(r"\(\d+ places\)", "(N places)", text)
        text = re.sub(r"since the start \S+ ago", "since the start N ago", text)
        return re.sub(r"\d+ (hits|hit|misses|miss|stored)\b", lambda found: f"N {found[1][:3]}", text)

    assert README.index(CONSOLE[0]) < README.index("## Install")
    assert [command.split()[1] for command, _, _ in first_screen.steps] == ["run", "run", "-i", "run", "why"]
    hits = []
    for _, expected, done in first_screen.steps:
        assert done.returncode == 0, done
        assert comparable(done.stdout + done.stderr) == comparable(expected)
        hits += [found[1] != "0" for found in re.finditer(r"(\d+) hits?, ", done.stderr)]
    assert hits == [False, True, True]


def test_what_commands_print_is_shown_at_two_widths(user, answering_python, tmp_path, monkeypatch):
    """The site has a picture of each command in either width; colours are those of the page, and tabs are for pipes."""
    forked_commands(tmp_path)
    # Its doctor would ask a new interpreter for JAX.
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.executable = {answering_python!r}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pages = site_terminal.pages([str(tmp_path / "ejcache")], user.home)
    page = pages[site_terminal.PAGE]
    found = re.findall(r'<pre class="terminal"><code>(.*?)</code></pre>', page, flags=re.DOTALL)
    assert len(found) == len(site_terminal.WIDTHS) * len(site_terminal.COMMANDS)
    assert all(found)
    assert "<b>jit_step was compiled because RATE changed: 0.001 -&gt; 0.002" in found[0]
    assert not re.search(r"[\x1b\t]", page)
    assert pages[site_terminal.REPORT].startswith("<!doctype html>")


def test_what_overrules_what(run, tmp_path):
    """Each of the four lines about settings sets one, and overrules those below it."""
    lines = re.findall(r"^(\d)\. (.*)$", README.partition("## Settings")[2].partition("\n## ")[0], flags=re.MULTILINE)
    assert [number for number, _ in lines] == ["1", "2", "3", "4"]
    call, command, variable, file = (re.findall(r"`([^`]+)`", text)[0] for _, text in lines)
    show = "print(ejcache.current_settings().min_compile_seconds)"
    name, _, _ = variable.partition("=")
    (tmp_path / "train.py").write_text(f"import ejcache\n{show}\n{call}\n{show}\n")
    assert run(file.replace("=1", "=4")).returncode == 0
    assert run(f"{sys.executable} train.py").stdout.split() == ["4.0", "1.0"]
    assert run(f"{sys.executable} train.py", **{name: "2"}).stdout.split() == ["2.0", "1.0"]
    done = run(command.replace(" 1 ", " 3 "), **{name: "2"})
    assert done.stdout.split() == ["3.0", "1.0"], done


@pytest.mark.usefixtures("user")
def test_commands_on_a_local_cache(tmp_path, monkeypatch):
    """The commands of the page work on the cache of the quick start, and write into their directory only."""
    before = set(ROOT.iterdir())
    monkeypatch.chdir(tmp_path)
    (block,) = [text for text in SHELL if "ejcache stats" in text]
    for command in commands(block):
        done = ejcache(*shlex.split(command)[1:])
        assert done.status == 0, (command, done)
    assert (tmp_path / "page.html").is_file()
    assert {path.name for path in set(ROOT.iterdir()) - before if path.suffix == ".html"} == set()


def test_what_removes_ejcache_leaves_nothing(first_screen, run, clean_environment):
    """All but the package, which this test needs."""
    (block,) = [text for text in SHELL if "pip uninstall" in text]
    shutil.copytree(first_screen.home, clean_environment, dirs_exist_ok=True)
    run("ejcache config set max_size=1GB")
    deletes, removes, _ = commands(block)
    for command in (deletes, f"sh -c {shlex.quote(removes)}"):
        done = run(command)
        assert done.returncode == 0, (command, done)
    assert [path for path in clean_environment.rglob("*") if "ejcache" in path.name] == []


@pytest.mark.soak
@pytest.mark.usefixtures("bucket")
def test_commands_on_a_bucket(run):
    """So do those on a bucket, in their order."""
    (block,) = [text for text in SHELL if "gs://bucket/prefix" in text]
    export, *others = commands(block)
    name, _, url = export.removeprefix("export ").partition("=")
    for command in [others[0], "ejcache run --min-compile-seconds 0 train.py", *others[1:]]:
        done = run(command, **{name: url})
        assert done.returncode == 0, (command, done)
    assert len(json.loads(run(f"ejcache ls --json --dir {url}").stdout)["entries"]) > 0


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "examples/README.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ],
)
def test_links(page):
    """Every link within the repository leads to a file, and to a heading of it if it names one."""
    path = ROOT / page
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        if name.removeprefix("docs/") in OF_THE_SITE:  # the site has them (test_site.py)
            continue
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), f"{page}: {target}"
        if heading:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in slugs, f"{page}: {target}"


def test_messages_of_the_troubleshooting_page():
    """Each quoted part of a message is in the source, so that a search for a message finds its line."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    table = page.partition("## Messages")[2].partition("\n## ")[0]
    quoted = [part for row in re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE) for part in row.split("`")[1::2]]
    source = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)  # a text that is written on two lines
    assert len(quoted) > 10
    assert [part for part in quoted if part not in joined] == []
