"""Lists what a cache holds: rows with their facts, variants of one program together."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ejcache import entry
from ejcache.cli import output
from ejcache.cli.fields import short_key
from ejcache.errors import EntryError, StoreError
from ejcache.keys.key import PGLE, is_side_key, parse_any_key
from ejcache.util.patterns import fits
from ejcache.util.threads import THREADS, in_parallel
from ejcache.util.units import format_size, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ejcache.cli.chosen_cache import OpenCache
    from ejcache.entry import Header
    from ejcache.keys.key import KeyParts
    from ejcache.stores.base import EntryInfo, Store


_HEADER_GUESS: Final = 8192
"""Bytes that hold nearly every header; a longer one is read again in full."""
_BATCH: Final = 256
_NO_FACTS: Final = {"compile_seconds": None, "profile": None}
_MAX_REQUESTS: Final = 2000
"""Entries of a remote cache whose headers are read; more would take minutes."""


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """An entry of a listing.

    Attributes:
        info: what the listing says.
        parts: what the key says.
    """

    info: EntryInfo
    parts: KeyParts

    @property
    def short(self) -> str:
        """The beginning of the key's digest. Commands accept it in place of the key."""
        return short_key(self.info.key)

    @property
    def program(self) -> tuple[str, str] | None:
        """The parts of the key that all variants of one program share; None if the key does not say."""
        return (self.parts.logical, self.parts.environment) if self.parts.logical else None

    def fields(self) -> dict[str, Any]:
        """Return stable fields for JSON."""
        return {
            "key": self.info.key,
            **output.fields_of(self.parts, "name", "platform", "variant"),
            "logical_key": self.parts.logical,
            "environment_digest": self.parts.environment,
            **output.fields_of(self.info, "size", "created", "last_used"),
        }


@dataclass(slots=True)
class Totals:
    """How much a cache holds, counted in the same way by every command.

    Attributes:
        total_entries: executables that ejcache stored.
        total_size: the bytes of all that ejcache stored: the entries, and the texts, profiles and records beside them.
        side_objects: how many texts, profiles and records there are, and `side_size` their bytes.
    """

    total_entries: int = 0
    total_size: int = 0
    side_objects: int = 0
    side_size: int = 0

    def add(self, info: EntryInfo) -> None:
        """Count what ejcache stored."""
        self.total_size += info.size
        if is_side_key(info.key):
            self.side_objects += 1
            self.side_size += info.size
        else:
            self.total_entries += 1

    def words(self) -> str:
        """Return the sum as a person reads it."""
        text = f"{plural(self.total_entries, 'entry', 'entries')}, {format_size(self.total_size)}"
        if not self.side_objects:
            return text
        beside = plural(self.side_objects, "text, profile or record", "texts, profiles and records")
        return f"{text} ({format_size(self.side_size)} of it in {beside})"


def list_entries(cache: OpenCache, totals: Totals | None = None, *, name: str | None = None) -> Iterator[ListedEntry]:
    """Yield every entry.

    Args:
        cache: the cache.
        totals: what is listed is added to it. Texts, profiles and records belong to no single entry, so
            they are counted only where no name is given.
        name: a shell pattern that the names of entries must match.

    Raises:
        StoreError: the cache cannot be listed.
    """
    totals = Totals() if totals is None else totals
    with output.progress("listing", None) as advance:
        for info in cache.store.entries() if cache.store is not None else ():
            parts, is_side = parse_any_key(info.key), is_side_key(info.key)
            if name is None or (not is_side and fits(parts.name, name)):
                totals.add(info)
                if not is_side:
                    advance()
                    yield ListedEntry(info, parts)


def by_program(rows: Sequence[ListedEntry]) -> list[ListedEntry]:
    """Return the variants of each program together, at the position of the first one; the PGLE variant comes first."""
    groups: dict[object, list[ListedEntry]] = {}
    for row in rows:
        groups.setdefault(row.program or row.info.key, []).append(row)
    return [row for group in groups.values() for row in sorted(group, key=lambda row: row.parts.variant != PGLE)]


def read_header(store: Store, key: str) -> Header | None:
    """Return the header of the entry, not verified; None if the entry is gone or its header cannot be read."""
    with contextlib.suppress(StoreError):
        for length in (_HEADER_GUESS, entry.MAX_HEADER_SIZE + entry.OVERHEAD):
            data = store.peek(key, length=length)
            if data is None:
                return None
            with contextlib.suppress(EntryError):
                return entry.decode_header(data)
            if len(data) < length:
                return None
    return None


def header_facts(row: ListedEntry, cache: OpenCache, data: bytes | None = None) -> dict[str, Any]:
    """Return fields from the entry's header: `compile_seconds` and `profile`, each None if the header does not say.

    Args:
        row: the entry.
        cache: the cache.
        data: the entry's bytes, if they have been read.
    """
    with contextlib.suppress(StoreError, EntryError):
        if cache.store is not None:
            header = read_header(cache.store, row.info.key) if data is None else entry.decode_header(data)
            if header is not None:
                return {"compile_seconds": header.compile_seconds, "profile": profile_fields(header)}
    return dict(_NO_FACTS)


def profile_fields(header: Header) -> dict[str, Any] | None:
    """Return the profile that the entry was compiled with; None if it was compiled without one."""
    if not header.profile_digest:
        return None
    noted = header.extra.get("profile")
    noted = noted if isinstance(noted, dict) else {}
    return {"digest": header.profile_digest} | {name: noted.get(name) for name in ("runs", "percentile", "devices")}


def read_facts(
    rows: Sequence[ListedEntry], cache: OpenCache, *, advance: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """Read `header_facts` of each of `rows`, and call `advance` after each. Of too many remote entries none is read."""
    if cache.shared and len(rows) > _MAX_REQUESTS:
        yield from (dict(_NO_FACTS) for _ in rows)
        return
    threads = THREADS if cache.shared else 1
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        read = partial(header_facts, cache=cache)
        for facts in in_parallel(read, batch, threads=threads):
            yield facts
            advance()
