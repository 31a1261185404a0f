"""Commands on tuned records: what people and machines see of them, and what moves them; and `ejcache tune`."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys

import pytest
from autotune_helpers import ENVIRONMENT, candidate, key, record
from buckets import GcsServerProcess
from cli_helpers import ejcache, fill

from ejcache.autotune.call_documents import encode_call
from ejcache.autotune.ejkernel.cache import EJKERNEL_FILE, EJKERNEL_KEY
from ejcache.autotune.records.record import Candidate, Source, Status, encode_record, pinned
from ejcache.autotune.records.store import AutotuneStore
from ejcache.cli.tuned.records import recorded_key
from ejcache.stores.documents import open_documents


@pytest.fixture
def place(tmp_path):
    """A store with three records of two operations."""
    store = AutotuneStore(str(tmp_path / "place"))
    tried = (candidate(16, 0.001), candidate(8, 0.004), candidate(64, error="RuntimeError: out of memory"))
    store.publish(record(candidates=tried, created=1_795_000_000.0))
    store.publish(record(key(x="float32[16,16]"), block=32, created=1_795_000_001.0))
    store.publish(record(key("softmax", device="NVIDIA H200"), block=4, source=Source.IMPORTED, candidates=()))
    return tmp_path / "place"


def run(command, *arguments):
    """The outcome of a command on tuned records."""
    forms = {"import": ["pull", "--format", "ejkernel"], "export": ["push", "--format", "ejkernel"]}
    return ejcache("tuned", *forms.get(command, [command]), *arguments)


def test_ls(place):
    """Records are listed with what tells them apart, filtered by operation and device, and as JSON."""
    listed = run("ls", "--dir", place).lines
    assert listed[0].split() == [
        "key", "operation", "device", "configuration", "source", "ms", "gain", "tried", "call",
    ]  # fmt: skip
    assert len(listed) == 5
    assert listed[4] == f"3 records in {place}"
    assert '{"block":16}' in listed[2]
    assert "x=float32[8,8] mode=forward" in listed[2]
    fields = run("ls", "--dir", place, "--name", "mat*", "--json").json
    assert (fields["total_records"], fields["url"]) == (2, str(place))
    assert {r["configuration"]["block"] for r in fields["records"]} == {16, 32}
    assert run("ls", "--dir", place, "--device", "NVIDIA*", "--json").json["records"][0]["source"] == "imported"
    assert len(run("ls", "--dir", place, "--limit", "1", "--json").json["records"]) == 1


def test_show_and_stats_have_a_line_for_each_field_and_each_part(place):
    """A part, such as one operation of several, has its name before its value; what nobody noted has no line."""
    shown = {tuple(line.split()[:2]) for line in run("stats", "--dir", place).lines}
    assert {("records", "3"), ("operation", "matmul"), ("source", "imported"), ("corrupt", "0")} <= shown
    (layer,) = [line for line in run("stats", "--dir", place).lines if line.startswith("layer")]
    assert layer.endswith(f"3 in {place}")
    key, *_ = run("ls", "--dir", place, "--name", "softmax", "--json").json["records"]
    lines = [line.split(maxsplit=1) for line in run("show", key["key"], "--dir", place).lines]
    named = dict(line for line in lines if len(line) == 2)
    assert (named["key"], named["call"], named["source"]) == (key["key"], key["text"], key["source"])
    assert all(line for line in lines[: len(named)])


def test_a_directory_that_was_pushed_to_twice_holds_records_alone(place, tmp_path):
    """A merge with records that are there leaves no lock file, which a package would ship."""
    shipped, of_ejkernel = tmp_path / "shipped", tmp_path / "ejkernel"
    assert run("push", shipped, "--dir", place).status == 0
    AutotuneStore(str(place)).publish(record(block=4, created=1_795_000_009.0))
    assert run("push", shipped, "--dir", place, "--json").json["changed"] == 1
    AutotuneStore(str(tmp_path / "calls")).publish(record(key("flash_attention")))
    for _ in range(2):
        run("export", of_ejkernel, "--dir", tmp_path / "calls")
    names = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert [name for name in names if not name.endswith(".json") and name != "CACHEDIR.TAG"] == []


def test_unsure_records_are_left_out_of_what_is_shipped(place, tmp_path):
    """A message names them; --unsure takes them along, and so does an archive of everything."""
    store = AutotuneStore(str(place))
    doubtful = record(key("doubtful"))
    store.publish(dataclasses.replace(doubtful, measurement={"unsure": "the budget of 60 s ended"}))
    said = run("push", tmp_path / "one", "--dir", place)
    assert "1 unsure record left out, of doubtful" in said.err
    assert run("push", tmp_path / "all", "--dir", place, "--unsure").status == 0
    assert [
        {found.record.key.operation for found in AutotuneStore(str(tmp_path / name)).records()}
        for name in ("one", "all")
    ] == [{"matmul", "softmax"}, {"matmul", "softmax", "doubtful"}]
    assert ejcache("push", tmp_path / "other", "--dir", place, "--unsure").status == 2


def test_unsure_records_are_left_out_of_ejkernels_files(place, tmp_path):
    """As of a store. What ejkernel has no key for is not named: `--unsure` would not copy it either."""
    store = AutotuneStore(str(place))
    unsure = {"unsure": "the budget of 60 s ended"}
    for name, measurement in (("sure", {}), ("doubtful", unsure)):
        provenance = {EJKERNEL_KEY: f"cpu|cpu|{name}@v1|12", EJKERNEL_FILE: f"{name}.json"}
        store.publish(dataclasses.replace(record(key(name)), measurement=measurement, provenance=provenance))
    store.publish(dataclasses.replace(record(key("unknown")), measurement=unsure))
    said = run("export", tmp_path / "files", "--dir", place, "--json")
    assert (said.status, said.json["files"], said.json["left_out"]) == (0, {"sure.json": 1}, 4)
    assert "1 unsure record left out, of doubtful" in said.err
    assert not (tmp_path / "files" / "doubtful.json").exists()
    alone = run("export", tmp_path / "files", "--dir", place, "--name", "doubtful")
    assert (alone.status, "no record is one" in alone.err) == (1, False)
    assert [*run("export", tmp_path / "files", "--dir", place, "--unsure", "--json").json["files"]] == [
        "doubtful.json",
        "sure.json",
    ]


def test_a_push_of_nothing_is_said(place, tmp_path):
    """A name without a record, as one with a typing error, is no success: nothing would be shipped."""
    done = run("push", tmp_path / "other", "--dir", place, "--name", "matmull")
    assert (done.status, (tmp_path / "other").exists()) == (1, False)
    assert f"{place} has no tuned record with --name matmull, so nothing was copied" in done.err


@pytest.mark.parametrize(
    "command",
    [["ls"], ["show", "x"], ["stats"], ["why", "x"], ["prune", "--name", "x"], ["rm", "--all"], ["push", "other"]],
)
def test_a_directory_that_does_not_exist(tmp_path, command):
    """As with `ejcache`, a store that does not exist is one sentence and exit status 1, and nothing is created."""
    said = run(*command, "--dir", tmp_path / "none")
    assert (said.status, len(said.err.splitlines())) == (1, 1)
    assert "there is no autotune store at" in said.err
    assert not (tmp_path / "none").exists()
    said = run("tune", "--calls", tmp_path / "misspelt", "--dir", tmp_path / "store")
    assert (said.status, said.out, "misspelt: the directory does not exist" in said.err) == (1, "", True)


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


def test_why(place):
    """For a record: which one counts and why the others do not; for another environment, what differs."""
    store = AutotuneStore(str(place))
    store.publish(record(key(environment={**ENVIRONMENT, "jaxlib": "0.9"}), block=2))
    said = run("why", key().digest, "--dir", place)
    assert said.status == 0
    assert "runs with {'block': 16} (tuned, user)" in said.out
    assert "near: {'block': 2} (similar, user)" in said.out
    assert "environment.jaxlib: 0.10 here, 0.9 there" in said.out
    assert run("why", key().digest, "--dir", place, "--json").json["near"][0]["differences"] == {
        "environment.jaxlib": ["0.10", "0.9"]
    }


def record_call(place):
    """Store a call of which nothing is tuned; return its key."""
    wanted = key(x="float32[8,16]")
    call = {"operation": "matmul", "version": "1", "digest": wanted.digest, "device": "cpu", "how": {}}
    call |= {"environment": dict(wanted.environment), "call": dict(wanted.call), "args": [], "kwargs": {}}
    open_documents(str(place)).create(f"autotune-recorded/matmul/{wanted.digest}.json", encode_call(call))
    return wanted


def test_why_of_a_recorded_call(place):
    """For a recorded call without a record, the most similar record and the differences are shown; exit status 1."""
    wanted = record_call(place)
    said = run("why", wanted.digest, "--dir", place)
    assert said.status == 1
    assert "has no record" in said.out
    assert "call.arguments.x: float32[8,16] here, float32[8,8] there" in said.out


def test_why_of_a_call_that_was_recorded_elsewhere(place, tmp_path):
    """Calls of a job lie in the shared layer, behind that of this host."""
    wanted = record_call(tmp_path / "far")
    store = AutotuneStore(str(place), shared=str(tmp_path / "far"), seeds=())
    assert recorded_key(store, wanted.digest) == wanted


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
    """A pinned configuration counts until it is let go; then what was chosen before the first pin does."""
    digest = key().digest
    assert run("pin", digest, '{"block": 8}', "--dir", place).status == 0
    fields = run("show", digest, "--dir", place, "--json").json
    assert (fields["configuration"], fields["source"]) == ({"block": 8}, "pinned")
    AutotuneStore(str(place)).publish(record(block=64))
    assert run("show", digest, "--dir", place, "--json").json["configuration"] == {"block": 8}
    assert run("unpin", digest, "--dir", place, "--json").json["configuration"] == {"block": 16}
    assert run("unpin", digest, "--dir", place).status == 0
    softmax = key("softmax", device="NVIDIA H200").digest
    assert run("pin", softmax, "--dir", place).status == 0
    assert run("pin", softmax, '{"block": 8}', "--dir", place).status == 0
    assert run("unpin", softmax, "--dir", place, "--json").json["source"] == "imported"
    assert run("pin", digest, "{", "--dir", place).status == 2


def test_pin_of_no_candidate_says_so(place):
    """A configuration that was not measured, or failed, is pinned with a warning; a measured one needs none."""
    assert "not among the candidates" in run("pin", key().digest, '{"block": 7}', "--dir", place).err
    assert run("pin", key().digest, '{"block": 16}', "--dir", place).err == ""
    failing = Candidate({"block": 3}, Status.FAILED, error="out of shared memory")
    AutotuneStore(str(place)).publish(dataclasses.replace(record(), candidates=(failing,)))
    assert "out of shared memory" in run("pin", key().digest, '{"block": 3}', "--dir", place).err


@pytest.mark.parametrize(
    "configuration", ["{}", '{"blok": 8}', '{"block": "8"}', '{"block": 8, "more": 1}', '{"block": null}', "8", "[8]"]
)
def test_pin_refuses_what_the_kernel_cannot_be_called_with(place, configuration):
    """Without the names of the configurations that are known, or with another type, nothing is pinned."""
    said = run("pin", key().digest, configuration, "--dir", place)
    assert (said.status, '{"block":16}' in said.err) == (2, True)
    assert run("show", key().digest, "--dir", place, "--json").json["source"] == "tuned"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_pin_refuses_what_json_has_not(place, number):
    """Python reads these numbers; a record cannot hold them."""
    said = run("pin", key().digest, f'{{"block": {number}}}', "--dir", place)
    assert (said.status, "is not JSON" in said.err) == (2, True)


def test_parts_of_a_configuration_may_come_from_several(tmp_path):
    """Each value needs a type that one known configuration has in its place; a whole number is a float, too."""
    store = AutotuneStore(str(tmp_path))
    known = [{"a": None, "b": [1, 2], "c": 0.5}, {"a": 4, "b": [], "c": 1.0}]
    tried = tuple(dataclasses.replace(candidate(16, 0.001), configuration=each) for each in known)
    store.publish(dataclasses.replace(record(), configuration=known[0], default=known[1], candidates=tried))
    assert run("pin", "matmul", '{"a": 2, "b": [5, 6, 7], "c": 2}', "--dir", tmp_path).status == 0
    assert run("pin", "matmul", '{"a": 2, "b": [0.5], "c": 2}', "--dir", tmp_path).status == 2
    assert run("pin", "matmul", '{"a": true, "b": [], "c": 2}', "--dir", tmp_path).status == 2


def test_entries_and_records_are_apart(tmp_path):
    """Of one name, `ejcache` means the entry and `ejcache tuned` the record; neither removes what the other has."""
    fill(tmp_path, "jit_softmax")
    store = AutotuneStore(str(tmp_path))
    store.publish(record())
    store.publish(record(key("softmax")))
    place = ("--dir", tmp_path)
    assert ejcache("ls", "softmax", *place, "--json").json["name"] == "jit_softmax"
    assert run("show", "softmax", *place, "--json").json["operation"] == "softmax"
    assert ejcache("ls", "matmul", *place).status == 1
    assert ejcache("prune", "--all", "softmax", *place, "--json").json["removed_entries"] == 1
    assert run("rm", "matmul", *place, "--json").json["removed_records"] == 1
    assert [item.record.key.operation for item in AutotuneStore(str(tmp_path)).records()] == ["softmax"]


def test_verify_says_which_records_are_damaged_and_puts_them_away(place):
    """A record whose bytes changed is named, with its problem; --fix moves it into quarantine."""
    assert run("verify", "--dir", place, "--json").json["total_records"] == 3
    path = next(place.glob("autotune/softmax/**/*.json"))
    path.write_bytes(path.read_bytes()[:-20])
    said = run("verify", "--dir", place)
    assert (said.status, "1 problem" in said.out, "autotune/softmax/" in said.out) == (1, True, True)
    assert path.exists()
    assert run("verify", "--fix", "--dir", place, "--json").json["findings"][0]["repaired"] is True
    assert not path.exists()
    assert run("verify", "--dir", place).lines == [f"verified 2 records in {place}: all intact"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["tuned", "tune", "--seconds", "-1", "train.py"],
        ["tuned", "tune", "--seconds", "nan", "train.py"],
        ["tuned", "tune", "--seconds", "5"],
        ["tuned", "tune", ""],
        ["tuned", "tune", "--calls", ".", "train.py"],
        ["tuned", "tune", "--module", "x", "train.py"],
        ["tuned", "prune", "--max-size", "1GB", "--name", "x"],
        ["tuned", "stats", "--reset"],
        ["tuned", "why"],
        ["tuned", "push", "other", "--newer-than", "1d"],
        ["tuned", "pull", "--format", "ejkernel", ".", "--name", "x"],
    ],
)
def test_what_does_not_go_together_is_bad_usage(arguments, monkeypatch, tmp_path):
    """One sentence, and exit status 2."""
    monkeypatch.chdir(tmp_path)
    said = ejcache(*arguments)
    assert (said.status, len(said.err.splitlines()), said.out) == (2, 1, ""), said


def test_nothing_that_ejkernel_has_a_key_for(place, tmp_path):
    """A push of no record into ejkernel's files says so and exits with 1."""
    said = run("export", tmp_path / "files", "--dir", place)
    assert (said.status, "no record is one of ejkernel's" in said.err) == (1, True)


