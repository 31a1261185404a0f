"""Encodes and decodes entries, each one self-describing object, checked completely before its payload is used.

Grammar (version 1; all integers big-endian):

    entry   := magic header_length header payload checksum
    magic   := "EJC1"                       the last character is the version
    header_length := u32                    bytes of `header`
    header  := canonical JSON (ASCII, sorted keys, no white space, no NaN), an object; unknown fields are kept and
               ignored. Who lists or audits takes any other spelling of the same JSON for damage; a hit, for whose bytes
               the checksum speaks, does not spell the header again
    payload := `payload_size` bytes: a zstd frame of `raw_size` bytes (codec "zstd"), or the bytes as they are ("none")
    checksum := sha256(magic header_length header payload), 32 bytes

Every version of the format ends in a sha256 of all that goes before it, so that an entry of a later version can be told
from a damaged one: the first is left for the processes that can read it, the second is quarantined and written again.
The checksum finds accidents. It is not a signature: an entry that somebody made on purpose can have a right one.

Version log: 1 (0.1.0) the first.

Pure functions: no files, no clocks, no JAX.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import threading
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import zstandard

from ejcache.errors import EntryCorruptError, EntryError, EntryForeignError, EntryVersionError

FAMILY: Final = b"EJC"
MAGIC: Final = b"EJC1"
LENGTH: Final = struct.Struct(">I")
_CHECKSUM_SIZE: Final = 32
_CODECS: Final = ("zstd", "none")
_LAST_DAY: Final = 253_402_214_400.0
"""The last day of the year 9999: Python has no later date."""
_MAX_RATIO: Final = 1000
_RATIO_APPLIES: Final = 64 << 20
"""A payload that expands to more than this many bytes, and more than a thousandfold, is refused as a compression bomb.
`encode` stores such a payload uncompressed."""

OVERHEAD: Final = len(MAGIC) + LENGTH.size + _CHECKSUM_SIZE
"""Bytes of an entry that are neither header nor payload."""
MAX_HEADER_SIZE: Final = 1 << 20
MAX_RAW_SIZE: Final = 2 << 30
"""A payload that claims to be larger is refused before memory is asked for it. It is XLA's own limit (protobuf's)."""


class Header(NamedTuple):
    """The description of an entry that is stored with it.

    Attributes:
        key: the key that it answers.
        kind: of the payload; "executable" for a serialised XLA executable.
        name: the module's name, as in a listing.
        codec: how the payload is stored; "zstd" or "none".
        payload_size: bytes stored.
        raw_size: bytes after decompression.
        compile_seconds: duration of the compilation.
        created: seconds since the epoch.
        platform: PJRT platform the executable is for.
        jax: version of jax that made it.
        jaxlib: version of jaxlib that made it.
        variant: "plain", "profiling" for one compiled to be profiled, or "pgle" for one compiled with its profile.
        logical_key: names the program whose variants share it.
        profile_digest: sha256 of the profile a "pgle" variant was made with, or empty.
        components: digest of each named component of the key.
        writer: the user, host and process that stored it (`util.writer`); empty in entries of the first days.
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
    components: Mapping[str, str] = {}
    writer: str = ""
    extra: Mapping[str, Any] = {}


class Entry(NamedTuple):
    """A verified entry: its header, and the payload as it was before compression."""

    header: Header
    raw: bytes


# `stores.worth` reads `compile_seconds` and `created` from the bytes of a header, without decoding it.
FIELDS: Final[dict[str, type]] = {
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
    "writer": str,
}
_REQUIRED: Final = ("key", "codec", "payload_size", "raw_size")
_ABSENT: Final = object()
_SMALL: Final = 1 << 18
"""A payload of at most so many bytes is compressed with what its thread keeps."""
_per_thread: Final = threading.local()
"""Has a compressor and a decompressor for each thread: one must not be used by two threads at once, and making one
takes longer than decompressing a small entry."""


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


