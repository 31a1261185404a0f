"""Commands over caches that others have written to: rows or one clear sentence, and nothing reaches the terminal."""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from archives import member
from autotune_helpers import candidate, key, record
from cli_helpers import ejcache, fill, key_text, put

from ejcache import entry
from ejcache.autotune.records.store import AutotuneStore
from ejcache.history.host_log import record_miss
from ejcache.journal.line import STORED, ProgramRecord
from ejcache.stores.opening import open_store

ESCAPES = "\x1b[31m\x1b]0;title\x07\x9b2J\x7f\r\u202e"
LOOKING = (["stats"], ["ls"], ["ls", "--json"], ["ls", "jit_train"], ["verify"], ["prune", "-n", "--max-size", "0"])
CHANGING = (["prune", "--max-size", "1GB"], ["verify", "--fix"], ["stats", "--reset"], ["prune", "--all"])


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


def plant_header(place):
    """An entry that anybody can have written: whole, and with control characters wherever a header has text."""
    header = entry.Header(
        key=key_text("jit_ctrl"),
        name=f"jit_{ESCAPES}",
        platform=ESCAPES,
        jax=ESCAPES,
        components={f"part{ESCAPES}": f"digest{ESCAPES}"},
        extra={f"more{ESCAPES}": {"inner": ESCAPES}},
    )
    with open_store(place) as store:
        store.put(header.key, entry.encode(header, b"executable"))


def plant_index(place):
    fill(place, "jit_train")
    (index,) = place.rglob("cache.db")
    index.write_bytes(b"garbage" * 1000)


def plant_record(place):
    """A tuned record with control characters wherever it has text."""
    tried = (candidate(16, 0.001), candidate(8, error=f"RuntimeError{ESCAPES}"))
    written = record(block=f"big{ESCAPES}", candidates=tried)
    provenance = {"host": [ESCAPES, "b"], "more": {"x": [1]}}
    AutotuneStore(str(place), seeds=()).publish(replace(written, provenance=provenance))


def plant_damaged(place, data):
    """A record that is whole, and beside it one of these bytes, or a pipe."""
    AutotuneStore(str(place), seeds=()).publish(record(key("softmax")))
    path = place / key().path
    path.parent.mkdir(parents=True)
    os.mkfifo(path) if data is None else path.write_bytes(data)


TUNED = (["ls"], ["ls", "--json"], ["show", key().digest], ["why", key().digest], ["stats"])
OTHER = (["ls"], ["stats"], ["prune", "--older-than", "1d"], ["push", "copy"])
BYTES = {
    "deep": deep(),
    "of no kind": b"{}",
    "no text": b"\xff",
    "huge": b'{"schema": 1%s}' % (b"0" * 400),
    "pipe": None,
}
PLANTED = {
    "header": (plant_header, (["ls", "jit_ctrl"], ["ls", "jit_ctrl", "--json"], ["stats"]), LOOKING, "jit_"),
    "index": (plant_index, (), (*LOOKING, *CHANGING), ""),
    "record": (plant_record, [["tuned", *command] for command in TUNED], (), "matmul"),
    **{
        f"record: {name}": (partial(plant_damaged, data=data), (), [["tuned", *each] for each in OTHER], "softmax")
        for name, data in BYTES.items()
    },
}
"""What lies in a cache, the commands that show it, others that meet it, and what is listed all the same."""


@pytest.mark.parametrize(("plant", "shown", "met", "listed"), PLANTED.values(), ids=PLANTED)
def test_what_others_have_planted(tmp_path, monkeypatch, plant, shown, met, listed):
    """Commands end with rows or a sentence and print no control character; JSON has the text as it is."""
    monkeypatch.chdir(tmp_path)
    plant(tmp_path / "cache")
    for command in (*shown, *met):
        said = ejcache(*command, *["--yes"] * ("--all" in command), "--dir", tmp_path / "cache")
        assert said.status in ({0} if command in shown else {0, 1}), (command, said)
        assert is_clean(said), (command, said)
        assert command[:2] not in (["ls"], ["tuned", "ls"]) or listed in said.out
        assert command not in shown or "--json" not in command or json.dumps(ESCAPES)[1:-1] in said.out


@pytest.mark.parametrize(
    ("data", "words"),
    [
        *((data, "not a tar archive") for data in (b"", b"garbage", b"\xff" * 64)),
        (None, "cannot be read"),
        (member("evil\x1b[1mx", type=tarfile.SYMTYPE), ""),
        (member("v1/entries/\x1b[1m", promised=8 << 30), ""),
    ],
    ids=["nothing", "garbage", "ones", "absent", "a link with control characters", "eight gigabytes"],
)
def test_a_hostile_file_is_one_sentence(tmp_path, data, words):
    """A file that cannot be read brings nothing, and the command says why and ends with 1."""
    if data is not None:
        (tmp_path / "bad.tar").write_bytes(data)
    said = ejcache("pull", tmp_path / "bad.tar", "--dir", tmp_path / "cache")
    assert (said.status, is_clean(said), words in said.err) == (1, True, True), said


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


def test_a_file_whose_name_is_no_key(tmp_path):
    """The other entries are listed; `verify` says that it is no entry, and with --fix it goes."""
    first, _ = fill(tmp_path, "jit_eval", "jit_train")
    (path,) = tmp_path.glob(f"v1/local/??/{first}")
    path.rename(path.with_name(first + ESCAPES.replace("/", "").encode("ascii", "ignore").decode()))
    assert [each["name"] for each in ejcache("ls", "--json", "--dir", tmp_path).json["entries"]] == ["jit_train"]
    for options, status in (([], 1), (["--fix"], 0), ([], 0)):
        said = ejcache("verify", *options, "--dir", tmp_path)
        assert (said.status, is_clean(said)) == (status, True)


@pytest.mark.usefixtures("doctor_is_told")
@pytest.mark.parametrize("url", ["s3://AKIA:hunter2@b/p", "sftp://alice:hunter2@host/p", "gs://b/p?token=hunter2"])
def test_secrets_are_never_printed(monkeypatch, url):
    """A URL with a credential is refused by every command without repeating the credential."""
    for command in (*LOOKING, ["config"], ["config", "--json"], ["doctor"], ["push", url], ["tuned", "ls"], ["why"]):
        said = ejcache(*command, "--dir", url)
        assert said.status in {1, 2}, command
        assert "hunter2" not in said.out + said.err, command
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", url)
    for command in (["config"], ["config", "--json"], ["stats"], ["doctor"], ["tuned", "stats"]):
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
    tuning = (["ls"], ["show", "matmul"], ["stats"], ["prune", "--older-than", "1d"], ["rm", "matmul"])
    for place in (tmp_path / "local", shared, tmp_path / "tuned"):
        for path in sorted(path for path in place.rglob("*") if path.is_file()):
            if random.random() < 0.7:
                path.write_bytes(mutated(path.read_bytes(), random))
        commands = [["tuned", *command] for command in tuning] if place.name == "tuned" else [*LOOKING, *CHANGING[:3]]
        for command in random.sample(commands, 4):
            said = ejcache(*command, "--dir", place)
            assert said.status in {0, 1, 2}, (command, said)
            assert is_clean(said), (command, said)
