"""Reads answers of shared storage within bounds of bytes and time.

A proxy, a login page or an attacker may answer in place of the storage. So every client reads answers within bounds
(`AnswerBounds`; `guard` has aiohttp do it): no encoding is asked for, and none is undone; at most as many bytes are
read as the request allows (`allowed_bytes`); and no redirect is followed.
"""

from __future__ import annotations

import asyncio
import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from ejcache.bucket.retry import TransientError
from ejcache.util.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_DOCUMENT: Final = 8 << 20
"""Bytes of an answer that is no object. Azure's pages are the largest: 5,000 names, with a kilobyte about each."""
_MAX_PARTS: Final = 250_000
"""Elements of XML or values of JSON in such an answer. Azure's pages have 150,000; each takes 300 bytes of memory."""
allowed_bytes: Final[ContextVar[int]] = ContextVar("allowed_bytes", default=MAX_DOCUMENT)
"""How many bytes the answers to the requests of this task may have."""
_SHOWN: Final = 200


class AnswerError(Exception):
    """An answer that no storage gives. Not an `OSError`, which aiohttp would take for a broken connection."""


def shorten_answer(said: object) -> str:
    """Shorten what a server said to one line of printable text, for a message."""
    return printable(" ".join(str(said)[: 4 * _SHOWN].split()))[:_SHOWN]


def guard(session: Any, kind: type[Any] | None = None) -> Any:
    """Have a session of aiohttp read answers within bounds, and send each request once.

    aiohttp would send a request again by itself, and hide that the first one may have been carried out.

    Args:
        session: the session.
        kind: of the answers, a subclass of what `bounded_response` returns.
    """
    session._response_class = kind or bounded_response()  # noqa: SLF001  # the session of s3fs exists already
    session._retry_connection = False  # noqa: SLF001
    return session


@functools.cache
def bounded_response() -> type[Any]:
    """Return the class of answers within bounds."""
    from aiohttp import ClientResponse  # its import takes a fifth of a second

    class BoundedResponse(ClientResponse):
        """An answer that is not redirected, not encoded, and not longer than it may be."""

        async def start(self, connection: Any) -> ClientResponse:
            await super().start(connection)
            arrival = current_arrival.get()
            bounds = AnswerBounds(str(self.host), self.status, self.headers, allowed_bytes.get(), arrival)
            if self.status < 300 and arrival is not None:
                arrival.begin()
            self.content: Any = _BoundedBody(self.content, bounds)
            return self

    return BoundedResponse


def joined_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers of an answer, with their names in small letters; one that comes twice is joined by commas."""
    joined: dict[str, str] = {}
    for given, value in headers:
        name = given.lower()
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


class Arriving:
    """An answer that arrives.

    Attributes:
        has_begun: its header has come,
        bytes: and so many of its body.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.bytes = 0

    def is_late(self, seconds: float) -> TransientError:
        """Return the error for an answer that has not come, or not whole, though it had `seconds` to begin."""
        said = "no full answer" if self.has_begun else f"no answer for {seconds:.3g} s"
        return TransientError(said, ambiguous=True, busy=True, arriving=self.has_begun, arrived=self.bytes)


class AnswerBounds:
    """What the answer of a storage may be: no redirect, not encoded, of at most `most` bytes and not too many parts.

    Args:
        host: that answers.
        status: of the answer.
        headers: of the answer; their names have no case, or are in small letters.
        most: bytes that the answer may have, if it is the one that was asked for.
        arrival: told how many bytes have come.

    Raises:
        AnswerError: its header says that no storage has written it.
    """

    def __init__(
        self, host: str, status: int, headers: Mapping[str, str], most: int, arrival: Arriving | None = None
    ) -> None:
        if 300 <= status < 400 and "location" in headers:
            where = shorten_answer(headers["location"])
            raise AnswerError(f"the answer of {host} is a redirect to {where}, perhaps a login page")
        encoding = headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise AnswerError(
                f"the answer of {host} is encoded ({shorten_answer(encoding)}), which no request asks for"
            )
        self._host = host
        self._most = self._left = MAX_DOCUMENT if status >= 300 else most
        self._parts = 0
        self._arrival = arrival

    def counted(self, piece: bytes) -> bytes:
        """Return the next bytes of the body; raises AnswerError if they are too many."""
        self._left -= len(piece)
        if self._arrival is not None:
            self._arrival.bytes += len(piece)
        if self._left < 0:
            raise AnswerError(f"the answer of {self._host} has more than {self._most} bytes")
        if self._most <= MAX_DOCUMENT:  # it will be parsed
            self._parts += sum(map(piece.count, (b"<", b"[", b"{", b","))) - piece.count(b"</")
            if self._parts > _MAX_PARTS:
                raise AnswerError(f"the answer of {self._host} has more than {_MAX_PARTS} parts")
        return piece


class _BoundedBody:
    """The body of an answer within its bounds. It stands for aiohttp's `StreamReader`."""

    def __init__(self, content: Any, bounds: AnswerBounds) -> None:
        self._content = content
        self._counted = bounds.counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def read(self, n: int = -1) -> bytes:
        """Return at most `n` bytes; -1 for the rest of the body."""
        if n >= 0:
            return self._counted(await self._content.read(n))
        pieces = []
        while piece := self._counted(await self._content.readany()):
            pieces.append(piece)
        return b"".join(pieces)


class Arrival(Arriving):
    """An answer that arrives on the event loop, and has so many seconds once its header has come."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.timeout: asyncio.Timeout | None = None
        self._seconds = seconds

    def begin(self) -> None:
        """Give the answer its time: its header has come. Called on the loop.

        Only the first one of a request that is answered in parts: a server that repeats a part for ever ends it.
        """
        if self.has_begun:
            return
        self.has_begun = True
        if self.timeout is not None and not self.timeout.expired():
            now = asyncio.get_running_loop().time()
            self.timeout.reschedule(max(self.timeout.when() or 0.0, now + self._seconds))


current_arrival: Final[ContextVar[Arrival | None]] = ContextVar("arrival", default=None)
