"""The server: HTTP around the API, faults around the calls, a log of all of them, and a thread to run it in."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import socket
import struct
import threading
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

from aiohttp import web

from gcs_server.api import Call, Reply, StorageApi, error_body
from gcs_server.faults import Fault, FaultRules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

__all__ = ["GcsServer", "RequestRecord"]

_MAX_BODY = 1 << 40


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request that came in; `status` 0 is one that got no answer.

    Attributes:
        path: decoded.
        name: of the object that it is about; "" where it is about none or several.
        bytes_in, bytes_out: of the bodies.
        started: seconds since the epoch.
        seconds: until the answer was complete.
        fault: the action of the fault that befell it, or "".
    """

    method: str
    path: str
    query: dict[str, str]
    status: int
    bytes_in: int
    bytes_out: int
    started: float
    seconds: float
    fault: str
    name: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Connections(web.Server):
    """A server that counts its connections, so that all of them can be made, and closed, before its loop ends.

    What the loop leaves open is reported by the garbage collector, in some later test.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._coming = 0
        self._transports: dict[web.RequestHandler, asyncio.Transport] = {}
        self._changed = asyncio.Event()

    def __call__(self) -> web.RequestHandler:
        self._coming += 1
        return super().__call__()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._coming -= 1
        self._transports[handler] = transport
        self._changed.set()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        del self._transports[handler]
        self._changed.set()

    async def all_made(self) -> None:
        """Wait for the connections that the loop has accepted."""
        # The task that the loop has begun for each of them makes its handler in the next turn.
        await asyncio.sleep(0)
        await self._until(lambda: not self._coming)

    async def close_all(self) -> None:
        """Close every connection at once, also that of a client which does not read its answer."""
        for transport in self._transports.values():
            transport.abort()
        await self._until(lambda: not self._transports)

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._changed.clear()
            await self._changed.wait()


class GcsServer:
    """A server in a thread of this process; a context manager, and restartable on the same port with its objects.

    Args:
        port: 0 takes a free one, and keeps it.
        buckets: that exist from the start.
        latency, jitter: seconds before every answer, give or take.
        write_interval: seconds within which a second change of one object is answered 429; the service has 1.
        page_size: objects in one page of a listing, at most.
        seed: of the faults' probabilities.
        token: requests without it in an `Authorization: Bearer` header are answered 401; `token_url` gives it out.
        log_limit: requests that the log remembers.
        rate: requests a second that are served; those above are answered 429. 0: all.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        buckets: Sequence[str] = ("bucket",),
        latency: float = 0.0,
        jitter: float = 0.0,
        write_interval: float = 0.0,
        page_size: int = 1000,
        seed: int = 0,
        token: str = "",
        log_limit: int = 200_000,
        rate: float = 0.0,
    ) -> None:
        self.rate = rate
        self._tokens, self._filled_at = rate, 0.0
        self.host = host
        self.port = port
        self.latency = latency
        self.jitter = jitter
        self.token = token
        self.faults = FaultRules(seed=seed)
        self.api = StorageApi(page_size=page_size, write_interval=write_interval)
        self._bucket_names = tuple(buckets)
        for name in buckets:
            self.api.create_bucket(name)
        self._log: deque[RequestRecord] = deque(maxlen=log_limit)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def token_url(self) -> str:
        """Where OAuth clients get the token, as a service account's `token_uri` says; who asks is not checked."""
        return f"{self.url}/__token"

    @property
    def requests(self) -> list[RequestRecord]:
        """Every request so far, oldest first; those to the control API are not among them."""
        return list(self._log)

    def clear_requests(self) -> None:
        self._log.clear()

    def add_fault(self, action: str, **rule: Any) -> Fault:
        """Add a rule; the arguments are those of `Fault`."""
        return self.faults.add(Fault(action, **rule))

    def clear_faults(self) -> None:
        self.faults.clear()

    def objects(self, bucket: str = "bucket") -> dict[str, bytes]:
        """What a bucket holds, by name."""
        return {name: stored.data for name, stored in dict(self.api.buckets[bucket].objects).items()}

    def reset(self) -> None:
        """Forget objects, faults and requests; the first buckets are there again, empty."""
        self.api.buckets.clear()
        for name in self._bucket_names:
            self.api.create_bucket(name)
        self.clear_faults()
        self.clear_requests()

    # Life.

    def start(self) -> Self:
        self._ready.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="gcs-server", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        """Refuse connections from here on; the objects stay for the next `start`."""
        loop, stopping, thread = self._loop, self._stopping, self._thread
        if loop is None or stopping is None or thread is None:
            return
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        self._loop = self._stopping = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self.serve())
        except BaseException as exc:
            self._failure = exc
        finally:
            self._ready.set()

    async def serve(self) -> None:
        """Serve until `stop`, or until cancelled."""
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._loop = loop

        def make(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
            return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_MAX_BODY)

        site = _Connections(self._answer, request_factory=make, access_log=None)
        listener = await loop.create_server(site, self.host, self.port, backlog=1024)
        self.port = listener.sockets[0].getsockname()[1]
        self.api.base = self.url
        self._ready.set()
        try:
            await self._stopping.wait()
        finally:
            # A connection that is accepted but not yet made when the listener closes is never made, nor closed: asyncio
            # fails on an assertion and says nothing. So nothing is accepted from here on, and what was is made first.
            loop.remove_reader(listener.sockets[0].fileno())
            await site.all_made()
            listener.close()
            # Stalled requests must not delay the end: every handler is cancelled, every connection closed.
            # (A timeout of 0 would mean none.)
            await site.shutdown(0.01)
            await site.close_all()

    # Requests.

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = unquote(request.rel_url.raw_path)
        if path.startswith("/__"):
            return await self._control(request, path)
        started, clock = time.time(), time.perf_counter()
        query = dict(request.query)
        body = await request.read()
        delay, fault = self.faults.strike(request.method, path, query)
        delay += max(0.0, self.latency + self.faults.random.uniform(-self.jitter, self.jitter)) if self.latency else 0.0
        status = sent = 0
        try:
            if delay:
                await asyncio.sleep(delay)
            call = Call(request.method, request.rel_url.raw_path, query, request.headers, body)
            response, status, sent = await self._respond(request, call, fault)
            return response
        finally:
            self._log.append(
                RequestRecord(
                    request.method,
                    path,
                    query,
                    status,
                    len(body),
                    sent,
                    started,
                    time.perf_counter() - clock,
                    fault.action if fault else "",
                    _object_name(path, query, body),
                )
            )

    def _is_too_much(self) -> bool:
        """Whether this request is above the rate; a second's requests may come at once."""
        if not self.rate:
            return False
        now = time.monotonic()
        self._tokens = min(self.rate, self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now
        if self._tokens < 1:
            return True
        self._tokens -= 1
        return False

    async def _respond(
        self, request: web.BaseRequest, call: Call, fault: Fault | None
    ) -> tuple[web.StreamResponse, int, int]:
        action = fault.action if fault else ""
        seconds = fault.seconds if fault else 0.0
        if fault is not None and action == "status":
            message = fault.message or f"Injected fault {fault.status}."
            page = message.startswith("<")
            body = message.encode() if page else error_body(fault.status, "injected", message)
            reply = Reply(fault.status, body, dict(fault.headers), "text/html" if page else Reply(0).content_type)
            return _response(reply), reply.status, len(reply.body)
        if self._is_too_much():
            refusal = error_body(429, "rateLimitExceeded", "Too many requests.")
            return _response(Reply(429, refusal)), 429, len(refusal)
        if self.token and call.headers.get("Authorization") != f"Bearer {self.token}":
            refusal = error_body(401, "authError", "Invalid Credentials")
            return _response(Reply(401, refusal)), 401, len(refusal)
        if action == "stall":
            await asyncio.sleep(seconds)
        if action in ("reset", "stall"):
            return _reset(request), 0, 0
        if action == "corrupt_upload":
            middle = len(call.body) // 2
            damaged = call.body[:middle] + bytes([call.body[middle] ^ 1]) + call.body[middle + 1 :]
            call = dataclasses.replace(call, body=damaged)
        reply = self.api.handle(call)
        if action == "stall_after":
            await asyncio.sleep(seconds)
        if action in ("drop_after", "stall_after"):
            return _reset(request), 0, 0
        if action == "corrupt" and reply.body:
            position = self.faults.random.randrange(len(reply.body))
            flipped = bytes([reply.body[position] ^ (1 << self.faults.random.randrange(8))])
            reply.body = reply.body[:position] + flipped + reply.body[position + 1 :]
        if action == "shorten":
            reply.body = reply.body[: len(reply.body) // 2]
        if action in ("truncate", "stall_body"):
            response = web.StreamResponse(status=reply.status, headers=_headers(reply))
            response.content_length = len(reply.body)
            await response.prepare(request)
            half = reply.body[: len(reply.body) // 2]
            await response.write(half)
            if action == "stall_body":
                await asyncio.sleep(seconds)
            _reset(request, abort=False)
            return response, reply.status, len(half)
        return _response(reply), reply.status, len(reply.body)

    # Control.

    async def _control(self, request: web.BaseRequest, path: str) -> web.Response:
        if (request.method, path) == ("POST", "/__ctl"):
            settings = json.loads(await request.read())
            try:
                self._set(settings)
            except (TypeError, ValueError, AttributeError) as exc:
                return web.json_response({"error": str(exc)}, status=400)
            return web.json_response(self._state())
        if (request.method, path) == ("POST", "/__token"):
            return web.json_response({"access_token": self.token, "expires_in": 3600, "token_type": "Bearer"})
        if (request.method, path) == ("GET", "/__ctl"):
            return web.json_response(self._state())
        if (request.method, path) == ("GET", "/__log"):
            records = [record.to_dict() for record in self.requests]
            if request.query.get("clear"):
                self.clear_requests()
            return web.json_response(records)
        if (request.method, path) == ("POST", "/__reset"):
            self.reset()
            return web.json_response(self._state())
        return web.json_response({"error": f"no such control: {request.method} {path}"}, status=404)

    def _set(self, settings: dict[str, Any]) -> None:
        if settings.pop("clear_faults", False):
            self.clear_faults()
        for rule in settings.pop("faults", ()):
            self.faults.add(Fault(**rule))
        for name in ("latency", "jitter"):
            if name in settings:
                setattr(self, name, float(settings.pop(name)))
        for name in ("write_interval", "page_size"):
            if name in settings:
                setattr(self.api, name, type(getattr(self.api, name))(settings.pop(name)))
        if settings:
            raise ValueError(f"unknown settings: {', '.join(settings)}")

    def _state(self) -> dict[str, Any]:
        return {
            "latency": self.latency,
            "jitter": self.jitter,
            "write_interval": self.api.write_interval,
            "page_size": self.api.page_size,
            "faults": self.faults.to_list(),
            "buckets": {name: len(bucket.objects) for name, bucket in self.api.buckets.items()},
            "requests": Counter(f"{r.method} {r.status}" for r in self.requests),
        }


def _headers(reply: Reply) -> dict[str, str]:
    return {**reply.headers, "Content-Type": reply.content_type}


def _object_name(path: str, query: dict[str, str], body: bytes) -> str:
    _, separator, name = path.partition("/o/")
    if separator:
        return name
    if "name" in query:
        return query["name"]
    # An upload that brings its properties along has the name there, before the data.
    said = re.search(rb'"name": *("(?:[^"\\\\]|\\\\.)*")', body[:4096]) if path.endswith("/o") else None
    return str(json.loads(said[1])) if said else ""


def _response(reply: Reply) -> web.Response:
    return web.Response(status=reply.status, body=reply.body, headers=_headers(reply))


def _reset(request: web.BaseRequest, *, abort: bool = True) -> web.Response:
    """Close with a reset rather than an orderly end, and without waiting for what was written."""
    transport = request.transport
    if transport is not None:
        connection = transport.get_extra_info("socket")
        if abort and connection is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            transport.close()
    return web.Response()
