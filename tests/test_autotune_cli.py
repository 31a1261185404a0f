"""`ejcache autotune`: what people and machines see of tuned configurations, and what moves them."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
from autotune_helpers import ENVIRONMENT, candidate, key, record
from buckets import GcsServerProcess
from cli_helpers import ejcache

from ejcache.autotune.records import Source, encode_record, pinned
from ejcache.autotune.store import AutotuneStore


@pytest.fixture
def place(tmp_path):
    """A store with three records of two operations."""
    store = AutotuneStore(str(tmp_path / "place"))
    tried = (candidate(16, 0.001), candidate(8, 0.004), candidate(64, error="RuntimeError: out of memory"))
    store.publish(record(candidates=tried, created=1_795_000_000.0))
    store.publish(record(key(x="float32[16,16]"), block=32, created=1_795_000_001.0))
    store.publish(record(key("softmax", device="NVIDIA H200"), block=4, source=Source.IMPORTED, candidates=()))
    return tmp_path / "place"


def run(*arguments):
    return ejcache("autotune", *arguments)


def test_ls(place):
    """Records are listed with what tells them apart, filtered by operation and device, and as JSON."""
    listed = run("ls", "--dir", place).lines
    assert listed[0].split() == ["key", "operation", "device", "source", "ms", "gain", "tried", "call"]
    assert len(listed) == 4
    assert "x=float32[8,8] mode=forward" in listed[2]
    fields = run("ls", "--dir", place, "--operation", "mat*", "--json").json
    assert (fields["total_records"], fields["url"]) == (2, str(place))
    assert {r["configuration"]["block"] for r in fields["records"]} == {16, 32}
    assert run("ls", "--dir", place, "--device", "NVIDIA*", "--json").json["records"][0]["source"] == "imported"
    assert run("ls", "--dir", place / "none").out.startswith("there are no tuned configurations")


def test_show_draws_the_candidates(place):
    """One record, with every candidate's timing as a bar, the chosen one and the default marked, errors beside."""
    said = run("show", key().digest[:10], "--dir", place)
    lines = {line.split()[1]: line for line in said.lines if line[:1] in "*= " and '{"block"' in line}
    assert lines['{"block":16}'].startswith("*")
    assert lines['{"block":8}'].startswith("=")
    assert lines['{"block":8}'].count("█") == 4 * lines['{"block":16}'].count("█") == 32
    failed = next(line for line in said.lines if '"block":64' in line and "failed" in line)
    assert "out of memory" in failed
    fields = run("show", key().digest, "--dir", place, "--json").json
    assert [c["status"] for c in fields["candidates"]] == ["ok", "ok", "failed"]
    assert fields["provenance"] == {"host": "tuner"}


def test_keys_that_mean_none_or_several(place):
    """A key that means no record or several is bad usage, and the message helps."""
    none, several = run("show", "feed", "--dir", place), run("show", "matmul", "--dir", place)
    assert (none.status, several.status) == (2, 2)
    assert "autotune ls" in none.err
    assert "2 records" in several.err
    assert run("ls", "--dir", " ").status == 2


def test_why(place):
    """For a record: which one counts and why the others do not; for another environment, what differs."""
    store = AutotuneStore(str(place))
    store.publish(record(key(environment={**ENVIRONMENT, "jaxlib": "0.9"}), block=2))
    said = run("why", key().digest, "--dir", place)
    assert said.status == 0
    assert "runs with {'block': 16} (tuned, user)" in said.out
    assert "in another environment: {'block': 2}" in said.out
    assert "environment.jaxlib: 0.10 here, 0.9 there" in said.out
    assert run("why", key().digest, "--dir", place, "--json").json["elsewhere"][0]["differences"] == {
        "environment.jaxlib": ["0.10", "0.9"]
    }


def test_why_of_a_recorded_call(place):
    """A recorded call without a record exits with 1 and says what is nearest and what differs."""
    from ejcache.autotune.recording import note

    wanted = key(x="float32[8,16]")
    note(wanted, lambda: {"how": {"kind": "x"}, "args": [], "kwargs": {}}, AutotuneStore(str(place)))
    said = run("why", wanted.digest, "--dir", place)
    assert said.status == 1
    assert "has no record" in said.out
    assert "call.arguments.x: float32[8,16] here, float32[8,8] there" in said.out


