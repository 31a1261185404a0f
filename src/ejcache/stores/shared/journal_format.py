r"""The format of usage journals and of the snapshot that they are compacted into.

    file    := header "\n" body
    header  := canonical JSON: codec ("plain" or "zlib"), count, crc32 (of the body as stored), format, version; and, in
               a journal that has any, sums: {counter: amount}
    body    := line*, compressed as a whole if the codec is "zlib"
    line    := seconds "\t" key "\n"       whole seconds since the epoch; lines are ordered by key

A key holds neither a tab nor a line break (`check_key`). Version 1 is the first; readers ignore unknown header fields.
"""

from __future__ import annotations

import io
import itertools
import json
import zlib
from typing import TYPE_CHECKING, Final

from ejcache.errors import MALFORMED, EntryCorruptError, EntryVersionError, InvalidKeyError
from ejcache.util.key_text import check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

VERSION: Final = 1
MAX_JOURNAL: Final = 64 << 20
"""Bytes of one process's journal, as stored and after decompression."""
MAX_SNAPSHOT: Final = 512 << 20
"""Bytes of the snapshot as stored."""

_FORMAT: Final = "ejcache-used"
_CODECS: Final = ("plain", "zlib")
_BEGINNING: Final = b'{"codec":"'
_MAX_EXPANDED: Final = 1 << 30
_MAX_HEADER: Final = 1 << 16
_MAX_JOURNAL_USES: Final = 1_000_000
_MAX_SNAPSHOT_USES: Final = 20_000_000
_MAX_LINE: Final = 8192
_LARGEST: Final = 1e30
_BATCH: Final = 1000
"""Lines that are compressed together."""
_PIECE: Final = 1 << 18
"""Bytes that are decompressed at a time, and the most that they may become."""


def encode(used: Mapping[str, float], *, sums: Mapping[str, float] | None = None, compress: bool = False) -> bytes:
    """The bytes of `used`, keys and seconds since the epoch, and of the sums of counters; the same for the same."""
    ordered = sorted(used.items())
    return encode_ordered(lambda: ordered, sums=sums, compress=compress)


