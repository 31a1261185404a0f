r"""Encodes and decodes journals on shared storage, and the snapshot that they are folded into, and knows their names.

    v1/journal/snapshot                      what was folded of the others, and the names of those
    v1/journal/<day>/<process name>-<n>      uses and sums since the journal before, and the lines of the process
    v1/journal/<day>/records-<process name>  one of nothing but the records of journals that this process has folded

    file    := header "\n" body record
    header  := canonical JSON: codec ("plain" or "zlib"), count, crc32 (of the body as stored), format, version; and, in
               an object that has any, sums: {counter: amount}, record: the bytes of that, and, in the snapshot, folded:
               the names, without `v1/journal/`, of journals that are in it and may still be there
    body    := line*, compressed as a whole if the codec is "zlib"
    line    := seconds "\t" times "\t" worth "\t" key "\n"    a `EntryUse`; lines are ordered by key
    seconds := of the last use, since the epoch, whole
    worth   := a number with six digits, or nothing
    record  := the lines of start records (`line`), compressed

A key holds neither a tab nor a line break (`check_key`). Version 1 is the first; readers ignore unknown header fields.

What a cache has counted is the sums of the snapshot and of all journals that it does not name. One write, on the
condition that nobody else has written it, takes in the uses and the sums of journals and names them; then they are
deleted. So each counts once, wherever a process dies. A snapshot of a later version is left as it is. A reset is a
journal of the negated sums.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.bucket.base import ABSENT
from ejcache.errors import MALFORMED, EntryCorruptError, EntryVersionError
from ejcache.journal.line import EntryUse
from ejcache.util.store_keys import check_key
from ejcache.util.writer import is_process_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ejcache.bucket.base import Bucket

JOURNALS: Final = "v1/journal/"
SNAPSHOT: Final = f"{JOURNALS}snapshot"
_START: Final = 1 << 16
"""Bytes of its beginning that hold the header, unless a pass has died before it deleted what it had folded."""
VERSION: Final = 1
MAX_JOURNAL: Final = 64 << 20
"""Bytes of one process's journal, as stored and after decompression."""
MAX_SNAPSHOT: Final = 512 << 20
"""Bytes of the snapshot as stored."""

_FORMAT: Final = "ejcache-journal"
_CODECS: Final = ("plain", "zlib")
_BEGINNING: Final = b'{"codec":"'
_MAX_EXPANDED: Final = 1 << 30
_MAX_HEADER: Final = 1 << 16
MAX_SNAPSHOT_HEADER: Final = 4 << 20
"""Bytes of a header; that of a snapshot names the journals which the last passes have folded."""
_MAX_JOURNAL_USES: Final = 1_000_000
_MAX_SNAPSHOT_USES: Final = 20_000_000
_MAX_LINE: Final = 8192
_MAX_RECORD: Final = 8 << 20
_LARGEST: Final = 1e30
_BATCH: Final = 1000
"""Lines that are compressed together."""
_PIECE: Final = 1 << 18
"""Bytes that are decompressed at a time, and the most that they may become."""


def encode_journal(
    used: Mapping[str, EntryUse],
    *,
    sums: Mapping[str, float] | None = None,
    compress: bool = False,
    record: Iterable[bytes] = (),
) -> bytes:
    """Encode the uses of keys, the sums of counters and the lines of a record; equal for equal ones."""
    ordered, lines = sorted(used.items()), list(record)
    packed = zlib.compress(b"\n".join(lines)) if lines else b""
    return encode_ordered(lambda: ordered, sums=sums, compress=compress, record_size=len(packed)) + packed


