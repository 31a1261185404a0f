"""A proxy in front of an HTTP server that loses answers, damages uploads, and answers in place of the server.

It judges uploads as S3 does: a body that does not have the digest of its Content-MD5 header is refused (BadDigest).
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import random
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from email.message import Message

__all__ = ["LossyProxy"]


class LossyProxy:
    """Passes requests on to `target`, and loses answers: the server acts, and the client hears nothing.

    Args:
        target: URL of the server.

    Attributes:
        lose: answers to requests with this method are lost ("" for none),
        probability: with this probability,
        how: by "reset" or by "close" of the connection.
        damage: so many bodies of PUT have a byte changed on their way.
        flips: each body of a successful GET has its last bit flipped, and none of S3's checksums.
        answers: for a method and what is in the path: status and body that are answered without asking the server.
        seen: (method, path, headers) of each request.
        lock: held while one of these changes.
    """

    def __init__(self, target: str) -> None:
        self.lose, self.probability, self.how = "", 1.0, "reset"
        self.times = -1
        self.damage = 0
        self.flips = False
        self.answers: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self._random = random.Random(0)
        self.lock = threading.Lock()
        proxy, address = self, urlsplit(target).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Transfer-Encoding", "") == "chunked":
                    body = self._chunks()
                with proxy.lock:
                    proxy.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
                if self.command == "PUT" and proxy.damage:
                    proxy.damage -= 1
                    body = bytes([body[0] ^ 1]) + body[1:]
                answer = proxy.own_answer(self.command, self.path, self.headers, body)
                if answer is not None:
                    self._say(*answer)
                    return
                headers = {
                    k: v
                    for k, v in self.headers.items()
                    if k.lower() not in ("transfer-encoding", "connection", "expect")
                }
                headers["Content-Length"] = str(len(body))
                connection = http.client.HTTPConnection(address, timeout=60)
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                data = answer.read()
                connection.close()
                flips = proxy.flips and self.command == "GET" and answer.status in (200, 206) and bool(data)
                if flips:
                    data = data[:-1] + bytes([data[-1] ^ 1])
                if proxy.loses(self.command):
                    self.close_connection = True
                    if proxy.how == "reset":
                        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        self.connection.close()
                    return
                self.send_response_only(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if flips and name.lower().startswith("x-amz-checksum"):
                        continue
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                self.wfile.write(data)

            def _say(self, status: int, body: bytes) -> None:
                self.send_response_only(status, "Said by the proxy")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":  # a body would be read as the answer to the next request
                    self.wfile.write(body)

            def _chunks(self) -> bytes:
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
            setattr(Handler, f"do_{method}", Handler.do)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def own_answer(self, method: str, path: str, headers: Message, body: bytes) -> tuple[int, bytes] | None:
        """What is answered without asking the server; None for what it answers."""
        for (of, part), answer in self.answers.items():
            if method == of and part in path:
                return answer
        stated = headers.get("Content-MD5")
        if stated and stated != base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode():
            return 400, b"<Error><Code>BadDigest</Code><Message>The Content-MD5 did not match.</Message></Error>"
        return None

    def loses(self, method: str) -> bool:
        """True if the answer to this request is lost."""
        with self.lock:
            if not self.lose or method not in self.lose or not self.times or self._random.random() >= self.probability:
                return False
            self.times -= 1
            return True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
