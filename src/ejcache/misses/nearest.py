"""The compilation that a miss is compared with: of all that are known, the one that is most similar."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext, suppress
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.errors import EntryError, StoreError
from ejcache.keys.difference import Identity
from ejcache.keys.key import is_side_key, listed_name, module_text_key, parse_key
from ejcache.maintenance.temporary_tables import TemporaryTables, key_of_row, row_key
from ejcache.misses.log import recall_programs
from ejcache.misses.program_text import likeness_of, read_text
from ejcache.stores.base import EntryInfo
from ejcache.util.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from ejcache.misses.program_text import ProgramText
    from ejcache.stores.base import Store

_HEADER_BYTES: Final = 64 * 1024
_COMPARED: Final = 12
"""Compilations whose texts are compared; each text of a bucket costs a request."""
NEWEST: Final = 2000
"""Entries of one function that are read; from a bucket, reading more would take minutes."""


class KnownEntries:
    """The entries of a store, listed once, and their headers, each read once, when it is needed.

    Args:
        store: listed and read, never written.
        progress: called with the number of entries to read; returns a context manager whose value is called after
            each entry.

    The listing is kept in a temporary table, so that it may be of any size.
    """

    def __init__(
        self,
        store: Store,
        *,
        progress: Callable[[int], AbstractContextManager[Callable[[], None]]] = lambda _: nullcontext(lambda: None),
    ) -> None:
        self.store = store
        self._progress = progress
        self._read: dict[str, Identity | None] = {}

    @cached_property
    def _listed(self) -> TemporaryTables:
        listed = TemporaryTables("CREATE TABLE entries (key BLOB, size INTEGER, created REAL, used REAL)")
        entries = (info for info in self.store.entries() if not is_side_key(info.key))
        rows = ((row_key(info.key), info.size, info.created, info.last_used) for info in entries)
        listed.insert("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
        listed.run("CREATE INDEX newest ON entries (created)")
        return listed

    def entries(self) -> Iterator[EntryInfo]:
        """The entries, the newest first. Raises StoreError if they cannot be listed."""
        for key, *fields in self._listed.rows("SELECT * FROM entries ORDER BY created DESC"):
            yield EntryInfo(key_of_row(key), *fields)

    def identity(self, key: str) -> Identity | None:
        """The identity in the entry's header; None if the entry is gone or cannot be read."""
        if key not in self._read:
            data = self.store.peek(key, length=_HEADER_BYTES)
            self._read[key] = None
            with suppress(EntryError):
                self._read[key] = identity_of(entry.decode_header(data)) if data is not None else None
        return self._read[key]

    def named(self, name: str) -> list[Identity]:
        """The entries with this module name, at most the 2,000 newest. Raises StoreError if they cannot be read."""
        listed = listed_name(name)
        named = (info.key for info in self.entries() if _name_in(info.key) in (None, listed))
        keys = list(islice(named, NEWEST))
        with self._progress(len(keys)) as advance:
            found = []
            for identity in in_parallel(self.identity, keys):
                advance()
                if identity is not None and identity.name == name:
                    found.append(identity)
        return found


def _name_in(key: str) -> str | None:
    """The module's name in the key; None if the key has another form, because a caller made it."""
    parts = parse_key(key.partition("~")[0])
    return parts.name if parts is not None else None


def identity_of(header: entry.Header) -> Identity:
    """The compilation that an entry's header describes."""
    extra = header.extra
    details = extra.get("details")
    details = {str(name): str(text) for name, text in details.items()} if isinstance(details, dict) else {}
    if header.jax:
        details.setdefault("jax", header.jax)
    return Identity(
        header.key,
        header.name,
        header.components,
        details,
        str(extra.get("signature", "")),
        str(extra.get("module", "")),
        header.created,
        header.compile_seconds,
    )


def stored_text(store: Store, digest: str) -> str | None:
    """The module's text; None if it was not stored, or is not the text that the digest stands for."""
    key = module_text_key(digest)
    data = store.peek(key)
    if data is None:
        return None
    try:
        raw = entry.decode(data, key=key, kind="module_text").raw
        # The digest in the key says which text this is; a checksum inside the entry only says that it is undamaged.
        return raw.decode() if hashlib.sha256(raw).hexdigest() == digest else None
    except (EntryError, UnicodeDecodeError):
        return None


def _raw_texts(identities: Iterable[Identity], store: Store | None) -> dict[str, str]:
    """By key, the texts that are known of programs: with source lines from this host, or else as the store has them."""
    wanted = {identity.key: identity for identity in identities}
    local = recall_programs({each.components.get("computation", "") for each in wanted.values()})
    found = {}
    for key, identity in wanted.items():
        text = local.get(identity.components.get("computation", ""))
        if text is None and store is not None and identity.module:
            with suppress(StoreError):
                text = stored_text(store, identity.module)
        if text is not None:
            found[key] = text
    return found


def nearest(
    after: Identity, candidates: Iterable[Identity], store: Store | None
) -> tuple[list[Identity], dict[str, str]]:
    """The candidates that differ least, at most a dozen, the most similar first; and their texts, and that of `after`.

    All are ranked by what their headers say, and the first ones by their texts.
    """

    def distance(candidate: Identity, text: ProgramText | None = None) -> tuple[float, float]:
        ours, theirs = after.components, candidate.components
        names = (ours.keys() | theirs.keys()) - {"computation", "compile_options"}
        apart = sum(1.0 for name in names if ours.get(name) != theirs.get(name))
        apart += 2.0 * (1.0 - likeness_of(candidate.signature.split(", "), after.signature.split(", ")))
        if ours.get("computation") != theirs.get("computation"):
            apart += 4.0 * (1.0 - (text.likeness(compiled) if text is not None and compiled is not None else 0.5))
        return apart, -candidate.created

    compiled: ProgramText | None = None
    first = sorted(candidates, key=distance)[:_COMPARED]
    raw = _raw_texts([after, *first], store) if first else {}
    if len(first) > 1:
        read = {key: read_text(text) for key, text in raw.items()}
        compiled = read.get(after.key)
        first.sort(key=lambda candidate: distance(candidate, read.get(candidate.key)))
    return first, raw
