"""The records of direct mode, beside the entries: what a call needs to reach its executable without tracing.

A document holds the records of one function, called with one signature in one environment. It is stored as an entry of
kind "direct_record" under `keys.key.direct_record_key`. Its payload (version 4):

    payload    := JSON, an object of:
      version    4
      function   module and qualified name
      off        why direct mode is off for this document; empty if it is not
      changing   what changes at each start although the program does not; empty if nothing does
      records    a list of records, the latest first
    record     := an object of:
      state      digest of everything that was compared but files, in hex
      tokens     an object: path → short digest, to name what has changed
      contexts   an object: known context of a library → digest, see `question`
      manifest   the files, see `files.manifest`
      entry      the key that the lowered program has
      fastpath   a text, see `call.fastpath_format`
      bound      digest of entry and fastpath
      recorded   the witness that traced the function first
      proven     the witness that traced it again and found the same key; null while the record is unproven
    witness    := an object of: process (random, in hex), seed (digest of the process's hash seed), time (of the epoch)

Unknown fields are ignored. A document of another version, or a damaged one, is none.

One more document of the cache names the functions that are traced so quickly that they stay plain (version 2):

    payload    := JSON, an object of: version, functions: an object: name → digest of its code
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

import jax

from ejcache import entry
from ejcache.errors import EntryCorruptError, InvalidKeyError
from ejcache.keys.key import direct_record_key
from ejcache.settings.resolve import fixed_hash_seed
from ejcache.util.log import log
from ejcache.util.text import check_key
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.cache.policy import CachePolicy
    from ejcache.settings.table import Settings


__all__ = [
    "DIRECT_RECORD_KIND",
    "MAX_PAYLOAD",
    "DirectDocument",
    "DirectRecord",
    "QuickFunctions",
    "Witness",
    "checked_list",
    "checked_number",
    "checked_text",
    "decode_document",
    "encode_document",
    "is_independent",
    "read_document",
    "with_record",
    "without_record",
    "witness",
    "write_document",
]

DIRECT_RECORD_KIND: Final = "direct_record"
"""`kind` in the header of the stored object."""
MAX_PAYLOAD: Final = 8 << 20
"""Bytes of a payload; a larger one is neither written nor decoded."""
_VERSION: Final = 4
_MAX_RECORDS: Final = 4


class Witness(NamedTuple):
    """A process that traced the function.

    Attributes:
        process: a random name of the process, in hex.
        seed: a digest that differs for processes with different hash seeds.
        time: seconds since the epoch.
    """

    process: str
    seed: str
    time: float


class DirectRecord(NamedTuple):
    """One state of everything that the trace reads, and the executable that it leads to; see the grammar above."""

    state: str
    tokens: Mapping[str, str]
    contexts: Mapping[str, str]
    manifest: Mapping[str, Mapping[str, str | None]]
    entry: str
    fastpath: str
    recorded: Witness
    proven: Witness | None = None


class DirectDocument(NamedTuple):
    """The records of one function, signature and environment, the latest first."""

    function: str
    records: tuple[DirectRecord, ...] = ()
    off: str = ""
    changing: str = ""


def with_record(document: DirectDocument, record: DirectRecord) -> DirectDocument:
    """The document with this record first, in place of the one of the same state; the oldest is dropped."""
    about = (record.state, record.contexts, record.manifest)
    others = [each for each in document.records if (each.state, each.contexts, each.manifest) != about]
    return document._replace(records=(record, *others)[:_MAX_RECORDS])


def without_record(document: DirectDocument, record: DirectRecord, *, why: str) -> DirectDocument:
    """The document without the record, which was wrong; direct mode is off for it from now on."""
    return document._replace(records=tuple(each for each in document.records if each is not record), off=why)


def encode_document(document: DirectDocument) -> bytes | None:
    """The payload, or None if it would be too large."""
    about = {
        "version": _VERSION,
        "function": document.function,
        "off": document.off,
        "changing": document.changing,
        "records": [
            {
                **record._asdict(),
                "bound": _bound(record.entry, record.fastpath),
                "recorded": record.recorded._asdict(),
                "proven": _witness_fields(record.proven),
            }
            for record in document.records
        ],
    }
    payload = json.dumps(about, separators=(",", ":")).encode()
    return payload if len(payload) <= MAX_PAYLOAD else None


def _bound(entry: str, fastpath: str) -> str:
    """A digest that is another one for another entry, or for another way to run it."""
    return hashlib.sha256(f"{entry} {fastpath}".encode()).hexdigest()


def _witness_fields(witness: Witness | None) -> dict[str, Any] | None:
    return witness._asdict() if witness is not None else None


def decode_document(payload: bytes) -> DirectDocument:
    """The document in a payload.

    Raises:
        EntryCorruptError: it is not one, or one of a later version.
    """
    if len(payload) > MAX_PAYLOAD:
        raise EntryCorruptError(f"a direct record of {len(payload)} bytes, and at most {MAX_PAYLOAD} are read")
    try:
        about = json.loads(payload.decode("ascii"))
        if about["version"] != _VERSION:
            raise EntryCorruptError("a direct record of another version")
        records = tuple(_record(fields) for fields in about["records"][:_MAX_RECORDS])
        texts = (checked_text(about[name]) for name in ("off", "changing"))
        return DirectDocument(checked_text(about["function"]), records, *texts)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, InvalidKeyError) as exc:
        raise EntryCorruptError("the payload is not a direct record") from exc


def _record(fields: dict[str, Any]) -> DirectRecord:
    proven = fields["proven"]
    record = DirectRecord(
        state=checked_text(fields["state"]),
        tokens=_texts(fields["tokens"]),
        contexts=_texts(fields["contexts"]),
        manifest={name: _digests(fields["manifest"][name]) for name in ("modules", "files", "distributions")},
        entry=check_key(fields["entry"]),
        fastpath=checked_text(fields["fastpath"]),
        recorded=_witness(fields["recorded"]),
        proven=None if proven is None else _witness(proven),
    )
    if fields["bound"] != _bound(record.entry, record.fastpath):
        raise EntryCorruptError("a record whose parts belong to different entries")
    return record


def _texts(value: Any) -> dict[str, str]:
    return {checked_text(name): checked_text(text) for name, text in _object(value).items()}


def _digests(value: Any) -> dict[str, str | None]:
    return {
        checked_text(name): None if digest is None else checked_text(digest) for name, digest in _object(value).items()
    }


def _witness(fields: dict[str, Any]) -> Witness:
    time = fields["time"]
    if type(time) not in {int, float} or not 0.0 <= time < 1e15:
        raise ValueError(time)
    return Witness(checked_text(fields["process"]), checked_text(fields["seed"]), float(time))


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError(value)
    return value


# -- checked reading -----------------------------------------------------------------------------------------------


def checked_list(value: Any, *, most: int = 1 << 16) -> list[Any]:
    """A list of at most so many elements.

    Raises:
        EntryCorruptError: it is something else.
    """
    if type(value) is not list or len(value) > most:
        raise EntryCorruptError("a list is missing, or too long")
    return value


def checked_text(value: Any) -> str:
    """A text.

    Raises:
        EntryCorruptError: it is something else.
    """
    if type(value) is not str:
        raise EntryCorruptError("a text is missing")
    return value


def checked_number(value: Any, below: int) -> int:
    """A number from 0.

    Raises:
        EntryCorruptError: it is something else, or too large.
    """
    if type(value) is not int or not 0 <= value < below:
        raise EntryCorruptError(f"{value!r:.40} is no number below {below}")
    return value


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


@functools.cache
def _process_name(pid: int) -> str:
    """The random name of this process. A forked child, which has another number, has its own."""
    del pid
    return secrets.token_hex(8)


def witness() -> Witness:
    """This process, now."""
    # The hash of a fixed text differs wherever sets and dicts of texts may be in another order.
    return Witness(_process_name(os.getpid()), f"{hash('ejcache') & 0xFFFFFFFFFFFFFFFF:016x}", time.time())


def is_independent(recorded: Witness) -> bool:
    """Whether this process can prove what `recorded` has seen: it is another one, with another hash seed.

    Where `PYTHONHASHSEED` fixes the seed, all processes that share the record have the same one, and the order of sets
    is part of what they share.
    """
    mine = witness()
    return mine.process != recorded.process and (mine.seed != recorded.seed or bool(fixed_hash_seed()))


_QUICK_VERSION: Final = 2
_MAX_QUICK: Final = 1 << 20
_MOST: Final = 5_000
_KEY: Final = direct_record_key("quick", jax.__version__)


class QuickFunctions:
    """Those of one cache.

    Args:
        policy: of the cache.
        settings: the current ones.
        at_most: seconds of a trace that is quick.
    """

    _known: ClassVar[dict[tuple[int, float], QuickFunctions]] = {}
    """By the cache, which each of them keeps alive, and the limit."""

    @classmethod
    def of(cls, policy: CachePolicy, settings: Settings, *, at_most: float) -> QuickFunctions:
        """Those of this cache; its document is read once in a process."""
        key = (id(policy), at_most)
        if key not in cls._known:
            cls._known[key] = QuickFunctions(policy, settings, at_most=at_most)
        return cls._known[key]

    def __init__(self, policy: CachePolicy, settings: Settings, *, at_most: float) -> None:
        self._policy = policy
        self._settings = settings
        self._at_most = at_most
        self._lock = threading.Lock()
        self._functions: dict[str, str] = self._read() if at_most > 0 else {}

    def has(self, name: str, code: str) -> bool:
        """Whether a function of this name and code was traced quickly."""
        return self._functions.get(name) == code

    def note(self, name: str, code: str, seconds: float | None) -> bool:
        """Note how long a trace took; whether the function is one of these from now on.

        Args:
            name: of the function.
            code: digest of its code.
            seconds: None if JAX needed no trace.
        """
        if seconds is None or self._at_most <= 0:
            return False
        quick = seconds < self._at_most
        if quick != self.has(name, code):
            with self._lock:
                self._functions.pop(name, None)
                if quick and len(self._functions) < _MOST:
                    self._functions[name] = code
            self._write()
        return quick

    def _read(self) -> dict[str, str]:
        try:
            raw = self._policy.read_beside(_KEY, DIRECT_RECORD_KIND, self._settings, max_size=_MAX_QUICK)
            about: Any = json.loads(raw) if raw is not None else {}
            functions = about["functions"] if about.get("version") == _QUICK_VERSION else {}
            return {str(name): str(code) for name, code in functions.items()}
        except Exception as exc:
            log.debug("ejcache: the list of quick functions cannot be read: %s", exc)
            return {}

    def _write(self) -> None:
        payload = json.dumps({"version": _QUICK_VERSION, "functions": self._functions}).encode()
        header = entry.Header(key=_KEY, kind=DIRECT_RECORD_KIND, name="quick", jax=jax.__version__)
        self._policy.write_beside(header, payload, self._settings)
