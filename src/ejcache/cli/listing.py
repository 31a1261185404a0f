"""The cache that a command works on, what is in it, and which of it a person means.

What a command works on: the cache that `--dir` or the settings name, found and opened.

What a cache holds as commands list it, and which of it a person means by a key, the beginning of one, or a name.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ejcache import entry
from ejcache.cli import output
from ejcache.cli.output import warn
from ejcache.errors import EntryError, JaxImportError, NotFoundError, SettingError, StoreError, UsageError
from ejcache.keys.key import PGLE, is_side_key, parse_any_key
from ejcache.util.text import format_size, plural
from ejcache.util.threads import THREADS, in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ejcache.entry import Header
    from ejcache.keys.key import KeyParts
    from ejcache.settings.table import Settings
    from ejcache.stores.base import EntryInfo, Store
    from ejcache.stores.opening import CacheContents
    from ejcache.stores.plain_jax import JaxEntries


class AmbiguousError(NotFoundError):
    """Several things have the name that was given."""


@dataclass(frozen=True, slots=True)
class Target:
    """A location that has entries.

    Attributes:
        url: the location.
        store: the ejcache store there, or None. That of a shared location knows what other processes use.
        jax: the entries that plain JAX wrote there, or None.
        max_size: the limit in bytes that is stored with the cache, or else that of the settings; -1 for none.
        shared: whether several hosts share it.
        limits: the limits that are stored with it; None if there are none.
    """

    url: str
    store: Store | None
    jax: JaxEntries | None
    max_size: int
    shared: bool = False
    limits: Mapping[str, Any] | None = None


def command_settings(directory: str | None) -> Settings:
    """The settings, with `--dir` among them. A message on stderr names each value that cannot be used.

    Raises:
        SettingError: `--dir` is an empty text.
    """
    from ejcache.settings.resolve import resolve, set_command_line

    check_given(directory)
    set_command_line({"cache_dir": directory} if directory is not None else {})
    settings = resolve()
    for problem in settings.problems:
        warn(str(problem) if isinstance(problem, JaxImportError) else f"{problem}; it is ignored")
    return settings


@contextlib.contextmanager
def open_target(directory: str | None, *, write: bool = False, may_be_empty: bool = False) -> Iterator[Target]:
    """The cache that `--dir`, or else the settings, name. Opening it never creates one.

    Args:
        directory: the value of `--dir`.
        write: whether the command changes the cache.
        may_be_empty: a place of the settings where no program has stored anything yet is a cache without entries. One
            that `--dir` names is not: its name may be mistyped.

    Raises:
        UsageError: the URL is not one of a cache; the message names the setting that it comes from.
        NotAStoreError: there is no cache.
        StoreError: the cache cannot be opened.
    """
    from ejcache.stores.opening import inspect_location

    settings = command_settings(directory)
    try:
        may_be_empty = may_be_empty and directory is None
        contents = inspect_location(str(settings.cache_dir), settings=settings, may_be_empty=may_be_empty)
    except UsageError as exc:
        raise UsageError(f"{settings['cache_dir'].source}: {exc}") from exc
    store = contents.open(max_size=settings.store_limit, read_only=not write)
    try:
        yield _target(contents, store, settings.chosen_max_size)
    finally:
        if store is not None:
            store.close()
        contents.close()


def check_directory(url: str, complaint: str) -> None:
    """Raise NotFoundError, which begins with `complaint`, if `url` is a directory that does not exist."""
    from ejcache.stores.location import Location, LocationKind

    location = Location.parse(url)
    if location.kind is LocationKind.DIRECTORY and not Path(location.path).is_dir():
        raise NotFoundError(f"{complaint} {location}: the directory does not exist")


def check_different(one: str, other: str) -> None:
    """Refuse to copy a cache to itself; raises UsageError."""
    from ejcache.stores.location import Location

    if Location.parse(one) == Location.parse(other):
        raise UsageError(f"{other} is both the source and the target: name another one, or give --dir")


def check_given(directory: str | None) -> None:
    """Raise SettingError if `--dir` is an empty text."""
    if directory is not None and not directory.strip():
        # In `clear --dir "$CACHE"` the variable may be unset; the command must not work on the default cache then.
        raise SettingError("--dir", directory, "a directory or a URL")


def _target(contents: CacheContents, store: Store | None, chosen: int | None) -> Target:
    from ejcache.stores.shared.store import SharedStore

    limit = chosen if chosen is not None else store.max_size if store is not None else -1
    if not isinstance(store, SharedStore):
        return Target(contents.url, store, contents.jax, limit, shared=contents.bucket is not None)
    from ejcache.maintenance.eviction import ScannedStore
    from ejcache.maintenance.plan import read_limits

    limits = None
    try:
        limits = read_limits(store.bucket)
    except EntryError as exc:
        warn(f"the limits that are stored with {contents.url} cannot be read: {exc}")
    stored = (limits or {}).get("max_size")
    max_size = limit if stored is None else int(stored)
    return Target(contents.url, ScannedStore(store), contents.jax, max_size, shared=True, limits=limits)


Item = TypeVar("Item")

_SHORTEST: Final = 6
"""Characters from which a text counts as the beginning of a digest. A shorter one may be the beginning of a word."""
_SHORT_DIGEST: Final = re.compile(f"[0-9a-f]{{1,{_SHORTEST - 1}}}")
_NAMED: Final = 20
"""Keys that a message names."""
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
        is_jax: whether plain JAX wrote it.
    """

    info: EntryInfo
    parts: KeyParts
    is_jax: bool = False

    @property
    def kind(self) -> str:
        """`ejcache` or `jax`: the program that wrote it."""
        return "jax" if self.is_jax else "ejcache"

    @property
    def short(self) -> str:
        """The beginning of the key's digest. Commands accept it in place of the key."""
        return (self.parts.logical or self.info.key.removeprefix(f"{self.parts.name}-"))[:12]

    @property
    def program(self) -> tuple[str, str] | None:
        """What the variants of one program have in common; None if the key does not say."""
        return (self.parts.logical, self.parts.environment) if self.parts.logical else None

    def fields(self) -> dict[str, Any]:
        """Stable fields for JSON."""
        return {
            "key": self.info.key,
            "kind": self.kind,
            **output.fields_of(self.parts, "name", "platform", "variant"),
            "logical_key": self.parts.logical,
            "environment_digest": self.parts.environment,
            **output.fields_of(self.info, "size", "created", "last_used", "hits"),
        }


