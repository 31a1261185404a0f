"""Keeps objects in Google Cloud Storage by requests that gcsfs sends: it can do what our own client cannot.

That is to say who pays, to show a client's certificate, to talk to another universe, and whatever else fsspec's
configuration tells it (`is_left_to_gcsfs`). The requests are those of `GcsBucket`, sent through `GCSFileSystem.call`:
its other methods cannot replace an object under a condition, and they frame an upload with a boundary that a payload
may contain.

Each request is sent once, and whatever is answered is ours to judge: gcsfs would repeat it for half a minute, and hide
that the first one may have been carried out. So its session raises our errors, which gcsfs lets pass.
"""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any, NamedTuple

from ejcache.bucket.gcs import GcsBucket
from ejcache.bucket.google_credentials import Token, credentials_of, named_credentials, sign_in
from ejcache.bucket.https_client import HttpAnswer
from ejcache.bucket.loop_bucket import LoopBucket
from ejcache.bucket.responses import bounded_response, guard, joined_headers
from ejcache.bucket.retry import RetryPolicy, TransientError
from ejcache.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping


class _RefusedError(Exception):  # an answer, not an error
    """The storage has answered with another status than gcsfs takes for success."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class _Gcsfs(NamedTuple):
    """A file system, and the token that its requests show: it renews that only later than we do."""

    system: Any
    token: Token


class GcsfsBucket(LoopBucket, GcsBucket):
    """Objects of one bucket below a prefix; versions are generations.

    Args:
        bucket: the name of the bucket.
        prefix: begins all names, without a slash at its ends; "" for none.
        policy: how long an operation may take.
        credentials: path of a credentials file; None to find credentials as gcsfs does.
        endpoint_url: of an emulator, which gets no credentials unless `credentials` names some.
        anonymous: show no credentials.
        options: further arguments of `GCSFileSystem`.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        policy: RetryPolicy | None = None,
        credentials: str | None = None,
        endpoint_url: str | None = None,
        anonymous: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            bucket, prefix, policy=policy, credentials=credentials, endpoint_url=endpoint_url, anonymous=anonymous
        )
        self._options.update(options or {})

    def _load(self) -> None:
        import gcsfs.core  # noqa: F401

    def _make(self) -> Any:
        # The default class of gcsfs first asks the gRPC control API for the bucket's layout, which takes a minute where
        # that cannot be reached.
        from gcsfs.core import GCSFileSystem

        options: dict[str, Any] = {"token": "anon"} if self._anonymous else {}
        if not self._anonymous:
            found = named_credentials(self._credentials)
            if found is not None:
                # gcsfs knows fewer kinds of files than we do, and would take a path without a file for a token.
                options["token"] = credentials_of(found)
        if self._endpoint:
            options["endpoint_url"] = self._endpoint
        fs = GCSFileSystem(
            loop=self._current_loop,
            skip_instance_cache=True,
            use_listings_cache=False,
            **{**options, **self._options},
        )
        fs.session_kwargs = {**fs.session_kwargs, "auto_decompress": False, "trace_configs": [_sends_once()]}
        made = _Gcsfs(fs, Token(fs.credentials.credentials))
        if made.token.is_stale:
            sign_in(made.token.renew)
        return made

    @staticmethod
    async def _finish(fs: _Gcsfs) -> None:
        if fs.system.session is not None:
            await fs.system.session.close()

    def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        timeout: float,
        *,
        headers: Mapping[str, str],
        data: tuple[bytes, ...],
        most: int,
    ) -> HttpAnswer:
        self._signed_in(timeout)

        async def call(made: _Gcsfs) -> HttpAnswer:
            url = f"{made.system.base.removesuffix('storage/v1/')}{path}"
            body = io.BytesIO(b"".join(data)) if data else None  # aiohttp warns of large bodies that are bytes
            # The asynchronous half of `call`, which is public.
            send = made.system._call  # noqa: SLF001
            found, content = await send(method, url, headers=dict(headers), data=body, **params)
            return HttpAnswer(200, joined_headers(found.items()), content)

        try:
            return self._run_on_loop(call, timeout, most=most)
        except _RefusedError as exc:
            return exc.answer
        except RuntimeError as exc:
            # "cannot schedule new futures", "Session is closed": the program is ending.
            raise StoreUnavailableError(f"{self.url}: {exc}") from exc


def _sends_once() -> Any:
    """Return what makes a session of aiohttp send each request once, and raise our errors."""
    from aiohttp import TraceConfig

    async def begin(session: Any, *_: object) -> None:
        guard(session, _judged_response())

    async def fail(_: object, __: object, request: Any) -> None:
        error = _translated(request.exception)
        if error is not None:
            raise error from request.exception

    trace = TraceConfig()
    trace.on_request_start.append(begin)
    trace.on_request_exception.append(fail)
    return trace


@functools.cache
def _judged_response() -> type[Any]:
    """Return the class of answers that are errors of ours where gcsfs would judge them."""
    kind: Any = bounded_response()

    class JudgedResponse(kind):  # type: ignore[misc]  # aiohttp is imported late
        """An answer within bounds: raised if it is no success, and if its body breaks off."""

        async def start(self, connection: Any) -> Any:
            await super().start(connection)
            if self.status >= 300:
                raise _RefusedError(HttpAnswer(self.status, joined_headers(self.headers.items()), await self.read()))
            return self

        async def read(self) -> bytes:
            try:
                body: bytes = await super().read()
            except Exception as exc:
                error = _translated(exc)
                if error is None:
                    raise
                raise error from exc
            return body

    return JudgedResponse


def _translated(exc: BaseException) -> Exception | None:
    """Return our error for one of aiohttp's; None for any other."""
    import aiohttp

    if isinstance(exc, aiohttp.ClientSSLError | aiohttp.InvalidURL):
        return StoreUnavailableError(str(exc))
    if isinstance(exc, aiohttp.ClientConnectorError):
        return TransientError(str(exc), unreachable=True)
    if isinstance(exc, aiohttp.ClientError | ConnectionError):
        return TransientError(f"the connection broke: {str(exc) or type(exc).__name__}", ambiguous=True)
    return None
