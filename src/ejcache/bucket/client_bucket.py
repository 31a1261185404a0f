"""What the buckets of GCS and S3 have in common: a client that fsspec's library makes, and how an upload is marked."""

from __future__ import annotations

import base64
import hashlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ejcache.bucket.async_client import AsyncClient
from ejcache.bucket.base import Bucket

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from ejcache.bucket.retry import RetryPolicy

__all__ = ["METADATA_KEY", "ClientBucket", "content_md5"]

METADATA_KEY: Final = "ejcache-write"
"""The metadata of an object that has the token of the write that made it."""


def content_md5(data: bytes) -> str:
    """The MD5 digest of an upload's bytes, as both storages expect it."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


class ClientBucket(Bucket):
    """Objects of one bucket below a prefix, through a client of its own.

    Args:
        bucket: the name of the bucket.
        prefix: begins all names, without a slash at its ends; "" for none.
        policy: how long an operation may take.
        options: arguments of the file system that provides the client.
    """

    _scheme: ClassVar[str]

    def __init__(self, bucket: str, prefix: str, *, policy: RetryPolicy | None, options: Mapping[str, Any]) -> None:
        super().__init__(f"{self._scheme}://{bucket}/{prefix}", policy=policy)
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = dict(options)
        self._client = AsyncClient(f"{self._scheme}://{bucket}", load=self._load, make=self._make, finish=self._finish)

    def prepare(self) -> None:
        """Begin to import the client's library and to look for credentials."""
        self._client.start()

    @property
    def is_prepared(self) -> bool:
        """Whether this process has begun to make the client."""
        return self._client.is_started

    def close(self) -> None:
        """Close the connections; the next use opens them again."""
        self._client.close()

    def _prepare(self) -> None:
        self._client.file_system()

    @staticmethod
    @abstractmethod
    def _load() -> Any:
        """Import the library, and return the class of the file system."""

    @abstractmethod
    def _make(self, loop: asyncio.AbstractEventLoop) -> Any:
        """Make the file system, whose requests will run on `loop`."""

    @staticmethod
    @abstractmethod
    async def _finish(fs: Any) -> None:
        """Close the connections of the file system."""
