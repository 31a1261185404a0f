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
    option(
        "--dir", "URL", "Where the records are: a directory or URL. Default: the setting autotune_dir, else the cache."
    ),
]
Device = Annotated[str | None, option("--device", "GLOB", "Take only records of devices whose kind matches.")]
Json = Annotated[bool, flag("--json", "Print JSON with stable field names.")]
Yes = Annotated[bool, flag("--yes", "-y", "Do not ask before something is removed.")]
REPLACE: Final = "Write a new policy if the stored one is damaged; a shared cache then begins without entries."
Replace = Annotated[bool, flag("--replace", REPLACE)]
DryRun = Annotated[bool, flag("--dry-run", "-n", "Print what would be done, and do nothing.")]
Name = Annotated[str | None, option("--name", "GLOB", "Take only entries whose name matches, such as 'jit_train*'.")]
Kernel = Annotated[str | None, option("--name", "GLOB", "Take only kernels whose name matches, such as 'block*'.")]
Limit = Annotated[str | None, option("--limit", "N", "Show at most N.")]
OlderThan = Annotated[
    str | None, option("--older-than", "AGE", "Remove what was created longer ago than this, such as 14d.")
]
NewerThan = Annotated[
    str | None, option("--newer-than", "AGE", "Copy only what was created within this time, such as 14d.")
]
UsedWithin = Annotated[
    str | None, option("--used-within", "AGE", "Copy only what was used within this time, such as 14d.")
]
Key = Annotated[
    str,
    argument("KEY", "A key, the beginning of one as `ls` shows it, or a name.", autocompletion=keys_beginning),
]
Keys = Annotated[
    list[str] | None,
    argument("[KEY]...", "Keys, beginnings of keys, or names of functions.", autocompletion=keys_beginning),
]
RecordKeys = Annotated[
    list[str] | None,
    argument("[KEY]...", "Keys, beginnings of keys, or names of kernels.", autocompletion=records_beginning),
]
RecordKey = Annotated[
    str, argument("KEY", "A key, the beginning of one, or the name of a kernel.", autocompletion=records_beginning)
]
Readable = Annotated[
    bool, flag("--readable", "Let every user of the host read the cache, for example every user of an image.")
]
MinCompileSeconds = Annotated[
    str | None,
    option("--min-compile-seconds", "SECONDS", "Store only programs that took this long or longer to compile."),
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
