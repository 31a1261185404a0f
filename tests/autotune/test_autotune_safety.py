"""What a person who may write to a store can do to those who tune from it: nothing but what is tunable is called."""

from __future__ import annotations

import json
import os
import sys

import pytest
from autotune_helpers import key, record
from cli_helpers import ejcache

from ejcache.autotune.call_documents import KIND, RecordedNames, decode_call, decode_value
from ejcache.autotune.records.record import decode_record, encode_record
from ejcache.autotune.records.store import AutotuneStore
from ejcache.errors import EntryCorruptError, UsageError

OPERATION = """
import dataclasses
from ejcache.autotune import Tuner, autotuned

@dataclasses.dataclass(frozen=True)
class Options:
    size: int = 1

def helper(x):
    return x

@autotuned(configs=[{"n": 1}], name="safe", tuner=Tuner(rounds=8, sample_seconds=0.0005))
def op(x, option=None, *, n):
    return x * n
"""


@pytest.fixture
def operations(tmp_path, monkeypatch):
    """The name of a module with an operation."""
    (tmp_path / "safe_operations.py").write_text(OPERATION)
    monkeypatch.syspath_prepend(tmp_path)
    yield "safe_operations"
    sys.modules.pop("safe_operations", None)
    sys.modules.pop("__ejcache_main__", None)


def recorded(place, how, *args):
    """Write a recorded call into a store, as anyone who may write there can."""
    body = {"ejcache": KIND, "schema": 1, "operation": "safe", "how": how, "args": list(args), "kwargs": {}}
    path = place / "autotune-recorded" / "safe" / "call.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body))
    return place