def test_diff(place, tmp_path):
    """Two records, or two stores, compared name by name; 1 if they differ."""
    one, other = key().digest, key(x="float32[16,16]").digest
    fields = run("diff", one, other, "--dir", place, "--json").json
    assert fields == {
        "key": {"call.arguments.x": ["float32[8,8]", "float32[16,16]"]},
        "configuration": {"": [{"block": 16}, {"block": 32}]},
    }
    assert run("diff", one, other, "--dir", place).status == 1
    assert run("diff", one, one, "--dir", place).status == 0
    copy = tmp_path / "copy"
    assert run("merge", place, "--dir", copy).status == 0
    assert run("diff", place, copy).status == 0
    AutotuneStore(str(copy)).delete(key())
    assert run("diff", place, copy).status == 1
    assert list(run("diff", place, copy, "--json").json["record"].values()) == [[{"block": 16}, None]]


def test_stats(place):
    """Records are counted by layer, operation, device and source; damaged ones are counted too."""
    (place / key().path).write_bytes(b"{")
    fields = run("stats", "--dir", place, "--json").json
    assert fields["total_records"] == 2
    assert fields["operations"] == {"matmul": 1, "softmax": 1}
    assert fields["sources"] == {"imported": 1, "tuned": 1}
    assert fields["corrupt"] == 1
    assert "corrupt" in run("stats", "--dir", place).out


def test_pin_and_unpin(place):
    """A pinned configuration counts until it is let go; then the fastest measured one does."""
    digest = key().digest
    assert run("pin", digest, '{"block": 8}', "--dir", place).status == 0
    fields = run("show", digest, "--dir", place, "--json").json
    assert (fields["configuration"], fields["source"]) == ({"block": 8}, "pinned")
    AutotuneStore(str(place)).publish(record(block=64))
    assert run("show", digest, "--dir", place, "--json").json["configuration"] == {"block": 8}
    assert run("pin", digest, "--unpin", "--dir", place, "--json").json["configuration"] == {"block": 16}
    assert run("pin", digest, "--unpin", "--dir", place).status == 2
    assert run("pin", digest, "{", "--dir", place).status == 2


def test_pin_of_a_misspelt_name_says_so(place):
    """A name that no candidate has is most likely a typing error, which the program would only pass over."""
    said = run("pin", key().digest, '{"blok": 8}', "--dir", place)
    assert "blok" in said.err
    assert run("pin", key().digest, '{"block": 9}', "--dir", place).err == ""


def test_rm(place):
    """Removed records are gone, others stay."""
    assert run("rm", key().digest, key("softmax", device="NVIDIA H200").digest[:8], "--dir", place).status == 0
    assert [f.record.configuration for f in AutotuneStore(str(place)).records()] == [{"block": 32}]


def test_prune(place):
    """Records go by age or by being of an older environment; a dry run removes nothing; pinned ones stay."""
    assert run("prune", "--dir", place).status == 2
    assert run("prune", "--dir", place, "--older-than", "36500d", "--json").json["removed"] == 0
    store = AutotuneStore(str(place))
    store.publish(record(key(environment={**ENVIRONMENT, "jaxlib": "0.9"}), block=2, created=1.0))
    store.publish(record(key("pinned"), source=Source.PINNED, created=1.0))
    (place / ".tmp-host-1-x").write_bytes(b"left")
    dry = run("prune", "--dir", place, "--old-environments", "-n", "--json").json
    assert (dry["removed"], len(dry["paths"])) == (1, 1)
    assert run("prune", "--dir", place, "--old-environments").status == 0
    blocks = sorted(f.record.configuration["block"] for f in AutotuneStore(str(place)).records())
    assert blocks == [4, 16, 16, 32]


@pytest.fixture
def pod(tmp_path, monkeypatch):
    """A bucket that the settings name, with a tuned record; the same is in this user's directory. (bucket, user)"""
    with GcsServerProcess() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_DIR", "gs://bucket/tuned")
        store = AutotuneStore(seeds=())
        assert [layer.name for layer in store.layers][:2] == ["user", "shared"]
        assert store.publish(record(created=1_795_000_000.0))
        yield AutotuneStore(store.layers[1].documents, seeds=()), AutotuneStore(store.layers[0].documents, seeds=())


def held(store, of=None):
    """(configuration, source) in one place."""
    found = next((item.record for item in store.records() if item.record.key == (of or key())), None)
    return None if found is None else (found.configuration["block"], found.source)


