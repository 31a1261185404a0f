"""What a person or a machine sees: tables and JSON on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from typing import TYPE_CHECKING, Final

from ejcache.units import format_age

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


__all__ = [
    "ago",
    "moment",
    "plural",
    "print_json",
    "print_pairs",
    "print_table",
    "progress",
    "say",
    "seconds",
    "share",
    "warn",
]

_PROGRESS_AFTER: Final = 1.0
"""Seconds of work before a bar appears: shorter work needs none."""
_GAP: Final = "  "
_NARROWEST: Final = 8
"""Characters to which a column may be cut."""


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def say(text: str = "") -> None:
    """A line on stdout."""
    sys.stdout.write(f"{text}\n")


def warn(text: str) -> None:
    """A line on stderr."""
    print(f"ejcache: {text}", file=sys.stderr)  # noqa: T201 (this is the command line)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    shrink: Sequence[str] = (),
    drop_last: bool = False,
) -> None:
    """A table with a heading.

    Args:
        columns: headings.
        rows: as many texts each.
        right: columns that are aligned to the right.
        shrink: columns that are cut where a terminal is too narrow, the first one first.
        drop_last: leave the last column out where it does not fit whole.
    """
    from rich.cells import cell_len

    cells = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(cell_len(row[index]) for row in ([*columns], *cells)) for index in range(len(columns))]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - _columns()
    if drop_last and excess > 0:
        print_table(columns[:-1], [row[:-1] for row in rows], right=right, shrink=shrink)
        return
    for name in shrink:
        index = columns.index(name)
        cut = max(0, min(excess, widths[index] - _NARROWEST))
        widths[index] -= cut
        excess -= cut
    aligned = [column in right for column in columns]
    _print_heading(_line(columns, widths, aligned))
    for row in cells:
        say(_line(row, widths, aligned))


def print_pairs(rows: Sequence[Sequence[str]]) -> None:
    """Lines of a name and what there is to say of it, in two columns."""
    width = max((len(row[0]) for row in rows), default=0)
    for name, *values in rows:
        say(f"{name:{width}}{_GAP}{_GAP.join(_printable(value) for value in values)}".rstrip())


@contextlib.contextmanager
def progress(label: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """A bar on stderr for work of `total` steps that takes longer than a second, if somebody watches.

    Yields:
        What to call after each step.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(label, total=total)
    began = time.monotonic()

    def advance() -> None:
        bar.advance(task)
        if not bar.live.is_started and time.monotonic() - began > _PROGRESS_AFTER:
            bar.start()

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()


def ago(moment_then: float, *, now: float) -> str:
    """How long ago a time was."""
    return f"{format_age(max(0, round(now - moment_then)))} ago"


def moment(then: float) -> str:
    """A time of day here."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(then))


def seconds(value: float | None) -> str:
    """A duration of a compilation."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def share(part: float, whole: float) -> str:
    """`part / whole (percent)`."""
    return f"{part:,.0f} / {whole:,.0f} ({100 * part / whole:.1f}%)" if whole else f"{part:,.0f}"


def plural(number: int, one: str, many: str = "") -> str:
    """`1 entry`, `2 entries`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _line(row: Sequence[str], widths: Sequence[int], aligned: Sequence[bool]) -> str:
    from rich.cells import cell_len, set_cell_size

    parts = []
    for cell, width, to_the_right in zip(row, widths, aligned, strict=True):
        missing = width - cell_len(cell)
        shown = cell if missing >= 0 else set_cell_size(cell, width - 1) + "\N{HORIZONTAL ELLIPSIS}"
        blank = " " * missing
        parts.append(blank + shown if to_the_right else shown + blank)
    return _GAP.join(parts).rstrip()


def _print_heading(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    if console.is_terminal and not console.no_color:
        console.print(Text(text, style="bold"), soft_wrap=True)
    else:
        say(text)


def _columns() -> int:
    """Characters of a line: a pipe, or a file, gets whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _printable(text: str) -> str:
    """A cell whose control characters, from a foreign file name, do nothing to the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
