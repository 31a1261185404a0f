"""docs/files.md has a row for whatever programs and commands write."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from forking import ForkedWithChildren
from helpers import ROOT, run_program

HOOK = """
import os, sys
descriptor = os.open(os.environ["WRITTEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def hook(event, arguments):
    written = ""
    if event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        written = arguments[0]
    elif event in ("os.link", "os.rename"):
        written = arguments[1]
    if isinstance(written, (str, bytes)) and written:
        os.write(descriptor, os.fsencode(os.path.abspath(written)) + b"\\n")
sys.addaudithook(hook)
"""
"""Every file that a process opens for writing, links or renames, also those that are gone at its end."""

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, ejcache
cache = ejcache.enable(min_compile_seconds=0)
@ejcache.autotuned(configs=({"n": 1}, {"n": 2}), name="op", version=1)
def op(x, *, n):
    return x * n / n
@ejcache.ejit
def step(x):
    return jnp.sin(x @ x).sum()
step(np.ones((8, 8), np.float32))
op(np.ones(8, np.float32))
cache.get("jit_absent")
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A home, a local cache and one on a mount, after programs and commands have used them: what was written."""
    place = tmp_path_factory.mktemp("world")
    for name in ("hook", "tmp", "mount/v1/entries"):
        (place / name).mkdir(parents=True)
    (place / "hook" / "sitecustomize.py").write_text(HOOK)
    (place / "program.py").write_text(PROGRAM)
    environment = {
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "WRITTEN": str(place / "written"),
        "PYTHONPATH": str(place / "hook"),
        "EJCACHE_AUTOTUNE_RECORD": "1",
    }

    def run(*arguments, cache="local"):
        command, env = [sys.executable, *map(str, arguments)], {**environment, "EJCACHE_DIR": str(place / cache)}
        run_program(command, cwd=place, env=env, start=ForkedWithChildren)

    run("-m", "ejcache", "run", "program.py")
    run("program.py", cache="mount")
    run("program.py", cache="mount")
    run("-m", "ejcache", "prune", "--max-size", "1GB", cache="mount")
    run("-m", "ejcache", "config", "set", "--to", "user", "preload=true")
    run("-m", "ejcache", "config", "set", "shared=readers")
    left = [path for top in ("home", "tmp", "local", "mount") for path in (place / top).rglob("*") if path.is_file()]
    return place, {
        *(path for path in map(Path, (place / "written").read_text().splitlines()) if not path.is_dir()),
        *left,
    }


PAGE = ROOT / "docs" / "files.md"
KIND = re.compile(r"\| ([a-z ]+) \| (`<[^|]+)\|")


def rows():
    """The patterns of the first column."""
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            yield from re.findall(r"`([^`]+)`", line.split("|")[1])
        elif found := KIND.match(line):
            yield from re.findall(r"`([^`]+)`", found[2])


def kinds():
    """The kinds of what says what happened: the first column of the first table."""
    return {found[1] for line in PAGE.read_text().splitlines() if (found := KIND.match(line))}


def matcher(name):
    pattern = re.escape(name).replace(re.escape("<any>"), ".*")
    for root in ("cache", "tier", "state", "config", "temporary"):
        pattern = pattern.replace(re.escape(f"<{root}>"), f"<{root}>")
    pattern = re.sub(r"(?<!^)<\w+>", "[^/]+", pattern)
    return re.compile(pattern)


def named(path, place):
    """The path as the table names it; None for what is not ejcache's: of the test, of Python and of pytest."""
    for root, below in (
        (r"home/\.cache/ejcache/tiers/\w+", "<tier>"),
        (r"home/\.cache/ejcache/state", "<state>"),
        (r"home/\.config/ejcache", "<config>"),
        (r"tmp(?=/ejcache)", "<temporary>"),
        (r"(local|mount)", "<cache>"),
        (r"home", "home"),
    ):
        if found := re.match(rf"{re.escape(str(place))}/{root}(?=/)", str(path)):
            return below + str(path)[found.end() :]
    return None


def without_a_row(paths, place):
    patterns = list(map(matcher, rows()))
    names = sorted({name for path in paths if (name := named(path, place))} - {None})
    return [name for name in names if not any(pattern.fullmatch(name) for pattern in patterns)]


def test_everything_that_is_written_has_a_row(world):
    """Files of entries, logs, locks and documents, also those that are only there for a moment."""
    place, written = world
    names = {named(path, place) for path in written}
    assert {"<cache>/v1/local/format", "<tier>/scratch/storage", "<state>/starts.jsonl"} <= names
    assert "\n".join(without_a_row(written, place)) == ""


def test_five_kinds_say_what_happened():
    """The log of a host, totals, journals, run profiles and crash journals: no more."""
    assert kinds() == {"log", "totals", "journal", "run profile", "crash journal"}


@pytest.mark.parametrize(
    "planted",
    ["local/v1/log.jsonl", "home/.cache/ejcache/state/misses.jsonl", "mount/v1/events/one", "home/.cache/other/file"],
)
def test_what_has_no_row_is_found(world, planted):
    """A file or an object of another name is reported."""
    place, _ = world
    assert len(without_a_row([place / planted], place)) == 1