def encode_ordered(
    read: Callable[[], Iterable[tuple[str, EntryUse]]],
    *,
    sums: Mapping[str, float] | None = None,
    compress: bool = False,
    record_size: int = 0,
    folded: Iterable[str] = (),
) -> bytes:
    """Encode any number of uses; only the result is held in memory.

    Args:
        read: returns the uses ordered by key. It is called twice, because the header comes first and holds the
            checksum of the rest, and has to return the same uses both times.
        sums: of counters.
        compress: use the codec "zlib".
        record_size: bytes of a record that follows.
        folded: names of the journals that these uses and sums are of.
    """
    count = crc = 0
    for lines, part in _encode_lines(read(), compress=compress):
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
    if names := sorted(name.removeprefix(JOURNALS) for name in folded):
        header["folded"] = names
    if record_size:
        header["record"] = record_size
    whole = io.BytesIO()
    whole.write(json.dumps(header, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    whole.writelines(part for _, part in _encode_lines(read(), compress=compress))
    return whole.getvalue()


def decode_lines(data: bytes, *, limit: int = MAX_SNAPSHOT) -> Iterator[tuple[str, EntryUse]]:
    """Return the uses in `data`, one at a time; arguments and errors are those of `decode_pieces`."""
    return decode_pieces([data[: len(data) - _record_size(data)]], limit=limit)


def decode_record_lines(data: bytes) -> list[bytes]:
    """Return the lines of the record in a journal; none if it has none, or it is damaged or very large."""
    with contextlib.suppress(zlib.error):
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(data[len(data) - _record_size(data) :], _MAX_RECORD)
        if unpacking.eof:
            return text.splitlines()
    return []


def _record_size(data: bytes) -> int:
    try:
        size = json.loads(data[: data.index(b"\n", 0, _MAX_HEADER)]).get("record", 0)
        return size if type(size) is int and 0 <= size < len(data) else 0
    except MALFORMED:
        return 0


def decode_pieces(pieces: Iterable[bytes], *, limit: int = MAX_SNAPSHOT) -> Iterator[tuple[str, EntryUse]]:
    """Yield the uses in a journal or a snapshot that is read piece by piece, one at a time.

    Args:
        pieces: of its bytes; the first holds the header.
        limit: bytes that it may have.

    Raises:
        EntryCorruptError: it is truncated, changed, too large, or not a journal. This may be raised after some
            uses, even after all of them; the caller must discard them.
        EntryVersionError: it is of a version that this code does not read.
    """
    source = iter(pieces)
    start = next(source, b"")
    if len(start) > limit:
        raise EntryCorruptError(f"larger than {limit} bytes")
    end = start.find(b"\n", 0, MAX_SNAPSHOT_HEADER if limit >= MAX_SNAPSHOT else _MAX_HEADER)
    try:
        header = json.loads(start[:end]) if end >= 0 else {}
        if header["format"] != _FORMAT:
            raise EntryCorruptError("not a journal")
        if header["version"] != VERSION:
            version = str(header["version"])[:40]
            raise EntryVersionError(f"a journal of version {version}; this code reads {VERSION}")
        if header["codec"] not in _CODECS:
            raise EntryCorruptError("a journal of an unknown codec")
        most_uses = _MAX_SNAPSHOT_USES if limit >= MAX_SNAPSHOT else _MAX_JOURNAL_USES
        if type(header["count"]) is not int or not 0 <= header["count"] <= most_uses:
            raise EntryCorruptError(f"a journal has at most {most_uses} uses")
        count = 0
        body = _check_sizes(_after(end + 1, [start], source), header["crc32"], limit)
        del start  # it is not held until the last piece
        most = _MAX_EXPANDED if limit >= MAX_SNAPSHOT else limit
        for line in _lines(_expand(body, most) if header["codec"] == "zlib" else map(bytes, body)):
            count += 1
            if count > header["count"]:
                break
            yield _parse_line(line.decode())
        if count != header["count"]:
            raise EntryCorruptError(f"{count} uses, and the header says {str(header['count'])[:40]}")
    except (zlib.error, *MALFORMED) as exc:
        raise EntryCorruptError(f"not a journal: {str(exc)[:200]}") from exc


def decode_sums(data: bytes) -> dict[str, float]:
    """Return the sums in a journal, of which `data` may be the beginning. Damaged or absurd ones count as none."""
    try:
        return finite_sums(json.loads(data[: data.index(b"\n")])["sums"])
    except MALFORMED:
        return {}


def decode_folded(data: bytes) -> tuple[dict[str, float], frozenset[str], bool]:
    """Return what the header of a snapshot says, of which `data` is at least the beginning.

    Returns:
        The sums, the names of the journals that were folded, and whether it is of a later version, of which nothing
        else is known. What is damaged or absurd counts as none.
    """
    try:
        header = json.loads(data[: data.index(b"\n")])
        if header["format"] == _FORMAT and header["version"] == VERSION:
            names = frozenset(f"{JOURNALS}{name}" for name in header.get("folded", ()) if isinstance(name, str))
            return finite_sums(header.get("sums", {})), names, False
        return {}, frozenset(), header["format"] == _FORMAT
    except MALFORMED:
        return {}, frozenset(), False


def finite_sums(sums: dict[object, object]) -> dict[str, float]:
    """Return those of these sums that a counter can have."""
    return {str(name): n for name, n in sums.items() if isinstance(n, int | float) and -_LARGEST < n < _LARGEST}


def is_journal(data: bytes) -> bool:
    """True if `data` begins as every journal that ejcache writes."""
    return data.startswith(_BEGINNING)


def _encode_lines(used: Iterable[tuple[str, EntryUse]], *, compress: bool) -> Iterator[tuple[int, bytes]]:
    """Yield how many lines, and the next part of the body; the last part may have no lines."""
    # Keys are mostly digests, in which matches are rare: this strategy makes them a sixth smaller.
    compressor = zlib.compressobj(level=4, strategy=zlib.Z_FILTERED)
    source = iter(used)
    while batch := [
        f"{int(when)}\t{times}\t{'' if worth is None else format(worth, '.6g')}\t{key}\n"
        for key, (when, times, worth) in itertools.islice(source, _BATCH)
    ]:
        text = "".join(batch).encode()
        yield len(batch), compressor.compress(text) if compress else text
    if compress:
        yield 0, compressor.flush()


def _after(end: int, start: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes | memoryview]:
    """Yield what follows the first `end` bytes; `start` is taken out of its list, so that it can be freed."""
    yield memoryview(start.pop())[end:]
    yield from rest


def _check_sizes(pieces: Iterable[bytes | memoryview], crc32: object, limit: int) -> Iterator[memoryview]:
    """Pass the pieces on; raises `EntryCorruptError` if they are too large, or in the end if the sum is wrong."""
    crc = size = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
        size += len(piece)
        if size > limit:
            raise EntryCorruptError(f"larger than {limit} bytes")
        for start in range(0, len(piece), _PIECE):
            yield memoryview(piece)[start : start + _PIECE]
    if crc != crc32:
        raise EntryCorruptError("the checksum of the journal is wrong")


def _expand(pieces: Iterable[memoryview], most: int) -> Iterator[bytes]:
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


def _parse_line(line: str) -> tuple[str, EntryUse]:
    seconds, times, worth, key = line.split("\t")
    number = float(worth) if worth else None
    if not 0 <= int(times) < _LARGEST or not -_LARGEST < (number or 0.0) < _LARGEST:
        raise ValueError(line)
    return check_key(key), EntryUse(float(int(seconds)), int(times), number)


RECORDS: Final = "records-"
"""Begins the last part of the names of journals that hold records of many processes."""


def is_journal_name(name: str) -> bool:
    """True if `name` is that of a journal; other files are neither read nor deleted."""
    _, _, rest = name.removeprefix(JOURNALS).partition("/")
    process, _, number = rest.rpartition("-")
    return number.isdecimal() and is_process_name(process)


def is_records_name(name: str) -> bool:
    """True if `name` is that of a journal of nothing but records."""
    _, _, rest = name.removeprefix(JOURNALS).partition("/")
    return rest.startswith(RECORDS) and is_process_name(rest.removeprefix(RECORDS))


class Folded(NamedTuple):
    """The header of the snapshot, and the whole of a small one.

    Attributes:
        sums: of counters.
        names: of the journals that it has folded.
        version: of the object.
        is_later: it is of a later version than this code reads; then nothing else is known.
        header_size: bytes.
        whole: the object, if it is so small that it was read whole.
    """

    sums: dict[str, float]
    names: frozenset[str]
    version: str
    is_later: bool = False
    header_size: int = 0
    whole: bytes = b""

    @classmethod
    def read(cls, objects: Bucket) -> Folded:
        """Read it; raises StoreError if the storage fails. What is damaged has nothing."""
        blob = objects.read(SNAPSHOT, length=_START)
        if blob is not None and len(blob.data) < blob.size and b"\n" not in blob.data:
            blob = objects.read(SNAPSHOT, length=MAX_SNAPSHOT_HEADER)
        if blob is None:
            return cls({}, frozenset(), ABSENT)
        sums, names, is_later = decode_folded(blob.data)
        whole = blob.data if len(blob.data) == blob.size else b""
        return cls(sums, names, blob.version, is_later, blob.data.find(b"\n") + 1, whole)
