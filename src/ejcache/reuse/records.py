"""Reads and writes the records of reuse, beside the entries: which lowered program a function gave for a call.

A record is an object of kind "reuse_record" under the digest of its question, and a module one of kind "reuse_module"
under a digest of its bytes. Both keys contain the setting `namespace`. Version 2 of a record:

    payload  := JSON, an object of: version, and either what a function gave, or off
      name       module and qualified name
      program tree   see `seam/reuse/lowered_program.py` and `result_trees.py`
      module     digest of the bytes of its module; see `reuse_module_key`
      content    what `module_digest.digest_module` says of the module; two traces must agree in its digest
      recorded   the witness that traced it first
      proven     the witness that traced it again and found the same program; null while it is unproven
      off        why a name, code and word are never reused; alone, and under a key of these
    witness  := an object of: process (random, in hex), seed (digest of the process's hash seed)

Unknown fields are ignored. A record of another version, or a damaged one, is none.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax

from ejcache import entry
from ejcache.cache.writing import EntryWriter
from ejcache.errors import MALFORMED
from ejcache.jax_integration.lowering.module_digest import ModuleDigest
from ejcache.keys.key import reuse_module_key
from ejcache.settings.environment import environment_variable
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.cache.reading import CacheReader
    from ejcache.settings.table import Settings

RECORD_KIND: Final = "reuse_record"
MODULE_KIND: Final = "reuse_module"
_VERSION: Final = 2
_LARGEST_RECORD: Final = 64 << 20
LARGEST_MODULE: Final = 64 << 20


class Witness(NamedTuple):
    """A process that traced a function.

    Attributes:
        process: a random name of the process, in hex.
        seed: differs for processes with different hash seeds.
    """

    process: str
    seed: str


class ReuseRecord(NamedTuple):
    """The program that a function gave for a call; see the grammar above."""

    name: str
    program: Mapping[str, Any]
    tree: Any
    module: str
    content: ModuleDigest
    recorded: Witness
    proven: Witness | None = None


class TurnedOff(NamedTuple):
    """A name, code and word that are never reused.

    Attributes:
        off: why, as a sentence without a full stop.
    """

    off: str


def encode_record(record: ReuseRecord | TurnedOff) -> bytes:
    """Return the payload of a record."""
    about = record._asdict()
    if isinstance(record, ReuseRecord):
        content = record.content
        calls = {"custom_calls": sorted(content.custom_calls), "batched_calls": sorted(content.batched_calls)}
        about |= {
            "content": {**content._asdict(), **calls},
            "recorded": record.recorded._asdict(),
            "proven": None if record.proven is None else record.proven._asdict(),
        }
    return json.dumps({"version": _VERSION, **about}, separators=(",", ":")).encode()


def decode_record(payload: bytes) -> ReuseRecord | TurnedOff | None:
    """Return the record in a payload; None if it is damaged, or of another version."""
    try:
        fields = json.loads(payload)
        if fields["version"] != _VERSION:
            return None
        if "off" in fields:
            return TurnedOff(_text(fields["off"]))
        return ReuseRecord(
            name=_text(fields["name"]),
            program=dict(fields["program"]),
            tree=list(fields["tree"]),
            module=_text(fields["module"]),
            content=_content(fields["content"]),
            recorded=_witness(fields["recorded"]),
            proven=None if fields["proven"] is None else _witness(fields["proven"]),
        )
    except MALFORMED as exc:
        log.debug("ejcache: a record of reuse cannot be read: %s", exc)
        return None


def _content(fields: dict[str, Any]) -> ModuleDigest:
    found = ModuleDigest(**fields)
    return found._replace(custom_calls=frozenset(found.custom_calls), batched_calls=frozenset(found.batched_calls))


def _witness(fields: dict[str, Any]) -> Witness:
    return Witness(_text(fields["process"]), _text(fields["seed"]))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(value)
    return value


def is_same_program(record: ReuseRecord, program: Any, tree: Any, digest: str) -> bool:
    """True if a trace gave what is recorded."""
    return (dict(record.program), record.tree, record.content.digest) == (program, tree, digest)


# -- the process that traces -----------------------------------------------------------------------------------------


@functools.cache
def _process_name(pid: int) -> str:
    """Return the random name of this process. A forked child, which has another number, has its own."""
    del pid
    return secrets.token_hex(8)


def witness() -> Witness:
    """Return this process."""
    # The hash of a fixed text differs wherever sets of texts may be in another order.
    return Witness(_process_name(os.getpid()), f"{hash('ejcache') & 0xFFFFFFFFFFFFFFFF:016x}")


def is_independent(recorded: Witness) -> bool:
    """True if this process can prove what `recorded` has seen: it is another one, with another hash seed.

    Where `PYTHONHASHSEED` fixes the seed, all processes have the same one, and the order of sets is the same.
    """
    mine = witness()
    is_fixed = (environment_variable("PYTHONHASHSEED") or "").isdigit()
    return mine.process != recorded.process and (mine.seed != recorded.seed or is_fixed)


# -- storage ---------------------------------------------------------------------------------------------------------


def read_record(key: str, reader: CacheReader, settings: Settings) -> ReuseRecord | TurnedOff | None:
    """Return the record under a key; None if there is none, or it is damaged.

    Raises:
        StoreError: the storage failed.
    """
    raw = reader.read_beside(key, RECORD_KIND, settings, max_size=_LARGEST_RECORD)
    return None if raw is None else decode_record(raw)


def write_record(key: str, record: ReuseRecord | TurnedOff, reader: CacheReader, settings: Settings) -> bool:
    """Replace the record under a key; False if it was not stored."""
    header = entry.Header(key=key, kind=RECORD_KIND, name="reuse", jax=jax.__version__)
    return EntryWriter(reader).write_beside(header, encode_record(record), settings)


def remove_record(key: str, reader: CacheReader, settings: Settings) -> None:
    """Remove the record under a key.

    Raises:
        StoreError: the storage failed.
    """
    store = reader.opened(settings)
    if store is not None and not (settings.read_only or store.read_only):
        store.delete(key)


def write_module(module: bytes, reader: CacheReader, settings: Settings) -> str:
    """Store the bytes of a module, and return their digest; empty if they were not stored."""
    digest = hashlib.sha256(module).hexdigest()
    key = reuse_module_key(digest, settings.namespace)
    header = entry.Header(key=key, kind=MODULE_KIND, name="reuse", jax=jax.__version__)
    return digest if EntryWriter(reader).write_beside(header, module, settings) else ""


def read_module(digest: str, reader: CacheReader, settings: Settings) -> bytes | None:
    """Return the bytes of a module; None if they are not stored, or damaged.

    Raises:
        StoreError: the storage failed.
    """
    key = reuse_module_key(digest, settings.namespace)
    raw = reader.read_beside(key, MODULE_KIND, settings, max_size=LARGEST_MODULE)
    return raw if raw is not None and hashlib.sha256(raw).hexdigest() == digest else None
