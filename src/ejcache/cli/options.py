"""Declares the options and arguments that several commands have, and reads the values of their texts."""

from __future__ import annotations

import contextlib
import math
import sys
from typing import Annotated, Any, Final

import typer

from ejcache.cli import output
from ejcache.cli.completion import keys_beginning, records_beginning
from ejcache.cli.output import warn
from ejcache.errors import SettingError, UsageError
from ejcache.util.printable import printable
from ejcache.util.units import bytes_meant_for_more, parse_age, parse_limit, whole_number


def option(*texts: str, **more: Any) -> Any:
    """Return an option with a value: its names, the name of the value, and its help."""
    *names, metavar, about = texts
    return typer.Option(*names, metavar=metavar, help=about, **more)


def flag(*texts: str, **more: Any) -> Any:
    """Return an option without a value: its names, and its help."""
    *names, about = texts
    return typer.Option(*names, help=about, **more)


def argument(metavar: str, about: str, **more: Any) -> Any:
    """Return an argument: its name, and its help."""
    return typer.Argument(metavar=metavar, help=about, **more)


Dir = Annotated[
    str | None,
    option("--dir", "URL", "The cache: a directory or a URL. Default: the dir that `ejcache config` shows."),
]
TunedDir = Annotated[
    str | None,
    option("--dir", "URL", "The autotune store: a directory or a URL. Default: EJCACHE_AUTOTUNE_DIR, else the cache."),
]
Device = Annotated[str | None, option("--device", "GLOB", "Only devices whose kind matches the pattern.")]
Json = Annotated[bool, flag("--json", "Print JSON with stable field names.")]
Yes = Annotated[bool, flag("--yes", "-y", "Do not ask.")]
REPLACE: Final = "Write a new policy in the place of a damaged one; a shared cache begins anew then."
Replace = Annotated[bool, flag("--replace", REPLACE)]
DryRun = Annotated[bool, flag("--dry-run", "-n", "Say what would be done, and do nothing.")]
Name = Annotated[str | None, option("--name", "GLOB", "Only names that match the pattern, such as 'jit_train*'.")]
Limit = Annotated[str | None, option("--limit", "N", "At most this many.")]
OlderThan = Annotated[str | None, option("--older-than", "AGE", "Remove what was created longer ago, such as 14d.")]
NewerThan = Annotated[str | None, option("--newer-than", "AGE", "Only what was created within this time, such as 14d.")]
UsedWithin = Annotated[str | None, option("--used-within", "AGE", "Only what was used within this time, such as 14d.")]
Key = Annotated[
    str,
    argument("KEY", "A key, the beginning of one as `ls` shows it, or a name.", autocompletion=keys_beginning),
]
Keys = Annotated[
    list[str] | None,
    argument("[KEY]...", "Only these: keys, beginnings of keys, or names.", autocompletion=keys_beginning),
]
RecordKeys = Annotated[
    list[str] | None,
    argument("[KEY]...", "Only these: keys, beginnings of keys, or operations.", autocompletion=records_beginning),
]
RecordKey = Annotated[
    str, argument("KEY", "A key, the beginning of one as `ls` shows it, or a name.", autocompletion=records_beginning)
]
Readable = Annotated[
    bool, flag("--readable", "Let every user of a host that has the directory read it, such as the users of an image.")
]
MinCompileSeconds = Annotated[
    str | None,
    option("--min-compile-seconds", "SECONDS", "Store only programs that took this long to compile."),
]
Url = Annotated[str, argument("URL", "The other place: a directory, a URL, or a file FILE.tar.")]


def size(text: str | None, *, option: str) -> int | None:
    """Return the bytes that an option's text stands for; raises SettingError naming the option."""
    return None if text is None else parse_limit(text, setting=option)


def warn_of_bytes(option: str, text: str | None) -> None:
    """Say so if a size without a unit is so small that gigabytes were meant."""
    if text is not None and (number := bytes_meant_for_more(text)) is not None:
        warn(f"{option} {number} means {number} bytes; write {number}GB for gigabytes")


def age(text: str | None, *, option: str) -> float | None:
    """Return the seconds that an option's text stands for; raises SettingError naming the option."""
    return None if text is None else parse_age(text, setting=option)


def count(text: str | None, *, option: str) -> int | None:
    """Return the number that an option's text stands for; raises SettingError naming the option."""
    if text is None:
        return None
    number = whole_number(text.strip())
    if number is None:
        raise SettingError(option, text, "a whole number, 0 or more")
    return number


def positive_seconds(text: str, *, option: str) -> float:
    """Return the seconds that an option's text stands for; raises SettingError naming the option."""
    with contextlib.suppress(ValueError):
        number = float(text)
        if 0 < number < math.inf:
            return number
    raise SettingError(option, text, "a number of seconds, more than 0")


def positive(text: str, *, option: str) -> int:
    """Parse as `count` does, and refuse 0."""
    number = whole_number(text.strip())
    if not number:
        raise SettingError(option, text, "a whole number, 1 or more")
    return number


def examples(*lines: str) -> str:
    """Return the foot of a command's help: command lines, without `ejcache`."""
    shown = "\n".join(f"  ejcache {line}" for line in lines)
    return f"\b\nExamples:\n{shown}"


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask before all or most entries are removed.

    Raises:
        UsageError: nobody can answer, and `--yes` was not given.
        typer.Exit: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty() or as_json:
        raise UsageError("this asks before it removes everything: give --yes where nobody can answer")
    if not typer.confirm(printable(question), err=True):
        output.warn("nothing was removed")
        raise typer.Exit(1)
