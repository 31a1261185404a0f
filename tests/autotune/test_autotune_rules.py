"""Rules that ship: made of records, held to what was held out, and silent where they know nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from autotune_helpers import QUICK, key, timing
from cli_helpers import ejcache

from ejcache.autotune import AutotuneStore, Candidate, Record, Source, TuningPolicy, autotuned
from ejcache.autotune.making_rules import made_rules, problems
from ejcache.autotune.records.record import CandidateOrigin
from ejcache.autotune.records.rules import Condition, DeviceRules, Rule, Rules, decode_rules, encode_rules, features
from ejcache.autotune.records.store import package_seeds
from ejcache.errors import EntryCorruptError, EntryForeignError, EntryVersionError, UsageError
from ejcache.maintenance.archive import ArchiveWriter

DATA = Path(__file__).parents[1] / "data" / "autotune"


def measured(of, times, **parts):
    """A record of a call with the seconds of some configurations."""
    candidates = tuple(Candidate({"block": block}, seconds=timing(seconds)) for block, seconds in times.items())
    best = min(candidates, key=lambda candidate: candidate.seconds.p50)
    return Record(of, best.configuration, default={"block": 64}, candidates=candidates, created=1.0, **parts)


def real_records():
    """Forty calls of an operation that was measured on a CPU with nine configurations; see `measure_sums.py`."""
    data = json.loads((DATA / "sums.json").read_text())
    return [
        measured(
            key("sums", x=f"float32[{rows},16]", y=f"float32[{columns},16]"),
            dict(zip(data["blocks"], seconds, strict=True)),
        )
        for rows, columns, *seconds in data["shapes"]
    ]


def answered(device):
    """The slowdowns of the calls that were held out and for which the rules answer alone."""
    return [rule.worst for rule in device.rules for _ in range(rule.held_out) if rule.answers_alone]


def test_rules_of_a_real_operation():
    """Of forty shapes half are held out: nearly all get what is within 1.1 of the best, and most get it unmeasured."""
    records = real_records()
    useful = {
        item.configuration["block"]
        for record in records
        for item in record.candidates
        if item.seconds.p50 <= 1.05 * record.candidate(record.configuration).seconds.p50
    }
    assert len(useful) >= 8
    rules = made_rules(records, "sums")
    (device,) = rules.devices
    assert len(device.learned) == len(device.held_out) == 20
    assert len(rules.portfolio) <= 10
    assert sum(slowdown <= 1.1 for slowdown in device.held_out.values()) >= 18
    assert len(answered(device)) >= 16
    for one in useful:
        slow = [
            record.candidate({"block": one}).seconds.p50 / record.candidate(record.configuration).seconds.p50
            for record in records
        ]
        assert sum(value <= 1.1 for value in slow) < 30, "one configuration for all would do"


@pytest.mark.parametrize("honest", [False, True])
def test_rules_at_random_fail_the_check(honest):
    """Whether they keep the evidence of the true ones or say what they are worth."""
    records, chance = real_records(), random.Random(0)
    rules = made_rules(records, "sums")
    (device,) = rules.devices
    wrong = [dataclasses.replace(rule, use=chance.randrange(len(rules.portfolio))) for rule in device.rules]
    wrong = dataclasses.replace(rules, devices=(dataclasses.replace(device, rules=tuple(wrong)),))
    if honest:
        wrong = judged_again(wrong, records)
    said = problems(wrong, records)
    assert any("answer alone" in text if honest else "is said to be" in text for text in said), said


def judged_again(rules, records):
    """The rules with their true evidence, which the check itself says."""
    times = {record.key.call_digest: record for record in records}
    (device,) = rules.devices
    slowdowns = {}
    said = [[] for _ in device.rules]
    for digest in device.held_out:
        record = times[digest]
        rule = device.rule(features(record.key.call))
        found = record.candidate(rules.portfolio[rule.use]).seconds.p50
        slowdowns[digest] = round(found / min(item.seconds.p50 for item in record.candidates), 4)
        said[device.rules.index(rule)].append(slowdowns[digest])
    judged = [
        dataclasses.replace(rule, held_out=len(values), worst=max(values, default=None))
        for rule, values in zip(device.rules, said, strict=True)
    ]
    return dataclasses.replace(
        rules, devices=(dataclasses.replace(device, rules=tuple(judged), held_out=slowdowns),)
    )  # fmt: skip


def written_rules():
    """What `v1-rules.json` holds."""
    rules = (
        Rule((Condition("x.shape[0]", 64), Condition("x.type", "bfloat16")), 1, 3, 1.0421),
        Rule((Condition("scale", 0.5),), 0, 1, 1.25),
        Rule((), 1),
    )
    device = DeviceRules(
        device="NVIDIA H200",
        environment={"platform": "cuda"},
        sizes={"scale": (0.1, 2), "x.shape[0]": (8, 4096)},
        types={"x.type": ("bfloat16", "float32")},
        rules=rules,
        learned=("0123456789abcdef0123", "23456789abcdef012345"),
        held_out={"456789abcdef01234567": 1.0421, "6789abcdef0123456789": None},
    )
    return Rules("matmul", "2", ({"block": 64}, {"block": 128, "stages": 3}), (device,))


def test_golden_rules_of_version_1():
    """Rules are written as the first version wrote them, and read as they were meant."""
    data = (DATA / "v1-rules.json").read_bytes()
    rules = decode_rules(data, path=written_rules().path)
    assert rules == written_rules()
    assert encode_rules(rules) == data


def test_every_flipped_bit_of_rules_is_noticed():
    """Rules with one changed byte are damaged, or mean what they meant."""
    rules = written_rules()
    data = encode_rules(rules)
    for position in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[position] ^= 0x01
        try:
            read = decode_rules(bytes(damaged), path=rules.path)
        except (EntryCorruptError, EntryForeignError, EntryVersionError):
            continue
        assert read == rules, position


def test_rules_that_a_person_wrote():
    """Without a checksum; conditions that are none, and a last rule with conditions, are refused."""
    body = json.loads((DATA / "v1-rules.json").read_text())
    del body["checksum"]
    device = body["devices"][0]
    device["rules"] = [{"if": ["x.shape[0] <= 1e3", "x.type is float32"], "use": 0}, {"if": [], "use": 1}]
    rules = decode_rules(json.dumps(body).encode())
    assert rules.devices[0].rules[0].conditions == (Condition("x.shape[0]", 1000), Condition("x.type", "float32"))
    for conditions, use in ((["x.shape[0] > 3"], 0), (["x.type is int8"], 0), ([], 99)):
        device["rules"] = [{"if": conditions, "use": use}]
        with pytest.raises(EntryCorruptError):
            decode_rules(json.dumps(body).encode())


def test_features_of_a_call():
    """Sizes and types by names that people can read."""
    arguments = {"x": "bfloat16[8,128]", "n": 3, "causal": True, "names": ["a", 2]}
    found = features({"arguments": arguments, "mode": "forward"})
    assert found.sizes == {"x.shape[0]": 8, "x.shape[1]": 128, "x.size": 1024, "n": 3, "names[1]": 2}
    assert found.types == {"x.type": "bfloat16", "causal": "true", "names[0]": "a", "call.mode": "forward"}


def test_too_few_records_make_no_rules():
    """Two calls to learn from and two that are held out are the least."""
    records = [measured(key(x=f"float32[{size}]"), {1: 1.0, 2: 2.0}) for size in (8, 16, 32)]
    with pytest.raises(UsageError, match="at least 4"):
        made_rules(records, "matmul")


BLOCKS = [4, 8, 16, 32, 64, 128]


def operation(store, tried, **options):
    """An operation whose best block, by the records below, is an eighth of the length."""

    @autotuned(configs=[{"block": block} for block in (64, *BLOCKS[:-2], 128)], name="halves", store=store, **options)
    def halves(x, *, block):
        tried.append(block)
        return x * 2 + 0 * block

    return halves


def shipped(place, halves):
    """A package's records of many lengths, and the rules that were made of them."""
    store = AutotuneStore(str(place), seeds=())
    for number in range(24):
        length = round(32 * 32 ** (number / 23))
        times = {block: 1e-3 * (1 + 0.1 * math.log2(8 * block / length) ** 2) for block in BLOCKS}
        store.publish(measured(halves.key(jax.ShapeDtypeStruct((length,), jnp.float32)), times))
    store.close()
    return ejcache("tune", "--rules", "halves", "--dir", place)