def test_clear(place):
    """Named records are gone and others stay; all are removed only after a yes."""
    assert run("rm", key().digest, "softmax", "--dir", place).status == 0
    assert [f.record.configuration for f in AutotuneStore(str(place)).records()] == [{"block": 32}]
    assert run("rm", "feed", "--dir", place).status == 1
    assert run("rm", "--all", "--dir", place).status == 2
    assert run("rm", "--all", "--dir", place, "--yes", "--json").json["removed_records"] == 1
    assert list(AutotuneStore(str(place)).records()) == []


def test_prune(place):
    """Records go by age or by being of an older environment; a dry run removes nothing; pinned and kept ones stay."""
    kept = ("--older-than", "0d", "--keep", "soft*", "--keep", "mat*", "--json")
    assert run("prune", "--dir", place, *kept).json["removed_documents"] == 0
    assert run("prune", "--dir", place).status == 2
    assert run("prune", "--dir", place, "--older-than", "36500d", "--json").json["removed_documents"] == 0
    store = AutotuneStore(str(place))
    store.publish(record(key(environment={**ENVIRONMENT, "jaxlib": "0.9"}), block=2, created=1.0))
    store.publish(record(key("pinned"), source=Source.PINNED, created=1.0))
    # Of another device, or with other flags, it is no older version of one.
    store.publish(record(key(device="NVIDIA A100"), block=64, created=1.0))
    store.publish(record(key(environment={**ENVIRONMENT, "flags": "--xla_x"}), block=128, created=1.0))
    (place / ".tmp-host-1-x").write_bytes(b"left")
    dry = run("prune", "--dir", place, "--old-versions", "-n", "--json").json
    assert (dry["dry_run"], dry["planned_documents"], dry["removed_documents"], len(dry["planned"])) == (True, 1, 0, 1)
    shown = run("prune", "--dir", place, "--old-versions", "-n").lines
    assert shown[0].split("\t")[:4] == ["key", "operation", "device", "configuration"]
    assert shown[1].split("\t")[3] == '{"block":2}'
    assert shown[2] == f"would remove 1 document from {place}"
    assert run("prune", "--dir", place, "--old-versions").status == 0
    blocks = sorted(f.record.configuration["block"] for f in AutotuneStore(str(place)).records())
    assert blocks == [4, 16, 16, 32, 64, 128]
    assert run("prune", "--dir", place, "--name", "soft*", "--json").json["removed_documents"] == 1
    assert run("prune", "--dir", place, "--name", "mat*", "--older-than", "36500d").status == 0
    blocks = sorted(f.record.configuration["block"] for f in AutotuneStore(str(place)).records())
    assert blocks == [16, 16, 32, 64, 128]


