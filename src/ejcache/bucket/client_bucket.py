"""What all buckets but directories have in common: a client that is one of fsspec's file systems."""

from __future__ import annotations

import base64
import hashlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

from ejcache.bucket.async_client import AsyncClient
from ejcache.bucket.base import Bucket

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from ejcache.bucket.retry import RetryPolicy

__all__ = ["METADATA_KEY", "ClientBucket", "content_md5"]

METADATA_KEY: Final = "ejcache-write"
"""The metadata of an object of GCS or S3 that has the token of the write that made it."""


def content_md5(data: bytes) -> str:
    """The MD5 digest of an upload's bytes, as GCS and S3 expect it."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


class ClientBucket(Bucket):
    """Objects that a client of this process asks for.

    Args:
        url: the root that names are relative to.
        policy: how long an operation may take.
        options: arguments of the file system that provides the client.
    """

    def __init__(self, url: str, *, policy: RetryPolicy | None, options: Mapping[str, Any]) -> None:
        super().__init__(url, policy=policy)
        self._options = dict(options)
        self._client = AsyncClient(self.url, load=self._load, make=self._make, finish=self._finish)

    def prepare(self) -> None:
        """Begin to import the client's library and to look for credentials, unless the program is ending."""
        self._client.start()

    @property
    def is_prepared(self) -> bool:
        """Whether this process has begun to make the client."""
        return self._client.is_started

    def close(self) -> None:
        """Close the connections; the next use opens them again."""
        self._client.close()

    def _prepare(self, make_seconds: float) -> None:
        self._client.file_system(make_seconds)

    @abstractmethod
    def _load(self) -> Any:
        """Import the library, and return the class of the file system."""

    @abstractmethod
    def _make(self, loop: asyncio.AbstractEventLoop) -> Any:
        """Make the file system, whose requests will run on `loop`."""

    @staticmethod
    @abstractmethod
    async def _finish(fs: Any) -> None:
        """Close the connections of the file system."""
