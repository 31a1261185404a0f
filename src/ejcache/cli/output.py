"""Prints what commands say: tables and JSON on stdout, messages and progress bars on stderr.

Names, keys and error messages may come from storage that other people write to. Everything printed here goes through
`printable`, so that such a text cannot send control sequences to the terminal.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import textwrap
import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TextIO

from ejcache.settings.environment import environment_variable
from ejcache.util.printable import printable
from ejcache.util.scheduler import Scheduler
from ejcache.util.units import format_age, format_size, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


_SCHEMA: Final = 1
"""The version of all JSON. A field that is removed, or changes its meaning, makes it 2; a new field does not."""
_GAP: Final = "  "
_LEAST_ROOM: Final = 20
"""Characters that wrapped text needs; in a narrower column it is not wrapped."""
_WIDE: Final = 120
"""Columns of a terminal that has room for a column of sentences."""
_NAMED_PROBLEMS: Final = 5


def print_json(fields: Mapping[str, object]) -> None:
    """Print one JSON document on stdout: an object that begins with the version of its fields."""
    import json

    json.dump({"schema": _SCHEMA, **fields}, sys.stdout, indent=2)
    sys.stdout.write("\n")


def say(text: str = "", *, wrap: bool = True, style: str = "") -> None:
    """Print a text on stdout. Its line breaks are kept; with `wrap`, lines are wrapped if the terminal is narrow.

    A style, as `styled` has it, is put on each line after the text is made printable.
    """
    lines = wrapped_lines(text) if wrap else printable(text, keep="\n").split("\n")
    _write(sys.stdout, "\n".join(styled(line, style) for line in lines) + "\n")


def wrapped_lines(text: str, stream: TextIO | None = None) -> list[str]:
    """Return the lines of a text for stdout or another stream. Its line breaks are kept; long lines are wrapped."""
    columns = _columns(stream)
    found: list[str] = []
    for line in printable(text, keep="\n").split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + len(_GAP))
        found += _wrap(line, columns, indent) if _width(line) > columns else [line]
    return found


def print_lines(lines: Sequence[str], *, paged: bool = False) -> None:
    """Print lines as they are; with `paged`, in a pager if they are more than the terminal shows."""
    text = "\n".join(lines) + "\n"
    if paged and sys.stdout.isatty() and len(lines) >= shutil.get_terminal_size().lines:
        import pydoc

        pydoc.pager(re.sub("\x1b\\[\\d+m", "", text))  # not every pager shows colours
    else:
        _write(sys.stdout, text)


def is_narrow() -> bool:
    """True if stdout is a terminal in which columns of sentences have no room."""
    return _columns() < _WIDE


def warn(text: str) -> None:
    """Print a message on stderr. Its line breaks are kept; lines are wrapped if stderr is a narrow terminal."""
    _write(sys.stderr, "\n".join(wrapped_lines(f"ejcache: {text}", sys.stderr)) + "\n")


def warn_of_each(problems: Iterable[tuple[str, str]], what: str) -> None:
    """Print a message for each problem of several things, in a few lines however many things have it.

    Args:
        problems: keys, and what is wrong with each.
        what: stands between the keys and the problem.
    """
    keys_of: dict[str, list[tuple[str, str]]] = {}
    for key, problem in problems:
        # A message of storage names the object, so that it is another one for each key.
        keys_of.setdefault(re.sub(rf"\S*{re.escape(key)}\S*", "", problem), []).append((key, problem))
    for (key, problem), *others in islice(keys_of.values(), _NAMED_PROBLEMS):
        warn(f"{key}{f' and {len(others):,} more' if others else ''} {what}: {problem}")
    if left := sum(map(len, islice(keys_of.values(), _NAMED_PROBLEMS, None))):
        warn(f"{left:,} more {what}")


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
    least: Sequence[str] = (),
) -> bool:
    """Print a table with a heading: as wide as the terminal, or with a tab between the cells if stdout is a pipe.

    Returns whether the last line is empty, because rows became blocks.

    Args:
        columns: headings, each another one.
        rows: one text for each column.
        right: columns that are aligned to the right.
        whole: columns that take one line on a narrow terminal, too, because people copy what is in them.
        least: columns that a narrow terminal does not get, the first one first; if that is not enough, each row becomes
            a block of lines with all of them.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _write(sys.stdout, "".join("\t".join(row) + "\n" for row in (columns, *cells)))
        return False
    if least:
        kept = _fitting(columns, cells, least)
        if kept is None:
            for row in cells:
                print_pairs([pair for pair in zip(columns, row, strict=True) if pair[1]])
                say()
            return True
        cells = [[row[place] for place in kept] for row in cells]
        columns = [columns[place] for place in kept]
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, len(_GAP), 0, 0), pad_edge=False, header_style="bold" if _is_styled() else "")
    for name in columns:
        table.add_column(
            Text(name), justify="right" if name in right else "left", overflow="fold", no_wrap=name in whole
        )
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(width=_columns())
    with console.capture() as drawn:
        console.print(table, crop=False)
    _write(sys.stdout, drawn.get())
    return False


