"""Every kind of storage that hosts may share, each as a real server on loopback: started, found by programs, killed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from azurite import AzureServer, why_no_azure
from buckets import GcsServerProcess, S3Server
from dead_ends import URLS, leads_to

from ejcache.stores.opening import open_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["STORAGES", "Storage", "running", "why_not"]

_SERVERS: dict[str, Callable[[], AbstractContextManager]] = {
    "gs": GcsServerProcess,
    "gcsfs": GcsServerProcess,
    "s3": S3Server,
    "az": AzureServer,
}
_REASONS: dict[str, Callable[[], str]] = {"az": why_no_azure}
STORAGES = tuple(_SERVERS)


class Storage:
    """A server that runs.

    Attributes:
        kind: its name in `STORAGES`.
        url: of a cache in it.
        variables: what leads programs to it.
        server: the server.
    """

    def __init__(self, name: str, server: AbstractContextManager) -> None:
        self.kind, self.server = name, server
        self.url = URLS[name]
        self.variables = leads_to(name, server.url)
        self._is_there = True

    def die(self) -> None:
        """Answer nothing any more: a server that can be stopped keeps its connections, another one ends."""
        if hasattr(self.server, "stop"):
            self.server.stop()
        else:
            self.end()

    def names(self, prefix: str) -> list[str]:
        """What is stored; this process's environment must lead to it."""
        bucket = open_bucket(self.url, deadline=60)
        try:
            return [info.name for info in bucket.walk(prefix)]
        finally:
            bucket.close()

    def end(self) -> None:
        if self._is_there:
            self._is_there = False
            self.server.__exit__(None, None, None)


def why_not(name: str) -> str:
    """Why this storage cannot be tested here, or nothing."""
    return _REASONS.get(name, str)()


@contextmanager
def running(name: str) -> Iterator[Storage]:
    """The storage of this name, empty."""
    server = _SERVERS[name]()
    server.__enter__()
    storage = Storage(name, server)
    try:
        yield storage
    finally:
        storage.end()
