"""Tables of other libraries: tpu-inference's and sglang-jax's by a template, and tokamax's in both directions.

The files in `data/autotune/tables` have the forms of these libraries and our own numbers. tokamax 0.0.17 reads those in
its form.
"""

from __future__ import annotations

import ast
import json
import shutil
from typing import NamedTuple

import pytest
from autotune_helpers import key, record, timing
from cli_helpers import ejcache
from helpers import ROOT

from ejcache.autotune.records.record import Candidate, Record, Source
from ejcache.autotune.records.store import AutotuneStore
from ejcache.autotune.tables.expressions import Expression, fields_of_record
from ejcache.errors import UsageError

TABLES = ROOT / "tests" / "data" / "autotune" / "tables"
RAGGED_DOT = TABLES / "tpu_v6_lite" / "pallas_mosaic_tpu_ragged_dot.json"


class Shape(NamedTuple):
    """The heads, the page size and the length of one call of paged attention."""

    q: int
    kv: int
    page: int
    length: int


def attention(shape, device, *, pages, queries, dtype="bfloat16"):
    """A record of paged attention."""
    of = key(
        "ragged_paged_attention",
        device=device,
        queries=f"{dtype}[512,{shape.q},128]",
        pages=f"{dtype}[64,{shape.page},{2 * shape.kv},128]",
        max_model_len=shape.length,
        sliding_window=None,
        logits={"dtype": "float32"},
    )
    configuration = {"num_kv_pages_per_block": pages, "num_queries_per_block": queries}
    return Record(of, configuration, Source.TUNED, candidates=(Candidate(configuration, seconds=timing(0.001)),))


@pytest.fixture
def place(tmp_path):
    """A store with records of paged attention on two kinds of TPU."""
    store = AutotuneStore(str(tmp_path / "place"), seeds=())
    store.publish(attention(Shape(8, 1, 16, 1000), "TPU v6 lite", pages=8, queries=32))
    store.publish(attention(Shape(8, 1, 16, 4096), "TPU v6 lite", pages=16, queries=64))
    store.publish(attention(Shape(12, 4, 32, 2048), "TPU7x", pages=4, queries=16))
    return tmp_path / "place"


def export(place, to, kind, *options):
    return ejcache("autotune", "export", to, "--dir", place, "--format", kind, *options)


VALUE = ["--value", "(config.num_kv_pages_per_block, config.num_queries_per_block)"]
TPU_INFERENCE = [
    "tpu_name(device)",
    "next_power_of_2(pages.shape[1])",
    "f'q_{queries.dtype}_kv_{pages.dtype}'",
    "f'q_head-{next_power_of_2(queries.shape[1])}_kv_head-{pages.shape[2] // 2}_head-{align_to(pages.shape[3], 128)}'",
    "f'max_model_len-{next_power_of_2(max_model_len)}-sw-{sliding_window}'",
]
SGLANG = [
    "tpu_name(device)",
    """(queries.dtype, pages.dtype, next_power_of_2(queries.shape[1]), next_power_of_2(pages.shape[2] // 2),
    cdiv(queries.shape[2], 128) * 128, next_power_of_2(pages.shape[1]), next_power_of_2(queries.shape[0]))""",
]
TUNING_KEY = ["TuningKey(heads=queries.shape[1], head_dim=queries.shape[-1], dtype=queries.dtype)"]


@pytest.mark.parametrize(
    ("name", "table", "keys", "value"),
    [
        ("tpu_inference_rpa_v3", "TUNED_BLOCK_SIZES", TPU_INFERENCE, VALUE),
        ("sglang_rpa", "TUNED_BLOCK_SIZES", SGLANG, VALUE),
        (
            "tpu_inference_params",
            "tuned_params_mapping",
            TUNING_KEY,
            ["--value", "TunableParams(block_q=config.num_queries_per_block, limit=None)"],
        ),
    ],
)
def test_a_table_in_python(place, tmp_path, name, table, keys, value):
    """A template writes the nested dictionaries of tpu-inference and sglang-jax, with the names that they look up."""
    options = [option for text in keys for option in ("--key", text)]
    said = export(place, tmp_path / "out" / "table.py", "python", "--table", table, *options, *value, "--json")
    assert (said.status, said.json["left_out"]) == (0, 0), said.err
    written = (tmp_path / "out" / "table.py").read_text()
    ast.parse(written)
    assert written == (TABLES / f"{name}.py.txt").read_text()


