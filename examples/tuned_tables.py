"""Writes tuned configurations as the tables that other libraries read. Change the two functions for your kernel.

    ejcache autotune export tuned.json --name ragged_paged_attention
    python tuned_tables.py tuned.json tables

writes tables/tuned_block_sizes.py, as tpu-inference keeps its block sizes, and tokamax's tables/DEVICE/OPERATION.json.
"""

import json
import pprint
import re
import sys
from pathlib import Path

DEVICES = {"TPU v5 lite": "TPU v5e", "TPU v6 lite": "TPU v6e", "TPU7x": "TPU v7"}
"""How tpu-inference names a kind of device."""


def array(text):
    """The data type and the shape of an argument in a record: "bfloat16[512,8,128]"."""
    dtype, sizes = re.fullmatch(r"(\w+)\[(.*)\]", text).groups()
    return dtype, [int(size) for size in sizes.split(",") if size]


def power_of_2(number):
    return 1 << (number - 1).bit_length()


def entry(record):
    """The keys of a record in the nested dictionary of tpu-inference, and its value."""
    arguments, configuration = record["call"]["arguments"], record["configuration"]
    q_dtype, (_, q_heads, head_size) = array(arguments["queries"])
    kv_dtype, (_, page, kv_heads, _) = array(arguments["pages"])
    length, window = power_of_2(arguments["max_model_len"]), arguments["sliding_window"]
    keys = (
        DEVICES.get(record["device"], record["device"]),
        power_of_2(page),
        f"q_{q_dtype}_kv_{kv_dtype}",
        f"q_head-{power_of_2(q_heads)}_kv_head-{kv_heads // 2}_head-{-(-head_size // 128) * 128}",
        f"max_model_len-{length}-sw-{window}",
    )
    return keys, (configuration["num_kv_pages_per_block"], configuration["num_queries_per_block"])


def python_table(records):
    """A module with one dictionary."""
    table = {}
    for record in records:
        (*outer, last), value = entry(record)
        level = table
        for key in outer:
            level = level.setdefault(key, {})
        level[last] = value
    return f"TUNED_BLOCK_SIZES = {pprint.pformat(table, width=100)}\n"


def tokamax_entry(record):
    """An entry of tokamax's files: the chosen configuration alone, because tokamax takes the fastest of an entry."""
    chosen = next(c for c in record["candidates"] if c["configuration"] == record["configuration"])
    times = {
        "compile_time_ms": 1e3 * (chosen["compile_seconds"] or 0.0),
        "lower_time_ms": 0.0,
        "evaluation_times_ms": [1e3 * chosen["seconds"][name] for name in ("p20", "p50", "p80")],
        "metadata": {},
        "peak_memory_mb": chosen["memory_bytes"] and chosen["memory_bytes"] / 1e6,
    }
    # What `ejcache autotune import --format tokamax` read has tokamax's own arguments.
    call = record["call"].get("tokamax") or record["call"]
    return json.dumps(call["arguments"], separators=(",", ":")), {json.dumps(record["configuration"]): times}


def main(source, target):
    # Strongest source last, so that it stays where two records have one key; of equal ones, the newest.
    order = {"pinned": 3, "pgle": 2, "tuned": 1}
    records = [record for record in json.loads(Path(source).read_text())["records"] if record["works"]]
    records.sort(key=lambda record: (order.get(record["source"], 0), record["created"]))
    files = {}
    for record in records:
        key, times = tokamax_entry(record)
        place = Path(target, record["device"].lower().replace(" ", "_"), f"{record['operation']}.json")
        files.setdefault(place, {})[key] = times
    for place, table in files.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n")
    Path(target).mkdir(parents=True, exist_ok=True)
    attention = [record for record in records if record["operation"] == "ragged_paged_attention"]
    Path(target, "tuned_block_sizes.py").write_text(python_table(attention))


if __name__ == "__main__":
    main(*sys.argv[1:])
