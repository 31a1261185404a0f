"""The envelope of an entry: one self-describing object, checked before anything is done with it.

Grammar (version 1; all integers big-endian):

    entry   := magic header_length header payload checksum
    magic   := "EJC1"                       the last character is the version
    header_length := u32                    bytes of `header`
    header  := canonical JSON (UTF-8, sorted keys, no white space), an object; unknown fields are kept and ignored
    payload := `payload_size` bytes: a zstd frame of `raw_size` bytes (codec "zstd"), or the bytes as they are ("none")
    checksum := sha256(magic header_length header payload), 32 bytes

Every version of the format ends in a sha256 of all that goes before it. So an entry of a later version can be told
from a damaged one: the first is left alone for those who can read it, the second is replaced.

Version log: 1 (0.1.0) the first.

Pure functions: no files, no clocks, no JAX.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import zstandard

from ejcache.errors import EntryCorruptError, EntryForeignError, EntryVersionError

__all__ = [
    "MAX_HEADER_SIZE",
    "MAX_RAW_SIZE",
    "OVERHEAD",
    "Entry",
    "Header",
    "decode",
    "decode_header",
    "decompress",
    "encode",
    "verify",
]

_FAMILY: Final = b"EJC"
_MAGIC: Final = b"EJC1"
_LENGTH: Final = struct.Struct(">I")
_CHECKSUM_SIZE: Final = 32
_CODECS: Final = ("zstd", "none")
_LAST_DAY: Final = 253_402_214_400.0
"""The last day of the year 9999; what is later is no date in Python."""

OVERHEAD: Final = len(_MAGIC) + _LENGTH.size + _CHECKSUM_SIZE
"""Bytes of an entry that are neither header nor payload."""
MAX_HEADER_SIZE: Final = 1 << 20
MAX_RAW_SIZE: Final = 8 << 30
"""A payload that claims to be larger is refused before memory is asked for it; XLA's own limit (protobuf) is 2 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What an entry says of itself.

    Attributes:
        key: the key that it answers.
        kind: what the payload is; "executable" for a serialised XLA executable.
        name: the module's name, as in a listing.
        codec: how the payload is stored; "zstd" or "none".
        payload_size: bytes stored.
        raw_size: bytes after decompression.
        compile_seconds: what the compilation took.
        created: seconds since the epoch.
        platform: PJRT platform the executable is for.
        jax: version of jax that made it.
        jaxlib: version of jaxlib that made it.
        variant: "plain", "profiling" for one compiled to be profiled, or "pgle" for one compiled with its profile.
        logical_key: names the program whose variants share it.
        profile_digest: sha256 of the profile a "pgle" variant was made with, or empty.
        components: digest of each named component of the key.
        extra: fields that this version does not know.
    """

    key: str
    kind: str = "executable"
    name: str = ""
    codec: str = "zstd"
    payload_size: int = 0
    raw_size: int = 0
    compile_seconds: float = 0.0
    created: float = 0.0
    platform: str = ""
    jax: str = ""
    jaxlib: str = ""
    variant: str = "plain"
    logical_key: str = ""
    profile_digest: str = ""
    components: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A verified entry: its header, and the payload as it was before compression."""

    header: Header
    raw: bytes


_FIELDS: Final[dict[str, type]] = {
    "key": str,
    "kind": str,
    "name": str,
    "codec": str,
    "payload_size": int,
    "raw_size": int,
    "compile_seconds": float,
    "created": float,
    "platform": str,
    "jax": str,
    "jaxlib": str,
    "variant": str,
    "logical_key": str,
    "profile_digest": str,
    "components": dict,
}