@pytest.fixture(scope="module")
def gcs():
    with GcsServerProcess() as server:
        yield server


@pytest.fixture
def pod(tmp_path, monkeypatch, gcs):
    """A bucket that the settings name, with a tuned record; the same is in this user's directory. (bucket, user)"""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_DIR", f"gs://bucket/{tmp_path.name}/tuned")
    store = AutotuneStore(seeds=())
    assert [layer.name for layer in store.layers][:2] == ["user", "shared"]
    assert store.publish(record(created=1_795_000_000.0))
    return AutotuneStore(store.layers[1].documents, seeds=()), AutotuneStore(store.layers[0].documents, seeds=())


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
    assert run("unpin", key().digest).status == 0
    assert (held(bucket), held(user)) == ((16, Source.TUNED), (16, Source.TUNED))


def test_pull_and_import_write_the_place_that_the_settings_name(pod, tmp_path):
    """With a bucket in the settings, they write the bucket alone, and say so; a dry run writes nothing."""
    AutotuneStore(str(tmp_path / "other"), seeds=()).publish(record(key("pull")))
    dry = run("pull", tmp_path / "other", "--dry-run", "--json").json
    assert (dry["dry_run"], dry["planned_records"], dry["new"]) == (True, 1, 1)
    assert held(pod[0], key("pull")) is None
    said = run("pull", tmp_path / "other", "--json").json
    assert (said["to"], said["new"]) == (f"gs://bucket/{tmp_path.name}/tuned", 1)
    (tmp_path / "op.json").write_text(json.dumps({"cpu|cpu|op@v1|12": {"block": 1}}))
    said = run("import", tmp_path / "op.json", "--json").json
    assert (said["to"], said["new"]) == (f"gs://bucket/{tmp_path.name}/tuned", 1)
    found = [sorted(item.record.key.operation for item in store.records()) for store in pod]
    assert found == [["matmul", "op", "pull"], ["matmul"]]


