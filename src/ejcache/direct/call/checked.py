"""Reads JSON that others may have written: each value has its type, or the record is damaged."""

from __future__ import annotations

from typing import Any

from ejcache.errors import EntryCorruptError

__all__ = ["checked_list", "checked_text"]


def checked_list(value: Any, *, most: int) -> list[Any]:
    """A list of at most so many elements.

    Raises:
        EntryCorruptError: it is something else.
    """
    if type(value) is not list or len(value) > most:
        raise EntryCorruptError("a list is missing, or too long")
    return value


def checked_text(value: Any) -> str:
    """A text.

    Raises:
        EntryCorruptError: it is something else.
    """
    if type(value) is not str:
        raise EntryCorruptError("a text is missing")
    return value