@pytest.fixture
def place(tmp_path):
    """A directory with the records and the rules of `halves`."""
    said = shipped(tmp_path / "shipped", operation(AutotuneStore(str(tmp_path / "none"), seeds=()), []))
    assert said.status == 0, said.err
    return tmp_path / "shipped"


def test_rules_answer_where_nothing_may_be_measured(tmp_path, place):
    """For a length that nobody measured; outside of the range they abstain, and say so."""
    tried = []
    store = AutotuneStore(str(tmp_path / "user"), seeds=[str(place)])
    halves = operation(store, tried, policy=TuningPolicy("heuristics"))
    for length in (600, 270, 100):
        choice = halves.choose(jnp.ones(length))
        assert choice.source is Source.RULES
        assert abs(math.log2(8 * choice.configuration["block"] / length)) < 1
    for outside in (jnp.ones(4096), jnp.ones(600, jnp.int32), jnp.ones((2, 300))):
        choice = halves.choose(outside)
        assert (choice.source, choice.configuration) == (Source.HEURISTIC, {"block": 64})
    said = [event.detail for event in halves.chooser().events if event.name == "abstained"]
    assert said == [
        "x.shape[0] is 4096, and not from 32 to 1024",
        "x.type is int32, and not float32",
        "it has other arguments: x.shape[1]",
    ]
    store.close()