def test_prune_removes_from_the_bucket_and_from_this_users_directory(pod, tmp_path):
    """Pruned records are removed wherever this user's programs would find them."""
    bucket, user = pod
    dry = run("prune", "--older-than", "0d", "-n", "--json").json
    assert (dry["planned_documents"], dry["url"]) == (2, f"gs://bucket/{tmp_path.name}/tuned")
    assert [item["path"] for item in dry["planned"]] == [key().path]
    assert held(bucket) == held(user) == (16, Source.TUNED)
    assert run("prune", "--older-than", "0d", "--json").json["removed_documents"] == 2
    assert held(bucket) is held(user) is None


def test_pull_keeps_the_stronger(place, tmp_path):
    """Copied records are counted as new, changed and the same, and never replace a stronger choice."""
    other = AutotuneStore(str(tmp_path / "other"))
    other.publish(record(block=99, source=Source.IMPORTED, candidates=()))
    other.publish(record(key("new")))
    fields = run("pull", tmp_path / "other", "--dir", place, "--json").json
    assert (fields["new"], fields["changed"] + fields["same"], fields["failures"]) == (1, 1, 0)
    assert run("show", key().digest, "--dir", place, "--json").json["configuration"] == {"block": 16}
    assert run("pull", tmp_path / "other", "--dir", place, "--json").json["same"] == 2


