"""Storage that cannot be reached, on loopback: what its addresses do, and what leads programs to them."""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Self

from answering import answer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.server import BaseHTTPRequestHandler
    from pathlib import Path

__all__ = ["TO_GCSFS", "TROUBLES", "URLS", "Full", "Silent", "Trouble", "any_request", "leads_to", "no_names"]

URLS = {"gs": "gs://bucket/cache", "gcsfs": "gs://bucket/cache", "s3": "s3://bucket/cache", "az": "az://bucket/cache"}

TO_GCSFS = {"FSSPEC_GCS_PROJECT": "p"}
"""The environment of who has told fsspec something about `gcs`: gcsfs then sends the requests."""

_AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of Microsoft's emulators; everybody knows it."""


class Silent:
    """Accepts connections, and never says anything."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listening.close()


class Full(Silent):
    """Answers no attempt to connect: as an address whose packets are dropped."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._waiting = []
        for _ in range(4):  # more than the queue holds
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(self._listening.getsockname())
            self._waiting.append(waiting)

    def __exit__(self, *exc: object) -> None:
        for waiting in self._waiting:
            waiting.close()
        super().__exit__(*exc)


@contextmanager
def any_request(status: int, body: str, *, to: str = "") -> Iterator[str]:
    """A server that gives every request the same answer; yields its URL.

    Args:
        status: of the answer.
        body: of the answer.
        to: path on this server to which an answer redirects.
    """

    def reply(request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("Content-Length") or 0))
        headers = {"Content-Type": "application/xml" if body.startswith("<?xml") else "text/html"}
        if to and not request.path.startswith(to):
            answer(request, body.encode(), headers | {"Location": to}, status=302)
        else:
            answer(request, body.encode(), headers, status=status)

    with serving(reply) as server:
        yield f"http://127.0.0.1:{server.server_port}"


_PAGE = "<html><body>Please log in to use this network.</body></html>"
_FORBIDDEN = '{"error": {"code": 403, "message": "no access", "errors": [{"reason": "forbidden", "message": "no"}]}}'
_REFUSALS = {
    "gs": _FORBIDDEN,
    "gcsfs": _FORBIDDEN,
    "s3": '<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>',
    "az": '<?xml version="1.0"?><Error><Code>AuthorizationFailure</Code><Message>no access</Message></Error>',
}

_NO_NAMES = """
import socket, time

_real = socket.getaddrinfo

def getaddrinfo(host, *rest, **named):
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "localhost") or name.replace(".", "").isdigit():
        return _real(host, *rest, **named)
    time.sleep({seconds})
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

socket.getaddrinfo = getaddrinfo
"""


def no_names(directory: Path, *, seconds: float = 0.0) -> Path:
    """A directory for PYTHONPATH: programs then find the address of no host but this one, after so many seconds."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sitecustomize.py").write_text(_NO_NAMES.format(seconds=seconds))
    return directory


def leads_to(storage: str, url: str) -> dict[str, str]:
    """The variables that lead programs from `URLS[storage]` to a server, with credentials that it may refuse."""
    if storage in ("gs", "gcsfs"):
        return {"STORAGE_EMULATOR_HOST": url} | (TO_GCSFS if storage == "gcsfs" else {})
    if storage == "s3":
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
        return {"AWS_ENDPOINT_URL": url, **keys}
    account = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={_AZURE_KEY}"
    return {"AZURE_STORAGE_CONNECTION_STRING": f"{account};BlobEndpoint={url}/devstoreaccount1;"}


def _without_credentials(storage: str, metadata: str) -> dict[str, str]:
    """No credentials are there, and the service of the machine that may have some does not answer."""
    host = metadata.removeprefix("http://")
    if storage in ("gs", "gcsfs"):
        return {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host} | (TO_GCSFS if storage == "gcsfs" else {})
    if storage == "s3":
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata, "AWS_DEFAULT_REGION": "us-east-1"}
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
        "AZURE_POD_IDENTITY_AUTHORITY_HOST": metadata,
        "IDENTITY_ENDPOINT": f"{metadata}/msi/token",
        "IDENTITY_HEADER": "x",
    }


TROUBLES = (
    "no network, silent",
    "no network, packets dropped",
    "no credentials",
    "dead DNS, answers at once",
    "dead DNS, answers after 20 s",
    "403",
    "portal, a page",
    "portal, a redirect",
)


class Trouble:
    """One way in which storage cannot be reached; a context manager.

    Args:
        what: one of `TROUBLES`.
        storage: one of `URLS`.
        directory: for what programs have to import.

    Attributes:
        variables: what leads programs into it.
    """

    def __init__(self, what: str, storage: str, directory: Path) -> None:
        self._what, self._storage, self._directory = what, storage, directory
        self._stack = ExitStack()
        self.variables: dict[str, str] = {}

    def __enter__(self) -> Self:
        seconds = 20.0 if "after 20 s" in self._what else 0.0
        names = {"PYTHONPATH": str(no_names(self._directory / self._what, seconds=seconds))}
        if self._what.startswith("no network"):
            server = self._stack.enter_context(Silent() if "silent" in self._what else Full())
            found = leads_to(self._storage, server.url)
        elif self._what == "no credentials":
            found = _without_credentials(self._storage, self._stack.enter_context(Silent()).url)
        elif self._what.startswith("dead DNS"):
            found = leads_to(self._storage, "http://storage.invalid")
        elif self._what == "403":
            found = leads_to(self._storage, self._stack.enter_context(any_request(403, _REFUSALS[self._storage])))
        else:
            to = "/login" if "redirect" in self._what else ""
            found = leads_to(self._storage, self._stack.enter_context(any_request(200, _PAGE, to=to)))
        self.variables = found | names
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