def test_rules_of_another_device_are_only_starts(tmp_path, place, caplog):
    """They never answer, and one warning says why."""
    store = AutotuneStore(str(place), seeds=())
    layer = store.layers[0]
    (rules,) = layer.each_rules()
    other = dataclasses.replace(rules.devices[0], device="another")
    assert layer.publish_rules(dataclasses.replace(rules, devices=(other,)))
    halves = operation(AutotuneStore(str(tmp_path / "user"), seeds=[str(place)]), [], policy=TuningPolicy("heuristics"))
    assert halves.choose(jnp.ones(600)).source is Source.HEURISTIC
    assert "the rules of halves say nothing of" in caplog.text
    store.close()


def test_rules_propose_and_a_race_decides(tmp_path, place):
    """Where measuring is allowed, only the portfolio and the default are tried; a person who tunes tries all."""
    tried = []
    store = AutotuneStore(str(tmp_path / "user"), seeds=[str(place)], refresh_seconds=0.0)
    (rules,) = store.layers[1].each_rules()
    halves = operation(store, tried, tuner=dataclasses.replace(QUICK, rounds=4))
    halves(jnp.ones(600))
    proposed = {configuration["block"] for configuration in rules.portfolio}
    assert set(tried) == proposed | {64}
    record = store.find(halves.key(jnp.ones(600))).record
    assert {item.configuration["block"] for item in record.candidates} == proposed | {64}
    origins = {item.origin for item in record.candidates}
    assert origins == {CandidateOrigin.DEFAULT, CandidateOrigin.RULES}
    tried.clear()
    operation(AutotuneStore(str(tmp_path / "user"), seeds=[str(place)]), tried).choose(jnp.ones(600))
    assert tried == []
    full = halves.tune(jnp.ones(600))
    assert len(full.candidates) == len(BLOCKS)
    assert record.measurement["rules"] == len(proposed)
    store.close()


def test_the_command_makes_and_checks_rules(tmp_path, place):
    """The check fails when a person has changed a rule, or a record is gone; a push takes the rules along."""
    checked = ejcache("tune", "--rules", "halves", "--check", "--dir", place)
    assert checked.status == 0, checked.err
    assert "x.shape[0] <= " in checked.out
    assert "the records bear out the rules, with 12 calls held out" in checked.out
    assert ejcache("push", "--tuned", tmp_path / "package", "--name", "halves", "--dir", place).status == 0
    assert ejcache("tune", "--rules", "halves", "--check", "--dir", tmp_path / "package").status == 0
    assert ejcache("pull", "--tuned", tmp_path / "package", "--dir", tmp_path / "other").status == 0
    (path,) = (tmp_path / "other").glob("autotune/halves/rules-*.json")
    body = json.loads(path.read_text())
    del body["checksum"]
    body["devices"][0]["rules"][0]["use"] = 1 - bool(body["devices"][0]["rules"][0]["use"])
    path.write_text(json.dumps(body))
    failed = ejcache("tune", "--rules", "halves", "--check", "--dir", tmp_path / "other", "--json")
    assert failed.status == 1
    assert failed.json["operation"] == "halves"
    assert any("rule 1 is said to be" in text for text in failed.json["problems"])
    next((tmp_path / "package").glob("autotune/halves/*/*.json")).unlink()
    gone = ejcache("tune", "--rules", "halves", "--check", "--dir", tmp_path / "package")
    assert gone.status == 1
    assert "the records of 1 of 24 calls are not there" in gone.err


