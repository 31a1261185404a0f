"""Every command on a terminal of 60 columns: no row is broken, no word is cut."""

from __future__ import annotations

import re

import pytest
import typer
from autotune_helpers import candidate, key, record
from cli_helpers import Terminal, ejcache, fill, key_text, plain_jax, put

from ejcache.autotune.records.store import AutotuneStore
from ejcache.cache.counters import Verdict
from ejcache.cache.recorder import START_LOG
from ejcache.cache.starts import Process, ProgramRecord, StartRecord, encode_line
from ejcache.cli import output
from ejcache.cli.main import build
from ejcache.direct.verdicts import record_verdict
from ejcache.jax_integration.targets import DeviceTarget, document_path, encode
from ejcache.stores.documents import open_documents
from ejcache.stores.local.store import LocalStore


def commands(group, above=""):
    found = []
    for name, command in group.commands.items():
        path = f"{above} {name}".strip()
        found += commands(command, path) if hasattr(command, "commands") else [path]
    return sorted(found)


COMMANDS = commands(typer.main.get_command(build()))
COLUMNS = 60
GROUPS = ("", "autotune", "config")
SHOWN = {
    "ls": [()],
    "stats": [()],
    "show": [("jit_train",)],
    "why": [("jit_train",), ("jit_nothing",), ("step",)],
    "report": [(), ("--compare", "program=t", "host=h")],
    "verify": [(), ("--fix",)],
    "prune": [("-n", "--max-size", "0"), ("--name", "jit_init")],
    "clear": [("jit_other",)],
    "pin": [("jit_train",)],
    "unpin": [("jit_train",)],
    "push": [("OTHER", "-n"), ("OTHER",)],
    "pull": [("OTHER",)],
    "export": [("FILE",)],
    "import": [("FILE",)],
    "config": [()],
    "config get": [("max_size",)],
    "config set": [("max_size=1GB", "preload=true")],
    "config unset": [("max_size",)],
    "doctor": [()],
    "autotune ls": [()],
    "autotune stats": [()],
    "autotune show": [("matmul",)],
    "autotune why": [("matmul",)],
    "autotune diff": [("matmul", "softmax"), ("OTHER",)],
    "autotune pin": [("matmul", '{"block": 16}'), ("matmul", '{"block": 3}')],
    "autotune unpin": [("matmul",)],
    "autotune prune": [("-n", "--name", "*")],
    "autotune clear": [("softmax",)],
    "autotune push": [("OTHER", "-n"), ("OTHER",)],
    "autotune pull": [("OTHER",)],
    "autotune export": [("--format", "ejkernel", "--to", "FILES"), ("--html", "PAGE")],
    "autotune import": [("FILES",)],
    "autotune run": [()],
    "target ls": [()],
    "target show": [("pod",)],
    "target diff": [("pod",)],
}
"""What each command is called with, in this order. `bench`, `demo`, `run`, `warm` and `target save` run programs."""


@pytest.fixture
def places(tmp_path):
    """A cache with long names, several variants and files of plain JAX; and a store of tuned configurations."""
    cache, tuned = tmp_path / "cache", tmp_path / "tuned"
    fill(cache, "jit_train", "jit_eval", "jit_init", "jit_other")
    with LocalStore(cache) as store:
        put(store, key_text("jit_" + "x" * 60))
        put(store, key_text("jit_eval", variant="pgle"))
    plain_jax(cache)
    flags = {"XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true"}
    saved = DeviceTarget("pod", "cpu", platform_version="cuda 12090", cpu="c" * 64, jaxlib="0.1", variables=flags)
    open_documents(str(cache)).replace(document_path("pod"), encode(saved._replace(saved=1e9)))
    for function in ("train.train", "my_package.training_loops.TrainingLoop.make_step.<locals>.step"):
        record_verdict(function, Verdict.REFUSED, "step → " + "config." * 9 + "log is a TextIOWrapper", url=str(cache))
    program = ProgramRecord(
        "jit_" + "x" * 60, 1e9, str(cache), "k", "absent", "stored", 2.0, "/home/" * 20 + "train.py:3"
    )
    process = Process("i", "host", 1, program="train.py")
    START_LOG.append(encode_line(StartRecord(process, [program._replace(seconds={"compiled": 2.0})], {"read": 1})))
    records = AutotuneStore(str(tuned))
    tried = (candidate(16, 0.001), candidate(8, 0.004), candidate(64, error="RuntimeError: out of memory " * 5))
    records.publish(record(candidates=tried))
    records.publish(record(key("softmax", device="NVIDIA H200"), block=4))
    return {"cache": cache, "tuned": tuned, "OTHER": tmp_path / "other", "FILE": tmp_path / "x.ejb"} | {
        "FILES": tmp_path / "ejkernel",
        "PAGE": tmp_path / "page.html",
    }


def too_long(text, columns):
    """Lines that do not fit, but for those that end in a key or a path, which is not broken."""
    return [line for line in text.splitlines() if len(line) > columns and len(line.split()[-1]) < 40]


def words(text):
    """The words that depend neither on the time nor on the room on the disk, and are not shortened to an ellipsis."""
    changing = r"[\d█░─\N{HORIZONTAL ELLIPSIS}]|^([KMGT]i?)?B$"
    return {word for word in text.split() if not re.search(changing, word)}


def test_every_command_is_here():
    """A new command is tried on narrow terminals, too."""
    running = {"bench", "completion", "demo", "run", "warm", "target save"}
    assert sorted({*SHOWN, *running} - {"config"}) == sorted(set(COMMANDS) - {"config"})


def test_a_narrow_terminal(places):
    """No row of a table is broken and no word cut, in any command."""
    for command, calls in SHOWN.items():
        for arguments in calls:
            line = [*command.split(), *(str(places.get(each, each)) for each in arguments)]
            line += ["--dir", str(places["tuned" if command.startswith("autotune") else "cache"])]
            if command.split()[0] == "config":
                line = line[:-2]
            said = ejcache(*line, columns=COLUMNS)
            assert said.status != 2 or not command.startswith("target"), said.err
            assert too_long(said.out, COLUMNS) == [], line
            if "-n" in arguments or command in {"ls", "show", "stats", "config", "doctor"}:
                assert words(said.out) - words(ejcache(*line).out) == set(), line


@pytest.mark.parametrize("command", [*GROUPS, *COMMANDS])
def test_help_on_a_narrow_terminal(command):
    """Help texts and their examples fit."""
    said = ejcache(*command.split(), "--help", columns=COLUMNS)
    assert said.status == 0
    assert too_long(said.out, COLUMNS) == []


def test_messages_on_a_narrow_terminal(monkeypatch):
    """A message on stderr is wrapped between words; in a pipe it stays one line."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    message = "the limits that are stored with gs://bucket/prefix could not be read: " + "words " * 30
    for stream, fits in ((Terminal(), True), (type(Terminal()).__mro__[1](), False)):
        monkeypatch.setattr("sys.stderr", stream)
        output.warn(message)
        assert (too_long(stream.getvalue(), COLUMNS) == []) is fits
        assert stream.getvalue().split() == f"ejcache: {message}".split()
