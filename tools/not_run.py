"""Writes the map of lines and branches that no test runs, by room.

    make coverage                                             # or pytest with `--cov --cov-report json:FILE`
    python tools/not_run.py coverage.json > tests/not_run.txt

Of each room: its lines, those that no test runs, the percent that run, and the same of its branches. Then, of each file
that has any, the lines that no test runs (`12-14`) and the branches that none takes (`33>35`, from line to line; `33>.`
leaves the function). What runs only in a process that a signal ends is on the map, too: such a process reports nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT: Final = Path(__file__).resolve().parent.parent
_PACKAGE: Final = "src/ejcache/"


@dataclass
class Room:
    """What tests run of one room."""

    lines: int = 0
    missing_lines: int = 0
    branches: int = 0
    missing_branches: int = 0
    files: list[str] = field(default_factory=list)

    def row(self, name: str) -> str:
        """Return the line of the table."""
        return (
            f"{name:18}{self.lines:7}{self.missing_lines:9}{_percent(self.lines, self.missing_lines):>8}"
            f"{self.branches:10}{self.missing_branches:9}{_percent(self.branches, self.missing_branches):>8}"
        )


def _percent(total: int, missing: int) -> str:
    return f"{100 * (total - missing) / total:.1f}" if total else "-"


def _ranges(numbers: Iterable[int]) -> str:
    """Return sorted numbers with those that follow each other as one range."""
    parts = []
    for _, group in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return " ".join(parts)


def rooms_of(files: Mapping[str, Any]) -> dict[str, Room]:
    """Return the rooms of a report of coverage.py in JSON, with a line for each file that is not run as a whole."""
    rooms: dict[str, Room] = defaultdict(Room)
    for path in sorted(files):
        inside = path[path.index(_PACKAGE) + len(_PACKAGE) :] if _PACKAGE in path else path
        name, _, rest = inside.partition("/")
        room, summary = rooms[name.removesuffix(".py") if not rest else f"{name}/"], files[path]["summary"]
        room.lines += summary["num_statements"]
        room.missing_lines += summary["missing_lines"]
        room.branches += summary["num_branches"]
        room.missing_branches += summary["missing_branches"]
        unseen = set(files[path]["missing_lines"])
        taken = [pair for pair in files[path]["missing_branches"] if pair[0] not in unseen]
        branches = " ".join(f"{start}>{end if end > 0 else '.'}" for start, end in taken)
        lines = _ranges(sorted(unseen))
        if lines or branches:
            room.files.append(f"{inside}: {lines}{' ' if lines and branches else ''}{branches}")
    return rooms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="a report of coverage.py in JSON")
    parser.add_argument("--commit", help="the commit of the report; by default the present one")
    parser.add_argument("--note", default="", help="a sentence about the run")
    options = parser.parse_args()
    commit = options.commit or subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()  # fmt: skip
    rooms = rooms_of(json.loads(options.report.read_text())["files"])
    print(f"Lines and branches of {commit} that no test runs. Written by tools/not_run.py, which explains the signs.")
    print(f"{options.note}\n")
    print(f"{'room':18}{'lines':>7}{'not run':>9}{'percent':>8}{'branches':>10}{'not run':>9}{'percent':>8}")
    total = Room()
    for name, room in rooms.items():
        print(room.row(name))
        total.lines += room.lines
        total.missing_lines += room.missing_lines
        total.branches += room.branches
        total.missing_branches += room.missing_branches
    print(total.row("all"))
    for name, room in rooms.items():
        if room.files:
            print(f"\n{name}")
            print("\n".join(f"  {line}" for line in room.files))


if __name__ == "__main__":
    main()
