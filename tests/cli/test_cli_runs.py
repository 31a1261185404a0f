"""What each command prints of a small cache, in full: the runs of tests/cli/runs, one file for each command.

A line that is not indented is a comment. An indented one is a command behind `$ `, something that is done behind `% `
(`DONE` says what there is), or what a command prints, with `! ` before it on stderr; an exit status other than 0 is in
brackets. `...` stands for any text, a line of its own for any lines, and empty lines do not count. DIR is the working
directory. `$ COLUMNS=80 ejcache …` prints to a terminal of that width, `$ y | ejcache …` has one that answers so.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from cli_helpers import Terminal, be_patient, damage, ejcache, key_text, put

from ejcache.keys.key import module_text_key
from ejcache.stores.opening import open_store

RUNS = sorted(Path(__file__).with_name("runs").glob("*.txt"))


def fill(where, *names):
    """Put an entry of each name."""
    with open_store(where) as store:
        for name in names:
            put(store, key_text(name))


def add(where, name, *fields):
    """Put one entry, of this variant, program, jaxlib, signature or size."""
    given = dict(field.split("=", 1) for field in fields)
    raw = os.urandom(int(given.pop("size"))) if "size" in given else b"executable"
    signature = given.pop("signature", "")
    with open_store(where) as store:
        put(store, key_text(name, **given), raw, signature=signature)


def add_text(where):
    """Put the text of a program beside its entry."""
    with open_store(where) as store:
        put(store, module_text_key("0" * 64))


def count(where, *amounts):
    """Add to the counters."""
    with open_store(where) as store:
        store.add_counters({name: float(amount) for name, amount in (each.split("=") for each in amounts)})


def limit(where, size):
    """Set the limit that a local cache has of its own."""
    (Path(where) / "v1" / "local" / "limit").write_text(size)


def write(path, *words):
    """Write a file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(" ".join(words))


DONE = {each.__name__: each for each in (fill, add, add_text, damage, count, limit, write)}


def steps(text):
    """Each command, or thing that is done, with the lines that are expected of it."""
    found = []
    for line in text.splitlines():
        if line.startswith(("  $ ", "  % ")):
            found.append((line[2:], []))
        elif line.startswith("  ") and line.strip() and found:
            found[-1][1].append(line[2:])
    return found


def is_as_expected(said, expected):
    """True if the lines are those; `...` stands for any text, or any lines."""
    parts = ["(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n" for line in expected]
    return re.fullmatch("".join(parts), "".join(f"{line}\n" for line in said)) is not None


def run(command, directory, monkeypatch):
    """What a command prints, as the files write it."""
    words = shlex.split(command)
    columns = None
    if words[0].startswith("COLUMNS="):
        columns = int(words.pop(0).partition("=")[2])
    with monkeypatch.context() as asked:
        if "|" in words[:2]:
            asked.setattr("sys.stdin", Terminal(f"{words[0]}\n"))
            words = words[2:]
        assert words[0] == "ejcache"
        said = ejcache(*words[1:], columns=columns)
    lines = [line.rstrip() for line in said.out.splitlines()]
    lines += [f"! {line}" for line in said.err.splitlines()] + [f"[{said.status}]"] * bool(said.status)
    return [line.replace(str(directory), "DIR") for line in lines if line]


@pytest.mark.usefixtures("doctor_is_told")
@pytest.mark.parametrize("path", RUNS, ids=[path.stem for path in RUNS])
def test_run(path, tmp_path, monkeypatch, request):
    """Every line that a person reads is as it is in the file."""
    monkeypatch.chdir(tmp_path)
    be_patient(monkeypatch)
    text = path.read_text()
    server = request.getfixturevalue("bucket") if "gs://" in text else None
    for line, expected in steps(text):
        kind, _, rest = line.partition(" ")
        name, *arguments = shlex.split(rest)
        if kind == "$" and "=" not in name.partition("COLUMNS=")[0]:
            said = run(rest, tmp_path, monkeypatch)
            assert is_as_expected(said, expected), "\n".join([line, *said])
        elif kind == "$":
            monkeypatch.setenv(*name.split("=", 1))
        elif name == "age":
            for stored in server.api.buckets["bucket"].objects.values():
                stored.created = "2026-01-01T00:00:00.000Z"
        else:
            DONE[name](*arguments)
