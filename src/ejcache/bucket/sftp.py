"""A bucket behind an SSH server: files, by the protocol SFTP, through asyncssh.

asyncssh reads ~/.ssh/config, uses the user's keys and agent, and refuses a server whose key is not in
~/.ssh/known_hosts. (The clients that fsspec has for `sftp://` accept any key, and entries are code.)

A file is complete when it becomes visible: it is written under a name of its own in `v1/tmp` and renamed. Version 3 of
the protocol, which every server has, refuses to rename a file to a name that exists (draft-ietf-secsh-filexfer-02,
6.5): that is how an object is created. What is replaced is replaced by `posix-rename@openssh.com`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ejcache.bucket.fsspec_bucket import Files, FsspecBucket
from ejcache.bucket.object_names import TEMPORARY, process_name
from ejcache.bucket.retry import TransientError
from ejcache.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_KEEPALIVE: Final = {"keepalive_interval": 10, "keepalive_count_max": 3}
_MOST_FILES: Final = 100_000
"""In one directory. 25 million entries are in 256 of them."""


class SftpBucket(FsspecBucket):
    """Files below a directory of an SSH server. Creation is atomic; other changes are a check and a write."""

    creates = True
    again_seconds = 2.5
    """A connection takes ten round trips."""

    def _load(self) -> Any:
        try:
            import asyncssh
        except ImportError as exc:
            raise StoreUnavailableError("sftp:// needs asyncssh: pip install 'ejcache[sftp]'") from exc
        return asyncssh

    def _make(self, loop: asyncio.AbstractEventLoop) -> Files:  # noqa: ARG002  # the first request connects
        parts = urlsplit(self.url)
        server = {"host": parts.hostname, "port": parts.port, "username": parts.username}
        options = {name: value for name, value in server.items() if value is not None}
        root = parts.path.rstrip("/")
        return Files(_Server({**_KEEPALIVE, **options, **self._options}, root), root, asyncio.Lock())

    @staticmethod
    async def _finish(files: Files) -> None:
        files.system.close()

    def _translate_error(self, what: str, exc: Exception, *, writing: bool) -> Exception:
        import asyncssh

        said = f"{self.url}: {exc}"
        if isinstance(exc, asyncssh.HostKeyNotVerifiable):
            return StoreUnavailableError(f"{said}: connect once by ssh, which adds the key to ~/.ssh/known_hosts")
        if isinstance(exc, asyncssh.PermissionDenied):
            return StoreUnavailableError(f"{said}: no key of ~/.ssh or of the agent is accepted")
        if isinstance(exc, socket.gaierror | ConnectionRefusedError):
            return TransientError(said, unreachable=True)
        lost = asyncssh.SFTPNoConnection | asyncssh.SFTPConnectionLost | asyncssh.DisconnectError
        if isinstance(exc, lost) or (isinstance(exc, OSError) and not isinstance(exc, PermissionError)):
            return TransientError(said, ambiguous=True)
        return super()._translate_error(what, exc, writing=writing)


class _Server:
    """The methods of a file system of fsspec that `FsspecBucket` calls, on a connection that is made when needed."""

    async_impl = True

    def __init__(self, options: dict[str, Any], root: str) -> None:
        self._options = options
        self._root = root
        self._connecting = asyncio.Lock()
        self._connection: Any = None
        self._sftp: Any = None

    def close(self) -> None:
        """Close the connection; the next request makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        import asyncssh

        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                try:
                    self._connection = await asyncssh.connect(**self._options)
                except (FileNotFoundError, PermissionError) as exc:
                    raise StoreUnavailableError(f"the configuration of SSH cannot be used: {exc}") from exc
                self._sftp = await self._connection.start_sftp_client()
        used = self._connection
        try:
            yield self._sftp
        except asyncio.CancelledError:
            if used is self._connection:
                self.close()  # it gave no answer in time: the next try has another one
            raise
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath, asyncssh.SFTPNotADirectory) as exc:
            raise FileNotFoundError(str(exc)) from exc
        except (asyncssh.SFTPPermissionDenied, asyncssh.SFTPWriteProtect) as exc:
            raise PermissionError(str(exc)) from exc

    async def _cat_file(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        async with self._session() as sftp, sftp.open(path, "rb") as file:
            size = (await file.stat()).size  # or asyncssh would ask for blocks behind the end
            data: bytes = await file.read(max(0, (size if end is None else min(end, size)) - start), start)
            return data

    async def _info(self, path: str) -> dict[str, Any]:
        async with self._session() as sftp:
            return _describe(path, await sftp.lstat(path))

    async def _ls(self, path: str, *, detail: bool) -> list[dict[str, Any]]:  # noqa: ARG002  # as fsspec calls it
        found: list[dict[str, Any]] = []
        async with self._session() as sftp:
            async for item in sftp.scandir(path):
                if len(found) == _MOST_FILES:
                    raise StoreUnavailableError(f"{path} has more than {_MOST_FILES} files, or its listing has no end")
                if item.filename not in (".", ".."):
                    found.append(_describe(f"{path}/{item.filename}", item.attrs))
        return found

    async def _makedirs(self, path: str, *, exist_ok: bool) -> None:
        async with self._session() as sftp:
            await sftp.makedirs(path, exist_ok=exist_ok)

    async def _rm_file(self, path: str) -> None:
        async with self._session() as sftp:
            await sftp.remove(path)

    async def _pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        temporary = f"{self._root}/{TEMPORARY}{process_name()}"
        async with self._session() as sftp:
            try:
                await _write(sftp, temporary, data)
                if mode == "create":
                    await _rename_to_new(sftp, temporary, path)
                else:
                    await sftp.posix_rename(temporary, path)
            except BaseException:
                with contextlib.suppress(Exception):
                    await sftp.remove(temporary)
                raise


async def _write(sftp: Any, path: str, data: bytes) -> None:
    import asyncssh

    try:
        file = await sftp.open(path, "xb")
    except asyncssh.SFTPNoSuchFile:
        await sftp.makedirs(path.rpartition("/")[0], exist_ok=True)
        file = await sftp.open(path, "xb")
    async with file:
        await file.write(data)
        with contextlib.suppress(asyncssh.SFTPOpUnsupported):
            await file.fsync()


async def _rename_to_new(sftp: Any, temporary: str, path: str) -> None:
    """Give a file its name; raises `FileExistsError` if there is one of that name."""
    import asyncssh

    try:
        await sftp.rename(temporary, path)
    except (asyncssh.SFTPFailure, asyncssh.SFTPFileAlreadyExists) as exc:
        # Version 3 has one error for all reasons.
        if await sftp.lexists(path):
            raise FileExistsError(path) from exc
        raise


def _describe(path: str, about: Any) -> dict[str, Any]:
    """Return a file as fsspec describes it. What is neither a file nor a directory, such as a link, is ignored."""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory"}
    kind = kinds.get(stat.S_IFMT(about.permissions or 0), "other")
    return {"name": path, "type": kind, "size": about.size, "mtime": about.mtime}
