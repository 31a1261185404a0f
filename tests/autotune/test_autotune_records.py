"""Autotune records: the document, its golden files, and what becomes of damaged ones."""

from __future__ import annotations

import dataclasses
import enum
import json
from argparse import Namespace

import pytest
from archives import flipped
from autotune_helpers import candidate, key, record
from helpers import ROOT
from hypothesis import given
from hypothesis import strategies as st

from ejcache.autotune.call_documents import decode_call, encode_call
from ejcache.autotune.records.json_values import ConfigurationError, from_json, to_json
from ejcache.autotune.records.record import WITH_PROFILE, Source, Status, decode_record, encode_record, merged
from ejcache.autotune.records.record_key import RecordKey, differences, slug
from ejcache.errors import EntryCorruptError, EntryForeignError, EntryVersionError

GOLDEN = ROOT / "tests" / "data" / "autotune"


def test_record_round_trip():
    """What is encoded is decoded, and the document names everything a person asks for."""
    written = record(candidates=(candidate(16, 0.001), candidate(8, 0.002), candidate(64, error="out of memory")))
    data = encode_record(written)
    assert decode_record(data, path=written.key.path) == written
    body = json.loads(data)
    assert body["schema"] == 1
    assert body["key"] == "matmul@1 | cpu | x=float32[8,8] mode=forward | jaxlib=0.10 platform=cpu"
    assert [c["configuration"]["block"] for c in body["candidates"]] == [16, 8, 64]
    assert body["candidates"][0]["seconds"] == {"p20": 0.0005, "p50": 0.001, "p80": 0.002, "samples": 15}
    assert body["candidates"][2] == {
        "configuration": {"block": 64}, "status": "failed", "error": "out of memory", "measured": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("v1-*ed.json")), ids=lambda path: path.stem)
def test_golden_records_of_version_1(path):
    """Records written by the first version are read as they were meant."""
    data = path.read_bytes()
    read = decode_record(data)
    assert encode_record(read) == data
    assert read.key.digest == json.loads(data)["digest"]
    expected = {
        "v1-tuned": (Source.TUNED, {"block": 16}, 3),
        "v1-pinned": (Source.PINNED, {"block": 8}, 2),
        "v1-imported": (Source.IMPORTED, {"block_m": 128, "platform": "auto"}, 0),
    }
    assert (read.source, read.configuration, len(read.candidates)) == expected[path.stem]


def test_every_flipped_bit_is_noticed():
    """A record with one changed byte is corrupt, or means what it meant."""
    written = record()
    data = encode_record(written)
    for position in range(0, len(data), 3):
        try:
            read = decode_record(flipped(data, 8 * position), path=written.key.path)
        except (EntryCorruptError, EntryForeignError, EntryVersionError):
            continue
        assert read == written, position


def test_record_of_another_key_is_foreign():
    """A record under another record's path is not taken for it."""
    with pytest.raises(EntryForeignError):
        decode_record(encode_record(record()), path=key("softmax").path)


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (decode_record, encode_record(record())),
        (decode_call, encode_call({"operation": "f", "how": {}, "args": [], "kwargs": {}})),
    ],
    ids=["record", "call"],
)
def test_every_document_is_judged_alike(decode, data):
    """A later schema is left to others; another kind, a schema that is none, and what is no JSON are damage."""
    body = json.loads(data)
    decode(data)
    with pytest.raises(EntryVersionError, match="schema 2, and this version reads 1"):
        decode(json.dumps(body | {"schema": 2}).encode())
    for damaged in (b"{", b"[]", json.dumps(body | {"ejcache": "tea"}), json.dumps(body | {"schema": "1"})):
        with pytest.raises(EntryCorruptError, match=body["ejcache"]):
            decode(damaged.encode() if isinstance(damaged, str) else damaged)


def test_unknown_fields_and_hand_written_records_are_taken():
    """A document without a checksum was written by hand; fields of later versions are ignored."""
    body = json.loads(encode_record(record()))
    del body["checksum"]
    body["later"] = {"any": "thing"}
    body["configuration"] = {"block": 32}
    assert decode_record(json.dumps(body).encode()).configuration == {"block": 32}


TIMED = {"configuration": {"block": 1}, "seconds": {"p20": 1e-3, "p50": 1e-3, "p80": 1e-3, "samples": "HERE"}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("candidates", json.dumps([TIMED]).replace('"HERE"', "1e999")),
        ("candidates", json.dumps([TIMED]).replace('"HERE"', "3").replace('"p50": 0.001', '"p50": NaN')),
        ("candidates", json.dumps([TIMED]).replace('"HERE"', "3").replace('"p50": 0.001', '"p50": "nan"')),
        ("candidates", json.dumps([TIMED]).replace('"HERE"', '3}, "compile_seconds": {"no": 1')),
        ("candidates", '[{"configuration": 1, "seconds": [1]}]'),
        ("configuration", "Infinity"),
        ("default", "-1e999"),
        ("measurement", '{"gain": NaN}'),
        ("created", "1" + "0" * 400),
    ],
)
def test_numbers_that_are_none_are_corrupt(field, value):
    """A hand-written record with a number that is infinite, too large or none is corrupt, and no other exception."""
    body = json.loads(encode_record(record()))
    del body["checksum"]
    text = json.dumps(body | {field: "HERE IT GOES"}).replace('"HERE IT GOES"', value)
    with pytest.raises(EntryCorruptError):
        decode_record(text.encode())


@pytest.mark.parametrize("source", [Source.OVERRIDE, Source.OVERLAY, Source.SIMILAR, Source.HEURISTIC])
def test_guesses_and_overrides_are_never_stored(source):
    """Only what was measured, imported or pinned has a document."""
    with pytest.raises(ValueError, match="never stored"):
        encode_record(record(source=source))
    body = json.loads(encode_record(record()))
    del body["checksum"]
    with pytest.raises(EntryCorruptError):
        decode_record(json.dumps(body | {"source": source.value}).encode())