def test_records_with_one_key(tmp_path):
    """Of records with the same keys the one with the strongest source counts, and of those the newest."""
    store = AutotuneStore(str(tmp_path / "place"), seeds=())
    for jaxlib, block, source, created in (
        ("0.8", 1, Source.IMPORTED, 9.0),
        ("0.9", 2, Source.TUNED, 1.0),
        ("0.10", 3, Source.TUNED, 2.0),
    ):
        store.publish(
            record(key(environment={"jaxlib": jaxlib}), block=block, source=source, created=created, candidates=())
        )
    options = ["--table", "T", "--key", "x.shape", "--value", "config.block"]
    assert export(tmp_path / "place", tmp_path / "t.py", "python", *options).status == 0
    assert "(8, 8): 3," in (tmp_path / "t.py").read_text()


def test_a_template_that_does_not_fit_leaves_a_record_out(place, tmp_path):
    """The others are written, the reason is said with the record, and the exit status is 1."""
    AutotuneStore(str(place), seeds=()).publish(record(key(y=3)))
    options = ["--table", "T", "--key", "queries.shape", "--value", "config", "--json"]
    said = export(place, tmp_path / "t.py", "python", *options)
    assert (said.status, said.json["files"], said.json["left_out"]) == (1, {"t.py": 0}, 4)
    assert any("there is no 'queries'" in line for line in said.json["problems"])
    assert any("name a field of this value" in line for line in said.json["problems"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x.shape[0] * 2 if x.ndim == 2 else 0", 16),
        ("('a', -1, [1.5], None, True)", ("a", -1, [1.5], None, True)),
        ("{'x': short(x), 'n': config.block}", {"x": "f32[8,8]", "n": 16}),
        ("1 < x.shape[0] <= 8 and 'f' in x.dtype and not None", True),
        ("arguments['x'].dtype or 1", "float32"),
        ("tpu_version('TPU v6 lite')", 6),
        ("[tpu_name('TPU7x'), tpu_name('TPU v5p'), tpu_name('TPU v5 lite')]", ["TPU v7", "TPU v5p", "TPU v5e"]),
        ("seconds", 0.001),
        ("environment.platform", "cpu"),
    ],
)
def test_what_an_expression_can_say(text, value):
    """The grammar of templates: names of the record, arithmetic, conditions, and a few functions."""
    assert Expression(text).value(fields_of_record(record())) == value


@pytest.mark.parametrize(
    "text",
    [
        "x.__class__",
        "'{0.__class__}'.format(x)",
        "__import__('os')",
        "open('/etc/passwd')",
        "[y for y in x.shape]",
        "lambda: 1",
        "x.shape.index(8)",
        "(y := 1)",
        "2 ** 10 ** 10",
        "Key(**{'a': 1})",
        "f'{x.shape[0]:>100000000}'",
        "nothing",
        "1 +",
        "1 // 0",
        "x.shape[7]",
    ],
)
def test_what_an_expression_cannot_say(text):
    """Nothing but the record is reached: no attributes of objects, no other functions, no code."""
    with pytest.raises(UsageError):
        Expression(text).value(fields_of_record(record()))


def test_tokamaxs_tables_in_and_out(tmp_path):
    """A file of tokamax's is read with all times, and written with the configuration that it would choose."""
    place = tmp_path / "place"
    said = ejcache("autotune", "import", TABLES, "--format", "tokamax", "--dir", place, "--json")
    assert (said.status, said.json["new"], said.json["problems"]) == (0, 2, []), said.err
    found = {item.record.key.device: item.record for item in AutotuneStore(str(place), seeds=()).records()}
    of_file = found["tpu_v6_lite"]
    assert of_file.key.operation == found["TPU v6 lite"].key.operation == "pallas_mosaic_tpu_ragged_dot"
    assert (of_file.configuration["tile_m"], of_file.source) == (256, Source.IMPORTED)
    assert [round(item.seconds.p50 * 1e3, 6) for item in of_file.candidates] == [0.4, 0.6]
    assert of_file.candidates[1].memory_bytes == 12_500_000
    done = export(place, tmp_path / "out", "tokamax", "--device", "tpu_*", "--json")
    assert (done.status, done.json["files"]) == (0, {"tpu_v6_lite/pallas_mosaic_tpu_ragged_dot.json": 1}), done.err
    (arguments, times), *_ = json.loads((tmp_path / "out" / "tpu_v6_lite" / RAGGED_DOT.name).read_text()).items()
    (theirs, all_times), *_ = json.loads(RAGGED_DOT.read_text()).items()
    assert json.loads(arguments) == json.loads(theirs)
    ((configuration, chosen),) = times.items()
    assert chosen["evaluation_times_ms"] == all_times[configuration]["evaluation_times_ms"] == [0.3, 0.4, 0.5]


