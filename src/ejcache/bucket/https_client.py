"""Requests to one server by plain HTTPS, through urllib3: bounded in time and in size, on connections that are kept.

Importing urllib3 takes a thirtieth of what a client of a bucket takes. A request runs in another thread, which is left
behind at its deadline: nothing else ends a name look-up, or a header that comes a byte a second.
Proxies and certificates are those of aiohttp: no proxy of the environment, and the authorities of OpenSSL
(`SSL_CERT_FILE`, `SSL_CERT_DIR`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

from ejcache.bucket.responses import AnswerBounds
from ejcache.bucket.retry import TransientError
from ejcache.errors import StoreUnavailableError
from ejcache.util.threads import submit

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONNECTIONS: Final = 64
_PIECE: Final = 1 << 18
_LATER: Final = 1.0
"""Seconds after the deadline of a request at which its thread gives it up by itself."""
_SPARE: Final = 4
"""Idle threads that a process which writes has for its end: it then uploads, and releases leases, at the same time."""
_sending: Final = threading.local()


class HttpAnswer(NamedTuple):
    """What a server has answered. The names of headers have no case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON; raises ValueError."""
        return json.loads(self.body)


class _Exchange:
    """A request and its answer while it arrives. The thread that waits for it and the one that reads it share it.

    Attributes:
        has_begun: the header of the answer has come,
        bytes: and so many of its body.
        connection: the one that it comes from.
    """

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes, *, seconds: float) -> None:
        self.method, self.target, self.headers, self.body = method, target, headers, body
        self.seconds = seconds
        self.has_begun = False
        self.bytes = 0
        self.connection: Any = None

    def abandon(self) -> None:
        """End what the other thread reads."""
        sock = getattr(self.connection, "sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def load_https() -> None:
    """Import the library, which takes a while."""
    import urllib3  # noqa: F401


class HttpsClient:
    """The connections to one server. Safe for threads; after a fork, another one is made.

    Args:
        location: `https://host` or `http://host:port`, with a path if all requests begin with one.
    """

    def __init__(self, location: str) -> None:
        from urllib3.util import parse_url

        found = parse_url(location)
        self._host, self._path = str(found.host), (found.path or "").rstrip("/")
        kind, options = _pool_kind(str(found.scheme))
        self._pool = kind(self._host.strip("[]"), found.port, maxsize=_CONNECTIONS, **options)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        self._pool.close()

    def send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        *,
        headers: Mapping[str, str],
        body: bytes,
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
            body: of the request.
            seconds: until the answer begins to arrive.
            body_seconds: from then until it has arrived.
            most: bytes that it may have.

        Raises:
            TransientError: the connection broke, or there was no full answer in time.
            AnswerError: no storage answers so.
            StoreUnavailableError: the server cannot be talked to.
        """
        target = f"{self._path}/{path}{'?' if params else ''}{urlencode(params)}"
        exchange = _Exchange(method, target, dict(headers), body, seconds=seconds + body_seconds)
        future = submit(partial(self._make, exchange, most), spare=0 if method == "GET" else _SPARE)
        try:
            try:
                return future.result(seconds)
            except TimeoutError:
                if future.done() or not exchange.has_begun:
                    raise
                return future.result(body_seconds)
        except TimeoutError as exc:
            has_begun = exchange.has_begun  # the thread that is left behind may still note something
            future.cancel()
            exchange.abandon()
            said = "no full answer" if has_begun else f"no answer for {seconds:.3g} s"
            raise TransientError(said, ambiguous=True, busy=True, arriving=has_begun, arrived=exchange.bytes) from exc
        except BaseException:
            future.cancel()
            raise

    def _make(self, exchange: _Exchange, most: int) -> HttpAnswer:
        from urllib3 import exceptions as errors
        from urllib3.util import Timeout

        _sending.exchange = exchange
        try:
            response = self._pool.urlopen(
                exchange.method,
                exchange.target,
                body=exchange.body or None,
                headers=exchange.headers,
                retries=False,
                redirect=False,
                timeout=Timeout(connect=exchange.seconds + _LATER, read=exchange.seconds + _LATER),
                preload_content=False,
                decode_content=False,
            )
            try:
                bounds = AnswerBounds(self._host, response.status, response.headers, most, exchange)
                exchange.has_begun = response.status < 300
                body = b"".join(map(bounds.counted, response.stream(_PIECE)))
                return HttpAnswer(response.status, response.headers, body)
            except BaseException:
                response.close()  # what is left of the answer is not the next one's
                raise
        except (errors.SSLError, errors.LocationValueError, errors.InvalidHeader) as exc:
            raise StoreUnavailableError(f"{self._host}: {exc}") from exc
        except errors.NewConnectionError as exc:  # a kind of `ConnectTimeoutError`
            raise TransientError(str(exc), unreachable=True) from exc
        except errors.ConnectTimeoutError as exc:
            raise TransientError(str(exc), ambiguous=True, busy=True) from exc
        except (errors.HTTPError, OSError) as exc:
            raise TransientError(f"the connection broke: {str(exc) or type(exc).__name__}", ambiguous=True) from exc
        finally:
            _sending.exchange = None


@functools.cache
def _pool_kind(scheme: str) -> tuple[Any, dict[str, Any]]:
    """Return a class of pools, whose connections tell the exchange of their thread which they are, and its options."""
    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool

    pool: Any = HTTPSConnectionPool if scheme == "https" else HTTPConnectionPool

    class Connection(pool.ConnectionCls):  # type: ignore[misc]  # one of two classes
        def request(self, *args: Any, **named: Any) -> None:
            exchange = getattr(_sending, "exchange", None)
            if exchange is not None:
                exchange.connection = self
            super().request(*args, **named)

        # The messages of urllib3's errors begin with the connection, of which a person knows the address only.
        def __repr__(self) -> str:
            return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

        __str__ = __repr__

    class Pool(pool):  # type: ignore[misc]
        ConnectionCls = Connection

    if scheme != "https":
        return Pool, {}
    import ssl

    return Pool, {"ssl_context": ssl.create_default_context()}