def test_a_file_takes_the_rules_along(tmp_path, place):
    """They come out as they went in, with the records; a change of them alone is news, and damage is said."""
    (path,) = place.glob("autotune/halves/rules-*.json")
    file = tmp_path / "all.tar"
    said = ejcache("push", "--tuned", file, "--dir", place, "--json").json
    assert (said["total_records"], said["total_rules"], said["written"]) == (24, 1, True)
    pulled = ejcache("pull", "--tuned", file, "--dir", tmp_path / "other")
    assert "copied 24 tuned records and the rules of 1 operation" in pulled.out
    assert (tmp_path / "other" / path.relative_to(place)).read_bytes() == path.read_bytes()
    other = ejcache("pull", "--tuned", file, "--dir", tmp_path / "none", "--name", "x*", "--json")
    assert other.json["total_rules"] == 0
    assert ejcache("push", "--tuned", file, "--dir", place, "--if-changed").status == 3
    store = AutotuneStore(str(place), seeds=(), read_only=False)
    (rules,) = store.layers[0].each_rules()
    assert store.layers[0].publish_rules(dataclasses.replace(rules, portfolio=(*rules.portfolio, {"block": 4})))
    store.close()
    assert ejcache("push", "--tuned", file, "--dir", place, "--if-changed").status == 0
    with ArchiveWriter(tmp_path / "bad.tar") as archive:
        archive.add(str(path.relative_to(place)), b"{}")
        archive.finish()
    bad = ejcache("pull", "--tuned", tmp_path / "bad.tar", "--dir", tmp_path / "bad")
    assert (bad.status, "of another kind than" in bad.err) == (1, True)


def test_why_says_what_the_rules_say(tmp_path, place):
    """Beside the record of a call; for a call that they do not know, why they abstain."""
    store = AutotuneStore(str(place), seeds=())
    halves = operation(store, [])
    inside = halves.key(jax.ShapeDtypeStruct((1024,), jnp.float32))
    outside = halves.key(jax.ShapeDtypeStruct((4096,), jnp.float32))
    store.publish(measured(outside, {64: 1.0, 128: 2.0}))
    store.close()
    said = ejcache("why", "--tuned", inside.digest, "--dir", place)
    assert (said.status, "  the rules say {" in said.out) == (0, True)
    said = ejcache("why", "--tuned", outside.digest, "--dir", place, "--json").json
    assert said["rules"]["abstains"] == "x.shape[0] is 4096, and not from 32 to 1024"
    assert said["rules"]["configuration"] is None


def test_a_choice_is_shown_in_a_line(tmp_path, place):
    """With its configuration and where it is from, and not with its whole record."""
    halves = operation(AutotuneStore(str(place), seeds=()), [])
    choice = halves.choose(jax.ShapeDtypeStruct((1024,), jnp.float32))
    assert repr(choice) == f"<Choice halves:{choice.key.digest} {choice.configuration} (tuned, {choice.layer})>"


@pytest.mark.parametrize("arguments", [["--check"], ["--rules", "a", "--name", "x"], ["--rules", "a", "prog"]])
def test_rules_measure_nothing(tmp_path, arguments):
    """So they go with no option of a measurement."""
    (tmp_path / "store").mkdir()
    assert ejcache("tune", *arguments, "--dir", tmp_path / "store").status == 2


def test_damaged_rules_are_no_rules(tmp_path, place):
    """They are counted and set aside, and the call gets its own guess."""
    (path,) = place.glob("autotune/halves/rules-*.json")
    path.write_bytes(path.read_bytes().replace(b'"use": 0', b'"use": 1', 1))
    store = AutotuneStore(str(place), seeds=(), read_only=False)
    halves = operation(store, [], policy=TuningPolicy("heuristics"))
    assert halves.choose(jnp.ones(601)).source is Source.HEURISTIC
    assert store.stats()["corrupt"] == 1
    assert not path.exists()
    store.close()


def test_a_package_ships_rules(tmp_path, place, monkeypatch):
    """The directory that an entry point names has them beside the records."""
    site = tmp_path / "site"
    (site / "kernels").mkdir(parents=True)
    (site / "kernels" / "__init__.py").write_text("")
    place.rename(site / "kernels" / "tuned")
    about = site / "kernels-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[ejcache.seeds]\nkernels = kernels.tuned\n")
    monkeypatch.syspath_prepend(site)
    package_seeds.cache_clear()
    try:
        halves = operation(AutotuneStore(str(tmp_path / "user")), [], policy=TuningPolicy("heuristics"))
        assert halves.choose(jnp.ones(600)).source is Source.RULES
    finally:
        package_seeds.cache_clear()
