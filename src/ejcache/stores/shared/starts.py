"""The objects of start records on shared storage.

v1/starts/<day>/<process>          the lines of one process (`cache.starts`)
v1/starts/<day>/merged-<process>   those of many processes; <process> has merged them (`maintenance.start_records`)

object := lines with a line break between two, compressed by zlib
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MERGED: Final = "merged-"
_LARGEST: Final = 8 << 20


def encode_object(lines: Iterable[bytes]) -> bytes:
    """The object that holds these lines."""
    return zlib.compress(b"\n".join(lines))


def decode_object(data: bytes) -> Iterator[bytes]:
    """The lines of such an object; none if it is damaged, or very large."""
    with suppress(zlib.error):
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(data, _LARGEST)
        if unpacking.eof:
            yield from text.splitlines()