def test_tokamaxs_json_of_an_autotuning_in_and_out(tmp_path):
    """What `AutotuningResult.dumps` wrote is written in the form that `AutotuningResult.loads` reads."""
    place, source = tmp_path / "place", TABLES / "tokamax-result.json"
    assert ejcache("autotune", "import", source, "--format", "tokamax", "--dir", place).status == 0
    done = export(place, tmp_path / "result.json", "tokamax", "--json")
    assert (done.status, done.json["left_out"]) == (0, 0), done.err
    written, theirs = (json.loads(path.read_text()) for path in (tmp_path / "result.json", source))
    assert [written["device_kind"], written["tokamax_version"]] == ["TPU v6 lite", "0.0.17"]
    ((bound, times),), ((their_bound, their_times),) = written["data"], theirs["data"]
    assert bound == their_bound
    assert list(times) == [list(their_times)[1]]


def test_a_template_writes_tokamaxs_files(place, tmp_path):
    """Records of other operations become entries of tokamax's file; its other entries stay."""
    to = tmp_path / "out" / "tpu_v6_lite" / "attention.json"
    to.parent.mkdir(parents=True)
    shutil.copy(RAGGED_DOT, to)
    key_text = "{'q': short(queries), 'window': sliding_window}"
    options = [
        "--device",
        "TPU v6*",
        "--table",
        "attention",
        "--key",
        key_text,
        "--value",
        "{'block': config.num_queries_per_block}",
    ]
    for _ in range(2):
        assert export(place, tmp_path / "out", "tokamax", *options).status == 0
    body = json.loads(to.read_text())
    entry = body.pop('{"q":"bf16[512,8,128]","window":null}')
    assert body == json.loads(RAGGED_DOT.read_text())
    assert list(entry) in (['{"block":32}'], ['{"block":64}'])


def test_what_is_not_tokamaxs_is_said(tmp_path):
    """A file that is not JSON, an entry without times, and a file in the way are named; the exit status is 1."""
    files = tmp_path / "files" / "cpu"
    files.mkdir(parents=True)
    (files / "a.json").write_text("{")
    (files / "b.json").write_text(
        '{"{}": {"{}": {"times": 1}}, "no": {}, "{\\"x\\":1}": {"{\\"b\\":1}": "RuntimeError"}}'
    )
    said = ejcache("autotune", "import", tmp_path / "files", "--format", "tokamax", "--dir", tmp_path / "p", "--json")
    assert (said.status, said.json["new"], len(said.json["problems"])) == (1, 0, 4)
    place = tmp_path / "place"
    assert ejcache("autotune", "import", RAGGED_DOT, "--format", "tokamax", "--dir", place).status == 0
    to = tmp_path / "out" / "tpu_v6_lite" / RAGGED_DOT.name
    to.parent.mkdir(parents=True)
    to.write_text("not JSON")
    said = export(place, tmp_path / "out", "tokamax", "--json")
    assert (said.status, said.json["files"]) == (1, {})
    assert to.read_text() == "not JSON"


@pytest.mark.parametrize(
    "options",
    [
        ["--format", "ejkernel", "--key", "x"],
        ["--format", "python", "--key", "x"],
        ["--format", "python", "--table", "no name", "--key", "x.shape", "--value", "1"],
        ["--format", "python", "--table", "T", "--key", "x +", "--value", "1"],
        ["--format", "tokamax", "--key", "x", "--key", "x"],
    ],
)
def test_templates_that_are_not_whole_are_refused(place, tmp_path, options):
    """A template without its parts, or for a format that has none, is a usage error, and nothing is written."""
    said = ejcache("autotune", "export", tmp_path / "out", "--dir", place, *options)
    assert (said.status, len(said.err.splitlines())) == (2, 1)
    assert not (tmp_path / "out").exists()
