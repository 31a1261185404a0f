"""The command: runs traps and prints what became of each that is not as expected, and the sums."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from direct_traps.run import WAYS, run_traps, summary
from direct_traps.trap import all_traps


def main() -> None:
    parser = argparse.ArgumentParser(prog="direct_traps", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these traps")
    parser.add_argument("--group", nargs="+", metavar="GROUP", help="the traps of these files")
    parser.add_argument("--way", choices=WAYS, default="path", help="how the project lies there")
    parser.add_argument("--quick", action="store_true", help="leave the unchanged third start out")
    parser.add_argument("--jobs", type=int, default=2, help="how many traps run at once")
    parser.add_argument("--all", action="store_true", help="print each trap")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    options = parser.parse_args()
    traps = [
        each
        for each in all_traps()
        if each.name in (options.only or [each.name]) and each.group in (options.group or [each.group])
    ]
    results = []
    for result in run_traps(traps, way=options.way, jobs=options.jobs, quick=options.quick):
        results.append(result)
        if options.all or result.problems:
            print(f"{result.group} | {result.name} | {result.changed} | {result.unchanged} | {result.sentence}")
            print("".join(f"    {problem}\n" for problem in result.problems), end="", flush=True)
    print("\n".join(summary(results)))
    if options.json:
        options.json.write_text(json.dumps([each.to_dict() for each in results], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
