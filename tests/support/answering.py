"""A server on loopback whose answers a test writes itself."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["VERSION", "answer", "serving"]


VERSION: Final = {"X-Goog-Generation": "1", "ETag": '"x"'}
"""What Google's and Amazon's storage say of a version."""


def answer(
    handler: BaseHTTPRequestHandler, body: bytes, headers: Mapping[str, str] = VERSION, *, status: int = 200
) -> None:
    """Answer a request."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":  # a body would be read as the answer to the next request
        handler.wfile.write(body)


@contextmanager
def serving(reply: Callable[[BaseHTTPRequestHandler], object]) -> Iterator[ThreadingHTTPServer]:
    """A server that has `reply` answer every request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            try:
                reply(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.do)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    # Seconds until it sees that it is to end; half a one, which is usual, would be most of what these tests take.
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