def test_ejkernels_files_in_and_out(tmp_path):
    """Files of ejkernel's become records, and records become files that are the same."""
    files, place, out = tmp_path / "files", tmp_path / "place", tmp_path / "out"
    files.mkdir()
    entries = {"cpu|cpu|matmul@v1|76c3833ef674ac9b": {"block_m": 128, "platform": "auto"}}
    (files / "mat-mul.json").write_text(json.dumps(entries))
    assert run("import", files, "--dir", place, "--json").json["new"] == 1
    assert run("import", files / "mat-mul.json", "--dir", place, "--json").json["same"] == 1
    assert run("ls", "--dir", place, "--json").json["records"][0]["source"] == "imported"
    fields = run("export", out, "--dir", place, "--json").json
    assert (fields["files"], fields["left_out"]) == ({"mat-mul.json": 1}, 0)
    assert json.loads((out / "mat-mul.json").read_text()) == entries


def test_an_import_from_a_bucket(pod, tmp_path):
    """ejkernel's files are also taken from a bucket: all of a prefix, or one by its name."""
    documents = open_documents(f"gs://bucket/{tmp_path.name}/files")
    for name in ("one", "other"):
        documents.create(f"{name}.json", json.dumps({f"cpu|cpu|{name}@v1|12": {"a": 1}}).encode())
    documents.create("deeper/third.json", json.dumps({"cpu|cpu|third@v1|12": {"a": 1}}).encode())
    assert run("import", f"{documents.url}/one.json", "--dir", tmp_path / "place", "--json").json["new"] == 1
    said = run("import", documents.url, "--dir", tmp_path / "place", "--json").json
    assert (said["new"], said["same"]) == (1, 1)


