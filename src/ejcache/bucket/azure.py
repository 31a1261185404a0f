"""Keeps objects in Azure's blob storage, through adlfs.

adlfs finds the account and the credentials, and makes the requests. They are sent by a client of Azure's library that
has the same account and credentials as adlfs's own, but reads answers within bounds and does not repeat requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from ejcache.bucket.fsspec_bucket import Files, FsspecBucket
from ejcache.bucket.responses import guard
from ejcache.bucket.retry import TransientError
from ejcache.errors import StoreUnavailableError

_SCOPE: Final = "https://storage.azure.com/.default"
"""For which Azure's library asks for tokens."""


class AzureBucket(FsspecBucket):
    """Objects of one container below a prefix. Creation is atomic; other changes are a check and a write."""

    creates = True
    answer_size = 32 << 20
    make_seconds = 8.0  # a server of tokens may take some seconds for the first one

    def _load(self) -> Any:
        try:
            import adlfs
        except ImportError as exc:
            raise StoreUnavailableError("az:// needs adlfs: pip install 'ejcache[azure]'") from exc
        return adlfs.AzureBlobFileSystem

    def _make(self) -> Files:
        files: Files = super()._make()
        asyncio.run_coroutine_threadsafe(_replace_client(files.system), self._current_loop).result()
        return files

    @staticmethod
    async def _finish(files: Files) -> None:
        await files.system.service_client.close()

    def _translate_error(self, what: str, exc: Exception, *, writing: bool) -> Exception:
        from azure.core import exceptions as azure

        if isinstance(exc, azure.ServiceRequestError):
            return TransientError(str(exc), unreachable=True)
        if isinstance(exc, azure.ServiceResponseError):
            return TransientError(str(exc), ambiguous=True)
        if isinstance(exc, ValueError):
            return self._not_an_answer_of("Azure", exc)
        return super()._translate_error(what, exc, writing=writing)


async def _replace_client(fs: Any) -> None:
    from aiohttp import ClientSession, DummyCookieJar
    from azure.core.pipeline.transport import AioHttpTransport

    session = guard(ClientSession(auto_decompress=False, trust_env=True, cookie_jar=DummyCookieJar()))
    made = fs.service_client
    fs.service_client = type(made)(
        made.url, credential=made.credential, transport=AioHttpTransport(session=session), retry_total=0
    )
    await made.close()
    with contextlib.suppress(Exception):  # accounts with a key have no token; the first request says what else it is
        await made.credential.get_token(_SCOPE)
