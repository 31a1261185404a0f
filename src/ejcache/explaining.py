"""Why a compilation was not answered from the cache: the nearest entry of the same function, and what differs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ejcache import entry
from ejcache.errors import EntryError
from ejcache.keys.difference import Difference, Identity, differences, nearest
from ejcache.keys.key import is_side_key, listed_name, module_text_key, parse_key
from ejcache.statistics import Miss, Skip

if TYPE_CHECKING:
    from ejcache.misses import MissRecord
    from ejcache.stores.base import Store

__all__ = ["Explanation", "explain", "identities", "identity_of", "why_not_stored"]

_HEADER_BYTES: Final = 64 * 1024
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


def explain(record: MissRecord, store: Store) -> Explanation:
    """Why the compilation of `record` was not answered by `store`, which is listed for it.

    Raises:
        StoreError: the store cannot be listed.
    """
    if not record.reason:
        return Explanation(f"{record.name} was not looked up: {why_not_stored(record.outcome)}")
    sentence = f"{record.name} was compiled: {_REASONS.get(record.reason, record.reason)}"
    if record.reason != Miss.ABSENT:
        return Explanation(sentence)
    near = nearest(record.identity, [i for i in identities(store, name=record.name) if i.created < record.time])
    if near is None:
        return Explanation(f"{sentence}, nor another entry of a function of this name: it is new here, or was evicted")
    found = differences(near, record.identity)
    return Explanation(
        f"{sentence}. The nearest entry of this function differs in: {'; '.join(d.sentence for d in found)}",
        near,
        tuple(found),
        _text_diff(store, near, record.identity),
    )


def why_not_stored(outcome: str) -> str:
    """The `Skip` of this name in words."""
    return _SKIPS.get(Skip(outcome), outcome) if outcome in set(Skip) else outcome


def identities(store: Store, *, name: str = "") -> list[Identity]:
    """The identity of every entry that says one, of those with this module name if one is given."""
    found = []
    for info in store.entries():
        if is_side_key(info.key):
            continue
        parts = parse_key(info.key)
        if name and parts is not None and parts.name != listed_name(name):
            continue
        data = store.peek(info.key, length=_HEADER_BYTES)
        if data is None:
            continue
        try:
            found.append(identity_of(entry.decode_header(data)))
        except EntryError:
            continue
    return [identity for identity in found if not name or identity.name == name]


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