def test_a_pin_reaches_the_place_that_the_settings_name(pod):
    """With a bucket in the settings, pin and unpin change the bucket, and nothing older of this user's hides it."""
    bucket, user = pod
    user.layers[0].documents.replace(key().path, encode_record(pinned(record(), {"block": 3}, now=1.0)))
    said = run("pin", key().digest, '{"block": 8}', "--json").json
    assert (said["layer"], held(bucket)) == ("shared", (8, Source.PINNED))
    assert AutotuneStore(seeds=()).find(key()).record.configuration == {"block": 8}
    user.layers[0].documents.replace(key().path, encode_record(pinned(record(), {"block": 3}, now=1.0)))
    assert run("pin", key().digest, "--unpin").status == 0
    assert (held(bucket), held(user)) == ((16, Source.TUNED), (16, Source.TUNED))
    assert run("pin", key().digest, "--unpin").status == 2


def test_what_is_taken_in_goes_to_the_place_that_the_settings_name(pod, tmp_path):
    """With a bucket in the settings, merge and import write the bucket, and say so."""
    bucket, user = pod
    other = AutotuneStore(str(tmp_path / "other"), seeds=())
    for command in ("merge", "import"):
        other.publish(record(key(command)))
        said = run(command, tmp_path / "other", "--json").json
        assert (said["url"], said["new"]) == ("gs://bucket/tuned", 1)
        assert held(bucket, key(command)) == (16, Source.TUNED)
        assert held(user, key(command)) is None


def test_prune_removes_from_the_bucket_and_from_this_users_directory(pod):
    """What is pruned is gone wherever this user's programs would find it."""
    bucket, user = pod
    dry = run("prune", "--older-than", "0d", "-n", "--json").json
    assert (dry["removed"], dry["paths"], dry["url"]) == (2, [key().path], "gs://bucket/tuned")
    assert held(bucket) == held(user) == (16, Source.TUNED)
    assert run("prune", "--older-than", "0d", "--json").json["removed"] == 2
    assert held(bucket) is held(user) is None


def test_merge_keeps_the_stronger(place, tmp_path):
    """Merging says what is new, changed and the same, and never replaces a stronger choice."""
    other = AutotuneStore(str(tmp_path / "other"))
    other.publish(record(block=99, source=Source.IMPORTED, candidates=()))
    other.publish(record(key("new")))
    fields = run("merge", tmp_path / "other", "--dir", place, "--json").json
    assert (fields["new"], fields["changed"] + fields["same"], fields["failed"]) == (1, 1, 0)
    assert run("show", key().digest, "--dir", place, "--json").json["configuration"] == {"block": 16}
    assert run("merge", tmp_path / "other", "--dir", place, "--json").json["same"] == 2


def test_ejkernels_files_in_and_out(tmp_path):
    """Files of ejkernel's become records, and records become files that are the same."""
    files, place, out = tmp_path / "files", tmp_path / "place", tmp_path / "out"
    files.mkdir()
    entries = {"cpu|cpu|matmul@v1|76c3833ef674ac9b": {"block_m": 128, "platform": "auto"}}
    (files / "mat-mul.json").write_text(json.dumps(entries))
    assert run("import", files, "--dir", place, "--json").json["new"] == 1
    assert run("import", files / "mat-mul.json", "--dir", place, "--json").json["same"] == 1
    assert run("ls", "--dir", place, "--json").json["records"][0]["source"] == "imported"
    fields = run("export", "--dir", place, "--format", "ejkernel", "--to", out, "--json").json
    assert (fields["files"], fields["left_out"]) == ({"mat-mul.json": 1}, 0)
    assert json.loads((out / "mat-mul.json").read_text()) == entries


def test_import_says_what_it_left_out(tmp_path):
    """Files that are no JSON, and entries under other keys, are named, and the rest is taken."""
    (tmp_path / "bad.json").write_text("[")
    (tmp_path / "odd.json").write_text(json.dumps({"_reserved": 1, "cpu|cpu|op@v1|12": {"a": 1}}))
    said = run("import", tmp_path, "--dir", tmp_path / "place", "--json")
    assert (said.status, said.json["new"], len(said.json["problems"])) == (1, 1, 2)


def test_import_takes_both_kinds_from_a_directory(place, tmp_path):
    """A store that ejkernel's files lie beside gives its records and their entries."""
    (place / "op.json").write_text(json.dumps({"cpu|cpu|op@v1|12": {"a": 1}}))
    assert run("import", place, "--dir", tmp_path / "all", "--json").json["new"] == 4
    assert run("import", place, "--dir", tmp_path / "one", "--json", "--format", "ejkernel").json["new"] == 1
    assert run("import", place, "--dir", tmp_path / "other", "--json", "--format", "ejcache").json["new"] == 3
    odd = tmp_path / "operation.txt"
    odd.write_text(json.dumps({"cpu|cpu|op@v1|12": {"a": 1}}))
    assert run("import", odd, "--dir", tmp_path / "odd", "--json").json["new"] == 1