@pytest.mark.parametrize("how", ["json:loads", "safe_operations:op", "safe_operations:helper"])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        {"object": "os:system", "fields": {"command": "echo > RAN"}},
        {"object": "subprocess:Popen", "fields": {"args": "echo > RAN", "shell": True}},
        {"tuple": [{"dict": {"a": {"list": [{"object": "os:system", "fields": {"command": "echo > RAN"}}]}}}]},
        {"enum": "os:environ", "name": "HOME"},
        {"import": "os:system"},
        {"dtype": "save", "class": True},
        {"import": "wicked:x"},
        {"object": "wicked.py:x", "fields": {}},
    ],
    ids=["command", "class", "nested", "enum", "function", "dtype", "module", "file"],
)
def test_run_calls_nothing_that_a_recording_names(operations, tmp_path, monkeypatch, how, named, value):
    """Neither commands nor classes nor files that a recording names are run, whatever else it names."""
    monkeypatch.chdir(tmp_path)
    for name in ("wicked.py", "shared/wicked.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("open('RAN', 'w')\n")
    place = recorded(tmp_path / "place", {"kind": "autotuned", "object": how}, value)
    modules = ["--module", operations] if named else []
    said = ejcache("tuned", "tune", "--dir", place, *modules, "--json")
    assert (said.status, said.json["failures"], said.json["tuned"]) == (1, 1, 0)
    assert not (tmp_path / "RAN").exists()
    assert "wicked" not in sys.modules


@pytest.mark.parametrize("path", ["os:system", "{tmp}/wicked.py:op", "wicked:op", "", ":", "os:", "sys:modules.clear"])
def test_run_imports_no_module_that_nobody_named(tmp_path, monkeypatch, path):
    """An operation in a file or module that nobody named is not imported; the message says how to name it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wicked.py").write_text("open('RAN', 'w')\n")
    path = path.format(tmp=tmp_path)
    for how in ({"kind": "autotuned", "object": path}, {"kind": "ejkernel", "kernel": path, "executor": path}):
        said = ejcache("tuned", "tune", "--dir", recorded(tmp_path / "place", how), "--json")
        assert (said.status, said.json["failures"]) == (1, 1)
        assert not (tmp_path / "RAN").exists()
        if "wicked" in path:
            assert f"--module {path.rpartition(':')[0]}" in said.json["tuned_calls"][0]["problem"]


def test_a_file_that_is_named_counts_under_the_name_that_it_has(operations, tmp_path):
    """A program imports it by its name, and the recorded call has that name."""
    array, option = {"array": "float32", "shape": [4]}, {"object": "safe_operations:Options", "fields": {"size": 2}}
    place = recorded(tmp_path / "place", {"kind": "autotuned", "object": "safe_operations:op"}, array, option)
    file = str(tmp_path / f"{operations}.py")
    said = ejcache("tuned", "tune", "--dir", place, "--module", file, "--json")
    assert said.json["tuned"] == 1, said.json
    with pytest.raises(UsageError, match="nobody named its module"):
        RecordedNames([file]).find("other.safe_operations:op")


def test_operations_of_named_modules_are_tuned(operations, tmp_path):
    """An operation in a module that the user names is tuned, with values of the types that the module has."""
    option = {"object": "safe_operations:Options", "fields": {"size": 2}}
    array = {"array": "float32", "shape": [4]}
    names = RecordedNames([operations])
    assert decode_value(option, names).size == 2
    assert decode_value({"import": "safe_operations:helper"}, names) is sys.modules[operations].helper
    with pytest.raises(UsageError, match="--module"):
        decode_value({"import": "safe_operations:helper"}, RecordedNames(()))
    place = recorded(tmp_path / "place", {"kind": "autotuned", "object": "safe_operations:op"}, array, option)
    said = ejcache("tuned", "tune", "--dir", place, "--module", operations, "--json")
    assert said.json["tuned"] == 1


@pytest.mark.parametrize(("module", "tuned"), [("safe_operations", 0), ("safe_types", 1)])
def test_types_are_those_of_named_modules(operations, tmp_path, module, tuned):
    """A type that only an annotation of the operation names is refused, and the sentence names `--module`."""
    (tmp_path / "safe_types.py").write_text(OPERATION.partition("@autotuned")[0].replace("Options", "Mode"))
    (tmp_path / f"{operations}.py").write_text(
        OPERATION.replace("option=None", "option: 'safe_types.Mode' = None") + "\nimport safe_types\n"
    )
    array, mode = {"array": "float32", "shape": [4]}, {"object": "safe_types:Mode", "fields": {"size": 2}}
    place = recorded(tmp_path / "place", {"kind": "autotuned", "object": "safe_operations:op"}, array, mode)
    said = ejcache("tuned", "tune", "--dir", place, "--module", operations, "--module", module, "--json")
    sys.modules.pop("safe_types", None)
    assert said.json["tuned"] == tuned, said.json
    assert tuned or "no named module has it" in said.json["tuned_calls"][0]["problem"]


def test_an_enumeration_of_a_library_is_used(operations, tmp_path):
    """The precision of a product, as calls of kernels have it, needs no --module."""
    array, option = {"array": "float32", "shape": [4]}, {"enum": "jax._src.lax.lax:Precision", "name": "HIGHEST"}
    place = recorded(tmp_path / "place", {"kind": "autotuned", "object": "safe_operations:op"}, array, option)
    said = ejcache("tuned", "tune", "--dir", place, "--module", operations, "--json")
    assert said.json["tuned"] == 1, said.json


CALL = '{"ejcache": "autotune call", "schema": 1, "operation": %s, "how": {}, "args": [%s], "kwargs": {}}'


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        CALL % ('"a\\u001b[2J"', ""),
        CALL % ('"\\ud800"', ""),
        CALL % ('"a"', "NaN"),
        CALL % ('"a"', "1e999"),
        CALL % ('"a"', "1" + "0" * 5000),
        " " * (2**20 + 1),
    ],
    ids=["deep", "escape", "surrogate", "nan", "infinite", "huge number", "large"],
)
def test_hostile_recordings_are_corrupt(text):
    """A recorded call that no program writes is corrupt, and not another exception."""
    with pytest.raises(EntryCorruptError):
        decode_call(text.encode())


@pytest.mark.parametrize("field", ["operation", "version", "device", "source"])
@pytest.mark.parametrize("text", ["a\x1b[2J", "a\nb", "\x9b2J", "\ud800", "\x00"])
def test_records_with_control_characters_are_corrupt(field, text):
    """A name that would write to the terminal, or cannot be encoded, makes a record corrupt."""
    body = json.loads(encode_record(record()))
    del body["checksum"]
    body[field] = text
    with pytest.raises(EntryCorruptError):
        decode_record(json.dumps(body).encode())


def sparse(path):
    with path.open("wb") as file:
        file.truncate(6 * 2**30)


def linked(path):
    secret = path.parent / "secret"
    secret.write_text("PRIVATE KEY")
    secret.chmod(0o600)
    path.symlink_to(secret)


HOSTILE = {"pipe": os.mkfifo, "link": linked, "directory": lambda path: path.mkdir(), "giant": sparse}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_documents_are_misses(tmp_path, kind):
    """A pipe, a link to a private file, a directory and a giant in the place of a record are misses, at once."""
    place = tmp_path / "place"
    path = place / key().path
    path.parent.mkdir(parents=True)
    HOSTILE[kind](path)
    store = AutotuneStore(str(place), seeds=())
    assert store.find(key()) is None
    assert list(store.records()) == []
    assert not any(b"PRIVATE" in file.read_bytes() for file in (place / "autotune-quarantine").rglob("*"))
    store.publish(record())
    store.reload()
    assert store.publish(record(key("softmax")))
    assert store.find(key("softmax")) is not None
    if kind == "link":
        assert (path.parent / "secret").read_text() == "PRIVATE KEY"


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_of_ejkernel_are_misses(tmp_path, kind):
    """The same in the place of one of ejkernel's files, and of a recorded call."""
    from ejcache.autotune.ejkernel import PersistentCache

    HOSTILE[kind](tmp_path / "op.json")
    cache = PersistentCache("op", str(tmp_path / "op.json"), store=AutotuneStore(str(tmp_path / "store"), seeds=()))
    assert cache.get("cpu|cpu", "op@v1", "1") is None
    cache.put("cpu|cpu", "op@v1", "1", {"block": 1})
    assert cache.get("cpu|cpu", "op@v1", "1").block == 1
    assert not any(
        b"PRIVATE" in file.read_bytes()
        for file in tmp_path.rglob("*.json")
        if file.is_file() and file.name != "op.json"
    )

    place = tmp_path / "calls"
    calls = place / "autotune-recorded" / "op"
    calls.mkdir(parents=True)
    HOSTILE[kind](calls / "a.json")
    said = ejcache("tuned", "tune", "--dir", place, "--json")
    assert said.json["tuned"] == 0