def verify(data: bytes, *, key: str | None = None, kind: str | None = None) -> Header:
    """Return the header of an intact entry; nothing is decompressed.

    Args:
        data: the whole entry.
        key: the key that was asked for; a damaged or hostile index answers with another entry's bytes.
        kind: the kind that was asked for; None accepts any.

    Raises:
        EntryCorruptError: truncated, flipped, or never an entry.
        EntryForeignError: an intact entry of another key or kind.
        EntryVersionError: an intact entry of a version that this code does not read.
    """
    if len(data) < OVERHEAD or data[:3] != FAMILY:
        raise EntryCorruptError(f"{len(data)} bytes that are not an entry")
    view = memoryview(data)
    if hashlib.sha256(view[:-_CHECKSUM_SIZE]).digest() != data[-_CHECKSUM_SIZE:]:
        raise EntryCorruptError(f"the checksum of {len(data)} bytes does not match")
    if data[:4] != MAGIC:
        raise EntryVersionError(
            f"an intact entry of version {data[3:4]!r}, which this version of ejcache does not read"
        )
    header = make_header(read_fields(data)[0])
    (header_length,) = LENGTH.unpack_from(data, len(MAGIC))
    if len(data) != OVERHEAD + header_length + header.payload_size:
        raise EntryCorruptError("the sizes in the header do not add up to the entry")
    _check_asked(header, key, kind)
    return header


def _check_asked(header: Header, key: str | None, kind: str | None) -> None:
    if key is not None and header.key != key:
        raise EntryForeignError(f"asked for {key!r}, got the entry of {header.key!r}")
    if kind is not None and header.kind != kind:
        raise EntryForeignError(f"asked for an entry of kind {kind!r}, got one of kind {header.kind!r}")


def decode(data: bytes, *, key: str | None = None, kind: str | None = None, verified: Header | None = None) -> Entry:
    """Return the entry in `data`, verified first; takes the same arguments and raises the same errors as `verify`.

    Args:
        data: the whole entry.
        key: the key that was asked for.
        kind: the kind that was asked for.
        verified: what `verify` returned for exactly these bytes, which are then not hashed a second time.
    """
    if verified is None:
        header = verify(data, key=key, kind=kind)
    else:
        header = verified
        _check_asked(header, key, kind)
    payload = memoryview(data)[len(data) - _CHECKSUM_SIZE - header.payload_size : len(data) - _CHECKSUM_SIZE]
    if header.codec != "none":
        return Entry(header, decompress(payload, raw_size=header.raw_size))
    if len(payload) != header.raw_size:
        raise EntryCorruptError("the payload is not as long as its header says")
    return Entry(header, bytes(payload))


