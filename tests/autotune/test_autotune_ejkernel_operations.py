"""Operations of an unmodified ejkernel: equal results with and without our store, and files that both use."""

from __future__ import annotations

import json

import pytest
from capabilities import needs
from helpers import ROOT

pytestmark = needs("ejkernel")

PROGRAM = ROOT / "tests" / "programs" / "ejkernel_operations.py"
NINE = [
    "flash", "flash in jit", "gradient of flash", "blocksparse", "ring",
    "pooling", "grouped matmul", "sdpa", "attention",
]  # fmt: skip
EXCHANGED = ["flash", "grouped matmul"]
OTHER_TYPES = ["flash, bfloat16 logits", "grouped matmul, bfloat16"]
FILES = {"flash-attn.json": "q_blocksize", "grouped-matmul.json": "block_m"}


@pytest.fixture
def run(run_forked):
    """Run the program in a mode on a directory; what it printed."""

    def run(mode, place, names):
        env = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(place)}
        return json.loads(run_forked(PROGRAM, mode, *names, env=env, timeout=280).stdout.splitlines()[-1])

    return run


def entries(place):
    """The only entry of each of ejkernel's files, by the name of the file."""
    found = {path.name: json.loads(path.read_text()) for path in place.glob("*.json")}
    assert {name: len(held) for name, held in found.items()} == dict.fromkeys(found, 1)
    return {name: next(iter(held.values())) for name, held in found.items()}


def test_what_ejkernel_wrote_is_used_by_us(run, tmp_path):
    """Flash attention and grouped matmul run with the entries of ejkernel's files; calls with other types do not."""
    before = run("guess", tmp_path, EXCHANGED)
    for name, field in FILES.items():
        # Another configuration than the default, to see where it comes from.
        held = json.loads((tmp_path / name).read_text())
        (configuration,) = held.values()
        configuration.get("fwd_params", configuration)[field] = 64
        (tmp_path / name).write_text(json.dumps(held))
    written = entries(tmp_path)
    assert set(written) == set(FILES)

    ours = run("install", tmp_path, EXCHANGED)
    assert ours["counters"] == {"chosen_imported": 2}
    assert ours["used"] == [["cache_hit", "persistent", written[name]] for name in FILES]
    assert ours["digests"] == before["digests"]

    others = run("install", tmp_path, OTHER_TYPES)["counters"]
    assert (others["ambiguous"], others["tuning"], others["chosen_tuned"]) == (2, 2, 2)
    assert entries(tmp_path) == written


def test_what_we_measured_is_used_by_ejkernel(run, tmp_path):
    """ejkernel's own store answers with our winners of flash attention and grouped matmul, and measures nothing."""
    ours = run("install", tmp_path, EXCHANGED)
    assert ours["counters"]["tuned"] == 2
    written = entries(tmp_path)
    events = (("autotune_finish", None), ("cache_hit", "memory"))
    assert ours["used"] == [[*event, written[name]] for name in FILES for event in events]
    theirs = run("plain", tmp_path, EXCHANGED)
    assert theirs["used"] == [["cache_hit", "persistent", written[name]] for name in FILES]
    assert theirs["digests"] == ours["digests"]


@pytest.mark.soak
def test_nine_operations_are_bitwise_equal(run, tmp_path):
    """With and without our store, and with measured and with found configurations, the results are the same bits."""
    without = run("guess", tmp_path / "theirs", NINE)
    measured = run("install", tmp_path / "ours", NINE)
    found = run("install", tmp_path / "ours", NINE)
    assert without["digests"] == measured["digests"] == found["digests"]
    assert measured["counters"]["tuned"] >= 5
    assert "tuning" not in found["counters"]
    assert run("install", tmp_path / "theirs", NINE)["digests"] == without["digests"]
