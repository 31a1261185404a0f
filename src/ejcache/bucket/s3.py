"""Keeps objects in S3, or in storage that has its protocol, through s3fs.

s3fs provides the credentials, the session and the region. The requests are made with the client inside it, because s3fs
itself repeats requests for a long time and hides how they were answered. A creation has the condition
`If-None-Match: *`, everything else `If-Match`
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-requests.html). Every upload has a `Content-MD5`
header, and S3 refuses an upload whose bytes have another digest.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import re
import socket
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ejcache.bucket.base import ABSENT, Blob, BlobInfo, VersionGoneError
from ejcache.bucket.digests import content_md5
from ejcache.bucket.loop_bucket import LoopBucket
from ejcache.bucket.object_names import TEMPORARY
from ejcache.bucket.responses import MAX_DOCUMENT, AnswerError, guard, shorten_answer
from ejcache.bucket.retry import RetryPolicy, TransientError
from ejcache.errors import StorageCause, StoreError, StoreReadOnlyError, StoreRefusedError, StoreUnavailableError
from ejcache.util.units import plural
from ejcache.util.writer import process_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

T = TypeVar("T")

_NO_KEY: Final = ("NoSuchKey", "404")
_BROKEN: Final = ("PreconditionFailed", "412")
_ABSENT: Final = ("NoSuchKey", "404")
_GONE: Final = (*_ABSENT, "PreconditionFailed", "412")
"""Answers to the deletion of an object that is not there any more, or has another version."""
_THROTTLED: Final = ("SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded")
_MD5: Final = re.compile("[0-9a-f]{32}")
_CAUSES: Final = {
    **dict.fromkeys(("InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"), StorageCause.BAD_KEYS),
    **dict.fromkeys(("ExpiredToken", "TokenRefreshRequired"), StorageCause.CREDENTIALS),
    **dict.fromkeys(("301", "PermanentRedirect", "AuthorizationHeaderMalformed"), StorageCause.REGION),
}
_CONFLICT: Final = "ConditionalRequestConflict"


class _RefusedError(Exception):  # an answer, not an error
    """The storage answered that the object is not there, or does not meet the condition."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class S3Bucket(LoopBucket):
    """Objects of one bucket below a prefix; versions are ETags.

    Args:
        bucket: the name of the bucket.
        prefix: begins all names, without a slash at its ends; "" for none.
        policy: how long an operation may take.
        options: further arguments of `S3FileSystem`: key, secret, profile, client_kwargs, …
    """

    make_seconds = 8.0  # a server of tokens may take some seconds for the first one

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        policy: RetryPolicy | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"s3://{bucket}/{prefix}", policy=policy, options=options)
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        self._has_batches: bool | None = None
        self._session: Any = None

    def _make(self) -> Any:
        loop = self._current_loop
        options = {"session": self._session, **self._options}
        config = {
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "connect_timeout": self.policy.deadline,
            "read_timeout": self.policy.deadline,
            "max_pool_connections": 64,
            **options.pop("config_kwargs", {}),
        }
        from s3fs import S3FileSystem

        fs = S3FileSystem(
            loop=loop, skip_instance_cache=True, use_listings_cache=False, config_kwargs=config, **options
        )
        # The client parses megabytes of descriptions and makes a TLS context, for which aiobotocore starts a thread. A
        # first request that a program makes while it is ending could not do that any more.
        asyncio.run_coroutine_threadsafe(self._sign_in(fs), loop).result()
        return fs

    def _cause_of(self, exc: Exception) -> StorageCause | None:
        from botocore import exceptions as boto

        causes: dict[StorageCause, tuple[type[Exception], ...]] = {
            StorageCause.BAD_PROFILE: (boto.ProfileNotFound,),
            StorageCause.REGION: (boto.NoRegionError,),
            StorageCause.CREDENTIALS: (
                *(boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError),
                *(boto.SSOError, boto.UnauthorizedSSOTokenError),
            ),
        }
        return next((cause for cause, kinds in causes.items() if isinstance(exc, kinds)), None)

    def _load(self) -> Any:
        try:
            from aiobotocore.session import AioSession
            from s3fs import S3FileSystem
        except ImportError as exc:
            raise StoreUnavailableError("s3:// needs s3fs: pip install 'ejcache[s3]'") from exc
        self._session = self._options.get("session") or AioSession()
        # Half a second of reading descriptions, which is not time that a search for credentials takes.
        loader = self._session.get_component("data_loader")
        with contextlib.suppress(Exception):
            for name in ("service-2", "endpoint-rule-set-1"):
                loader.load_service_model("s3", name)
            for name in ("endpoints", "partitions"):
                loader.load_data(name)
        return S3FileSystem

    @staticmethod
    async def _finish(fs: Any) -> None:
        client, creator = getattr(fs, "_s3", None), getattr(fs, "_s3creator", None)
        if client is not None and creator is not None:
            await creator.__aexit__(None, None, None)

    async def _sign_in(self, fs: Any) -> None:
        """Make the client, and get its first token: the storage's own time has not begun then.

        If the token cannot be had, the first request tries it again and says why.
        """
        client = await self._ready_client(fs)
        with contextlib.suppress(Exception):
            # No public name has the credentials that a client signs with; the session may have others.
            await client._request_signer._credentials.get_frozen_credentials()  # noqa: SLF001

    async def _ready_client(self, fs: Any) -> Any:
        await fs.set_session()
        client = await fs.get_s3(self._bucket)
        with contextlib.suppress(AttributeError, TypeError):
            http = client._endpoint.http_session  # noqa: SLF001  # no public name has aiohttp's session
            proxy = http._proxy_config.proxy_url_for(client.meta.endpoint_url)  # noqa: SLF001
            guard(await http._get_session(proxy))  # noqa: SLF001
        return client

    # Requests.

    def _call(
        self,
        function: Callable[[Any], Awaitable[T]],
        timeout: float,
        *,
        writing: bool = False,
        most: int = MAX_DOCUMENT,
    ) -> T:
        """Run a coroutine with the client; raises `_RefusedError` if the object is not there or the condition fails."""

        async def call(fs: Any) -> T:
            return await function(await self._ready_client(fs))

        from aiohttp import ClientConnectorError
        from aiohttp import ClientError as HttpError
        from botocore import exceptions as boto
        from botocore.parsers import ResponseParserError

        try:
            return self._run_on_loop(call, timeout, most=most)
        except boto.ClientError as exc:
            raise self._error(exc, writing=writing) from exc
        except (
            *(boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError),
            *(boto.SSLError, boto.ParamValidationError, boto.ProfileNotFound),
        ) as exc:
            raise StoreUnavailableError(f"{self.url}: {exc}").because(self._cause_of(exc)) from exc
        except boto.EndpointConnectionError as exc:
            # aiobotocore also raises it for a connection that broke after the request was sent.
            never_sent = isinstance(exc.kwargs.get("error"), ClientConnectorError | socket.gaierror)
            raise TransientError(str(exc), unreachable=never_sent, ambiguous=not never_sent) from exc
        except ResponseParserError as exc:
            raise self._not_an_answer_of("S3", exc) from exc
        except (boto.ConnectTimeoutError, boto.ReadTimeoutError) as exc:
            raise TransientError(str(exc), ambiguous=True, busy=True) from exc
        except (boto.BotoCoreError, boto.HTTPClientError, HttpError, ConnectionError) as exc:
            cause = getattr(exc, "kwargs", {}).get("error")
            if isinstance(cause, AnswerError):
                raise self._foreign(cause) from exc
            if isinstance(cause, RuntimeError):
                # "cannot schedule new futures": the program is ending, and no other try could be made.
                raise StoreUnavailableError(f"{self.url}: {exc}") from exc
            raise TransientError(f"the connection broke: {exc}", ambiguous=True) from exc
        except RuntimeError as exc:
            # "Session is closed": the program is ending.
            raise StoreUnavailableError(f"{self.url}: {exc}") from exc
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise self._not_an_answer_of("S3", f"{type(exc).__name__} {exc}") from exc

    def _error(self, exc: Any, *, writing: bool) -> Exception:
        error, answer = exc.response.get("Error", {}), exc.response.get("ResponseMetadata", {})
        code, status = str(error.get("Code", "")), int(answer.get("HTTPStatusCode", 0))
        said = shorten_answer(f"{code}: {error.get('Message', '')}")
        if code == "NoSuchBucket":
            return StoreRefusedError(f"there is no bucket s3://{self._bucket}").because(StorageCause.NO_BUCKET)
        if code in (*_NO_KEY, *_BROKEN, "InvalidRange") or status in (404, 412, 416):
            return _RefusedError("NoSuchKey" if status == 404 else "PreconditionFailed" if status == 412 else code)
        if code == _CONFLICT:
            return TransientError(said, busy=True)
        if code == "BadDigest":
            return TransientError(f"the upload was damaged on its way: {said}")
        if status == 501:
            return StoreUnavailableError(f"{self.url} does not know this request: {said}")
        if code == "RequestTimeout":
            status = 408
        elif status == 403 and not writing and any(word in code for word in ("Token", "AccessKey", "Signature")):
            status = 401
        after = answer.get("HTTPHeaders", {}).get("retry-after")
        refusal = self._refusal(status, said, writing=writing, retry_after=after, throttled=code in _THROTTLED)
        if isinstance(refusal, StoreError):
            refusal.cause = _CAUSES.get(code, refusal.cause)
        return refusal

    def _at(self, name: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    # One try each.

    def _read(self, name: str, start: int, length: int, version: str | None, timeout: float) -> Blob | None:
        condition = {} if version is None else {"IfMatch": version}
        ranged = {"Range": f"bytes={start}-{start + length - 1}"}

        async def read(s3: Any, **wanted: str) -> Blob:
            answer = await s3.get_object(**self._at(name), **condition, **wanted)
            async with answer["Body"] as body:
                data = await body.read()
            span = re.fullmatch(r"bytes \d+-\d+/(\d+)", answer.get("ContentRange", ""))
            if len(data) != answer["ContentLength"]:
                raise TransientError(f"{len(data)} bytes came of {answer['ContentLength']}")
            return Blob(data, answer["ETag"], int(span[1]) if span else len(data))

        try:
            return self._call(lambda s3: read(s3, **ranged), timeout, most=max(length, MAX_DOCUMENT))
        except _RefusedError as exc:
            if exc.code == "NoSuchKey":
                return None
            if exc.code != "InvalidRange" or start > 0:
                raise VersionGoneError from exc
        try:
            # An empty object has no range at all.
            return self._call(read, timeout)
        except _RefusedError as exc:
            raise VersionGoneError from exc

    def is_damaged_on_the_way(self, blob: Blob) -> bool:
        """True if the ETag may be an MD5 digest and is not that of the bytes.

        With SSE-KMS or SSE-C an ETag looks like a digest and is none, so this is True for every object there.
        """
        tag = blob.version.strip('"')
        if len(blob.data) != blob.size or not _MD5.fullmatch(tag):
            return False  # a part of an object, or one that was uploaded in parts
        return content_md5(blob.data) != base64.b64encode(bytes.fromhex(tag)).decode()

    def _stat(self, name: str, timeout: float) -> BlobInfo | None:
        async def head(s3: Any) -> BlobInfo:
            found = await s3.head_object(**self._at(name))
            return BlobInfo(name, found["ContentLength"], found["LastModified"].timestamp(), found["ETag"])

        try:
            return self._call(head, timeout)
        except _RefusedError:
            return None

    def _write(self, name: str, data: bytes, version: str | None, timeout: float) -> str | None:
        condition = {} if version is None else {"IfNoneMatch": "*"} if version == ABSENT else {"IfMatch": version}

        async def write(s3: Any) -> str:
            # A file is sent in pieces; bytes would be sent in one piece, with a warning.
            answer = await s3.put_object(
                **self._at(name),
                Body=io.BytesIO(data),
                ContentMD5=content_md5(data),
                **condition,
            )
            return str(answer["ETag"])

        try:
            return self._call(write, timeout, writing=True)
        except _RefusedError as exc:
            if exc.code == "NoSuchKey" and version in (None, ABSENT):
                raise StoreUnavailableError(f"{self.url}/{name} cannot be written: {exc.code}") from exc
            return None

    def _delete(self, name: str, version: str | None, timeout: float) -> bool:
        # S3 answers the deletion of an absent object with success. So it is looked at first, and deleted only if it
        # still has the version that was seen.
        info = self._stat(name, timeout)
        if info is None or (version is not None and info.version != version):
            return False
        try:
            self._call(lambda s3: s3.delete_object(**self._at(name), IfMatch=info.version), timeout, writing=True)
        except _RefusedError:
            return version is None and self._delete(name, version, timeout)
        return True

    def _delete_batch(self, batch: list[tuple[str, str | None]]) -> list[str]:
        if self._has_batches is None:
            self._has_batches = self._compares_in_batches()
        return self._delete_at_once(batch) if self._has_batches else super()._delete_batch(batch)

    def _compares_in_batches(self) -> bool:
        """True if the storage deletes many objects in one request and compares their versions; asked with an object.

        Some storage with S3's protocol ignores the versions. An entry that another process has replaced since it was
        listed would be deleted there.
        """
        name = f"{TEMPORARY}{process_name()}"
        version = self.write(name, b"ejcache: may be deleted")
        try:
            return version is not None and not self._delete_at_once([(name, '"another version"')])
        except StoreReadOnlyError:
            raise
        except StoreUnavailableError:
            return False
        finally:
            self.delete(name)

    def _delete_at_once(self, batch: list[tuple[str, str | None]]) -> list[str]:
        left = {self._prefix + name: version for name, version in batch}
        deleted: list[str] = []

        async def send(s3: Any) -> tuple[list[str], list[tuple[str, str, str]]]:
            wanted = [
                {"Key": key} if version is None else {"Key": key, "ETag": version} for key, version in left.items()
            ]
            answer = await s3.delete_objects(Bucket=self._bucket, Delete={"Objects": wanted})
            gone = [str(item["Key"]) for item in answer.get("Deleted", ())]
            refused = [
                (str(item["Key"]), str(item.get("Code")), str(item.get("Message"))) for item in answer.get("Errors", ())
            ]
            return gone, refused

        def attempt(timeout: float, *, lost: bool) -> None:
            try:
                gone, refused = self._call(send, timeout, writing=True)
            except _RefusedError as exc:
                raise StoreUnavailableError(f"{self.url} does not delete many objects at once: {exc.code}") from exc
            if not gone and not refused:
                raise self._not_an_answer_of("S3", f"it names no object of {len(left)} to delete")
            for key in gone:
                left.pop(key, None)
                deleted.append(key[len(self._prefix) :])
            for key, code, said in refused:
                if code in _GONE:
                    left.pop(key, None)
                    if lost and code in _ABSENT:
                        deleted.append(key[len(self._prefix) :])
                elif code == "AccessDenied":
                    raise StoreReadOnlyError(f"these credentials may not delete objects of {self.url}: {said}")
                elif code not in (*_THROTTLED, _CONFLICT, "InternalError"):
                    raise StoreUnavailableError(f"{self.url} does not delete: {code} {said}")
            if left:
                said = f"the storage refused {plural(len(left), 'deletion')} of a batch for now"
                raise TransientError(said, busy=True, throttled=True)

        self._change(f"deleting {len(batch)} objects of {self.url}", attempt)
        return deleted

    def _page(
        self, prefix: str, token: str | None, timeout: float, *, deep: bool = True
    ) -> tuple[list[BlobInfo], list[str]]:
        after = {} if token is None else {"ContinuationToken": token}
        if not deep:
            after["Delimiter"] = "/"

        async def page(s3: Any) -> tuple[list[BlobInfo], list[str]]:
            found = await s3.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + prefix, **after)
            if "Contents" not in found and "KeyCount" not in found and "Name" not in found:
                raise KeyError("Contents")
            infos = [
                BlobInfo(item["Key"][len(self._prefix) :], item["Size"], item["LastModified"].timestamp(), item["ETag"])
                for item in found.get("Contents", ())
            ]
            return infos, [found["NextContinuationToken"]] if found.get("NextContinuationToken") else []

        try:
            return self._call(page, timeout)
        except _RefusedError as exc:
            raise StoreUnavailableError(f"{self.url} cannot be listed: {exc.code}") from exc