@pytest.mark.parametrize("command", ["merge", "import"])
def test_sources_that_are_not_there_are_bad_usage(command, place, tmp_path):
    """A directory or file that does not exist is a mistake of whoever names it; an empty store is none."""
    for source in ("none", "none.json"):
        said = run(command, tmp_path / source, "--dir", place)
        assert (said.status, len(said.err.splitlines())) == (2, 1)
        assert source in said.err
    assert run("diff", place, tmp_path / "none").status == 2
    (tmp_path / "empty").mkdir()
    assert run(command, tmp_path / "empty", "--dir", place).status == 0


def test_sources_that_cannot_be_read_are_failures(place, tmp_path):
    """A store that gives no answer is no empty one."""
    path = tmp_path / "blocked" / key().path
    path.parent.mkdir(parents=True)
    path.symlink_to(path)
    said = run("merge", tmp_path / "blocked", "--dir", place)
    assert said.status == 1
    assert "blocked" in said.err


def test_export_to_where_ejkernels_files_cannot_be_written(tmp_path, monkeypatch):
    """A bucket, which ejkernel does not read, is bad usage; a place that cannot be written is a failure."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
    entries = {"cpu|cpu|matmul@v1|76c3833ef674ac9b": {"block_m": 128}}
    (tmp_path / "mat-mul.json").write_text(json.dumps(entries))
    place = tmp_path / "place"
    assert run("import", tmp_path / "mat-mul.json", "--dir", place).status == 0
    export = ("export", "--dir", place, "--format", "ejkernel", "--to")
    bucket = run(*export, "gs://bucket/files")
    assert (bucket.status, "gs://bucket/files" in bucket.err) == (2, True)
    (tmp_path / "file").write_text("in the way")
    said = run(*export, tmp_path / "file" / "out", "--json")
    assert (said.status, said.json["files"], said.json["failed"]) == (1, {}, 1)
    assert run("export", "--dir", place, "--html", tmp_path / "file" / "page.html").status == 1


def test_export_makes_seeds_and_a_page(place, tmp_path, monkeypatch):
    """A directory of records serves as seeds; the page shows every candidate and fetches nothing."""
    assert run("export", "--dir", place).status == 2
    seeds, page = tmp_path / "seeds", tmp_path / "page.html"
    fields = run("export", "--dir", place, "--to", seeds, "--html", page, "--operation", "matmul", "--json").json
    assert (fields["records"], fields["new"]) == (2, 2)
    monkeypatch.setenv("EJCACHE_AUTOTUNE_SEEDS", str(seeds))
    assert AutotuneStore(str(tmp_path / "user")).find(key()).source is Source.SEED
    text = page.read_text()
    assert text.count("<section") + text.count("<h2>") == 2
    assert "out of memory" in text
    assert "http" not in text
    assert "<script" not in text


PROGRAM = """
import jax.numpy as jnp
from ejcache.autotune import Tuner, autotuned, record

@autotuned(configs=[{"n": 1}, {"n": 2}], name="recorded", tuner=Tuner(rounds=8, confirm=False, sample_seconds=0.0005))
def op(x, scale=1.0, *, n):
    return x * n * scale

def local():
    return autotuned(configs=[{"n": 1}], name="local", heuristic={"n": 1})(lambda x, *, n: x)

if __name__ == "__main__":
    op(jnp.ones(4)), op(jnp.ones(4)), op(jnp.ones(8), 2.0), local()(jnp.ones(4))
"""


def test_run_tunes_what_was_recorded(run_python, tmp_path, monkeypatch):
    """Each kind of call is recorded once and without data, tuned later in another process, and passed over after."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    recorded, place = tmp_path / "recorded", tmp_path / "place"
    run_python(
        program,
        env={
            "EJKERNEL_OPS_RECORD": "1",
            "EJKERNEL_AUTOTUNE_POLICY": "heuristics",
            "EJKERNEL_PERSISTENT_CACHE_DIR": str(recorded),
        },
    )
    documents = list(recorded.rglob("*.json"))
    assert len(documents) == 2
    assert all('"data"' not in document.read_text() for document in documents)
    try:
        limited = run("run", recorded, "--dir", place, "--limit", "1", "--json").json
        fields = run("run", recorded, "--dir", place, "--json").json
        again = run("run", recorded, "--dir", place)
    finally:
        sys.modules.pop("__ejcache_main__", None)
    assert (limited["tuned"], limited["already"]) == (1, 0)
    assert (fields["tuned"], fields["already"], fields["failed"]) == (1, 1, 0)
    assert "2 already" in again.out
    assert len(list(AutotuneStore(str(place)).records(operation="recorded"))) == 2


