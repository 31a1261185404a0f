"""Sends requests to one server by plain HTTPS: bounded in time and in size, on connections that are kept.

A request runs in the thread of its caller. Before each call of the operating system the socket gets the time that is
left, because a timeout of its own would begin again with every byte. Only a connection is opened in another thread,
which is left behind at the deadline: nothing ends a name look-up.

Proxies and certificates are those of aiohttp: no proxy of the environment, and the authorities of OpenSSL
(`SSL_CERT_FILE`, `SSL_CERT_DIR`).
"""

from __future__ import annotations

import io
import json
import select
import socket
import ssl
import time
from collections import deque
from contextlib import suppress
from functools import partial
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from ejcache.bucket.responses import AnswerBounds, Arriving, joined_headers
from ejcache.bucket.retry import TransientError
from ejcache.errors import StoreUnavailableError
from ejcache.util.threads import submit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

_CONNECTIONS: Final = 64
_IDLE: Final = 60.0
"""Seconds for which a connection is kept: firewalls forget one that is not used, and say nothing."""
_PIECE: Final = 1 << 18
_LATER: Final = 1.0
"""Seconds after the deadline of a request at which the thread that opens its connection gives up by itself."""
_PORTS: Final = {"http": 80, "https": 443}


class HttpAnswer(NamedTuple):
    """What a server has answered. The names of headers are in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON; raises ValueError."""
        return json.loads(self.body)


