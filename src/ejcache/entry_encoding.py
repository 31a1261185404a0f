"""Entries as they are spelled: makes one, and reads the header of one of which only the beginning is at hand.

`entry` has the grammar, and reads whole entries. Pure functions: no files, no clocks, no JAX.
"""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import zstandard

from ejcache.entry import FAMILY, FIELDS, LENGTH, MAGIC, MAX_HEADER_SIZE, OVERHEAD, is_bomb, make_header, read_fields
from ejcache.errors import EntryCorruptError, EntryError

if TYPE_CHECKING:
    from ejcache.entry import Header

_SMALL: Final = 1 << 18

_encode_json: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode

_per_thread: Final = threading.local()
"""Has a compressor for each thread: one must not be used by two threads at once."""


def encode(header: Header, raw: bytes, *, level: int | None = None) -> bytes:
    """Return the entry for `raw` under `header`, whose sizes and codec are filled in here.

    Args:
        header: `extra` may hold further JSON fields; they must not shadow the named ones.
        raw: the bytes that `decode` will return.
        level: zstd level; 0 stores the bytes as they are. By default the codec of the header decides. Never part of a
            key.

    Raises:
        ValueError: the header is too large, or holds something that JSON cannot carry or `decode` would refuse.
    """
    if level is None:
        level = 0 if header.codec == "none" else 3
    payload = _compressor(level, len(raw)).compress(raw) if level else raw
    if is_bomb(len(payload), len(raw)):
        level, payload = 0, raw
    fields = {name: getattr(header, name) for name in FIELDS}
    fields["codec"] = "zstd" if level else "none"
    fields["payload_size"] = len(payload)
    fields["raw_size"] = len(raw)
    if isinstance(header.components, Mapping):
        fields["components"] = dict(header.components)
    if not fields.keys().isdisjoint(header.extra):
        raise ValueError(f"extra header fields shadow named ones: {sorted(fields.keys() & header.extra.keys())}")
    if not fields["writer"]:
        del fields["writer"]  # the first entries have none
    try:
        make_header({**header.extra, **fields})
        encoded = _encode_json({**header.extra, **fields}).encode()
    except (EntryCorruptError, TypeError, RecursionError) as exc:
        raise ValueError(f"no entry can have this header: {exc}") from exc
    if len(encoded) > MAX_HEADER_SIZE:
        raise ValueError(f"the header has {len(encoded)} bytes, and at most {MAX_HEADER_SIZE} fit")
    hasher = hashlib.sha256()
    parts = (MAGIC, LENGTH.pack(len(encoded)), encoded, payload)
    for part in parts:
        hasher.update(part)
    return b"".join((*parts, hasher.digest()))


def _compressor(level: int, size: int) -> zstandard.ZstdCompressor:
    """Return a compressor for `size` bytes; the one for small entries is kept, and takes little memory."""
    if size > _SMALL:
        return zstandard.ZstdCompressor(level=level)
    kept: tuple[int, zstandard.ZstdCompressor] | None = getattr(_per_thread, "compressor", None)
    if kept is None or kept[0] != level:
        kept = _per_thread.compressor = level, zstandard.ZstdCompressor(level=level)
    return kept[1]


def decode_header(data: bytes) -> Header:
    """Return the header at the start of `data`, which may be a prefix of an entry; not verified, so for listings only.

    One that `encode` would have spelled otherwise is damage.

    Raises:
        EntryCorruptError: `data` does not begin with a whole canonical header.
        EntryVersionError: it starts like an entry of another version.
    """
    fields, text = read_fields(data)
    try:
        is_canonical = _encode_json(fields).encode() == text
    except (ValueError, RecursionError) as exc:
        raise EntryCorruptError("the header holds something that is not text, or is nested too deep") from exc
    if not is_canonical:
        raise EntryCorruptError("the header is not canonical JSON")
    return make_header(fields)


def begins_like_one(data: bytes) -> bool:
    """True if `data` begins as an entry of any version does. Nothing else is copied to a quarantine."""
    return data[:3] == FAMILY


def expected_size(start: bytes) -> int | None:
    """Return the size in bytes of the entry that begins with `start`, by its header; None if no readable entry does."""
    try:
        (header_length,) = LENGTH.unpack_from(start, len(MAGIC))
        return int(OVERHEAD + header_length + decode_header(start).payload_size)
    except (EntryError, struct.error):
        return None
