"""Options and arguments that several commands have, in the same words, and the values that their texts stand for."""

from __future__ import annotations

from typing import Annotated

import typer

from ejcache.cli.completion import keys_beginning
from ejcache.cli.output import warn
from ejcache.errors import SettingError
from ejcache.util.units import bytes_meant_for_more, parse_age, parse_limit, whole_number

__all__ = [
    "Dir",
    "DryRun",
    "File",
    "Json",
    "Key",
    "Keys",
    "Limit",
    "MinCompileSeconds",
    "Name",
    "NewerThan",
    "OlderThan",
    "Url",
    "UsedWithin",
    "Yes",
    "age",
    "count",
    "examples",
    "size",
    "warn_of_bytes",
]


Dir = Annotated[
    str | None,
    typer.Option(
        "--dir",
        metavar="URL",
        help="The cache: a directory or a URL. Default: the cache_dir that `ejcache config` shows.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable field names.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would be done, and do nothing.")]
Name = Annotated[
    str | None, typer.Option("--name", metavar="GLOB", help="Only names that match the pattern, such as 'jit_train*'.")
]
Limit = Annotated[str | None, typer.Option("--limit", metavar="N", help="At most this many.", show_default=False)]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="AGE", help="Remove what was created longer ago, such as 14d.")
]
NewerThan = Annotated[
    str | None, typer.Option("--newer-than", metavar="AGE", help="Only what was created within this time, such as 14d.")
]
UsedWithin = Annotated[
    str | None, typer.Option("--used-within", metavar="AGE", help="Only what was used within this time, such as 14d.")
]
Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="A key, the beginning of one as `ls` shows it, or a name.",
        autocompletion=keys_beginning,
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY]...",
        help="Only these: keys, beginnings of keys, or names.",
        autocompletion=keys_beginning,
    ),
]
MinCompileSeconds = Annotated[
    str | None,
    typer.Option(
        "--min-compile-seconds", metavar="SECONDS", help="Store only programs that took this long to compile."
    ),
]
Url = Annotated[str, typer.Argument(metavar="URL", help="The other place: a directory or a URL.")]
File = Annotated[str, typer.Argument(metavar="FILE", help="The bundle.")]


def size(text: str | None, *, option: str) -> int | None:
    """The bytes that an option's text stands for; raises SettingError naming the option."""
    return None if text is None else parse_limit(text, setting=option)


def warn_of_bytes(option: str, text: str | None) -> None:
    """Say so if a size without a unit is so small that gigabytes were meant."""
    if text is not None and (number := bytes_meant_for_more(text)) is not None:
        warn(f"{option} {number} means {number} bytes; write {number}GB for gigabytes")


def age(text: str | None, *, option: str) -> float | None:
    """The seconds that an option's text stands for; raises SettingError naming the option."""
    return None if text is None else parse_age(text, setting=option)


def count(text: str | None, *, option: str) -> int | None:
    """The number that an option's text stands for; raises SettingError naming the option."""
    if text is None:
        return None
    number = whole_number(text.strip())
    if number is None:
        raise SettingError(option, text, "a whole number, 0 or more")
    return number


def examples(*lines: str) -> str:
    """The foot of a command's help: command lines, without `ejcache`."""
    shown = "\n".join(f"  ejcache {line}" for line in lines)
    return f"\b\nExamples:\n{shown}"