def encode(header: Header, raw: bytes, *, level: int = 3) -> bytes:
    """The entry for `raw` under `header`, whose sizes and codec are filled in here.

    Args:
        header: `extra` may hold further JSON fields; they must not shadow the named ones.
        raw: what `decode` gives back.
        level: zstd level; 0 stores the bytes as they are. Never part of a key.

    Raises:
        ValueError: the header is too large, or holds what JSON cannot carry or `decode` would not take back.
    """
    payload = zstandard.ZstdCompressor(level=level).compress(raw) if level else raw
    fields = {name: getattr(header, name) for name in _FIELDS}
    fields["codec"] = "zstd" if level else "none"
    fields["payload_size"] = len(payload)
    fields["raw_size"] = len(raw)
    if isinstance(header.components, Mapping):
        fields["components"] = dict(header.components)
    if not fields.keys().isdisjoint(header.extra):
        raise ValueError(f"extra header fields shadow named ones: {sorted(fields.keys() & header.extra.keys())}")
    try:
        _header({**header.extra, **fields})
        text = json.dumps({**header.extra, **fields}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (EntryCorruptError, TypeError, RecursionError) as exc:
        raise ValueError(f"no entry can have this header: {exc}") from exc
    encoded = text.encode()
    if len(encoded) > MAX_HEADER_SIZE:
        raise ValueError(f"the header has {len(encoded)} bytes, and at most {MAX_HEADER_SIZE} fit")
    hasher = hashlib.sha256()
    parts = (_MAGIC, _LENGTH.pack(len(encoded)), encoded, payload)
    for part in parts:
        hasher.update(part)
    return b"".join((*parts, hasher.digest()))


def verify(data: bytes, *, key: str | None = None) -> Header:
    """The header of an intact entry; nothing is decompressed.

    Args:
        data: the whole entry.
        key: the key that was asked for; a damaged or hostile index answers with another entry's bytes.

    Raises:
        EntryCorruptError: truncated, flipped, or never an entry.
        EntryForeignError: an intact entry of another key.
        EntryVersionError: an intact entry of a version that this code does not read.
    """
    if len(data) < OVERHEAD or data[:3] != _FAMILY:
        raise EntryCorruptError(f"{len(data)} bytes that are no entry")
    view = memoryview(data)
    if hashlib.sha256(view[:-_CHECKSUM_SIZE]).digest() != data[-_CHECKSUM_SIZE:]:
        raise EntryCorruptError(f"the checksum of {len(data)} bytes does not match")
    if data[:4] != _MAGIC:
        raise EntryVersionError(
            f"an intact entry of version {data[3:4]!r}, which this version of ejcache does not read"
        )
    header = decode_header(data)
    if len(data) != OVERHEAD + _header_length(data) + header.payload_size:
        raise EntryCorruptError("the sizes in the header do not add up to the entry")
    if key is not None and header.key != key:
        raise EntryForeignError(f"asked for {key!r}, got the entry of {header.key!r}")
    return header


def decode(data: bytes, *, key: str | None = None) -> Entry:
    """The entry in `data`, verified first; raises as `verify` does."""
    header = verify(data, key=key)
    payload = memoryview(data)[len(data) - _CHECKSUM_SIZE - header.payload_size : len(data) - _CHECKSUM_SIZE]
    return Entry(header, _expand(payload, header))


def decode_header(data: bytes) -> Header:
    """The header at the start of `data`, which may be a prefix of an entry; unverified, so for listings only.

    Raises:
        EntryCorruptError: this is no header, or `data` ends before it does.
        EntryVersionError: it starts like an entry of another version.
    """
    if len(data) < len(_MAGIC) + _LENGTH.size or data[:3] != _FAMILY:
        raise EntryCorruptError("no entry starts here")
    if data[:4] != _MAGIC:
        raise EntryVersionError(f"an entry of version {data[3:4]!r}, which this version of ejcache does not read")
    start = len(_MAGIC) + _LENGTH.size
    length = _header_length(data)
    if length > MAX_HEADER_SIZE or len(data) < start + length:
        raise EntryCorruptError("the header is cut off")
    try:
        fields = json.loads(bytes(data[start : start + length]))
    except (ValueError, RecursionError) as exc:
        raise EntryCorruptError("the header is not JSON, or nested too deep") from exc
    if not isinstance(fields, dict):
        raise EntryCorruptError("the header is not an object")
    return _header(fields)


def _header_length(data: bytes) -> int:
    length: int = _LENGTH.unpack_from(data, len(_MAGIC))[0]
    return length


def _header(fields: dict[str, Any]) -> Header:
    known: dict[str, Any] = {}
    for name, kind in _FIELDS.items():
        if name not in fields:
            continue
        value = fields.pop(name)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = _float(value)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise EntryCorruptError(f"header field {name} has the wrong type")
        known[name] = value
    if not {"key", "codec", "payload_size", "raw_size"} <= known.keys():
        raise EntryCorruptError("the header lacks a field that every entry has")
    if not all(isinstance(v, str) for v in known.get("components", {}).values()):
        raise EntryCorruptError("header field components has the wrong type")
    if known["payload_size"] < 0 or not 0 <= known["raw_size"] <= MAX_RAW_SIZE or known["codec"] not in _CODECS:
        raise EntryCorruptError("the header's sizes or codec are out of range")
    if not math.isfinite(known.get("compile_seconds", 0.0)):
        raise EntryCorruptError("the header's compile time is not a number")
    if not 0.0 <= known.get("created", 0.0) <= _LAST_DAY:
        raise EntryCorruptError("the header's creation time is no time")
    return Header(**known, extra=fields)


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError as exc:
        raise EntryCorruptError("a number in the header is out of range") from exc


def decompress(frame: bytes | memoryview, *, raw_size: int | None = None) -> bytes:
    """What a zstd frame holds; never more than `MAX_RAW_SIZE`, nor more than the frame says before it is read.

    Args:
        frame: one whole frame that states its size, as every one-shot compressor's does.
        raw_size: the size it must have, if that is known from elsewhere.

    Raises:
        EntryCorruptError: it is no such frame, or is damaged (a frame need not carry a checksum, so that damage may
            go unseen here).
    """
    try:
        # The frame states its own size, which zstd would allocate unasked.
        stated = zstandard.get_frame_parameters(frame).content_size
        if stated > MAX_RAW_SIZE or (raw_size is not None and stated != raw_size):
            raise EntryCorruptError("the frame is not as long as it should be")
        raw = zstandard.ZstdDecompressor().decompress(frame, max_output_size=stated)
    except zstandard.ZstdError as exc:
        raise EntryCorruptError("the payload is not a zstd frame") from exc
    if len(raw) != stated:
        raise EntryCorruptError("the payload is not as long as its header says")
    return bytes(raw)


def _expand(payload: memoryview, header: Header) -> bytes:
    if header.codec == "none":
        if len(payload) != header.raw_size:
            raise EntryCorruptError("the payload is not as long as its header says")
        return bytes(payload)
    return decompress(payload, raw_size=header.raw_size)
