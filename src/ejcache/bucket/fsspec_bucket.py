"""Keeps objects on any file system that fsspec knows (hdfs, webdav, …), with the operations that all of them have.

fsspec offers no conditional writes, so on most of them creation is a check and a write: two writers at the same moment
may both be told that they created the object, and the last one's bytes are there then. That is never a wrong result,
because an entry states its key and its checksum. Azure creates atomically (`azure.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ejcache.bucket.base import ABSENT, Blob, BlobInfo
from ejcache.bucket.loop_bucket import LoopBucket
from ejcache.bucket.responses import MAX_DOCUMENT, shorten_answer
from ejcache.bucket.retry import TransientError
from ejcache.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping


T = TypeVar("T")


class Files(NamedTuple):
    """A file system, and the root in it.

    Attributes:
        writing: makes a check and a write one step within this process at least.
    """

    system: Any
    root: str
    writing: asyncio.Lock

    async def call(self, method: str, name: str, *args: Any, **named: Any) -> Any:
        """Call a method of the file system with the path of `name`; in a thread if it has no asynchronous one."""
        place = f"{self.root}/{name}" if name else self.root
        if self.system.async_impl:
            return await getattr(self.system, f"_{method}")(place, *args, **named)
        function = partial(getattr(self.system, method), place, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(None, function)

    async def version(self, name: str, like: str | None) -> str:
        """Return the version of an object now, of the same kind as `like`, or `ABSENT`."""
        try:
            if like is not None and like.startswith("sha256:"):
                return _digest(bytes(await self.call("cat_file", name)))
            return _info("", await self.call("info", name)).version
        except FileNotFoundError:
            return ABSENT

    async def write(self, name: str, data: bytes, *, creating: bool) -> None:
        how = {"mode": "create"} if creating else {}
        try:
            await self.call("pipe_file", name, data, **how)
        except FileNotFoundError:
            await self.call("makedirs", name.rpartition("/")[0], exist_ok=True)
            await self.call("pipe_file", name, data, **how)


class FsspecBucket(LoopBucket):
    """Objects below a URL; a version is a digest of the content, or the metadata that a listing has.

    Args:
        url: with any protocol that fsspec knows.
        policy: how long an operation may take.
        options: arguments of the file system.
    """

    conditional = False
    creates = False
    """The file system can create an object only if there is none, in one step (`pipe_file` with mode="create")."""
    part_size = least_part = 1 << 62
    answer_size = part_size
    """Bytes that one request of the file system asks for, at most."""

    def _load(self) -> Any:
        from fsspec import get_filesystem_class

        return get_filesystem_class(self.url.partition("://")[0])

    def _make(self) -> Files:
        from fsspec.core import url_to_fs

        # On fsspec's own loop, which has a thread and an executor of its own, a program that is ending would wait for
        # ever.
        own = {"loop": self._current_loop} if self._load().async_impl else {}
        # Not every file system takes the option that keeps it from remembering listings; some have none to remember.
        options = {"skip_instance_cache": True, **own, **self._options}
        system, root = url_to_fs(self.url, **options)
        if hasattr(system, "dircache"):
            system.dircache.use_listings_cache = False
        return Files(system, root.rstrip("/"), asyncio.Lock())

    @staticmethod
    async def _finish(files: Files) -> None:
        """Leave the connections to the file system, which closes them when the program ends."""

    def _run(
        self,
        what: str,
        function: Callable[[Files], Awaitable[T]],
        timeout: float,
        *,
        writing: bool = False,
        most: int = MAX_DOCUMENT,
    ) -> T:
        try:
            return self._run_on_loop(function, timeout, most=most)
        except (StoreError, TransientError):
            raise
        except Exception as exc:
            raise self._translate_error(what, exc, writing=writing) from exc

    def _translate_error(self, what: str, exc: Exception, *, writing: bool) -> Exception:
        """Translate an error: every file system has its own, and those of HTTP have a status."""
        status = getattr(exc, "status_code", None) or getattr(exc, "status", None)
        said = f"{what} {self.url} failed: {_in_one_line(exc)}"
        if isinstance(exc, PermissionError):
            status = 403
        if isinstance(status, int) and status >= 400:
            headers = getattr(getattr(exc, "response", None), "headers", None) or {}
            return self._refusal(status, said, writing=writing, retry_after=headers.get("Retry-After"))
        if isinstance(exc, ConnectionError | TimeoutError):
            return TransientError(said, ambiguous=True)
        return StoreUnavailableError(said)

    def _read(
        self,
        name: str,
        start: int,  # noqa: ARG002  # the first part is all of the object
        length: int,
        version: str | None,  # noqa: ARG002
        timeout: float,
    ) -> Blob | None:
        end = () if length >= self.part_size else (0, length)

        async def read(files: Files) -> Blob | None:
            try:
                data = bytes(await files.call("cat_file", name, *end))
            except (FileNotFoundError, IsADirectoryError):
                return None
            except Exception as exc:
                if getattr(exc, "status_code", None) != 416:
                    raise
                data = b""  # an empty object has no range at all
            return Blob(data, _digest(data), len(data))

        return self._run("reading", read, timeout, most=max(min(length, self.answer_size), MAX_DOCUMENT))

    def _stat(self, name: str, timeout: float) -> BlobInfo | None:
        async def look(files: Files) -> BlobInfo | None:
            try:
                found = await files.call("info", name)
            except FileNotFoundError:
                return None
            return _info(name, found) if found["type"] == "file" else None

        return self._run("looking into", look, timeout)

    def _write(self, name: str, data: bytes, version: str | None, timeout: float) -> str | None:
        async def write(files: Files) -> str | None:
            creating = self.creates and version == ABSENT
            async with files.writing:
                if version is not None and not creating and await files.version(name, version) != version:
                    return None
                try:
                    await files.write(name, data, creating=creating)
                except FileExistsError:
                    return None
            return _digest(data)

        return self._run("writing to", write, timeout, writing=True)

    def _delete(self, name: str, version: str | None, timeout: float) -> bool:
        async def delete(files: Files) -> bool:
            async with files.writing:
                found = await files.version(name, version) if version is not None else None
                if found == ABSENT or found != version:
                    return False
                try:
                    await files.call("rm_file", name)
                except FileNotFoundError:
                    return False
                return True

        return self._run("deleting from", delete, timeout, writing=True)

    def _page(
        self, prefix: str, token: str | None, timeout: float, *, deep: bool = True
    ) -> tuple[list[BlobInfo], list[str]]:
        # One folder a page: listing all that is below could take longer than one call may take.
        folder = prefix.rpartition("/")[0] if token is None else token

        async def page(files: Files) -> tuple[list[BlobInfo], list[str]]:
            infos, below = [], []
            try:
                found = await files.call("ls", folder, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return [], []
            for item in found:
                name = str(item["name"]).removeprefix(files.root).strip("/")
                if not name.startswith(prefix) or name == folder:
                    # Some file systems list a folder among its own contents.
                    continue
                if item["type"] == "directory":
                    below += [name] if deep else []
                elif item["type"] == "file":
                    infos.append(_info(name, item))
            return infos, below

        return self._run("listing", page, timeout)


def _in_one_line(exc: Exception) -> str:
    """Return the first line of an error: those of Azure's library end with the headers of the answer."""
    return shorten_answer(next(iter(str(exc).splitlines()), "")) or type(exc).__name__


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _info(name: str, found: Mapping[str, Any]) -> BlobInfo:
    stamp = next(
        (found[k] for k in ("mtime", "LastModified", "last_modified", "created", "modified") if found.get(k)), 0
    )
    created = stamp.timestamp() if hasattr(stamp, "timestamp") else float(stamp or 0)
    tag = next((str(found[k]) for k in ("etag", "ETag", "md5", "ino") if found.get(k)), "")
    return BlobInfo(name, int(found.get("size") or 0), created, f"{tag}-{created}-{found.get('size')}")
