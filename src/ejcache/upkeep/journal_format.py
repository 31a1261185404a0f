r"""When entries were used, as bytes: a journal of one process, or the snapshot that journals are folded into.

    file    := header "\n" body
    header  := canonical JSON: codec ("plain" or "zlib"), count, crc32 (of the body as stored), format, version
    body    := line*, compressed as a whole by codec "zlib"
    line    := seconds "\t" key "\n"       whole seconds since the epoch; keys in order

A key holds neither tab nor line break (`check_key`). Version 1 is the first; unknown header fields are ignored.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Final

from ejcache.errors import EntryCorruptError, EntryVersionError
from ejcache.stores.base import check_key

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["VERSION", "decode", "encode"]

VERSION: Final = 1

_FORMAT: Final = "ejcache-used"
_CODECS: Final = ("plain", "zlib")
_MAX_BYTES: Final = 1 << 30
_MAX_HEADER: Final = 4096


def encode(used: Mapping[str, float], *, compress: bool = False) -> bytes:
    """`used`, keys and seconds since the epoch, as bytes; the same for the same uses."""
    body = "".join(f"{int(seconds)}\t{key}\n" for key, seconds in sorted(used.items())).encode()
    if compress:
        body = zlib.compress(body, level=1)
    header = {
        "codec": _CODECS[compress],
        "count": len(used),
        "crc32": zlib.crc32(body),
        "format": _FORMAT,
        "version": VERSION,
    }
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode() + b"\n" + body


def decode(data: bytes) -> dict[str, float]:
    """The uses in `data`.

    Raises:
        EntryCorruptError: truncated, flipped, or never one of ours.
        EntryVersionError: of a version that this one does not read; to be left alone.
    """
    first, newline, body = data.partition(b"\n")
    try:
        header = json.loads(first) if newline and len(first) <= _MAX_HEADER else {}
        if header["format"] != _FORMAT:
            raise EntryCorruptError("these are no uses of entries")
        if header["version"] != VERSION:
            raise EntryVersionError(f"uses of version {header['version']!r}, and this reads {VERSION}")
        if header["crc32"] != zlib.crc32(body) or header["codec"] not in _CODECS:
            raise EntryCorruptError("the uses are not whole")
        text = (_expanded(body) if header["codec"] == "zlib" else body).decode()
        used = dict(_parsed(line) for line in text.split("\n")[:-1])
        if len(used) != header["count"] or (text and not text.endswith("\n")):
            raise EntryCorruptError("there are not as many uses as the header says")
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error) as exc:
        raise EntryCorruptError(f"these are no uses of entries: {exc}") from exc
    return used


def _expanded(body: bytes) -> bytes:
    expander = zlib.decompressobj()
    text = expander.decompress(body, _MAX_BYTES)
    if not expander.eof:
        raise EntryCorruptError("the uses are cut short, or too many")
    return text


def _parsed(line: str) -> tuple[str, float]:
    seconds, _, key = line.partition("\t")
    return check_key(key), float(int(seconds))
