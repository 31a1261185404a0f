"""Runs the search of the tuner over a file of measurements, and says how near to the optimum it comes.

    python tools/replay_search.py DATA.json.gz [--budgets 16,32,64,128,256] [--seeds 10] [--start cold,history,random]
                                   [--json]

The file is one JSON object, which may be gzipped: `kernel`, `parameters` and `devices` (names), and `rows`: a list for
each configuration with the value of each parameter and then the time on each device, null where it failed.

    cold     without records
    history  with the records of the other devices: a cold search on each, of the largest budget and the same seed
    random   the default, and then configurations at random

The default is the first row that is valid on every device. A search does not end early; `stopped_at` says where it
would have.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

from ejcache.autotune.measure.search import Search
from ejcache.autotune.measure.space import ListedSpace
from ejcache.autotune.records.json_values import canonical_json

STARTS = ("cold", "history", "random")


class Kernel:
    """The measurements of one kernel."""

    def __init__(self, document: dict[str, Any]) -> None:
        names, self.devices = document["parameters"], document["devices"]
        self.name = document["kernel"]
        self.configurations = [dict(zip(names, row, strict=False)) for row in document["rows"]]
        times = [row[len(names) :] for row in document["rows"]]
        self.space = ListedSpace(self.configurations)
        self.texts = [canonical_json(item) for item in self.configurations]
        self.times = {
            device: {
                text: math.inf if row[number] is None else row[number]
                for text, row in zip(self.texts, times, strict=True)
            }
            for number, device in enumerate(self.devices)
        }
        valid = (item for item, row in zip(self.configurations, times, strict=True) if None not in row)
        self.default = next(valid, self.configurations[0])

    def optimum(self, device: str) -> float:
        """The shortest time."""
        return min(self.times[device].values())

    def searched(self, device: str, *, limit: int, seed: int, history: list[dict[str, float]]) -> Search:
        """A search of `limit` configurations, in the order in which they were measured."""
        search = Search(
            self.space, starts=[self.default], limit=limit, history=history, seed=seed, patience=False
        )  # fmt: skip
        while asked := search.ask():
            search.tell({text: self.times[device][text] for text in map(canonical_json, asked)})
        return search

    def drawn(self, device: str, *, limit: int, seed: int) -> list[float]:
        """The times of the default and of random configurations."""
        others = [text for text in self.texts if text != canonical_json(self.default)]
        texts = [canonical_json(self.default), *random.Random(seed).sample(others, min(limit - 1, len(others)))]
        return [self.times[device][text] for text in texts]


def replayed(kernel: Kernel, *, budgets: list[int], seeds: int, starts: list[str]) -> list[dict[str, Any]]:
    """A row for each device, start, seed and budget."""
    rows = []
    for seed in range(seeds):
        cold = {
            device: kernel.searched(device, limit=max(budgets), seed=seed, history=[])
            for device in kernel.devices
            if "cold" in starts or "history" in starts
        }
        for device in kernel.devices:
            for start in starts:
                stopped = None
                if start == "random":
                    order = kernel.drawn(device, limit=max(budgets), seed=seed)
                else:
                    search = cold[device]
                    if start == "history":
                        others = [cold[other].times for other in kernel.devices if other != device]
                        search = kernel.searched(device, limit=max(budgets), seed=seed, history=others)
                    order, stopped = list(search.times.values()), search.stopped_at
                for budget in budgets:
                    rows.append(
                        {
                            "device": device,
                            "start": start,
                            "budget": budget,
                            "seed": seed,
                            "slowdown": min(order[:budget]) / kernel.optimum(device),
                            "stopped_at": stopped,
                            "when_stopped": None if stopped is None else min(order[:stopped]) / kernel.optimum(device),
                        }
                    )
    return rows


def mean(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values and max(values) < math.inf else math.inf


def table(rows: list[dict[str, Any]]) -> str:
    """The geometric means by start and budget, the share of runs within 5 %, and where searches would have ended."""
    lines = ["start    evaluations  time ÷ optimum  within 5 %"]
    for start in dict.fromkeys(row["start"] for row in rows):
        for budget in dict.fromkeys(row["budget"] for row in rows):
            found = [row["slowdown"] for row in rows if (row["start"], row["budget"]) == (start, budget)]
            near = sum(value <= 1.05 for value in found) / len(found)
            lines.append(f"{start:8} {budget:11} {mean(found):15.3f} {near:10.0%}")
        ends = {
            (row["device"], row["seed"]): (row["stopped_at"], row["when_stopped"])
            for row in rows
            if row["start"] == start and row["stopped_at"]
        }
        if ends:
            counts, slow = zip(*ends.values(), strict=True)
            lines.append(f"{start:8} would have ended after {sum(counts) / len(counts):.0f} at {mean(list(slow)):.3f}")
    return "\n".join(lines)


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--budgets", default="16,32,64,128,256")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--start", default=",".join(STARTS))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    starts = asked.start.split(",")
    if unknown := set(starts) - set(STARTS):
        parser.error(f"--start is {', '.join(sorted(unknown))}, and not one of {', '.join(STARTS)}")
    data = asked.data.read_bytes()
    kernel = Kernel(json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data))
    budgets = sorted(int(budget) for budget in asked.budgets.split(","))
    rows = replayed(kernel, budgets=budgets, seeds=asked.seeds, starts=starts)
    if asked.json:
        results = [{name: value for name, value in row.items() if name != "when_stopped"} for row in rows]
        sys.stdout.write(json.dumps({"kernel": kernel.name, "results": results}) + "\n")
    else:
        sys.stdout.write(f"{kernel.name}\n{table(rows)}\n")


if __name__ == "__main__":
    main()