@dataclass(slots=True)
class Totals:
    """How much a cache holds, counted in the same way by every command.

    Attributes:
        total_entries: executables that ejcache stored.
        total_size: the bytes of all that ejcache stored: the entries, and the texts, profiles and records beside them.
        side_objects: how many texts, profiles and records there are, and `side_size` their bytes.
        jax_entries: entries that plain JAX wrote, and `jax_size` their bytes.
    """

    total_entries: int = 0
    total_size: int = 0
    side_objects: int = 0
    side_size: int = 0
    jax_entries: int = 0
    jax_size: int = 0

    def add(self, info: EntryInfo) -> None:
        """Count what ejcache stored."""
        self.total_size += info.size
        if is_side_key(info.key):
            self.side_objects += 1
            self.side_size += info.size
        else:
            self.total_entries += 1

    def add_jax(self, info: EntryInfo) -> None:
        """Count an entry of plain JAX."""
        self.jax_entries += 1
        self.jax_size += info.size

    def words(self) -> str:
        """The sum as a person reads it."""
        parts = []
        if self.total_entries or self.side_objects or not self.jax_entries:
            text = f"{plural(self.total_entries, 'entry', 'entries')}, {format_size(self.total_size)}"
            if self.side_objects:
                beside = plural(self.side_objects, "text, profile or record", "texts, profiles and records")
                text += f" ({format_size(self.side_size)} of it in {beside})"
            parts.append(text)
        if self.jax_entries:
            jax = plural(self.jax_entries, "entry", "entries")
            parts.append(f"{jax} of plain JAX, {format_size(self.jax_size)}")
        return ", and ".join(parts)


def list_entries(target: Target, totals: Totals | None = None, *, name: str | None = None) -> Iterator[ListedEntry]:
    """Every entry: first those that ejcache stored, then those of plain JAX.

    Args:
        target: the cache.
        totals: what is listed is added to it. Texts, profiles and records belong to no single entry, so
            they are counted only where no name is given.
        name: a shell pattern that the names of entries must match.

    Raises:
        StoreError: the cache cannot be listed.
    """
    totals = Totals() if totals is None else totals
    places = ((target.store, totals.add, False), (target.jax, totals.add_jax, True))
    with output.progress("listing", None) as advance:
        for place, add, is_jax in places:
            for info in place.entries() if place is not None else ():
                parts = parse_any_key(info.key)
                is_side = not is_jax and is_side_key(info.key)
                if name is None or (not is_side and fnmatch.fnmatchcase(parts.name, name)):
                    add(info)
                    if not is_side:
                        advance()
                        yield ListedEntry(info, parts, is_jax)


def by_program(rows: Sequence[ListedEntry]) -> list[ListedEntry]:
    """The variants of each program together, at the position of the first one; the PGLE variant comes first."""
    groups: dict[object, list[ListedEntry]] = {}
    for row in rows:
        groups.setdefault(row.program or row.info.key, []).append(row)
    return [row for group in groups.values() for row in sorted(group, key=lambda row: row.parts.variant != PGLE)]


@dataclass(frozen=True, slots=True)
class Identifiers:
    """The texts by which a person may name something.

    Attributes:
        key: its key.
        names: other texts that name it in full.
        digests: texts whose beginning names it.
        program: equal for variants of one program; None for what has no variants.
    """

    key: str
    names: frozenset[str]
    digests: tuple[str, ...] = ()
    program: object = None


