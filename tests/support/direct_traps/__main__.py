"""The command: runs cases and prints what became of each."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from direct_traps.report import judge, page, read_results, summary
from direct_traps.run import MODES, run_traps
from direct_traps.trap import all_traps


def main() -> None:
    parser = argparse.ArgumentParser(prog="direct_traps", description=__doc__)
    parser.add_argument("--mode", choices=MODES, default="direct", help="what is under test")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these cases")
    parser.add_argument("--group", nargs="+", metavar="GROUP", help="the cases of these groups")
    parser.add_argument("--jobs", type=int, default=2, help="how many cases run at once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a table in Markdown there")
    parser.add_argument(
        "--beside", nargs=2, action="append", default=[], metavar=("LABEL", "FILE"), help="results of an earlier --json"
    )
    parser.add_argument("--answers", action="store_true", help="show what each phase answered")
    options = parser.parse_args()
    traps = all_traps()
    if options.only:
        traps = [each for each in traps if each.name in options.only]
    if options.group:
        traps = [each for group in options.group for each in traps if each.group == group]
    results = []
    for trap, answers in run_traps(traps, mode=options.mode, jobs=options.jobs):
        result = judge(trap, answers, mode=options.mode)
        results.append(result)
        print(f"{result.changed:8} {result.unchanged:8} {result.name}: {result.sentence}")
        for problem in result.problems:
            print(f"    {problem}")
        if options.answers:
            print(json.dumps(answers, indent=1))
        sys.stdout.flush()
    order = {each.name: number for number, each in enumerate(traps)}
    results.sort(key=lambda each: order[each.name])
    print("\n" + "\n".join(summary(results)))
    if options.json:
        options.json.write_text(json.dumps([each.to_dict() for each in results], indent=1) + "\n", encoding="utf-8")
    if options.write:
        beside = {label: read_results(Path(file)) for label, file in options.beside}
        options.write.write_text(page(results, beside) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