def encode_ordered(
    read: Callable[[], Iterable[tuple[str, float]]],
    *,
    sums: Mapping[str, float] | None = None,
    compress: bool = False,
) -> bytes:
    """Encode any number of uses; only the result is held in memory.

    Args:
        read: returns the uses ordered by key. It is called twice, because the header comes first and holds the
            checksum of the rest, and has to return the same uses both times.
        sums: of counters.
        compress: use the codec "zlib".
    """
    count = crc = 0
    for lines, part in _encoded(read(), compress=compress):
        count += lines
        crc = zlib.crc32(part, crc)
    header: dict[str, object] = {
        "codec": _CODECS[compress],
        "count": count,
        "crc32": crc,
        "format": _FORMAT,
        "version": VERSION,
    }
    if sums:
        header["sums"] = dict(sums)
    whole = io.BytesIO()
    whole.write(json.dumps(header, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    whole.writelines(part for _, part in _encoded(read(), compress=compress))
    return whole.getvalue()


def decode(data: bytes) -> dict[str, float]:
    """All uses in `data`; raises as `decode_lines` does."""
    return dict(decode_lines(data))


def decode_lines(data: bytes, *, limit: int = MAX_SNAPSHOT) -> Iterator[tuple[str, float]]:
    """The uses in `data`, one at a time; arguments and errors are those of `decode_pieces`."""
    return decode_pieces([data], limit=limit)


def decode_pieces(pieces: Iterable[bytes], *, limit: int = MAX_SNAPSHOT) -> Iterator[tuple[str, float]]:
    """The uses in a journal or a snapshot that is read piece by piece, one at a time.

    Args:
        pieces: of its bytes; the first holds the header.
        limit: bytes that it may have.

    Raises:
        EntryCorruptError: it is truncated, changed, too large, or not a usage journal. This may be raised after some
            uses, even after all of them; the caller must discard them.
        EntryVersionError: it is of a version that this code does not read.
    """
    source = iter(pieces)
    start = next(source, b"")
    if len(start) > limit:
        raise EntryCorruptError(f"larger than {limit} bytes")
    end = start.find(b"\n", 0, _MAX_HEADER)
    try:
        header = json.loads(start[:end]) if end >= 0 else {}
        if header["format"] != _FORMAT:
            raise EntryCorruptError("not a usage journal")
        if header["version"] != VERSION:
            version = str(header["version"])[:40]
            raise EntryVersionError(f"a usage journal of version {version}; this code reads {VERSION}")
        if header["codec"] not in _CODECS:
            raise EntryCorruptError("a usage journal of an unknown codec")
        most_uses = _MAX_SNAPSHOT_USES if limit >= MAX_SNAPSHOT else _MAX_JOURNAL_USES
        if type(header["count"]) is not int or not 0 <= header["count"] <= most_uses:
            raise EntryCorruptError(f"a usage journal has at most {most_uses} uses")
        count = 0
        body = _checked(_after(end + 1, [start], source), header["crc32"], limit)
        del start  # it is not held until the last piece
        most = _MAX_EXPANDED if limit >= MAX_SNAPSHOT else limit
        for line in _lines(_expanded(body, most) if header["codec"] == "zlib" else map(bytes, body)):
            count += 1
            if count > header["count"]:
                break
            yield _parsed(line.decode())
        if count != header["count"]:
            raise EntryCorruptError(f"{count} uses, and the header says {str(header['count'])[:40]}")
    except (InvalidKeyError, zlib.error, *MALFORMED) as exc:
        raise EntryCorruptError(f"not a usage journal: {str(exc)[:200]}") from exc


def decode_sums(data: bytes) -> dict[str, float]:
    """The sums in a journal, of which `data` may be the beginning. Damaged or absurd ones count as none."""
    try:
        return finite_sums(json.loads(data[: data.index(b"\n")])["sums"])
    except MALFORMED:
        return {}


def finite_sums(sums: dict[object, object]) -> dict[str, float]:
    """Those of these sums that a counter can have."""
    return {str(name): n for name, n in sums.items() if isinstance(n, int | float) and -_LARGEST < n < _LARGEST}


def is_ours(data: bytes) -> bool:
    """Whether `data` begins as every journal that ejcache writes."""
    return data.startswith(_BEGINNING)


def _encoded(used: Iterable[tuple[str, float]], *, compress: bool) -> Iterator[tuple[int, bytes]]:
    """How many lines, and the next part of the body; the last part may have no lines."""
    # Keys are mostly digests, in which matches are rare: this strategy makes them a sixth smaller.
    compressor = zlib.compressobj(level=4, strategy=zlib.Z_FILTERED)
    source = iter(used)
    while batch := [f"{int(seconds)}\t{key}\n" for key, seconds in itertools.islice(source, _BATCH)]:
        text = "".join(batch).encode()
        yield len(batch), compressor.compress(text) if compress else text
    if compress:
        yield 0, compressor.flush()


def _after(end: int, start: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes | memoryview]:
    """What follows the first `end` bytes; `start` is taken out of its list, so that it can be freed."""
    yield memoryview(start.pop())[end:]
    yield from rest


def _checked(pieces: Iterable[bytes | memoryview], crc32: object, limit: int) -> Iterator[memoryview]:
    """The pieces, none too large; raises `EntryCorruptError` if they are too many, or after the last one by the sum."""
    crc = size = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
        size += len(piece)
        if size > limit:
            raise EntryCorruptError(f"larger than {limit} bytes")
        for start in range(0, len(piece), _PIECE):
            yield memoryview(piece)[start : start + _PIECE]
    if crc != crc32:
        raise EntryCorruptError("the checksum of the usage journal is wrong")


def _expanded(pieces: Iterable[memoryview], most: int) -> Iterator[bytes]:
    decompressor = zlib.decompressobj()
    room = most
    for piece in itertools.chain(pieces, [b""]):
        left = bytes(piece)
        while not decompressor.eof and room > 0:
            text = decompressor.decompress(left, _PIECE)
            left = decompressor.unconsumed_tail
            room -= len(text)
            yield text
            if not left and len(text) < _PIECE:
                break
        # What follows the end of the stream is read as well: it is part of the checksum.
    # Not `flush`: it decompresses all that is left, whatever its size.
    if not decompressor.eof:
        raise EntryCorruptError(f"cut short, or more than {most} bytes when decompressed")


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    begun = b""
    for piece in pieces:
        *complete, begun = (begun + piece).split(b"\n")
        yield from complete
        if len(begun) > _MAX_LINE:
            # Without this check a body without line breaks would be copied again for every piece.
            raise EntryCorruptError(f"a line of more than {_MAX_LINE} bytes")
    if begun:
        raise EntryCorruptError("the last line is cut short")


def _parsed(line: str) -> tuple[str, float]:
    seconds, _, key = line.partition("\t")
    return check_key(key), float(int(seconds))
