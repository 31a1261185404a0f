"""Where the records of direct mode are kept: beside the entries of the cache, one document for each signature."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

import jax

from ejcache import entry
from ejcache.direct.records import (
    DIRECT_RECORD_KIND,
    MAX_PAYLOAD,
    DirectDocument,
    Witness,
    decode_document,
    encode_document,
)
from ejcache.errors import EntryCorruptError
from ejcache.settings.environment import fixed_hash_seed
from ejcache.util.lifecycle import track_forks
from ejcache.util.log import log

if TYPE_CHECKING:
    from ejcache.cache.policy import CachePolicy
    from ejcache.settings.table import Settings

__all__ = ["is_independent", "read_document", "witness", "write_document"]


def read_document(key: str, policy: CachePolicy, settings: Settings) -> DirectDocument | None:
    """The document under `key`, or None.

    Raises:
        StoreError: the storage failed.
    """
    raw = policy.read_beside(key, DIRECT_RECORD_KIND, settings, max_size=MAX_PAYLOAD)
    if raw is None:
        return None
    try:
        return decode_document(raw)
    except EntryCorruptError as exc:
        log.debug("ejcache: the direct record %s cannot be read: %s", key, exc)
        return None


def write_document(key: str, document: DirectDocument, policy: CachePolicy, settings: Settings) -> bool:
    """Replace the document under `key`; False if it was not stored.

    Of two processes that write at the same time one loses its record, and writes it again at its next start.
    """
    payload = encode_document(document)
    if payload is None:
        return False
    header = entry.Header(key=key, kind=DIRECT_RECORD_KIND, name=document.function, jax=jax.__version__)
    return policy.write_beside(header, payload, settings)


class _Process:
    """The random name of this process. A forked child has its own."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        track_forks(self)

    def after_fork_in_child(self) -> None:
        self.name = secrets.token_hex(8)


_process: Final = _Process()


def witness() -> Witness:
    """This process, now."""
    # The hash of a fixed text differs wherever sets and dicts of texts may be in another order.
    return Witness(_process.name, f"{hash('ejcache') & 0xFFFFFFFFFFFFFFFF:016x}", time.time())


def is_independent(recorded: Witness) -> bool:
    """Whether this process can prove what `recorded` has seen: it is another one, with another hash seed.

    Where `PYTHONHASHSEED` fixes the seed, all processes that share the record have the same one, and the order of sets
    is part of what they share.
    """
    mine = witness()
    return mine.process != recorded.process and (mine.seed != recorded.seed or bool(fixed_hash_seed()))
