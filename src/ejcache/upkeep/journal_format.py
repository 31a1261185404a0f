r"""When entries were used, as bytes: a journal of one process, or the snapshot that journals are folded into.

    file    := header "\n" body
    header  := canonical JSON: codec ("plain" or "zlib"), count, crc32 (of the body as stored), format, version
    body    := line*, compressed as a whole by codec "zlib"
    line    := seconds "\t" key "\n"       whole seconds since the epoch; keys in order

A key holds neither tab nor line break (`check_key`). Version 1 is the first; unknown header fields are ignored.
"""

from __future__ import annotations

import io
import json
import zlib
from itertools import islice
from typing import TYPE_CHECKING, Final

from ejcache.errors import EntryCorruptError, EntryVersionError
from ejcache.stores.base import check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["VERSION", "decode", "decode_lines", "encode", "encode_ordered"]

VERSION: Final = 1

_FORMAT: Final = "ejcache-used"
_CODECS: Final = ("plain", "zlib")
_MAX_BYTES: Final = 1 << 30
_MAX_HEADER: Final = 4096
_BATCH: Final = 1000
"""Lines that are compressed together."""
_PIECE: Final = 1 << 18
"""Bytes that are expanded at once, and that they are expanded to."""


def encode(used: Mapping[str, float], *, compress: bool = False) -> bytes:
    """`used`, keys and seconds since the epoch, as bytes; the same for the same uses."""
    ordered = sorted(used.items())
    return encode_ordered(lambda: ordered, compress=compress)


def encode_ordered(read: Callable[[], Iterable[tuple[str, float]]], *, compress: bool = False) -> bytes:
    """`encode` of what `read` gives in the order of the keys: of any number, only the result is held in memory.

    Args:
        read: is called twice, because the header comes first and knows the rest, and has to give the same.
        compress: as `encode` has it.
    """
    count = crc = 0
    for lines, part in _encoded(read(), compress=compress):
        count += lines
        crc = zlib.crc32(part, crc)
    header = {"codec": _CODECS[compress], "count": count, "crc32": crc, "format": _FORMAT, "version": VERSION}
    whole = io.BytesIO()
    whole.write(json.dumps(header, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    whole.writelines(part for _, part in _encoded(read(), compress=compress))
    return whole.getvalue()


def decode(data: bytes) -> dict[str, float]:
    """The uses in `data`.

    Raises:
        EntryCorruptError: truncated, flipped, or never one of ours.
        EntryVersionError: of a version that this one does not read; to be left alone.
    """
    return dict(decode_lines(data))


def decode_lines(data: bytes) -> Iterator[tuple[str, float]]:
    """The uses in `data` one by one, however many.

    Raises:
        EntryCorruptError: as `decode` does, before the first use or after any: what came until then is void.
        EntryVersionError: as `decode` does, before the first.
    """
    end = data.find(b"\n", 0, _MAX_HEADER)
    body = memoryview(data)[end + 1 :]
    try:
        header = json.loads(data[:end]) if end >= 0 else {}
        if header["format"] != _FORMAT:
            raise EntryCorruptError("these are no uses of entries")
        if header["version"] != VERSION:
            raise EntryVersionError(f"uses of version {header['version']!r}, and this reads {VERSION}")
        if header["crc32"] != zlib.crc32(body) or header["codec"] not in _CODECS:
            raise EntryCorruptError("the uses are not whole")
        count = 0
        pieces = (body[start : start + _PIECE] for start in range(0, len(body), _PIECE))
        for line in _lines(_expanded(pieces) if header["codec"] == "zlib" else map(bytes, pieces)):
            count += 1
            yield _parsed(line.decode())
        if count != header["count"]:
            raise EntryCorruptError("there are not as many uses as the header says")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, zlib.error) as exc:
        raise EntryCorruptError(f"these are no uses of entries: {exc}") from exc


def _encoded(used: Iterable[tuple[str, float]], *, compress: bool) -> Iterator[tuple[int, bytes]]:
    """How many lines, and the next part of the body; the last part may have none of its own."""
    compressor = zlib.compressobj(level=1)
    source = iter(used)
    while batch := [f"{int(seconds)}\t{key}\n" for key, seconds in islice(source, _BATCH)]:
        text = "".join(batch).encode()
        yield len(batch), compressor.compress(text) if compress else text
    if compress:
        yield 0, compressor.flush()


def _expanded(pieces: Iterable[memoryview]) -> Iterator[bytes]:
    expander = zlib.decompressobj()
    room = _MAX_BYTES
    for piece in pieces:
        left: bytes | memoryview = piece
        while left and not expander.eof and room > 0:
            text = expander.decompress(left, _PIECE)
            left = expander.unconsumed_tail
            room -= len(text)
            yield text
    yield expander.flush()
    if not expander.eof:
        raise EntryCorruptError("the uses are cut short, or too many")


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    begun = b""
    for piece in pieces:
        *whole, begun = (begun + piece).split(b"\n")
        yield from whole
    if begun:
        raise EntryCorruptError("the last use is cut short")


def _parsed(line: str) -> tuple[str, float]:
    seconds, _, key = line.partition("\t")
    return check_key(key), float(int(seconds))
