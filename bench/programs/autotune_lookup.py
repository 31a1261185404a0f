"""python -m bench.programs.autotune_lookup PLACE RECORDS ROUNDS: look a configuration up, beside many."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from bench.measure import quiet_collector
from ejcache.autotune import AutotuneStore, Record, RecordKey, autotuned
from ejcache.autotune.records.record import encode_record

if TYPE_CHECKING:
    from collections.abc import Callable

opened = 0


def count_opens(event: str, _: Any) -> None:
    global opened
    if event == "open" or event.startswith("os."):
        opened += 1


def fill(place: Path, key: RecordKey, number: int) -> None:
    """Records of other shapes of the same operation, and the one that is looked up."""
    for i in range(number - 1):
        arguments = dict.fromkeys(("x", "y", "z"), f"float32[{i + 1},{i % 7 + 1}]")
        other = RecordKey(key.operation, key.version, key.device, key.environment, {"arguments": arguments})
        write(place / other.path, Record(other, {"n": 1}, created=1.0))
    write(place / key.path, Record(key, {"n": 2}, created=1.0))


def write(path: Path, record: Record) -> None:
    """Write a record where the store looks for it: each call has a folder."""
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_record(record))


def main() -> None:
    place, number, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = AutotuneStore(str(place), seeds=())

    def nothing(*arrays: Any, n: int) -> int:  # noqa: ARG001 (they are what is looked up)
        return n

    operation = autotuned(nothing, configs=[{"n": 1}, {"n": 2}], name="operation", store=store)

    arrays = [jnp.ones((256, 256)) for _ in range(3)]
    fill(place, operation.key(*arrays), number)
    began = time.perf_counter()
    assert operation(*arrays) == 2
    first = time.perf_counter() - began
    answer: dict[str, Any] = {"first": first, "lookup": [], "plain": []}
    sys.addaudithook(count_opens)
    before = opened
    calls: dict[str, Callable[..., int]] = {"lookup": operation, "plain": lambda *a: operation.function(*a, n=2)}
    with quiet_collector():
        for _ in range(rounds):
            for name, call in calls.items():
                began = time.perf_counter()
                for _ in range(200):
                    call(*arrays)
                answer[name].append((time.perf_counter() - began) / 200)
    answer["opened"] = opened - before
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