def test_import_says_what_it_left_out(tmp_path):
    """Files that are no JSON, and entries under other keys, are named, and the rest is taken."""
    (tmp_path / "bad.json").write_text("[")
    (tmp_path / "odd.json").write_text(json.dumps({"_reserved": 1, "cpu|cpu|op@v1|12": {"a": 1}}))
    said = run("import", tmp_path, "--dir", tmp_path / "place", "--json")
    assert (said.status, said.json["new"], len(said.json["problems"])) == (1, 1, 2)


def test_a_directory_of_both_kinds(place, tmp_path):
    """From a store beside ejkernel's files, `pull` takes the records and `import` the files' entries."""
    (place / "op.json").write_text(json.dumps({"cpu|cpu|op@v1|12": {"a": 1}}))
    assert run("import", place, "--dir", tmp_path / "one", "--json").json["new"] == 1
    assert run("pull", place, "--dir", tmp_path / "other", "--json").json["new"] == 3
    assert run("pull", place, "--dir", tmp_path / "some", "--name", "soft*", "--json").json["new"] == 1
    odd = tmp_path / "operation.txt"
    odd.write_text(json.dumps({"cpu|cpu|op@v1|12": {"a": 1}}))
    assert run("import", odd, "--dir", tmp_path / "odd", "--json").json["new"] == 1


@pytest.mark.parametrize("command", ["pull", "import"])
def test_sources_that_do_not_exist_are_not_found(command, place, tmp_path):
    """A directory or file that does not exist is exit status 1 and one sentence; an empty directory is fine."""
    for source in ("none", "none.json"):
        said = run(command, tmp_path / source, "--dir", place)
        assert (said.status, len(said.err.splitlines())) == (1, 1)
        assert source in said.err
    (tmp_path / "empty").mkdir()
    assert run(command, tmp_path / "empty", "--dir", place).status == 0


def test_a_store_is_not_copied_to_itself(place):
    """The same store as source and target is bad usage."""
    assert run("push", place, "--dir", place).status == 2
    assert run("pull", place, "--dir", place).status == 2


