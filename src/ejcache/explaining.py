"""Why a compilation was not answered from the cache: the nearest entry of the same function, and what differs."""

from __future__ import annotations

import difflib
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ejcache import entry
from ejcache.errors import EntryError
from ejcache.keys.difference import Difference, Identity, differences, nearest
from ejcache.keys.key import is_side_key, listed_name, module_text_key, parse_key
from ejcache.statistics import Miss, Skip
from ejcache.upkeep.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ejcache.misses import MissRecord
    from ejcache.stores.base import EntryInfo, Store

__all__ = ["Explanation", "Known", "explain", "identity_of", "why_not_stored"]

_HEADER_BYTES: Final = 64 * 1024
_NEWEST: Final = 2000
"""Entries of one function that are read: of a bucket, more would take minutes."""
_DIFF_LINES: Final = 200

_REASONS: Final[dict[str, str]] = {
    Miss.ABSENT: "no entry is stored under its key",
    Miss.CORRUPT: "its entry was damaged; it was taken out and this compilation takes its place",
    Miss.FOREIGN: "the index answered with another program's entry, which was taken out",
    Miss.VERSION: "its entry is of a format that this version of ejcache does not read",
    Miss.REJECTED: "its entry is intact, but XLA would not load it on this host; this host's own was put beside it",
    Miss.FORCED: "EASYDEL_RECOMPILE_FORCE asks for a fresh compilation",
    Miss.DISAGREED: "it could be loaded here, but not on every rank of its program, and all must do the same",
    Miss.CHECKED: "the hit was recompiled to check it",
    Miss.ERROR: "the storage could not be read",
}

_SKIPS: Final = {
    Skip.DUPLICATE: "another process stored it first",
    Skip.OTHER_RANK: "another rank of its program stores it in the same place",
    Skip.QUICK: "it compiled in less than the minimum compile time (jax_persistent_cache_min_compile_time_secs)",
    Skip.SMALL: "its entry is below the minimum entry size (jax_persistent_cache_min_entry_size_bytes)",
    Skip.LARGE: "its entry is larger than the whole limit (jax_compilation_cache_max_size)",
    Skip.READ_ONLY: "the cache is read-only",
    Skip.CALLBACK: "it calls back into the process, which this version of JAX cannot restore",
    Skip.PARTITIONING: "it uses custom_partitioning, whose Python function has no identity outside the process",
    Skip.INSPECTION: "it shows a sharding to a Python function while it compiles (jax.debug.inspect_array_sharding)",
    Skip.PLATFORM: "this platform cannot serialise executables",
    Skip.NO_KEY: "no key could be made",
    Skip.DISABLED: "the cache is switched off",
    Skip.ERROR: "the storage could not be written",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one compilation was not answered.

    Attributes:
        sentence: the reason, for a person.
        nearest: the stored entry of the same function that differs least, if the reason is that none was found.
        differences: what differs from it.
        diff: unified diff of the two modules' text, if both were kept and differ.
    """

    sentence: str
    nearest: Identity | None = None
    differences: tuple[Difference, ...] = ()
    diff: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Stable snake_case fields, for machines."""
        return {
            "sentence": self.sentence,
            "nearest_key": self.nearest.key if self.nearest else None,
            "differences": [{"component": d.component, "sentence": d.sentence} for d in self.differences],
            "diff": self.diff,
        }


def explain(record: MissRecord, known: Known) -> Explanation:
    """Why the compilation of `record` was not answered by the store of `known`, which is listed for it.

    Raises:
        StoreError: the store cannot be listed.
    """
    if not record.reason:
        return Explanation(f"{record.name} was not looked up: {why_not_stored(record.outcome)}")
    sentence = f"{record.name} was compiled: {_REASONS.get(record.reason, record.reason)}"
    if record.reason != Miss.ABSENT:
        return Explanation(sentence)
    near = nearest(record.identity, [i for i in known.named(record.name) if i.created < record.time])
    if near is None:
        return Explanation(f"{sentence}, nor another entry of a function of this name: it is new here, or was evicted")
    found = differences(near, record.identity)
    return Explanation(
        f"{sentence}. The nearest entry of this function differs in: {'; '.join(d.sentence for d in found)}",
        near,
        tuple(found),
        _text_diff(known.store, near, record.identity),
    )


def why_not_stored(outcome: str) -> str:
    """The `Skip` of this name in words."""
    return _SKIPS.get(Skip(outcome), outcome) if outcome in set(Skip) else outcome


class Known:
    """The entries of a store, listed once, and what each says of itself, read when somebody asks for it.

    Args:
        store: listed and read, never written.
        progress: given a number of entries to be read, a context whose value is called after each.
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
    def entries(self) -> list[EntryInfo]:
        """The entries, the newest first. Raises StoreError: they cannot be listed."""
        listed = (info for info in self.store.entries() if not is_side_key(info.key))
        return sorted(listed, key=lambda info: -info.created)

    def identity(self, key: str) -> Identity | None:
        """What the entry says of itself; None if it is gone or cannot be read."""
        if key not in self._read:
            data = self.store.peek(key, length=_HEADER_BYTES)
            self._read[key] = None
            with suppress(EntryError):
                self._read[key] = identity_of(entry.decode_header(data)) if data is not None else None
        return self._read[key]

    def named(self, name: str) -> list[Identity]:
        """The entries with this module name, of very many the newest. Raises StoreError: they cannot be read."""
        listed = listed_name(name)
        keys = [info.key for info in self.entries if _name_in(info.key) in (None, listed)][:_NEWEST]
        found = []
        with self._progress(len(keys)) as advance:
            for identity in in_parallel(self.identity, keys):
                advance()
                if identity is not None and identity.name == name:
                    found.append(identity)
        return found


def _name_in(key: str) -> str | None:
    """The module's name; None if the key does not say, as a caller's own does not."""
    parts = parse_key(key.partition("~")[0])
    return parts.name if parts is not None else None


def identity_of(header: entry.Header) -> Identity:
    """What an entry says of the compilation it is the result of."""
    extra = header.extra
    details = extra.get("details")
    return Identity(
        header.key,
        header.name,
        header.components,
        details if isinstance(details, dict) else {},
        str(extra.get("signature", "")),
        str(extra.get("module", "")),
        header.created,
    )


def _text_diff(store: Store, before: Identity, after: Identity) -> str:
    if not before.module or not after.module or before.module == after.module:
        return ""
    texts = [_text(store, identity.module) for identity in (before, after)]
    if None in texts:
        return ""
    lines = list(
        difflib.unified_diff(
            str(texts[0]).splitlines(), str(texts[1]).splitlines(), before.key, after.key, lineterm="", n=1
        )
    )
    if len(lines) > _DIFF_LINES:
        lines = [*lines[:_DIFF_LINES], f"… {len(lines) - _DIFF_LINES} more lines"]
    return "\n".join(lines)


def _text(store: Store, digest: str) -> str | None:
    key = module_text_key(digest)
    data = store.peek(key)
    if data is None:
        return None
    try:
        return entry.decode(data, key=key).raw.decode()
    except (EntryError, UnicodeDecodeError):
        return None
