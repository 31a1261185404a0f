"""What a storage answers: how much of it is read, and how its words are shown.

A proxy, a login page or an attacker may answer in place of the storage. So an answer is read as it came: no encoding is
asked for, and none is undone; at most as many bytes are read as were asked for; and no redirect is followed.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, Final

from ejcache.bucket.retry import TransientError
from ejcache.errors import StoreUnavailableError
from ejcache.util.text import printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ["IDENTITY", "MAX_DOCUMENT", "check_digest", "read_pieces", "shown"]

IDENTITY: Final = {"Accept-Encoding": "identity"}
"""The header of a request whose answer is not to be compressed."""
MAX_DOCUMENT: Final = 16 << 20
"""Bytes of an answer that is no object. A page of a listing, with 1,000 names, has less than 2 MB."""
_SHOWN: Final = 200


def shown(said: object) -> str:
    """What a server said, for a message: one line of printable text, and not much of it."""
    return printable(" ".join(str(said)[: 4 * _SHOWN].split()))[:_SHOWN]


async def read_pieces(pieces: AsyncIterator[bytes], headers: Mapping[str, Any], *, most: int) -> bytes:
    """The body of an answer.

    Args:
        pieces: of the body, as they arrive.
        headers: of the answer.
        most: bytes that were asked for.

    Raises:
        StoreUnavailableError: there are more, or they are compressed.
    """
    encoding = headers.get("Content-Encoding") or "identity"
    if encoding != "identity":
        raise StoreUnavailableError(f"the answer is encoded ({shown(encoding)}), which nobody asked for")
    read: list[bytes] = []
    size = 0
    async for piece in pieces:
        read.append(piece)
        size += len(piece)
        if size > most:
            raise StoreUnavailableError(f"the answer is longer than the {most} bytes that were asked for")
    return b"".join(read)


def check_digest(body: bytes, expected: str) -> None:
    """Compare a body with the base64 MD5 digest of the whole object, if the storage told one.

    Raises:
        TransientError: the body was damaged on its way: the object itself is not to blame.
    """
    if expected and base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode() != expected:
        said = "the answer was damaged on its way: its bytes have another digest than the storage says"
        raise TransientError(said, ambiguous=True)
