"""Options that every command has, and what their text turns into."""

from __future__ import annotations

from typing import Annotated

import typer

from ejcache.errors import SettingError
from ejcache.units import parse_age, parse_size, whole_number

__all__ = ["Dir", "Json", "Yes", "age", "count", "size"]

Dir = Annotated[
    str | None,
    typer.Option(
        "--dir",
        metavar="URL",
        help="The cache: a directory or a URL. Default: what `ejcache config` shows as cache_dir.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable field names.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def size(text: str | None, *, option: str) -> int | None:
    """Bytes that an option's text stands for; raises SettingError naming the option."""
    return None if text is None else parse_size(text, setting=option)


def age(text: str | None, *, option: str) -> float | None:
    """Seconds that an option's text stands for; raises SettingError naming the option."""
    return None if text is None else parse_age(text, setting=option)


def count(text: str | None, *, option: str) -> int | None:
    """The number that an option's text stands for; raises SettingError naming the option."""
    if text is None:
        return None
    number = whole_number(text.strip())
    if number is None:
        raise SettingError(option, text, "a whole number, 0 or more")
    return number
