"""The entries of a place as a person lists them: ours first, then those of plain JAX."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ejcache import entry
from ejcache.cli.output import warn
from ejcache.errors import EntryError, SettingError, StoreError
from ejcache.keys.key import PGLE, is_side_key
from ejcache.upkeep.names import describe_key
from ejcache.upkeep.parallel import THREADS, in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ejcache.entry import Header
    from ejcache.keys.key import KeyParts
    from ejcache.stores.base import EntryInfo, Store
    from ejcache.stores.jaxdir import JaxEntries

__all__ = [
    "JAX",
    "OURS",
    "Facts",
    "Match",
    "Row",
    "all_facts",
    "by_program",
    "check_wanted",
    "facts",
    "match_rows",
    "profile_fields",
    "read_header",
    "rows_of",
    "warn_of_several",
]

OURS: Final = "ejcache"
JAX: Final = "jax"

_SHORTEST_DIGEST: Final = 6
"""Digits from which a digest is meant: less may be the beginning of a word."""
_HEADER_GUESS: Final = 8192
"""Bytes that hold nearly every header; a longer one is read again in full."""
_MAX_REQUESTS: Final = 2000
"""Entries of a remote cache that are asked for their headers; beyond that a listing would take minutes."""


@dataclass(frozen=True, slots=True)
class Row:
    """An entry, and whose it is.

    Attributes:
        info: what the listing knows.
        parts: what its key says.
        kind: `OURS`, or `JAX` for a file of plain JAX.
    """

    info: EntryInfo
    parts: KeyParts
    kind: str

    @property
    def short(self) -> str:
        """A beginning of the key's digest by which `ejcache show` finds the entry again."""
        return (self.parts.logical or self.info.key.removeprefix(f"{self.parts.name}-"))[:12]

    @property
    def program(self) -> tuple[str, str] | None:
        """What the variants of a program that one tool chain compiled have in common; None if the key does not say."""
        return (self.parts.logical, self.parts.environment) if self.parts.logical else None

    def fields(self) -> dict[str, Any]:
        """Stable fields for machines."""
        return {
            "key": self.info.key,
            "kind": self.kind,
            "name": self.parts.name,
            "platform": self.parts.platform,
            "variant": self.parts.variant,
            "logical_key": self.parts.logical,
            "environment": self.parts.environment,
            "size": self.info.size,
            "created": self.info.created,
            "last_used": self.info.last_used,
        }


def rows_of(store: Store | None, jax: JaxEntries | None) -> Iterator[Row]:
    """Every entry of both, without the texts that explain ours; raises StoreError as they do."""
    if store is not None:
        for info in store.entries():
            if is_side_key(info.key):
                continue
            yield Row(info, describe_key(info.key), OURS)
    if jax is not None:
        for info in jax.entries():
            yield Row(info, describe_key(info.key), JAX)


@dataclass(frozen=True, slots=True)
class Match:
    """The rows that somebody meant.

    Attributes:
        rows: the entries.
        exact: whether they were named, and not only a beginning of their keys.
    """

    rows: list[Row]
    exact: bool = True

    @property
    def ambiguous(self) -> bool:
        """Whether they are of more programs than one."""
        return len(self.rows) > 1 and (self.rows[0].program is None or len({row.program for row in self.rows}) > 1)


def match_rows(rows: Iterable[Row], wanted: str) -> Match:
    """The row of the key `wanted`, or else those of that name, or else those whose key or digest begins so.

    A function's own name finds it too: JAX calls the module of `train` `jit_train`. What is named in full comes first,
    because a name may begin another one, and look like the beginning of a digest.
    """
    check_wanted(wanted)
    names = {wanted, f"jit_{wanted}"}
    logical, _, environment = wanted.partition("-")
    named, begun = [], []
    for row in rows:
        if row.info.key == wanted:
            return Match([row])
        digest = row.parts.logical or row.info.key.removeprefix(f"{row.parts.name}-")
        if row.parts.name in names:
            named.append(row)
        elif row.info.key.startswith(wanted) or (
            len(logical) >= _SHORTEST_DIGEST
            and digest.startswith(logical)
            and row.parts.environment.startswith(environment)
        ):
            begun.append(row)
    return Match(named) if named else Match(begun, exact=False)


def check_wanted(wanted: str) -> None:
    """Refuse what would be the beginning of every key: an unset variable of a shell, say. Raises SettingError."""
    if not wanted.strip():
        raise SettingError("KEY", wanted, "a key, the beginning of one, or a name")


def warn_of_several(match: Match, wanted: str) -> None:
    """Tell the keys between which `wanted` does not decide, the last used first."""
    warn(f"{len(match.rows)} entries are meant by {wanted!r}; say which:")
    for row in sorted(match.rows, key=lambda row: -row.info.last_used):
        warn(f"  {row.info.key}")


def read_header(store: Store, key: str) -> Header | None:
    """What the entry says of itself, unverified; None if it is gone or says nothing that can be read."""
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


@dataclass(frozen=True, slots=True)
class Facts:
    """What `ls` reads of an entry.

    Attributes:
        compile_seconds: what it took to compile, if it says so.
        profile: of an optimised entry, the profile it was compiled with: digest, runs, percentile, devices.
    """

    compile_seconds: float | None = None
    profile: dict[str, Any] | None = None


def facts(row: Row, store: Store | None, jax: JaxEntries | None) -> Facts:
    """What the entry says of itself, as far as it can be read."""
    if row.kind == OURS and store is not None:
        header = read_header(store, row.info.key)
        return Facts() if header is None else Facts(header.compile_seconds, profile_fields(header))
    if jax is not None:
        with contextlib.suppress(StoreError, EntryError):
            return Facts(jax.compile_seconds(row.info.key))
    return Facts()


def profile_fields(header: Header) -> dict[str, Any] | None:
    """The profile that the entry was compiled with; None if it was compiled without."""
    if not header.profile_digest:
        return None
    noted = header.extra.get("profile")
    noted = noted if isinstance(noted, dict) else {}
    return {"digest": header.profile_digest} | {name: noted.get(name) for name in ("runs", "percentile", "devices")}


def all_facts(
    rows: Sequence[Row],
    store: Store | None,
    jax: JaxEntries | None,
    *,
    remote: bool,
    advance: Callable[[], None],
) -> list[Facts]:
    """`facts` of each of `rows`, with `advance` after each; none at all where too many are `remote`."""
    if remote and len(rows) > _MAX_REQUESTS:
        return [Facts()] * len(rows)
    found = []
    threads = THREADS if remote else 1
    for each in in_parallel(lambda row: facts(row, store, jax), rows, threads=threads):
        found.append(each)
        advance()
    return found


def by_program(rows: Sequence[Row]) -> list[Row]:
    """The variants of each program together, at the place of the first, and the optimised one first."""
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.program or row.info.key, []).append(row)
    return [row for group in groups.values() for row in sorted(group, key=lambda row: row.parts.variant != PGLE)]
