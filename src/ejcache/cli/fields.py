"""Describes the fields of entries, tuned records and counts, each once: with its name, its text and its JSON.

`ls`, `prune --dry-run`, `tuned ls`, and `report` of tuned records make their tables of the fields that they print as
JSON; `ls KEY`, `stats`, `tuned show` and `tuned stats` make a line of each.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.cli import output
from ejcache.keys.key import parse_any_key
from ejcache.util.units import format_size, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Fields = Mapping[str, Any]
    """What JSON has of one row."""


class TableField(NamedTuple):
    """One field of a row.

    Attributes:
        heading: of its column, or of its line.
        name: in JSON, whose value the text is made of.
        text: makes the text of that value, and of all fields of the row; an empty one has no line.
        is_right: whether the column is aligned to the right.
        is_whole: whether people copy its texts, so that a narrow terminal does not break them.
        usual: a text that says nothing, if each row has it.
        has_parts: whether the value has named parts, each with a line and a text of its own.
    """

    heading: str
    name: str
    text: Callable[[Any, Fields], str] = lambda value, _: str(value or "-")
    is_right: bool = False
    is_whole: bool = False
    usual: str = ""
    has_parts: bool = False


def short_key(key: str) -> str:
    """Return the beginning of the key's digest. Commands accept it in place of the key."""
    parts = parse_any_key(key)
    return (parts.logical or key.removeprefix(f"{parts.name}-"))[:12]


def _ago(moment: float, _: Fields) -> str:
    return output.ago(moment, now=time.time())


ENTRY: Final = {
    field.heading: field
    for field in (
        TableField("name", "name", lambda name, row: f"{'└ ' * bool(row.get('is_variant'))}{name}"),
        TableField("platform", "platform"),
        TableField("variant", "variant", usual="plain"),
        TableField("profile", "profile", lambda profile, _: profile_text(profile) if profile else "-", usual="-"),
        TableField("size", "size", lambda size, _: format_size(size), is_right=True),
        TableField("compile s", "compile_seconds", lambda seconds, _: output.seconds(seconds), is_right=True),
        TableField("created", "created", _ago, is_right=True),
        TableField("last used", "last_used", _ago, is_right=True),
        TableField("rule", "reason", lambda reason, _: reason.replace("_", " ")),
        TableField("key", "key", lambda key, _: short_key(key), is_whole=True),
        TableField("arguments and results", "signature"),
    )
}
"""The fields of entries that have a column, by its heading."""


def print_rows(
    fields: Mapping[str, TableField], columns: Sequence[str], rows: Sequence[Fields], *, least: Sequence[str] = ()
) -> None:
    """Print a table; nothing without rows. A column in which each row says what is usual is left out.

    Args:
        fields: by heading.
        columns: the headings, in their order.
        rows: of which the cells are made.
        least: columns that a narrow terminal does not get, the first one first.
    """
    if not rows:
        return
    cells = {name: [fields[name].text(row.get(fields[name].name), row) for row in rows] for name in columns}
    shown = [name for name in columns if any(cell != fields[name].usual for cell in cells[name])]
    output.print_table(
        shown,
        [*zip(*(cells[name] for name in shown), strict=True)],
        right=[name for name in shown if fields[name].is_right],
        whole=[name for name in shown if fields[name].is_whole],
        least=[name for name in least if name in shown],
    )


def field_lines(fields: Iterable[TableField], row: Fields) -> list[list[str]]:
    """Return a line for each field of one row that has a text: its heading, with the name of a part, and the text."""
    lines = []
    for field in fields:
        value = row.get(field.name)
        parts = (value or {}) if field.has_parts else {"": value}
        whole = parts if field.has_parts else row
        lines += [[f"{field.heading}{name}", field.text(part, whole)] for name, part in parts.items()]
    return [line for line in lines if line[1]]


def any_text(value: object, _: Fields) -> str:
    """Return a value as it is; nothing of one that is not known."""
    return "" if value is None else str(value)


def share_of_parts(part: int, parts: Fields) -> str:
    """Return a number with its share of the whole that it is a part of."""
    return output.share(part, sum(parts.values()))


def number_text(number: int, _: Fields) -> str:
    """Return a number, and nothing of none."""
    return f"{number:,}" if number else ""


def profile_text(profile: Mapping[str, Any]) -> str:
    """Return a profile as `ls` shows it: its digest, and what it was measured with."""
    parts = [str(profile["digest"])[:8]]
    if profile.get("runs"):
        parts.append(plural(profile["runs"], "run"))
    if profile.get("percentile"):
        parts.append(f"p{profile['percentile']}")
    if profile.get("devices"):
        parts.append(plural(profile["devices"], "device"))
    return ", ".join(parts)