def read_fields(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the fields of the header at the start of `data`, as they are, and the text that has them.

    Raises:
        EntryCorruptError: `data` does not begin with a whole header.
        EntryVersionError: it starts like an entry of another version.
    """
    if len(data) < len(MAGIC) + LENGTH.size or data[:3] != FAMILY:
        raise EntryCorruptError("no entry starts here")
    if data[:4] != MAGIC:
        raise EntryVersionError(f"an entry of version {data[3:4]!r}, which this version of ejcache does not read")
    start = len(MAGIC) + LENGTH.size
    (length,) = LENGTH.unpack_from(data, len(MAGIC))
    if length > MAX_HEADER_SIZE or len(data) < start + length:
        raise EntryCorruptError("the header is cut off")
    text = bytes(data[start : start + length])
    try:
        # Not json.loads, which would accept UTF-16 and a byte order mark, and takes twice as long.
        fields, end = _decode_json(text.decode("ascii"))
        if b"\\ud" in text:
            # A lone surrogate: JSON can spell it, and no terminal, log or file name can show it.
            json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as exc:
        raise EntryCorruptError(
            "the header is not JSON, is nested too deep, or holds something that is not text"
        ) from exc
    if end != length:
        raise EntryCorruptError("the header is not canonical JSON")
    if not isinstance(fields, dict):
        raise EntryCorruptError("the header is not an object")
    return fields, text


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


def checksum_of(data: bytes) -> bytes:
    """Return the last bytes of an intact entry: the digest of the others, which no two entries have in common."""
    return data[-_CHECKSUM_SIZE:]


def _refuse(constant: str) -> float:
    raise ValueError(constant)


_decode_json: Final = json.JSONDecoder(parse_constant=_refuse).raw_decode
_encode_json: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def make_header(fields: dict[str, Any]) -> Header:
    """Make the header of these fields, which are taken out of `fields`, but for those that this version does not know.

    Raises:
        EntryCorruptError: a field is missing, or has a value that it cannot have.
    """
    known: dict[str, Any] = {}
    for name, kind in FIELDS.items():
        value = fields.pop(name, _ABSENT)
        if value is not _ABSENT:
            known[name] = value if type(value) is kind else _convert(value, kind, name)
    if not all(map(known.__contains__, _REQUIRED)):
        raise EntryCorruptError("the header lacks a field that every entry has")
    header = Header(**known, extra=fields)
    for digest in header.components.values():
        if not isinstance(digest, str):
            raise EntryCorruptError("header field components has the wrong type")
    if header.payload_size < 0 or not 0 <= header.raw_size <= MAX_RAW_SIZE or header.codec not in _CODECS:
        raise EntryCorruptError("the header's sizes or codec are out of range")
    if not math.isfinite(header.compile_seconds):
        raise EntryCorruptError("the header's compile time is not a number")
    if not 0.0 <= header.created <= _LAST_DAY:
        raise EntryCorruptError("the header's creation time is out of range")
    return header


def _convert(value: Any, kind: type, name: str) -> Any:
    """Convert a value that is not exactly of its field's type: whole seconds, or what a caller of `encode` gave."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as exc:
            raise EntryCorruptError("a number in the header is out of range") from exc
    if not isinstance(value, kind) or isinstance(value, bool):
        raise EntryCorruptError(f"header field {name} has the wrong type")
    return value


def is_bomb(stored: int, expanded: int) -> bool:
    """True if a payload that expands so is refused as a compression bomb."""
    return expanded > _RATIO_APPLIES and expanded > _MAX_RATIO * stored


def decompress(frame: bytes | memoryview, *, raw_size: int | None = None) -> bytes:
    """Return the content of a zstd frame; memory for it is asked for only when its stated size is plausible.

    Args:
        frame: one whole frame that states its size, as every one-shot compressor's does.
        raw_size: the size it must have, if that is known from elsewhere.

    Raises:
        EntryCorruptError: it is not such a frame, states more than `MAX_RAW_SIZE`, is a compression bomb, or is
            damaged. A frame need not carry a checksum, so not all damage is found here.
    """
    try:
        # zstd would allocate the size that the frame states without asking.
        stated = zstandard.get_frame_parameters(frame).content_size
        if stated > MAX_RAW_SIZE or (raw_size is not None and stated != raw_size):
            raise EntryCorruptError("the frame is not as long as it should be")
        if stated > _RATIO_APPLIES and is_bomb(len(frame), stated):
            raise EntryCorruptError(f"{len(frame)} bytes claim to expand to {stated}")
        decompressor = getattr(_per_thread, "decompressor", None)
        if decompressor is None:
            decompressor = _per_thread.decompressor = zstandard.ZstdDecompressor()
        raw = decompressor.decompress(frame, max_output_size=stated)
    except zstandard.ZstdError as exc:
        if "llocation" in str(exc):  # of memory: that proves no damage
            raise MemoryError(str(exc)) from exc
        raise EntryCorruptError("the payload is not a zstd frame") from exc
    if len(raw) != stated:
        raise EntryCorruptError("the payload is not as long as its header says")
    return bytes(raw)
