"""Reads the entries of a cache as the programs of which they were made: with these a miss is compared, too."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext, suppress
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Final

from ejcache import entry
from ejcache.errors import EntryError
from ejcache.journal.line import STORED, ProgramRecord
from ejcache.keys.key import is_side_key, listed_name, module_text_key, parse_key
from ejcache.util.threads import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from ejcache.stores.base import EntryInfo, Store

_HEADER_BYTES: Final = 64 * 1024
NEWEST: Final = 2000
"""Entries of one function that are read; from a bucket, reading more would take minutes."""


class KnownEntries:
    """The entries of a store, listed once, and their headers, each read once, when it is needed.

    Args:
        store: listed and read, never written.
        progress: called with the number of entries to read; returns a context manager whose value is called after
            each entry.
    """

    def __init__(
        self,
        store: Store,
        *,
        progress: Callable[[int], AbstractContextManager[Callable[[], None]]] = lambda _: nullcontext(lambda: None),
    ) -> None:
        self.store = store
        self._progress = progress
        self._read: dict[str, ProgramRecord | None] = {}

    @cached_property
    def _listed(self) -> list[EntryInfo]:
        entries = (info for info in self.store.entries() if not is_side_key(info.key))
        return sorted(entries, key=lambda info: info.created, reverse=True)

    def entries(self) -> Iterator[EntryInfo]:
        """Return the entries, the newest first. Raises StoreError if they cannot be listed."""
        return iter(self._listed)

    def program(self, key: str) -> ProgramRecord | None:
        """Return the program in the entry's header; None if the entry is gone or cannot be read."""
        if key not in self._read:
            data = self.store.peek(key, length=_HEADER_BYTES)
            self._read[key] = None
            with suppress(EntryError):
                if data is not None:
                    self._read[key] = program_of(entry.decode_header(data), self.store.url)
        return self._read[key]

    def named(self, name: str) -> list[ProgramRecord]:
        """Return the entries with this module name, at most the 2,000 newest. Raises StoreError if they cannot be
        read.
        """
        listed = listed_name(name)
        named = (info.key for info in self.entries() if _name_in(info.key) in (None, listed))
        keys = list(islice(named, NEWEST))
        with self._progress(len(keys)) as advance:
            found = []
            for program in in_parallel(self.program, keys):
                advance()
                if program is not None and program.name == name:
                    found.append(program)
        return found


def _name_in(key: str) -> str | None:
    """Return the module's name in the key; None if the key has another form, because a caller made it."""
    parts = parse_key(key.partition("~")[0])
    return parts.name if parts is not None else None


def program_of(header: entry.Header, url: str) -> ProgramRecord:
    """Return the program that an entry's header describes, in the form of the miss after which some host stored it."""
    extra = header.extra
    details = extra.get("details")
    details = {str(name): str(text) for name, text in details.items()} if isinstance(details, dict) else {}
    if header.jax:
        details.setdefault("jax", header.jax)
    return ProgramRecord(
        header.name,
        header.created,
        url,
        header.key,
        reason="absent",
        outcome=STORED,
        compile_seconds=header.compile_seconds,
        components=header.components,
        details=details,
        signature=str(extra.get("signature", "")),
        module=str(extra.get("module", "")),
    )


def stored_text(store: Store, digest: str) -> str | None:
    """Return the module's text; None if it was not stored, or is not the text that the digest stands for."""
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