def _fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[str]) -> list[int] | None:
    """Return the places of the columns that fit on the terminal, without some of the least ones; None if they do
    not.
    """
    widths = [max(map(_width, (name, *(row[place] for row in rows)))) for place, name in enumerate(columns)]
    kept = list(range(len(columns)))
    for left_out in (None, *least):
        kept = [place for place in kept if columns[place] != left_out]
        if sum(widths[place] + len(_GAP) for place in kept) - len(_GAP) <= _columns():
            return kept
    return None


def print_pairs(rows: Sequence[Sequence[str]]) -> None:
    """Print lines that each have a name and its values, in two columns. Long values are wrapped."""
    for line in pair_lines(rows):
        _write(sys.stdout, line + "\n")


def pair_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines that `print_pairs` prints."""
    # Not with rich's table, which breaks or crops a key that is wider than the terminal: nobody could copy it.
    width = max((_width(printable(row[0])) for row in rows), default=0)
    return [line for name, *values in rows for line in _column_lines([(name, width)], _GAP.join(values))]


def say_columns(head: Sequence[tuple[str, int]], text: str) -> None:
    """Print cells of given widths, and a text that is wrapped below itself if the terminal is narrow."""
    for line in _column_lines(head, text):
        _write(sys.stdout, line + "\n")


def _column_lines(head: Sequence[tuple[str, int]], text: str) -> list[str]:
    prefix = "".join(_fill(printable(cell), width) + _GAP for cell, width in head)
    room = _columns() - _width(prefix)
    lines: list[str] = []
    for line in printable(text, keep="\n").split("\n"):
        lines += _wrap(line, room) if room >= _LEAST_ROOM and _width(line) > room else [line]
    found = []
    for line in lines or [""]:
        found.append(f"{prefix}{line}".rstrip())
        prefix = " " * _width(prefix)
    return found


def styled(text: str, style: str) -> str:
    """Return `text` in "bold", "red" or "green" where colours are shown; as it is otherwise."""
    code = {"bold": 1, "red": 31, "green": 32}.get(style)
    return f"\x1b[{code}m{text}\x1b[0m" if code is not None and text and _is_styled() else text


@contextlib.contextmanager
def progress(label: str, total: int | None, *, quiet: bool = False, after: float = 1.0) -> Iterator[Callable[[], None]]:
    """Show a bar on stderr for work that takes long, or a count if its length is not known, if stderr is a terminal.

    Work that is part of other work which is shown already is not shown.

    Args:
        label: names the work.
        total: how many steps the work has, or None if that is not known before.
        quiet: show no bar.
        after: seconds after which the bar appears, even if no step has ended: storage may be slow.

    Yields:
        The function to call after each step.
    """
    if quiet or _hidden or _shown.locked() or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    counting = (SpinnerColumn(), TextColumn("{task.completed:,.0f}"))
    bar = Progress(
        TextColumn("{task.description}"),
        *(counting if total is None else columns),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(label, total=total)
    timer = Scheduler(threads=1, name="ejcache-progress")
    changing = threading.Lock()
    ended = False

    def show() -> None:
        with changing:
            if not ended and not bar.live.is_started:
                bar.start()

    with _shown:
        if after > 0.0:
            timer.later(after, show)
        else:
            show()
        try:
            yield lambda: bar.advance(task)
        finally:
            with changing:
                ended = True
            timer.stop()
            if bar.live.is_started:
                bar.stop()


_shown: Final = threading.Lock()
"""Held while work is shown."""
_hidden = False


def hide_progress(hidden: bool) -> None:
    """Show no bars from now on, or show them again."""
    global _hidden
    _hidden = hidden


def ago(moment_then: float, *, now: float) -> str:
    """Write how long ago a time was."""
    return f"{format_age(max(0, round(now - moment_then)))} ago"


def moment(then: float) -> str:
    """Return a time in the local time zone."""
    with contextlib.suppress(OverflowError, ValueError, OSError):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(then))
    return "-"


def seconds(value: float | None) -> str:
    """Return the duration of a compilation."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def share(part: float, whole: float) -> str:
    """Return `part / whole (percent)`."""
    return f"{part:,.0f} / {whole:,.0f} ({100 * part / whole:.1f}%)" if whole else f"{part:,.0f}"


def fields_of(value: object, *names: str) -> dict[str, Any]:
    """Return attributes of an object, for JSON."""
    return {name: getattr(value, name) for name in names}


def count_and_size(entries: int, size: int) -> str:
    """Return `2 entries (15 kB)`."""
    return f"{plural(entries, 'entry', 'entries')} ({format_size(size)})"


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:  # for example under LANG=C
        stream.write(text.encode(stream.encoding, "replace").decode(stream.encoding))


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )


def _width(text: str) -> int:
    """Count the columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _fill(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _is_styled() -> bool:
    if environment_variable("NO_COLOR"):
        return False
    if environment_variable("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and environment_variable("TERM") != "dumb"


def _columns(stream: TextIO | None = None) -> int:
    """Count the characters that fit into a line of stdout or another stream; a pipe or a file gets whole lines."""
    stream = sys.stdout if stream is None else stream
    return shutil.get_terminal_size().columns if stream.isatty() else sys.maxsize
