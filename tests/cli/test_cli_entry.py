"""`ejcache run` begins without the framework of commands, and is what it is with it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from forking import Forked
from helpers import run_program

from ejcache.cli import starting
from ejcache.cli.entry import ordinary_arguments
from ejcache.journal.run_log import RUN_COUNTS
from ejcache.settings import environment
from ejcache.settings.described import SETTINGS
from ejcache.settings.directories import configuration_files
from ejcache.settings.environment import OTHER_VARIABLES

ORDINARY = {
    "x.py": (["x.py"], {}),
    "x.py --dir a -q": (["x.py", "--dir", "a", "-q"], {}),
    "--dir a x.py": (["x.py"], {"dir": "a"}),
    "-q -m module --json": (["-m", "module", "--json"], {"report": "off"}),
    "--json -c pass": (["-c", "pass"], {"report": "json"}),
    "--json --report r.json - b": (["-", "b"], {"report": "r.json"}),
    "--read-only --compare -mmodule": (["-mmodule"], {"read_only": True, "compare": True}),
    "--quiet --report line pytest -x": (["pytest", "-x"], {"report": "off"}),
}
OTHERS = [
    "",
    "--help",
    "-h x.py",
    "--dir",
    "--dir -q x.py",
    "--dir=a x.py",
    "-- x.py",
    "--max-size 1GB x.py",
]


SETTINGS_OF_RUN = ("dir", "read_only", "compare", "report")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_arguments(text):
    """What follows the program is the program's."""
    program, given = ORDINARY[text]
    assert ordinary_arguments(text.split()) == (program, dict.fromkeys(SETTINGS_OF_RUN) | given)


@pytest.mark.parametrize("text", OTHERS)
def test_anything_else_is_left_to_the_commands(text):
    """They know help, every option and every fault."""
    assert ordinary_arguments(text.split()) is None
    assert ordinary_arguments(["--dir", "", "x.py"]) is None
    assert ordinary_arguments([""]) is None


def ran(*arguments, **variables):
    """The end of `python -m ejcache`, started as a user does."""
    command = [sys.executable, "-X", "importtime", "-m", "ejcache", *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    return done.returncode, done.stdout, said, imported


def test_a_program_runs_without_typer(tmp_path):
    """Status, output and the line at the end are those of the command."""
    (tmp_path / "x.py").write_text("import os, sys; print(os.environ['EJCACHE'], *sys.argv[1:]); sys.exit(7)")
    status, out, said, imported = ran("run", "--dir", tmp_path / "cache", tmp_path / "x.py", "--dir", "its own")
    assert (status, out) == (7, f"{tmp_path}/cache --dir its own\n")
    assert said == ["ejcache: nothing was cached: no process has enabled the cache"]
    assert "ejcache.cli.starting" in imported
    assert not {"typer", "ejcache.cli.main", "difflib", "tempfile", "dataclasses"} & imported
    status, out, said, _ = ran("run", "-q", tmp_path / "x.py")
    assert (status, out, said) == (7, "1\n", [])


def test_an_error_is_that_of_the_command(tmp_path):
    """What cannot be started is explained by the one text that there is for it."""

    def failed(*arguments):
        command = [sys.executable, "-m", "ejcache", "run", *map(str, arguments)]
        done = run_program(command, check=False, start=Forked)
        return done.returncode, done.stderr

    assert failed(tmp_path / "none.py") == (1, f"ejcache: there is no script {tmp_path}/none.py\n")
    status, said = failed("--report", "/nowhere/r.json", "-c", "pass")
    assert (status, "could not be written: the directory /nowhere does not exist" in said) == (1, True)
    status, said = failed("--dir", "ftps://x/y", "-c", "pass")
    assert (status, said.startswith("ejcache: --dir: ")) == (2, True)


def test_the_counts_have_one_variable():
    """It is spelled twice, so that a start imports no journal."""
    assert vars(starting)["_RUN_COUNTS"] == RUN_COUNTS


def test_where_nothing_is_set_a_start_imports_little(tmp_path):
    """Neither settings, nor records, nor what the larger modules of the standard library import."""
    env = {name: text for name, text in os.environ.items() if not name.startswith(BEGINNINGS)}
    env |= {"HOME": str(tmp_path), "PYTHONPROFILEIMPORTTIME": "1"}
    env.pop("XDG_CONFIG_HOME", None)
    command = [sys.executable, "-m", "ejcache", "run", "-c", "import os; print(os.environ['EJCACHE_REPORT'])"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "off\n"
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "ejcache.cache.report_destination" in imported
    assert not {"logging", "pathlib", "re", "subprocess", "tempfile"} & imported
    assert not {"ejcache.errors", "ejcache.settings.table", "ejcache.journal.run_log"} & imported


BEGINNINGS = vars(environment)["_BEGINNINGS"]


def test_what_a_start_knows_of_settings(tmp_path, monkeypatch):
    """Without their table: how all their variables begin, where their files are, and what to export."""
    names = {"EJCACHE", "ALLOW_FULL_CACHE", "EASYDEL_CACHE_COMPILES", *OTHER_VARIABLES}
    names |= {name for setting in SETTINGS for name in (*setting.variables, setting.flag.upper()) if name}
    assert [name for name in sorted(names) if not name.startswith(BEGINNINGS)] == []
    for name in os.environ:
        if name.startswith(BEGINNINGS):
            monkeypatch.delenv(name)
    exported = vars(environment)["_CACHE_WITHOUT_REPORT"]
    assert environment.settings_environment({"report": "off"}) == exported
    for variables in ({"HOME": "/h"}, {"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, {"HOME": "/h", "XDG_CONFIG_HOME": "x"}):
        asked = []

        def absent(path, asked=asked):
            asked.append(path)
            raise FileNotFoundError

        with monkeypatch.context() as patched:
            monkeypatch.setattr(os, "environ", {**variables})
            patched.setattr(os, "stat", absent)
            assert environment.export_defaults()
        assert asked == [str(path) for path in configuration_files(variables)]
        assert os.environ == {**variables, **exported}


@pytest.mark.parametrize("name", ["EJCACHE_MAX_SIZE", "JAX_COMPILATION_CACHE_DIR", "EJCACHE"])
def test_a_start_that_is_told_something_reads_the_settings(name, tmp_path, monkeypatch):
    """Any variable, or a configuration file, and nothing is exported without them."""
    monkeypatch.setattr(os, "environ", {"HOME": str(tmp_path)})
    os.environ[name] = ""
    assert not environment.export_defaults()
    del os.environ[name]
    (tmp_path / ".config/ejcache").mkdir(parents=True)
    (tmp_path / ".config/ejcache/config.toml").write_text("")
    assert not environment.export_defaults()
    assert "EJCACHE" not in os.environ
    del os.environ["HOME"]
    assert not environment.export_defaults()
