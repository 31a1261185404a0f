"""Opens the cache that a command works on, which `--dir` or the settings name."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ejcache.cli.output import warn
from ejcache.errors import EntryError, JaxImportError, NotFoundError, SettingError, UsageError
from ejcache.maintenance.eviction import ScannedStore
from ejcache.maintenance.recalls import recalls_in_words
from ejcache.maintenance.stored_policy import (
    read_limits,
    read_limits_of_directory,
    recalls_of,
    who_turned_off,
)
from ejcache.settings.resolve import resolve, set_command_line
from ejcache.stores.contents import inspect_location
from ejcache.stores.location import Location
from ejcache.stores.shared.store import SharedStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ejcache.settings.table import Settings
    from ejcache.stores.base import Store
    from ejcache.stores.contents import CacheContents


@dataclass(frozen=True, slots=True)
class OpenCache:
    """A location that has entries.

    Attributes:
        url: the location.
        store: the ejcache store there, or None. That of a shared location knows what other processes use.
        max_size: the limit in bytes that is stored with the cache, or else that of the settings; -1 for none.
        shared: whether several hosts share it.
        limits: the limits that are stored with it; None if there are none.
        turned_off: by whom and when, in words; empty if it is on.
        recalled: what is recalled of it, in words; empty if nothing is.
    """

    url: str
    store: Store | None
    max_size: int
    shared: bool = False
    limits: Mapping[str, Any] | None = None
    turned_off: str = ""
    recalled: str = ""


def command_settings(directory: str | None, *, lenient: bool = False) -> Settings:
    """Return the settings, with `--dir` among them. A message on stderr names each name and value that is ignored.

    A value that a setting cannot have is an error, as one of an option is: the command would do something else than it
    was asked for.

    Args:
        directory: the value of `--dir`.
        lenient: the command shows what is used instead of a wrong value, or puts another one in its place.

    Raises:
        SettingError: `--dir` is an empty text, or, without `lenient`, a setting has a wrong value.
    """
    check_given(directory)
    set_command_line({"dir": directory} if directory is not None else {})
    settings = resolve()
    for problem in settings.problems:
        if not lenient and is_wrong_value(problem):
            raise problem
        warn(str(problem) if isinstance(problem, JaxImportError) else f"{problem}; it is ignored")
    return settings


def is_wrong_value(problem: SettingError) -> bool:
    """True if a variable or a file has a value that its setting cannot have; False for a name that was mistyped."""
    return type(problem) is SettingError


@contextlib.contextmanager
def open_cache(directory: str | None, *, write: bool = False, may_be_empty: bool = False) -> Iterator[OpenCache]:
    """Open the cache that `--dir`, or else the settings, name. Opening it never creates one.

    Args:
        directory: the value of `--dir`.
        write: whether the command changes the cache.
        may_be_empty: a place of the settings where no program has stored anything yet is a cache without entries. One
            that `--dir` names is not: its name may be mistyped.

    Raises:
        UsageError: the URL is not one of a cache, or another variable has a value that it cannot have; the message
            names the setting.
        NotAStoreError: there is no cache.
        StoreError: the cache cannot be opened.
    """
    settings = command_settings(directory)
    try:
        may_be_empty = may_be_empty and directory is None
        contents = inspect_location(str(settings.dir), settings=settings, may_be_empty=may_be_empty)
    except UsageError as exc:
        raise UsageError(f"{settings['dir'].source}: {exc}") from exc
    store = contents.open(max_size=settings.store_limit, read_only=not write)
    try:
        yield _target(contents, store, settings.chosen_max_size)
    finally:
        if store is not None:
            store.close()
        contents.close()


def check_directory(url: str, complaint: str) -> None:
    """Raise NotFoundError, which begins with `complaint`, if `url` is a directory that does not exist."""
    location = Location.parse(url)
    if location.kind == "directory" and not Path(location.path).is_dir():
        raise NotFoundError(f"{complaint} {location}: the directory does not exist")


def check_different(one: str, other: str) -> None:
    """Refuse to copy a cache to itself; raises UsageError."""
    if Location.parse(one) == Location.parse(other):
        raise UsageError(f"{other} is both the source and the target: name another one, or give --dir")


def check_given(directory: str | None) -> None:
    """Raise SettingError if `--dir` is an empty text."""
    if directory is not None and not directory.strip():
        # In `clear --dir "$CACHE"` the variable may be unset; the command must not work on the default cache then.
        raise SettingError("--dir", directory, "a directory or a URL")


def _target(contents: CacheContents, store: Store | None, chosen: int | None) -> OpenCache:
    limit = chosen if chosen is not None else store.max_size if store is not None else -1

    limits = None
    try:
        if isinstance(store, SharedStore):
            limits = read_limits(store.root)
        elif contents.bucket is None:
            limits = read_limits_of_directory(contents.location)
    except EntryError as exc:
        warn(f"the limits that are stored with {contents.url} cannot be read: {exc}")
    off, recalled = who_turned_off(limits or {}), recalls_in_words(recalls_of(limits or {}))
    if not isinstance(store, SharedStore):
        shared = contents.bucket is not None
        return OpenCache(contents.url, store, limit, shared=shared, turned_off=off, recalled=recalled)

    stored = (limits or {}).get("max_size")
    max_size = limit if stored is None else int(stored)
    scanned = ScannedStore(store)
    return OpenCache(contents.url, scanned, max_size, shared=True, limits=limits, turned_off=off, recalled=recalled)
