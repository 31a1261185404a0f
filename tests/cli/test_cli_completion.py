"""What the shells complete, asked as their scripts ask."""

from __future__ import annotations

import sys

import pytest
from cli_helpers import ejcache, fill
from forking import Forked
from helpers import run_program

COMMAND = """
import sys
from ejcache.cli import completion
from ejcache.cli.main import main
completion._SECONDS = 60.0  # a busy machine takes longer than a person waits
sys.exit(main())
"""


def completed(line: str, directory) -> list[str]:
    """What bash would be offered at the end of a line."""
    words = line.split(" ")
    env = {
        "_EJCACHE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "JAX_COMPILATION_CACHE_DIR": str(directory),
    }
    done = run_program([sys.executable, "-c", COMMAND], env=env, start=Forked)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache with two entries."""
    path = tmp_path_factory.mktemp("cache")
    fill(path, "jit_train", "jit_eval")
    return path


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ejcache pr", ["prune"]),
        ("ejcache prune --unused", ["--unused-for"]),
        ("ejcache pu", ["push", "pull"]),
        ("ejcache ls jit_", ["jit_eval", "jit_train"]),
        ("ejcache why jit_t", ["jit_train"]),
        ("ejcache prune --all jit_e", ["jit_eval"]),
        ("ejcache config get min_comp", ["min_compile_seconds"]),
        ("ejcache config set min_comp", ["min_compile_seconds="]),
    ],
)
def test_shell_completes(cache, line, offered):
    """Commands, options, settings, and the names of entries of the default cache."""
    found = completed(line, cache)
    assert sorted(set(found) & {*offered}) == sorted(offered)
    beginning = line.split(" ")[-1]
    assert all(text.startswith(beginning) for text in found)


@pytest.mark.parametrize("directory", ["/nonexistent/cache", "gs://no-such-bucket/x", "nothing://"])
def test_completion_of_a_cache_that_is_not_there(directory):
    """Nothing is offered and nothing is said; buckets are not asked."""
    assert completed("ejcache ls jit_", directory) == []


def test_script():
    """The shell's script is printed where the command is asked for it as the documentation says."""
    env = {"_EJCACHE_COMPLETE": "source_bash"}
    said = run_program([sys.executable, "-c", COMMAND], env=env, start=Forked).stdout
    assert "_EJCACHE_COMPLETE=complete_" in said


def test_help_command():
    """`help COMMAND` is `COMMAND --help`."""
    assert ejcache("help", "prune").out == ejcache("prune", "--help").out
    assert ejcache("help").out == ejcache("--help").out
