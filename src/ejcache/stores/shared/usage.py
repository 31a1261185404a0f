r"""What processes use and count of a shared cache, and the format of the journals that say so.

The format of usage journals and of the snapshot that they are compacted into.

    file    := header "\n" body record
    header  := canonical JSON: codec ("plain" or "zlib"), count, crc32 (of the body as stored), format, version; and, in
               a journal that has any, sums: {counter: amount}, and record: the bytes of that
    body    := line*, compressed as a whole if the codec is "zlib"
    line    := seconds "\t" times "\t" worth "\t" key "\n"    a `EntryUse`; lines are ordered by key
    seconds := of the last use, since the epoch, whole
    worth   := a number with six digits, or nothing
    record  := what processes tell of themselves (`Store.add_counters`): lines, compressed

A key holds neither a tab nor a line break (`check_key`). Version 1 is the first; readers ignore unknown header fields.

What a process used and counted of a shared cache: in journals, which a maintenance pass folds.

    v1/used/<day>/<process name>-<n>     a usage journal: uses and sums since the one before; in the last one of a
                                         process, its record
    v1/used/<day>/records-<process name> a journal of nothing but the records of journals that this process has folded
    v1/counters/=baseline                JSON: sums, written (seconds since the epoch), folded (names and versions)

A bucket records no access time, accepts about one write a second to one object, and network file systems have no
reliable locks. So each process collects in memory what it uses and counts, and writes at most one small journal a
minute, which nobody changes. A process that is killed loses its last minute. One that ends without a client for the
storage, or cannot reach it, leaves what it has to the next process of its host (`unsent`).

The counters of the cache are the sums of the baseline and of all journals that it does not name. A pass first adds the
sums of journals to the baseline, with their names, on the condition that nobody else has changed it, then writes the
snapshot of uses, and then deletes them: sums are counted once, and uses at most once, also if the pass dies in between.
A reset is a journal of the negated sums.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import threading
import time
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Final

from ejcache.bucket.base import ABSENT, COUNTERS, is_process_name, process_name
from ejcache.errors import (
    MALFORMED,
    EntryCorruptError,
    EntryVersionError,
    InvalidKeyError,
    StoreError,
    StoreReadOnlyError,
)
from ejcache.stores.base import EntryUse
from ejcache.util.lifecycle import AtExit, ExitPhase, track_forks
from ejcache.util.store_keys import check_key
from ejcache.util.threads import in_parallel
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ejcache.bucket.base import Blob, Bucket
    from ejcache.stores.shared.unsent import UnsentUses


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
    """The bytes of the uses of keys, of the sums of counters, and of the lines of a record; the same for the same."""
    ordered, lines = sorted(used.items()), list(record)
    packed = zlib.compress(b"\n".join(lines)) if lines else b""
    return encode_ordered(lambda: ordered, sums=sums, compress=compress, record_size=len(packed)) + packed


def encode_ordered(
    read: Callable[[], Iterable[tuple[str, EntryUse]]],
    *,
    sums: Mapping[str, float] | None = None,
    compress: bool = False,
    record_size: int = 0,
) -> bytes:
    """Encode any number of uses; only the result is held in memory.

    Args:
        read: returns the uses ordered by key. It is called twice, because the header comes first and holds the
            checksum of the rest, and has to return the same uses both times.
        sums: of counters.
        compress: use the codec "zlib".
        record_size: bytes of a record that follows.
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
    if record_size:
        header["record"] = record_size
    whole = io.BytesIO()
    whole.write(json.dumps(header, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    whole.writelines(part for _, part in _encoded(read(), compress=compress))
    return whole.getvalue()


def decode_journal(data: bytes) -> dict[str, EntryUse]:
    """All uses in `data`; raises as `decode_lines` does."""
    return dict(decode_lines(data))


def decode_lines(data: bytes, *, limit: int = MAX_SNAPSHOT) -> Iterator[tuple[str, EntryUse]]:
    """The uses in `data`, one at a time; arguments and errors are those of `decode_pieces`."""
    return decode_pieces([data[: len(data) - _record_size(data)]], limit=limit)


def decode_told(data: bytes) -> list[bytes]:
    """The lines of the record in a journal; none if it has none, or it is damaged or very large."""
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
    except (AttributeError, *MALFORMED):
        return 0


def decode_pieces(pieces: Iterable[bytes], *, limit: int = MAX_SNAPSHOT) -> Iterator[tuple[str, EntryUse]]:
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


def is_journal(data: bytes) -> bool:
    """True if `data` begins as every journal that ejcache writes."""
    return data.startswith(_BEGINNING)


def _encoded(used: Iterable[tuple[str, EntryUse]], *, compress: bool) -> Iterator[tuple[int, bytes]]:
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


def _parsed(line: str) -> tuple[str, EntryUse]:
    seconds, times, worth, key = line.split("\t")
    number = float(worth) if worth else None
    if not 0 <= int(times) < _LARGEST or not -_LARGEST < (number or 0.0) < _LARGEST:
        raise ValueError(line)
    return check_key(key), EntryUse(float(int(seconds)), int(times), number)


log = logging.getLogger("ejcache")

USED: Final = "v1/used/"
RECORDS: Final = "records-"
"""Begins the last part of the names of journals that hold records of many processes."""
MAX_BASELINE: Final = 4 << 20
"""A larger object holds no counters of ours, and is not read."""

_BASELINE: Final = f"{COUNTERS}=baseline"
_NEGLIGIBLE: Final = 1e-9
_MOST_USES: Final = 100_000
"""Of so many entries the last use is remembered: more than a process has programs."""
_START: Final = 1 << 16
"""Bytes of a journal that hold its sums."""
_THREADS: Final = 8


class Usage:
    """What this process uses and counts of one shared cache. Safe for threads; a forked child has its own.

    Args:
        bucket: of the cache.
        unsent: of this host, for what cannot be sent; None for nowhere.
    """

    def __init__(self, bucket: Bucket, *, unsent: UnsentUses | None = None) -> None:
        self._bucket = bucket
        self._left = unsent
        self.after_fork_in_child()
        _everyone.add(self)
        track_forks(self)

    def after_fork_in_child(self) -> None:
        """Leave what was used and counted to the parent, and write journals of another name."""
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._name = process_name()
        self._number = 0
        # Only single operations on these two, which the interpreter makes atomic: `note` is on the path of a hit.
        self.last_used: dict[str, float] = {}
        self._used: dict[str, EntryUse] = {}
        self._sums: Counter[str] = Counter()
        self._unsent: tuple[str, dict[str, EntryUse], dict[str, float], bytes] | None = None
        self._failed = False
        self._refused = False
        self.record = b""
        """What this process tells of itself: lines, with a line break between two."""

    def note(self, key: str, *, when: float | None = None, times: int = 1, worth: float | None = None) -> None:
        """Note uses, the last of them at `when` seconds since the epoch or now.

        Of a use that another thread notes at the same moment, perhaps only one is counted.
        """
        before = self._used.get(key)
        if before is not None or len(self._used) < _MOST_USES:
            use = EntryUse(when or time.time(), times, worth)
            self._used[key] = use = use if before is None else use.joined(before)
            if len(self.last_used) >= _MOST_USES:
                self.last_used = {}
            self.last_used[key] = use.when

    def add(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters. Never raises a `StoreError`."""
        if self._left is None:
            self._bucket.prepare()  # a program that is ending cannot make a client
        with self._lock:
            self._sums.update(amounts)

    def write(self, *, is_last: bool = False) -> bool:
        """Write a journal, if anything was used or counted since the last one. Never raises a `StoreError`.

        Args:
            is_last: with the record of this process.

        Returns:
            False if the storage failed; the next call writes the same journal again, so that one that was written
            although no answer came is there once.
        """
        with self._writing:
            while not self._refused and (self._unsent is not None or self._begin(is_last=is_last)):
                name, used, sums, record = self._unsent or ("", {}, {}, b"")
                try:
                    journal = encode_journal(used, sums=sums, record=record.splitlines())
                    self._bucket.write(name, journal, version=ABSENT)
                except StoreReadOnlyError as exc:
                    log.debug("this process may not write usage journals: %s", exc)
                    self._refused = True
                except StoreError as exc:
                    log.debug("a usage journal was not written: %s", exc)
                    self._failed = True
                    return False
                self._unsent = None
            self._failed = False
            return True

    def _begin(self, *, is_last: bool) -> bool:
        """Begin the next journal; False if it would be empty."""
        used, sums = self._take()
        record = b""
        if is_last:
            record, self.record = self.record, b""
        if used or sums or record:
            self._unsent = self._next_name(), used, sums, record
        return self._unsent is not None

    def _take(self) -> tuple[dict[str, EntryUse], dict[str, float]]:
        used: dict[str, EntryUse] = {}
        with contextlib.suppress(KeyError):
            while True:
                key, when = self._used.popitem()
                used[key] = when
        with self._lock:
            sums, self._sums = self._sums, Counter()
        return used, {name: amount for name, amount in sums.items() if amount}

    def _next_name(self) -> str:
        self._number += 1
        return f"{USED}{time.strftime('%Y-%m-%d', time.gmtime())}/{self._name}-{self._number - 1}"

    def write_or_hand_over(self) -> None:
        """`write` if this process can make a request; otherwise leave to another process what was not written."""
        breaker = self._bucket.breaker
        is_refused = breaker is not None and breaker.is_open
        # Do not wait, when the program ends, for storage that failed just before.
        if self._bucket.is_prepared and not is_refused and not self._failed and self.write(is_last=True):
            return
        if self._left is not None:
            with self._writing:
                unsent, self._unsent = self._unsent, None
                used, sums = self._take()
            if unsent is not None:
                for key, use in unsent[1].items():
                    used[key] = used[key].joined(use) if key in used else use
                for name, amount in unsent[2].items():
                    sums[name] = sums.get(name, 0) + amount
            self._left.leave(used, sums)

    def records(self, *, most: int) -> Iterator[bytes]:
        """The lines that processes have told of themselves, of the last journals; raises StoreError as they are read.

        A line may come twice: a pass that was killed has left it in a journal, and in what it has folded.
        """
        names = (info.name for info in self._bucket.walk(USED))
        kept = (name for name in names if is_journal_name(name) or is_records_name(name))
        known = sorted(kept, key=_day, reverse=True)
        for blob in in_parallel(self._bucket.read, known[:most], threads=_THREADS):
            if blob is not None:
                yield from decode_told(blob.data)

    def is_left_due(self) -> bool:
        """True if this process should make requests only to send what earlier ones have left."""
        return self._left is not None and self._left.is_due()

    def take_left(self) -> None:
        """Count what earlier processes of this host have left as used and counted by this one."""
        if self._left is not None:
            used, sums = self._left.take()
            for key, use in used.items():
                self.note(key, when=use.when, times=use.times, worth=use.worth)
            self.add(sums)

    def total(self, *, write: bool = True) -> dict[str, float]:
        """The counters of all processes since the last reset, as far as they have written them.

        Args:
            write: what this process has not written counts, too.

        Raises:
            StoreError: the objects cannot be listed or read.
        """
        if write:
            for usage in _everyone:
                if usage._bucket.url == self._bucket.url:  # noqa: SLF001  # other stores of this process
                    usage.write()
        # The baseline first. A journal that is folded after that is still listed, or is missed in this one read; it is
        # never counted twice.
        baseline = Baseline.read(self._bucket)
        names = (info.name for info in self._bucket.walk(USED))
        journals = [name for name in names if is_journal_name(name) and name not in baseline.folded]
        sums = Counter(baseline.sums)
        for blob in in_parallel(lambda name: self._bucket.read(name, length=_START), journals, threads=_THREADS):
            sums.update(decode_sums(b"" if blob is None else blob.data))
        return {name: amount for name, amount in sums.items() if abs(amount) > _NEGLIGIBLE}

    def reset(self) -> None:
        """Count from zero. Raises StoreError if the storage fails."""
        negated = {name: -amount for name, amount in self.total().items()}
        self._bucket.write(self._next_name(), encode_journal({}, sums=negated), version=ABSENT)


class Baseline(NamedTuple):
    """The sums of what was folded, and the names of it that may still be there."""

    sums: dict[str, float]
    folded: dict[str, str]
    version: str

    @classmethod
    def read(cls, objects: Bucket) -> Baseline:
        """The baseline; raises StoreError if the storage fails."""
        blob = _read_limited(objects, _BASELINE)
        if blob is None:
            return cls({}, {}, ABSENT)
        folded: dict[str, str] = {}
        with contextlib.suppress(*MALFORMED):
            folded = {str(name): str(version) for name, version in json.loads(blob.data)["folded"].items()}
        return cls(decode_counters(blob), folded, blob.version)

    def fold(self, objects: Bucket, found: Mapping[str, tuple[str, Mapping[str, float]]], listed: set[str]) -> bool:
        """Add sums to the baseline; False if another process has changed it meanwhile.

        Args:
            objects: of the cache.
            found: version and sums of each object that is folded now.
            listed: the names of all objects that there are; what is not there any more need not be named.
        """
        sums = Counter(self.sums)
        for _, amounts in found.values():
            sums.update(amounts)
        folded = {name: version for name, version in self.folded.items() if name in listed}
        folded |= {name: version for name, (version, _) in found.items()}
        if folded == self.folded and not found:
            return True
        data = {"sums": sums, "folded": folded, "written": time.time()}
        return objects.write(_BASELINE, json.dumps(data, sort_keys=True).encode(), version=self.version) is not None


def is_journal_name(name: str) -> bool:
    """True if `name` is that of a usage journal; other files are neither read nor deleted."""
    _, _, rest = name.removeprefix(USED).partition("/")
    process, _, number = rest.rpartition("-")
    return number.isdecimal() and is_process_name(process)


def is_records_name(name: str) -> bool:
    """True if `name` is that of a journal of nothing but records."""
    _, _, rest = name.removeprefix(USED).partition("/")
    return rest.startswith(RECORDS) and is_process_name(rest.removeprefix(RECORDS))


def _day(name: str) -> str:
    return name.removeprefix(USED).partition("/")[0]


def decode_counters(blob: Blob | None) -> dict[str, float]:
    """The sums in an object. Absent, damaged or absurd counters count as none: counters are not worth an error."""
    try:
        return {} if blob is None or blob.size > MAX_BASELINE else finite_sums(json.loads(blob.data)["sums"])
    except MALFORMED:
        return {}


def _read_limited(objects: Bucket, name: str) -> Blob | None:
    return objects.read(name, length=MAX_BASELINE + 1)


_everyone: Final = AtExit(ExitPhase.COUNTERS, Usage.write_or_hand_over)
