"""Commands over caches that others have written to: rows or one clear sentence, and nothing reaches the terminal."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tarfile
from random import Random

import pytest
from archives import member
from autotune_helpers import candidate, key, record
from cli_helpers import ejcache, fill, key_text, put

from ejcache import entry
from ejcache.autotune.records.store import AutotuneStore
from ejcache.history.log import record_miss
from ejcache.journal.line import STORED, ProgramRecord
from ejcache.stores.opening import open_store

ESCAPES = "\x1b[31m\x1b]0;title\x07\x9b2J\x7f\r\u202e"
LOOKING = (["stats"], ["ls"], ["ls", "--json"], ["show", "jit_train"], ["verify"], ["prune", "-n", "--max-size", "0"])
CHANGING = (["prune", "--max-size", "1GB"], ["verify", "--fix"], ["stats", "--reset"], ["clear"])


def is_clean(said) -> bool:
    """No control character but those of lines and cells, no traceback, and messages that name their program."""
    text = said.out + said.err
    lines = said.err.splitlines()
    messages = all(line.startswith(("ejcache: ", "  ")) for line in lines)
    return messages and all(c.isprintable() or c in "\n\t" for c in text) and "unexpected" not in text


@pytest.fixture
def shared(tmp_path):
    """A directory that hosts share, with two entries."""
    (tmp_path / "shared" / "v1" / "entries").mkdir(parents=True)
    with open_store(tmp_path / "shared") as store:
        for name in ("jit_train", "jit_eval"):
            put(store, key_text(name))
    return tmp_path / "shared"


def deep(size=200_000) -> bytes:
    return b"[" * size


def test_headers_write_nothing_to_the_terminal(tmp_path):
    """Names and values of a header are printed without control characters, and JSON stays JSON."""
    text = key_text("jit_ctrl")
    header = entry.Header(
        key=text,
        name=f"jit_{ESCAPES}",
        platform=ESCAPES,
        jax=ESCAPES,
        components={f"part{ESCAPES}": f"digest{ESCAPES}"},
        extra={f"more{ESCAPES}": {"inner": ESCAPES}},
    )
    with open_store(tmp_path / "cache") as store:
        store.put(text, entry.encode(header, b"executable"))
    for command in (*LOOKING, ["show", "jit_ctrl"]):
        assert is_clean(ejcache(*command, "--dir", tmp_path / "cache"))
    assert ejcache("show", "jit_ctrl", "--dir", tmp_path / "cache", "--json").json["platform"] == ESCAPES


def test_the_miss_log_writes_nothing_to_the_terminal(tmp_path):
    """`why` prints names, reasons and keys of misses without control characters."""
    fill(tmp_path / "cache", "jit_train")
    url = str(tmp_path / "cache")
    names = {"key": f"k{ESCAPES}", "name": f"jit_{ESCAPES}", "reason": f"absent{ESCAPES}", "outcome": STORED}
    record_miss(ProgramRecord(time=2e9, url=url, compile_seconds=1.0, **names))
    for options in ([], ["--dir", url], [f"jit_{ESCAPES}"]):
        said = ejcache("why", *options)
        assert said.status == 0
        assert is_clean(said)


def test_a_row_whose_key_is_none(tmp_path):
    """The other entries are listed; `verify` counts the row as damaged, and with --fix it goes."""
    first, _ = fill(tmp_path, "jit_eval", "jit_train")
    (path,) = tmp_path.glob("v1/local/g-*/cache.db")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as index:
        index.execute("UPDATE Cache SET key = ? WHERE key = ?", (first + ESCAPES, first))
    assert [each["name"] for each in ejcache("ls", "--json", "--dir", tmp_path).json["entries"]] == ["jit_train"]
    for options, status in (([], 1), (["--fix"], 0), ([], 0)):
        said = ejcache("verify", *options, "--dir", tmp_path)
        assert (said.status, is_clean(said)) == (status, True)


def test_an_index_of_garbage_is_one_sentence(tmp_path):
    """Warnings of the package are messages of the command."""
    fill(tmp_path / "cache", "jit_train")
    for index in (tmp_path / "cache").rglob("cache.db"):
        index.write_bytes(b"garbage" * 1000)
    for command in (*LOOKING, *CHANGING):
        said = ejcache(*command, *(["--yes"] if command == ["clear"] else []), "--dir", tmp_path / "cache")
        assert said.status in {0, 1}
        assert is_clean(said), (command, said.err)


@pytest.mark.parametrize(
    "data",
    [b"", member("evil\x1b[1mx", type=tarfile.SYMTYPE), member("v1/entries/\x1b[1m", promised=8 << 30), b"\xff" * 64],
    ids=["nothing", "a link with control characters", "eight gigabytes", "ones"],
)
def test_a_hostile_file_is_one_sentence(tmp_path, data):
    """A file that cannot be read brings nothing, and the command ends with 1."""
    (tmp_path / "bad.tar").write_bytes(data)
    said = ejcache("pull", tmp_path / "bad.tar", "--dir", tmp_path / "cache")
    assert (said.status, is_clean(said)) == (1, True), said


def test_tuned_records_write_nothing_to_the_terminal(tmp_path):
    """Configurations and errors of candidates are printed without control characters."""
    wanted = key()
    tried = (candidate(16, 0.001), candidate(8, error=f"RuntimeError{ESCAPES}"))
    store = AutotuneStore(str(tmp_path / "tuned"), seeds=())
    store.publish(record(wanted, block=f"big{ESCAPES}", candidates=tried))
    for command in (["ls"], ["ls", "--json"], ["show", wanted.digest], ["why", wanted.digest], ["stats"]):
        said = ejcache(*command, "--tuned", "--dir", tmp_path / "tuned")
        assert said.status == 0
        assert is_clean(said), (command, said)
    (path,) = (tmp_path / "tuned").rglob("*.json")
    for data in (deep(), b"{}", b"\xff", json.dumps({"schema": 10**400}).encode()):
        path.write_bytes(data)
        for command in (["ls"], ["stats"], ["prune", "--older-than", "1d"], ["push", tmp_path / "copy"]):
            said = ejcache(*command, "--tuned", "--dir", tmp_path / "tuned")
            assert said.status in {0, 1}
            assert is_clean(said), (command, said)


@pytest.mark.usefixtures("doctor_is_told")
@pytest.mark.parametrize("url", ["s3://AKIA:hunter2@b/p", "sftp://alice:hunter2@host/p", "gs://b/p?token=hunter2"])
def test_secrets_are_never_printed(monkeypatch, url):
    """A URL with a credential is refused by every command without repeating the credential."""
    for command in (*LOOKING, ["config"], ["config", "--json"], ["doctor"], ["push", url], ["ls", "--tuned"], ["why"]):
        said = ejcache(*command, "--dir", url)
        assert said.status in {1, 2}, command
        assert "hunter2" not in said.out + said.err, command
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", url)
    for command in (["config"], ["config", "--json"], ["stats"], ["doctor"], ["stats", "--tuned"]):
        said = ejcache(*command)
        assert "hunter2" not in said.out + said.err, command


def mutated(data: bytes, random: Random) -> bytes:
    """The bytes of a file after an attack on it."""
    position = random.randrange(len(data) + 1)
    inserted = random.choice(
        [b"\x1b[31m", b"1e400", b"NaN", b"9" * 5000, b"\xff\xfe", b'"\\ud800"', b"null", b"-1", b"\0"]
    )
    return random.choice(
        [
            data[:position],
            data[:position] + inserted + data[position:],
            data[:position] + bytes([random.randrange(256)]) + data[position + 1 :],
            random.randbytes(500),
            deep(),
        ]
    )


@pytest.mark.parametrize("seed", range(4))
def test_files_with_other_bytes(tmp_path, shared, seed):
    """Whatever the files of a cache hold, a command ends with rows or sentences and a documented status."""
    random = Random(seed)
    fill(tmp_path / "local", "jit_train")
    AutotuneStore(str(tmp_path / "tuned"), seeds=()).publish(record())
    tuning = (["ls"], ["show", "matmul"], ["stats"], ["prune", "--older-than", "1d"], ["clear", "matmul"])
    for place in (tmp_path / "local", shared, tmp_path / "tuned"):
        for path in sorted(path for path in place.rglob("*") if path.is_file()):
            if random.random() < 0.7:
                path.write_bytes(mutated(path.read_bytes(), random))
        commands = [[*command, "--tuned"] for command in tuning] if place.name == "tuned" else [*LOOKING, *CHANGING[:3]]
        for command in random.sample(commands, 4):
            said = ejcache(*command, "--dir", place)
            assert said.status in {0, 1, 2}, (command, said)
            assert is_clean(said), (command, said)