def match(items: Iterable[Item], wanted: str, identify: Callable[[Item], Identifiers]) -> tuple[list[Item], bool]:
    """The item whose key is `wanted`, or else those of that name, or else those whose key begins with it.

    A name comes before the beginning of a key, because a name may also be the beginning of another name.

    Returns:
        The items, and whether `wanted` is their key or name rather than the beginning of a key.

    Raises:
        SettingError: `wanted` is empty.
    """
    check_wanted(wanted)
    names = {wanted, f"jit_{wanted}"}  # JAX calls the module of a function `train` `jit_train`
    named: list[Item] = []
    begun: list[Item] = []
    for item in items:
        identifiers = identify(item)
        if identifiers.key == wanted:
            return [item], True
        digests = identifiers.digests if len(wanted) >= _SHORTEST else ()
        if not names.isdisjoint(identifiers.names):
            named.append(item)
        elif any(text.startswith(wanted) for text in (identifiers.key, *digests)):
            begun.append(item)
    return named or begun, bool(named)


def choose(
    items: Iterable[Item],
    wanted: str,
    identify: Callable[[Item], Identifiers],
    *,
    where: str,
    all_of_a_name: bool = False,
) -> list[Item]:
    """What a person means by `wanted`: one item, or the variants of one program.

    Args:
        items: to choose from.
        wanted: a key, the beginning of one, or a name.
        identify: gives the texts that name an item.
        where: the location, for messages.
        all_of_a_name: a name means all items that have it.

    Raises:
        NotFoundError: nothing matches.
        AmbiguousError: several items of different programs do.
        SettingError: `wanted` is empty.
    """
    found, exact = match(items, wanted, identify)
    if not found:
        short = f"; the beginning of a digest needs {_SHORTEST} characters" if _SHORT_DIGEST.fullmatch(wanted) else ""
        raise NotFoundError(f"nothing in {where} has the key or name {wanted!r}{short}")
    programs = {identify(item).program for item in found}
    one_program = len(programs) == 1 and None not in programs
    if len(found) == 1 or one_program or (all_of_a_name and exact):
        return found
    keys = sorted(identify(item).key for item in found)
    more = [f"and {len(keys) - _NAMED:,} more"] if len(keys) > _NAMED else []
    message = f"{len(keys)} keys in {where} match {wanted!r}; give one of them:"
    raise AmbiguousError("\n  ".join([message, *keys[:_NAMED], *more]))


def check_wanted(wanted: str) -> None:
    """Refuse an empty text, which every key begins with; a shell variable may be unset. Raises SettingError."""
    if not wanted.strip():
        raise SettingError("KEY", wanted, "a key, the beginning of one, or a name")


def identify_key(key: str) -> Identifiers:
    """The texts that name the entry under `key`."""
    parts = parse_any_key(key)
    digest = f"{parts.logical}-{parts.environment}" if parts.logical else key.removeprefix(f"{parts.name}-")
    program = (parts.logical, parts.environment) if parts.logical else None
    return Identifiers(key, frozenset({parts.name}), (digest,), program)


def identify_entry(row: ListedEntry) -> Identifiers:
    """The texts that name a listed entry."""
    return identify_key(row.info.key)


def read_header(store: Store, key: str) -> Header | None:
    """The header of the entry, not verified; None if the entry is gone or its header cannot be read."""
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


def header_facts(row: ListedEntry, target: Target, data: bytes | None = None) -> dict[str, Any]:
    """Fields from the entry's header: `compile_seconds` and `profile`, each None if the header does not say.

    Args:
        row: the entry.
        target: the cache.
        data: the entry's bytes, if they have been read.
    """
    with contextlib.suppress(StoreError, EntryError):
        if row.is_jax and target.jax is not None:
            return {"compile_seconds": target.jax.compile_seconds(row.info.key), "profile": None}
        if target.store is not None:
            header = read_header(target.store, row.info.key) if data is None else entry.decode_header(data)
            if header is not None:
                return {"compile_seconds": header.compile_seconds, "profile": profile_fields(header)}
    return dict(_NO_FACTS)


def profile_fields(header: Header) -> dict[str, Any] | None:
    """The profile that the entry was compiled with; None if it was compiled without one."""
    if not header.profile_digest:
        return None
    noted = header.extra.get("profile")
    noted = noted if isinstance(noted, dict) else {}
    return {"digest": header.profile_digest} | {name: noted.get(name) for name in ("runs", "percentile", "devices")}


def read_facts(rows: Sequence[ListedEntry], target: Target, *, advance: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """`header_facts` of each of `rows`; `advance` is called after each. Of too many remote entries none is read."""
    if target.shared and len(rows) > _MAX_REQUESTS:
        yield from (dict(_NO_FACTS) for _ in rows)
        return
    threads = THREADS if target.shared else 1
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        small: Mapping[str, bytes] = {}
        # Of a local store, one look at its index is much faster than one for each; one that can be written to would
        # note that they were used.
        if target.store is not None and target.store.read_only:
            with contextlib.suppress(StoreError):
                small = target.store.get_small([row.info.key for row in batch if not row.is_jax])
        read = partial(_facts, target=target, small=small)
        for facts in in_parallel(read, batch, threads=threads):
            yield facts
            advance()


def _facts(row: ListedEntry, *, target: Target, small: Mapping[str, bytes]) -> dict[str, Any]:
    return header_facts(row, target, None if row.is_jax else small.get(row.info.key))