UNNAMED = """
import dataclasses, sys
import jax.numpy as jnp
from ejcache.autotune import Tuner, autotuned

class Mode: ...

@autotuned(configs=[{"n": 1}, {"n": 2}], tuner=Tuner(rounds=8, confirm=False, sample_seconds=0.0005), gradient=True)
def op(x, mode=Mode, *, n):
    return x * n

if __name__ == "__main__":
    from ejcache.autotune import forward_only
    with forward_only():
        print(op.choose(jnp.ones(4)).source)
"""


def test_operations_of_the_program_itself_are_tuned_under_their_own_name(run_python, tmp_path):
    """An unnamed operation of a program that was recorded is filed where that program looks for it, in its mode."""
    program, place = tmp_path / "unnamed.py", tmp_path / "place"
    program.write_text(UNNAMED)
    env = {"EJKERNEL_AUTOTUNE_POLICY": "heuristics", "EJKERNEL_PERSISTENT_CACHE_DIR": str(place)}
    run_python(program, env=env | {"EJKERNEL_OPS_RECORD": "1"})
    done = run_python("from ejcache.cli.main import main; main(['autotune', 'run', '--json'])", env=env)
    assert json.loads(done.stdout)["calls"][0]["operation"] == "__main__.op"
    assert run_python(program, env=env).stdout.strip() == "tuned"


def recorded_op(monkeypatch, tmp_path, **changes):
    """A recording of `op` in a module of the test's own, with changes to its document; (its place, the document)."""
    (tmp_path / "recorded_module.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "recorded_module", raising=False)
    import jax.numpy as jnp

    import ejcache.autotune
    from ejcache.autotune import policy_override

    op = importlib.import_module("recorded_module").op
    with ejcache.autotune.record(str(tmp_path / "recorded")), policy_override(on_miss="heuristics"):
        op(jnp.ones(4))
    (document,) = (tmp_path / "recorded").rglob("*.json")
    document.write_text(json.dumps(json.loads(document.read_text()) | changes))
    return tmp_path / "recorded"


@pytest.mark.parametrize("changes", [{"operation": "another"}, {"call": {"arguments": {"x": "int8[3]"}}}])
def test_run_tunes_nothing_else_than_what_was_recorded(monkeypatch, tmp_path, changes):
    """Where the program has changed so that its call is filed elsewhere, that is a failure and no success."""
    recorded = recorded_op(monkeypatch, tmp_path, **changes)
    said = run("run", recorded, "--dir", tmp_path / "place", "--json")
    assert (said.status, said.json["failed"]) == (1, 1)
    assert "is now" in said.json["calls"][0]["problem"]


def test_run_says_what_could_not_be_stored(monkeypatch, tmp_path):
    """What was measured and could not be stored anywhere has failed."""
    recorded = recorded_op(monkeypatch, tmp_path)
    (tmp_path / "file").write_text("in the way")
    said = run("run", recorded, "--dir", tmp_path / "file" / "place", "--json")
    assert (said.status, said.json["tuned"], said.json["failed"]) == (1, 0, 1)
    assert "could not be stored" in said.json["calls"][0]["problem"]


def test_run_says_what_could_not_be_tuned(tmp_path):
    """A damaged recording, and one whose program is gone, are named and the exit status is 1."""
    calls = tmp_path / "autotune-recorded" / "op"
    calls.mkdir(parents=True)
    (calls / "a.json").write_text("{")
    body = {"ejcache": "autotune call", "schema": 1, "operation": "op", "args": [], "kwargs": {}}
    (calls / "b.json").write_text(json.dumps({**body, "how": {"kind": "autotuned", "object": "no_such_module:op"}}))
    (calls / "c.json").write_text(json.dumps({**body, "how": {"kind": "autotuned", "object": "json:loads"}}))
    said = run("run", tmp_path, "--dir", tmp_path / "place", "--json")
    assert (said.status, said.json["failed"]) == (1, 3)
    problems = " ".join(call["problem"] for call in said.json["calls"])
    assert "no JSON" in problems
    assert "no_such_module" in problems
    assert "not autotuned" in problems
    assert run("run", tmp_path / "none", "--dir", tmp_path / "place").status == 0