def test_sources_that_cannot_be_read_are_failures(place, monkeypatch):
    """A store that does not answer does not count as empty."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
    said = run("pull", "gs://bucket/tuned", "--dir", place)
    assert said.status == 1
    assert "gs://bucket/tuned" in said.err


def test_export_to_where_ejkernels_files_cannot_be_written(tmp_path, monkeypatch):
    """A bucket, which ejkernel does not read, is bad usage; a place that cannot be written is a failure."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
    entries = {"cpu|cpu|matmul@v1|76c3833ef674ac9b": {"block_m": 128}}
    (tmp_path / "mat-mul.json").write_text(json.dumps(entries))
    place = tmp_path / "place"
    assert run("import", tmp_path / "mat-mul.json", "--dir", place).status == 0
    bucket = run("export", "gs://bucket/files", "--dir", place)
    assert (bucket.status, "gs://bucket/files" in bucket.err) == (2, True)
    (tmp_path / "file").write_text("in the way")
    said = run("export", tmp_path / "file" / "out", "--dir", place, "--json")
    assert (said.status, said.json["files"], said.json["failures"]) == (1, {}, 1)


def test_push_makes_seeds(place, tmp_path):
    """A directory that records were pushed to serves as seeds; a dry run writes nothing."""
    seeds = tmp_path / "seeds"
    assert run("push", seeds, "--dir", place, "--name", "matmul", "-n", "--json").json["planned_records"] == 2
    assert not seeds.exists()
    assert run("push", seeds, "--dir", place, "--name", "matmul", "--json").json["new"] == 2
    assert AutotuneStore(str(tmp_path / "user"), seeds=[str(seeds)]).find(key()).source is Source.IMPORTED


PROGRAM = """
import numpy as np
from ejcache.autotune import Tuner, autotuned, record

@autotuned(configs=[{"n": 1}, {"n": 2}], name="recorded", tuner=Tuner(rounds=8, sample_seconds=0.0005))
def op(x, scale=1.0, *, n):
    return x * n * scale

def local():
    return autotuned(configs=[{"n": 1}], name="local", heuristic={"n": 1})(lambda x, *, n: x)

if __name__ == "__main__":
    x = np.ones(4, np.float32)
    op(x), op(x), op(np.ones(8, np.float32), 2.0), local()(x)
"""


def test_run_tunes_what_was_recorded(run_forked, tmp_path, monkeypatch):
    """Each kind of call is recorded once and without data, tuned later in another process, and passed over after."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    recorded, place = tmp_path / "recorded", tmp_path / "place"
    run_forked(
        program,
        env={
            "EJCACHE_AUTOTUNE_RECORD": "1",
            "EJKERNEL_AUTOTUNE_POLICY": "heuristics",
            "EJKERNEL_PERSISTENT_CACHE_DIR": str(recorded),
        },
    )
    documents = list(recorded.rglob("*.json"))
    assert len(documents) == 2
    assert all('"data"' not in document.read_text() for document in documents)
    try:
        limited, more = (
            run("tune", "--calls", recorded, "--module", program, "--dir", place, "--limit", "1", "--json").json
            for _ in range(2)
        )
        fields = run("tune", "--calls", recorded, "--module", program, "--dir", place, "--json").json
        again = run("tune", "--calls", recorded, "--module", program, "--dir", place)
    finally:
        sys.modules.pop("__ejcache_main__", None)
    assert (limited["tuned"], limited["already"]) == (1, 0)
    assert more["tuned"] == 1  # what was measured before does not count for the limit
    assert (fields["tuned"], fields["already"], fields["failures"]) == (0, 2, 0)
    assert "2 already" in again.out
    assert len(list(AutotuneStore(str(place)).records(operation="recorded"))) == 2


RUN = ["tuned", "tune", "--json", "--module"]

UNNAMED = """
import numpy as np
from ejcache.autotune import Tuner, autotuned

class Mode: ...

@autotuned(configs=[{"n": 1}, {"n": 2}], tuner=Tuner(rounds=8, sample_seconds=0.0005), gradient=True)
def op(x, mode=Mode, *, n):
    return x * n

if __name__ == "__main__":
    from ejcache.autotune import forward_only
    with forward_only():
        print(op.choose(np.ones(4, np.float32)).source)
