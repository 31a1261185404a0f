"""The example of tables of other libraries: it reads tokamax's, and writes those and one in Python.

The files in `data/autotune/tables` have tokamax's form and our own numbers; tokamax 0.0.17 reads them.
"""

from __future__ import annotations

import ast
import functools

import pytest
from autotune_helpers import key, timing
from helpers import ROOT

from ejcache.autotune.records.record import Candidate, Record, Source
from ejcache.autotune.records.store import AutotuneStore

TABLES = ROOT / "tests" / "data" / "autotune" / "tables"
RAGGED_DOT = TABLES / "tpu_v6_lite" / "pallas_mosaic_tpu_ragged_dot.json"


@pytest.fixture
def example(run_forked):
    """The program, with these arguments."""
    return functools.partial(run_forked, ROOT / "examples" / "tuned_tables.py")


def attention(q, kv, page, length, device, *, pages, queries):
    """A record of paged attention with these numbers of heads, this size of pages, and this longest sequence."""
    of = key(
        "ragged_paged_attention",
        device=device,
        queries=f"bfloat16[512,{q},128]",
        pages=f"bfloat16[64,{page},{2 * kv},128]",
        max_model_len=length,
        sliding_window=None,
        logits={"dtype": "float32"},
    )
    configuration = {"num_kv_pages_per_block": pages, "num_queries_per_block": queries}
    return Record(of, configuration, Source.TUNED, candidates=(Candidate(configuration, seconds=timing(0.001)),))


def test_the_example_writes_the_tables_of_other_libraries(tmp_path, example):
    """The nested dictionary of tpu-inference, and tokamax's files, which are read again as they were."""
    place = tmp_path / "place"
    store = AutotuneStore(str(place), seeds=())
    store.publish(attention(8, 1, 16, 1000, "TPU v6 lite", pages=8, queries=32))
    store.publish(attention(8, 1, 16, 4096, "TPU v6 lite", pages=16, queries=64))
    store.publish(attention(12, 4, 32, 2048, "TPU7x", pages=4, queries=16))
    for table in (RAGGED_DOT, TABLES / "tokamax-result.json"):
        example("read", table, place)
    example("write", place, tmp_path / "out")
    name, _, table = (tmp_path / "out" / "tuned_block_sizes.py").read_text().partition(" = ")
    assert name == "TUNED_BLOCK_SIZES"
    assert ast.literal_eval(table) == {
        "TPU v6e": {
            16: {
                "q_bfloat16_kv_bfloat16": {
                    "q_head-8_kv_head-1_head-128": {
                        "max_model_len-1024-sw-None": (8, 32),
                        "max_model_len-4096-sw-None": (16, 64),
                    }
                }
            }
        },
        "TPU v7": {
            32: {"q_bfloat16_kv_bfloat16": {"q_head-16_kv_head-4_head-128": {"max_model_len-2048-sw-None": (4, 16)}}}
        },
    }
    again = tmp_path / "again"
    example("read", tmp_path / "out" / "tpu_v6_lite" / RAGGED_DOT.name, again)
    chosen, was = (
        next(item.record for item in AutotuneStore(str(url), seeds=()).records(device="tpu_v6_lite")
             if "ragged_dot" in item.record.key.operation)
        for url in (again, place)
    )  # fmt: skip
    assert (chosen.key, chosen.configuration) == (was.key, was.configuration)
    assert chosen.candidates[0].seconds.p50 == was.candidates[0].seconds.p50


def test_tables_are_read_with_all_times(tmp_path, example):
    """Files, and the JSON of an autotuning; their records rank below what was measured here."""
    place = tmp_path / "place"
    for table in (RAGGED_DOT, TABLES / "tokamax-result.json"):
        example("read", table, place)
    found = {item.record.key.device: item.record for item in AutotuneStore(str(place), seeds=()).records()}
    of_file = found["tpu_v6_lite"]
    assert of_file.key.operation == found["TPU v6 lite"].key.operation == "pallas_mosaic_tpu_ragged_dot"
    assert (of_file.configuration["tile_m"], of_file.source) == (256, Source.IMPORTED)
    assert [round(item.seconds.p50 * 1e3, 6) for item in of_file.candidates] == [0.4, 0.6]
    assert of_file.candidates[1].memory_bytes == 12_500_000


def test_without_arguments_it_says_how_it_is_used(example):
    """A person who only starts it reads its usage, and no traceback."""
    done = example(check=False)
    assert (done.returncode, "usage:" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