def test_merging_keeps_the_stronger_choice_and_all_evidence():
    """A weaker record does not replace a stronger one; of equals the newer one stands; candidates are united."""
    old = record(block=16, created=1.0, candidates=(candidate(16, 0.001), candidate(8, 0.002)))
    new = record(
        block=4, created=2.0, candidates=(candidate(4, 0.0005, measured=2.0), candidate(8, 0.003, measured=2.0))
    )
    both = merged(old, new)
    assert both.configuration == {"block": 4}
    assert [(c.configuration["block"], c.seconds.p50) for c in both.candidates] == [
        (4, 0.0005),
        (16, 0.001),
        (8, 0.003),
    ]
    assert merged(new, old).configuration == {"block": 4}
    kept = merged(dataclasses.replace(old, source=Source.PINNED), new)
    assert (kept.configuration, kept.source, len(kept.candidates)) == ({"block": 16}, Source.PINNED, 3)
    profiled = dataclasses.replace(old, measurement={**old.measurement, WITH_PROFILE: True})
    assert merged(profiled, new).configuration == {"block": 16}
    assert merged(old, dataclasses.replace(new, source=Source.IMPORTED)).configuration == {"block": 16}


def test_sources_rank_as_the_chain_says():
    """With what this process remembers, and the error, they are nine."""
    assert [s.value for s in sorted(Source, key=lambda s: s.rank)] == [
        "override", "overlay", "pinned", "tuned", "imported", "similar", "heuristic",
    ]  # fmt: skip


def test_keys_tell_apart_what_differs():
    """Each part of a key changes its digest; the device and the environment change only the end of it."""
    base = key()
    others = [
        key("softmax"), key(version="2"), key(x="float32[8,16]"), key(x="bfloat16[8,8]"),
    ]  # fmt: skip
    assert len({k.call_digest for k in [base, *others]}) == 5
    device = key(device="NVIDIA H200")
    assert (device.call_digest, device == base) == (base.call_digest, False)
    elsewhere = key(environment={"platform": "cpu", "jaxlib": "0.11"})
    assert elsewhere.call_digest == base.call_digest
    assert elsewhere.digest != base.digest
    assert differences(base, elsewhere) == {"environment.jaxlib": ("0.10", "0.11")}
    assert differences(base, key(x="float32[8,16]")) == {"call.arguments.x": ("float32[8,8]", "float32[8,16]")}
    assert base == key()
    assert base.path == f"autotune/matmul/{base.call_digest}/cpu-{base.environment_digest}.json"


@given(st.text(max_size=60))
def test_slugs_are_safe_path_components(text):
    """Whatever an operation or a device is called, it makes one component of a path that every system takes."""
    made = slug(text)
    assert made
    assert not made.startswith(".")
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    RecordKey(text, "1", text, {}, {}).path.encode("ascii")


class Precision(enum.Enum):
    HIGH = "high"


@dataclasses.dataclass(frozen=True)
class Inner:
    block: int
    shape: tuple[int, ...] = ()


@dataclasses.dataclass
class Outer:
    inner: Inner | None
    precision: Precision = Precision.HIGH
    dtype: str = "float32"


def test_configurations_come_back_as_they_were():
    """Nested dataclasses, tuples and enumerations survive, from an example or from the type alone."""
    config = Outer(Inner(16, (1, 2)))
    plain = to_json(config)
    assert plain == {"inner": {"block": 16, "shape": [1, 2]}, "precision": "high", "dtype": "float32"}
    plain = json.loads(json.dumps(plain))
    assert from_json(plain, like=Outer(Inner(1, (9,)))) == config
    assert from_json(plain, cfg_type=Outer) == config
    assert from_json({"a": [1, 2]}, like={"a": (0, 0)}) == {"a": (1, 2)}
    assert from_json({"a": 1}, like=Namespace(a=0)) == Namespace(a=1)


def test_configurations_that_do_not_fit_are_refused():
    """A field that the type does not have, another kind of value, and what JSON cannot hold are said by name."""
    with pytest.raises(ConfigurationError, match="has no gone"):
        from_json({"inner": None, "gone": 1}, cfg_type=Outer)
    with pytest.raises(ConfigurationError):
        from_json([1], like=Inner(1))
    for value in (object(), float("nan"), {1: 2}, {"f": lambda: None}):
        with pytest.raises(ConfigurationError):
            to_json(value)


def test_fields_whose_types_are_not_known(caplog):
    """A nested value stays as JSON has it where a hint names what only type checkers import; one warning says so."""

    @dataclasses.dataclass(frozen=True)
    class Hinted:
        n: int
        inner: OnlyForTypeCheckers = None  # noqa: F821

    assert from_json({"n": 1}, cfg_type=Hinted) == Hinted(1)
    assert caplog.messages == []
    for _ in range(2):
        assert from_json({"n": 1, "inner": {"m": 2}}, cfg_type=Hinted) == Hinted(1, {"m": 2})
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "Hinted" in said
    assert "OnlyForTypeCheckers" in said


def test_data_types_are_written_by_name():
    """numpy's and JAX's data types and their scalar classes all become names."""
    import jax.numpy as jnp
    import numpy as np

    assert to_json([np.dtype("float32"), np.float16, jnp.bfloat16, jnp.dtype("bfloat16"), np.int8(3)]) == [
        "float32", "float16", "bfloat16", "bfloat16", 3,
    ]  # fmt: skip


def test_status_values_are_append_only():
    """Codes in documents that exist are never renamed."""
    assert [s.value for s in Status] == ["ok", "failed", "timeout", "crashed"]