"""


def test_operations_of_the_program_itself_are_tuned_under_their_own_name(run_forked, tmp_path):
    """An unnamed operation of a program that was recorded is filed where that program looks for it, in its mode."""
    program, place = tmp_path / "unnamed.py", tmp_path / "place"
    program.write_text(UNNAMED)
    env = {"EJKERNEL_AUTOTUNE_POLICY": "heuristics", "EJKERNEL_PERSISTENT_CACHE_DIR": str(place)}
    run_forked(program, env=env | {"EJKERNEL_OPS_RECORD": "1"})
    done = run_forked(f"from ejcache.cli.main import main; main({[*RUN, str(program)]})", env=env)
    assert json.loads(done.stdout)["tuned_calls"][0]["operation"] == "__main__.op"
    assert run_forked(program, env=env).stdout.strip() == "tuned"


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
    said = run("tune", "--calls", recorded, "--dir", tmp_path / "place", "--json")
    assert (said.status, said.json["failures"]) == (1, 1)
    assert "is now" in said.json["tuned_calls"][0]["problem"]


def test_unsure_configurations_are_marked_and_measured_again(monkeypatch, tmp_path):
    """`ls` marks an unsure source, `show` says why, `tune` passes it over, and `tune --unsure` measures it again."""
    recorded, place = recorded_op(monkeypatch, tmp_path), tmp_path / "place"
    assert run("tune", "--calls", recorded, "--dir", place, "--json").json["tuned"] == 1
    store = AutotuneStore(str(place))
    (found,) = store.records()
    why = "the budget of 60 s ended after 2 rounds"
    unsure = dataclasses.replace(found.record, measurement={**found.record.measurement, "unsure": why})
    store.delete(unsure.key)  # a sure record would stay
    store.publish(unsure)
    assert "tuned?" in run("ls", "--dir", place).out
    assert why in " ".join(run("show", found.record.key.digest, "--dir", place).out.split())
    assert run("tune", "--calls", recorded, "--dir", place, "--json").json["already"] == 1
    assert run("tune", "--calls", recorded, "--dir", place, "--unsure", "--json").json["tuned"] == 1


def test_run_says_what_could_not_be_stored(monkeypatch, tmp_path):
    """A measurement that could not be stored anywhere counts as failed."""
    recorded = recorded_op(monkeypatch, tmp_path)
    (tmp_path / "file").write_text("in the way")
    said = run("tune", "--calls", recorded, "--dir", tmp_path / "file" / "place", "--json")
    assert (said.status, said.json["tuned"], said.json["failures"]) == (1, 0, 1)
    assert "could not be stored" in said.json["tuned_calls"][0]["problem"]


def test_run_says_what_could_not_be_tuned(tmp_path):
    """A damaged recording, and one whose program is gone, are named and the exit status is 1."""
    calls = tmp_path / "autotune-recorded" / "op"
    calls.mkdir(parents=True)
    (calls / "a.json").write_text("{")
    body = {"ejcache": "autotune call", "schema": 1, "operation": "op", "args": [], "kwargs": {}}
    (calls / "b.json").write_text(json.dumps({**body, "how": {"kind": "autotuned", "object": "no_such_module:op"}}))
    (calls / "c.json").write_text(json.dumps({**body, "how": {"kind": "autotuned", "object": "json:loads"}}))
    said = run("tune", "--calls", tmp_path, "--dir", tmp_path / "place", "--json")
    assert (said.status, said.json["failures"]) == (1, 3)
    problems = " ".join(call["problem"] for call in said.json["tuned_calls"])
    assert "not JSON" in problems
    assert "--module no_such_module" in problems
    assert "not autotuned" in problems
    assert run("tune", "--calls", tmp_path / "none", "--dir", tmp_path / "place").status == 1


def test_a_gain_larger_than_any_float_is_no_gain(tmp_path):
    """A record of others may hold any number; commands show it as unknown."""
    store = AutotuneStore(str(tmp_path / "place"))
    store.publish(dataclasses.replace(record(), measurement={"gain": 10**400}))
    for command in (["ls"], ["show", "matmul"]):
        said = run(*command, "--dir", tmp_path / "place")
        assert (said.status, said.err) == (0, "")
