"""Reads and writes sizes, ages and counts as people do: `10GB` is decimal, `10GiB` binary, `90s` and `14d` are ages."""

from __future__ import annotations

import math
import re
from typing import Final

from ejcache.errors import ACCEPTED_SIZE, SettingError

ACCEPTED_AGE: Final = "an age such as 90s, 15m, 36h or 14d"

_LARGEST: Final = (1 << 63) - 1
_SMALLEST: Final = 1000
"""Bytes that a limit without a unit has at least, where it is meant in bytes."""

_SIZE: Final = r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtTpP]?)(i?)([bB]?)\s*"
_AGE: Final = r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|d|w)\s*"
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_AGE_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604_800.0}


def parse_size(text: str | float, *, setting: str = "size", unlimited: bool = False) -> int:
    """Return the bytes that `text` stands for; with `unlimited`, -1 stands for no limit.

    Raises:
        SettingError: `text` is not a size; the message names `setting`.
    """
    accepted = ACCEPTED_SIZE + (", or -1 for no limit" if unlimited else "")
    if isinstance(text, bool):
        raise SettingError(setting, text, accepted)
    if isinstance(text, int | float):
        if not (-1 if unlimited else 0) <= text <= _LARGEST or int(text) != text:
            raise SettingError(setting, text, accepted)
        return int(text)
    if unlimited and text.strip() == "-1":
        return -1
    match = re.fullmatch(_SIZE, text)
    if match is None:
        raise SettingError(setting, text, accepted)
    number, prefix, binary, _ = match.groups()
    if binary and not prefix:
        raise SettingError(setting, text, accepted)
    base = 1024 if binary else 1000
    if not prefix and "." not in number:
        size = whole_number(number)
    else:
        rounded = float(number) * base ** _POWERS[prefix.lower()]
        size = int(rounded) if rounded <= _LARGEST else None
    if size is None:
        raise SettingError(setting, text, accepted)
    return size


def parse_limit(text: str | float, *, setting: str) -> int:
    """Parse a limit in bytes. A few bytes without a unit are refused, because they would remove everything.

    Raises:
        SettingError: `text` is not a size, or was not meant in bytes; the message names `setting`.
    """
    if (number := bytes_meant_for_more(text)) is not None:
        raise SettingError(setting, text, f"a size with a unit: '{number}GB' for gigabytes, '{number}B' for bytes")
    return parse_size(text, setting=setting)


def bytes_meant_for_more(text: str | float) -> int | None:
    """Return the number, if it has no unit and is so small that nobody means bytes by it."""
    number = whole_number(str(text).strip())
    return number if number is not None and 0 < number < _SMALLEST else None


def whole_number(text: str) -> int | None:
    """Return the number that `text` is, if it is one that a file system, and an index, can count."""
    # As a float first: Python counts the digits of what becomes an integer, and refuses thousands of them.
    if not text.isascii() or not text.isdigit() or float(text) > _LARGEST + 1:
        return None
    return int(text) if int(text) <= _LARGEST else None


def parse_age(text: str | float, *, setting: str = "age") -> float:
    """Return the seconds that `text` stands for.

    Raises:
        SettingError: `text` is not an age; the message names `setting`.
    """
    match = re.fullmatch(_AGE, text) if isinstance(text, str) else None
    seconds = float(match[1]) * _AGE_UNITS[match[2]] if match is not None else math.inf
    if seconds == math.inf:
        raise SettingError(setting, text, ACCEPTED_AGE)
    return seconds


def format_size(size: int) -> str:
    """Return `size` bytes as a person reads them: decimal as `10GB` is, but binary where that is exact, as for
    `10GiB`.
    """
    if size < 0:
        return "unlimited"
    for unit, length in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size >= length and size % (length // 4) == 0:
            return f"{size / length:,g} {unit}"
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def plural(number: int, one: str, many: str = "") -> str:
    """Return `1 entry`, `2 entries`; `many` is `one` with an s if it is not given."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """Return a time for people: `0 s`, `0.012 s`, `4.2 s`, `3 min 5 s`, `2.5 h`; half a millisecond is 0 s."""
    if abs(seconds) < 0.0005:
        return "0 s"
    if abs(seconds) < 120:
        return f"{seconds:.2g} s" if abs(seconds) < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if abs(seconds) < 7200 else f"{seconds / 3600:.1f} h"


def format_age(seconds: float) -> str:
    """Return a duration as a person reads it, in its largest whole unit."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * length or (seconds >= length and unit != "d"):
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 or seconds == 0 else f"{seconds:.2g}s"