class Connection:
    """An open connection, on which one request at a time may wait until `deadline`, by the monotonic clock."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._idle_since = 0.0
        self.deadline = 0.0

    @property
    def is_usable(self) -> bool:
        """True if the server has not closed it, nor said anything, since the last answer."""
        if time.monotonic() - self._idle_since > _IDLE:
            return False
        try:
            if hasattr(select, "poll"):  # eventlet takes it away
                poll = select.poll()
                poll.register(self._sock, select.POLLIN)
                return not poll.poll(0)
            return not select.select([self._sock], [], [], 0)[0]
        except (OSError, ValueError):  # ValueError: it is closed, or has too high a number for `select`
            return False

    def rest(self) -> None:
        """Note that nobody uses it from now on."""
        self._idle_since = time.monotonic()

    def close(self) -> None:
        self._sock.close()

    def send(self, parts: Sequence[bytes]) -> None:
        """Send the parts of a request. A call sends what the system takes at once, so that each has the time left."""
        for part in parts:
            left = memoryview(part)
            while left:
                self._allow()
                left = left[self._sock.send(left) :]

    def read_into(self, buffer: Any) -> int:
        """Read what has come, or what comes first."""
        self._allow()
        return self._sock.recv_into(buffer)

    def makefile(self, _: str) -> io.BufferedReader:
        """Return what `HTTPResponse` reads. Closing that leaves the connection open."""
        return io.BufferedReader(_Reader(self))

    def _allow(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        self._sock.settimeout(left)


class _Reader(io.RawIOBase):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._connection.read_into(buffer)


class HttpsClient:
    """The connections to one server. Safe for threads; after a fork, another one is made.

    Args:
        location: `https://host` or `http://host:port`, with a path if all requests begin with one.
    """

    def __init__(self, location: str) -> None:
        found = urlsplit(location)
        self._host, self._path = found.hostname or "", found.path.rstrip("/")
        self._port = found.port or _PORTS[found.scheme]
        self._name = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        self._named = self._name.removesuffix(f":{_PORTS[found.scheme]}")
        self._tls = ssl.create_default_context() if found.scheme == "https" else None
        self._idle: deque[Connection] = deque()
        self._is_closed = False

    def close(self) -> None:
        """Close the connections that nobody uses, and the others after their requests."""
        self._is_closed = True
        while (connection := self._take()) is not None:
            connection.close()

    def send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        *,
        headers: Mapping[str, str],
        body: Sequence[bytes],
        seconds: float,
        body_seconds: float,
        most: int,
    ) -> HttpAnswer:
        """Send one request, once, and return its answer.

        Args:
            method: of HTTP.
            path: below the location, quoted.
            params: of the query.
            headers: of the request.
            body: of the request, in parts.
            seconds: until the answer begins to arrive.
            body_seconds: from then until it has arrived.
            most: bytes that it may have.

        Raises:
            TransientError: the connection broke, or there was no full answer in time.
            AnswerError: no storage answers so.
            StoreUnavailableError: the server cannot be talked to.
        """
        target = f"{self._path}/{path}{'?' if params else ''}{urlencode(params)}"
        head = self._head(method, target, headers, sum(map(len, body)))
        deadline, arrival = time.monotonic() + seconds, Arriving()
        connection = None
        try:
            connection = self._take() or self._open(seconds)
            connection.deadline = deadline
            answer, may_stay = self._exchange(connection, method, [head, *body], arrival, body_seconds, most)
        except TimeoutError as exc:
            raise arrival.is_late(seconds) from exc
        except StoreUnavailableError:  # an `OSError`, too
            raise
        except (HTTPException, OSError) as exc:
            raise TransientError(f"the connection broke: {str(exc) or type(exc).__name__}", ambiguous=True) from exc
        else:
            if may_stay:
                self._keep(connection)
                connection = None
            return answer
        finally:
            if connection is not None:
                connection.close()  # what is left of the answer is not the next one's

    def _head(self, method: str, target: str, headers: Mapping[str, str], length: int) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._named}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if length or method == "POST":
            lines.append(f"Content-Length: {length}")
        head = "\r\n".join([*lines, "", ""])
        if head.count("\r") != len(lines) + 1 or head.count("\n") != len(lines) + 1 or not head.isascii():
            raise StoreUnavailableError(f"{self._host}: a header of the request is not one line of plain text")
        return head.encode()

    def _exchange(
        self,
        connection: Connection,
        method: str,
        request: Sequence[bytes],
        arrival: Arriving,
        body_seconds: float,
        most: int,
    ) -> tuple[HttpAnswer, bool]:
        """Return the answer, and whether another request may follow on the connection."""
        with suppress(BrokenPipeError):  # the server may have answered before it had everything
            connection.send(request)
        response = HTTPResponse(connection, method=method)  # type: ignore[arg-type]  # it calls `makefile` alone
        response.begin()
        headers = joined_headers(response.headers.items())
        bounds = AnswerBounds(self._host, response.status, headers, most, arrival)
        if response.status < 300:
            arrival.has_begun = True
            connection.deadline = max(connection.deadline, time.monotonic() + body_seconds)
        pieces = []
        while response.length != 0 and (piece := response.read1(_PIECE)):
            pieces.append(bounds.counted(piece))
        if response.length:
            raise IncompleteRead(b"", response.length)
        response.close()
        return HttpAnswer(response.status, headers, b"".join(pieces)), not response.will_close

    def _take(self) -> Connection | None:
        """Return an open connection that nobody uses, the last one that was used."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread has taken it
                return None
            if connection.is_usable:
                return connection
            connection.close()
        return None

    def _keep(self, connection: Connection) -> None:
        connection.rest()
        self._idle.append(connection)
        if self._is_closed or len(self._idle) > _CONNECTIONS:
            self._drop()

    def _drop(self) -> None:
        with suppress(IndexError):
            self._idle.popleft().close()

    def _open(self, seconds: float) -> Connection:
        """Open a connection in another thread; raises TimeoutError if that takes longer."""
        future = submit(partial(self._connect, seconds + _LATER))
        try:
            return future.result(seconds)
        except BaseException:
            # What is opened nevertheless is for the next request.
            if not future.cancel():
                future.add_done_callback(self._keep_late)
            raise

    def _keep_late(self, opened: Future[Connection]) -> None:
        if opened.exception() is None:
            self._keep(opened.result())

    def _connect(self, seconds: float) -> Connection:
        try:
            sock = socket.create_connection((self._host, self._port), seconds)
        except TimeoutError:
            raise
        except OSError as exc:
            raise TransientError(f"{self._name}: {exc}", unreachable=True) from exc
        except ValueError as exc:
            raise StoreUnavailableError(f"{self._name}: no host has this name: {exc}") from exc
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=self._host)
        except (ssl.SSLError, ValueError) as exc:  # ValueError: a name that no certificate can have
            sock.close()
            raise StoreUnavailableError(f"{self._host}: {exc}") from exc
        except BaseException:
            sock.close()
            raise
        connection = Connection(sock)
        connection.rest()
        return connection
