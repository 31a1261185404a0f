"""Tuned configurations as the tables of other libraries. Change the functions for your kernel.

    python tuned_tables.py write STORE tables

writes tables/tuned_block_sizes.py, as tpu-inference keeps its block sizes, and tokamax's tables/DEVICE/OPERATION.json.

    python tuned_tables.py read FILE STORE

reads one of tokamax's tables, or its JSON of one autotuning, into a store. STORE is a directory or a URL.
"""

import argparse
import json
import pprint
import re
import time
from pathlib import Path

from ejcache.autotune import AutotuneStore, Candidate, Record, RecordKey, Source, Timing

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
    arguments, configuration = record.key.call["arguments"], record.configuration
    q_dtype, (_, q_heads, head_size) = array(arguments["queries"])
    kv_dtype, (_, page, kv_heads, _) = array(arguments["pages"])
    length, window = power_of_2(arguments["max_model_len"]), arguments["sliding_window"]
    keys = (
        DEVICES.get(record.key.device, record.key.device),
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
    chosen = record.candidate(record.configuration)
    times = {
        "compile_time_ms": 1e3 * (chosen.compile_seconds or 0.0),
        "lower_time_ms": 0.0,
        "evaluation_times_ms": [
            1e3 * seconds for seconds in (chosen.seconds.p20, chosen.seconds.p50, chosen.seconds.p80)
        ],
        "metadata": {},
        "peak_memory_mb": chosen.memory_bytes and chosen.memory_bytes / 1e6,
    }
    # What `read` has read has tokamax's own arguments.
    call = record.key.call.get("tokamax") or record.key.call
    return json.dumps(call["arguments"], separators=(",", ":")), {json.dumps(record.configuration): times}


def write(store, target):
    keys = {found.record.key.digest: found.record.key for found in store.records()}
    records = [store.find(key).record for key in keys.values()]
    # The newest last, so that it stays where two records have one key in a table.
    records = sorted((record for record in records if record.works), key=lambda record: record.created)
    files = {}
    for record in records:
        key, times = tokamax_entry(record)
        place = Path(target, record.key.device.lower().replace(" ", "_"), f"{record.key.operation}.json")
        files.setdefault(place, {})[key] = times
    for place, table in files.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n")
    Path(target).mkdir(parents=True, exist_ok=True)
    attention = [record for record in records if record.key.operation == "ragged_paged_attention"]
    Path(target, "tuned_block_sizes.py").write_text(python_table(attention))


def tokamax_record(operation, device, call, tried):
    """The record of what tokamax tried for one call; None if nothing worked. What failed is a text there."""
    candidates = [
        Candidate(
            json.loads(text),
            seconds=Timing.of([1e-3 * milliseconds for milliseconds in times["evaluation_times_ms"]]),
            compile_seconds=1e-3 * (times["compile_time_ms"] + times["lower_time_ms"]),
            memory_bytes=times.get("peak_memory_mb") and round(1e6 * times["peak_memory_mb"]),
        )
        for text, times in tried.items()
        if isinstance(times, dict)
    ]
    if not candidates:
        return None
    candidates.sort(key=lambda candidate: candidate.seconds.p50)
    key = RecordKey(operation, "1", device, {}, {"tokamax": call})
    best = candidates[0].configuration
    return Record(key, best, Source.IMPORTED, candidates=tuple(candidates), created=time.time())


def read(file):
    path = Path(file)
    body = json.loads(path.read_text())
    if "data" in body:
        for bound, tried in body["data"]:
            operation = re.sub(r"(?!^)([A-Z])", r"_\1", bound["op"]["__type"].rpartition(".")[2]).lower()
            yield tokamax_record(operation, body["device_kind"], bound, tried)
        return
    for arguments, tried in body.items():
        yield tokamax_record(path.stem, path.absolute().parent.name, {"arguments": json.loads(arguments)}, tried)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "read"])
    parser.add_argument("source")
    parser.add_argument("target")
    given = parser.parse_args()
    if given.what == "write":
        write(AutotuneStore(given.source, seeds=(), read_only=True), given.target)
        return
    store = AutotuneStore(given.target, seeds=())
    for record in filter(None, read(given.source)):
        store.publish(record)
    store.close()


if __name__ == "__main__":
    main()
