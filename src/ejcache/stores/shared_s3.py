"""A bucket that is S3 or speaks its protocol, through s3fs.

s3fs brings the credentials, the session and the region; the requests are its client's own, since s3fs tries again for
as long as it likes and hides what was answered. Creation is `If-None-Match: *`, everything else `If-Match`
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-requests.html).
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ejcache.errors import StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.shared_bucket import ABSENT, Blob, BlobInfo, Bucket, VersionGoneError
from ejcache.stores.shared_client import AsyncClient, make_resolver
from ejcache.stores.shared_retry import RetryPolicy, TransientError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ["S3Bucket"]

T = TypeVar("T")

_METADATA_KEY: Final = "ejcache-write"
_NO_KEY: Final = ("NoSuchKey", "404")
_BROKEN: Final = ("PreconditionFailed", "412")
_GONE: Final = ("NoSuchKey", "PreconditionFailed", "404", "412")
"""Answers to a deletion of what is not there any more, or not that."""
_BUSY: Final = ("SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "ConditionalRequestConflict")


class _Refused(Exception):  # noqa: N818  # an answer, not an error
    """The storage answered with this code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class S3Bucket(Bucket):
    """Objects of one bucket below a prefix; versions are ETags.

    Args:
        bucket: its name.
        prefix: of all names, without a slash at its ends; "" for none.
        endpoint_url: of anything but Amazon's own.
        options: further arguments of `S3FileSystem`: key, secret, profile, client_kwargs, …
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        policy: RetryPolicy | None = None,
        endpoint_url: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"s3://{bucket}/{prefix}", policy=policy)
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = dict(options or {})
        if endpoint_url:
            self._options["endpoint_url"] = endpoint_url
        self._client = AsyncClient(f"s3://{bucket}", self._make, _finish)
        self._client.start()

    def close(self) -> None:
        """Close the connections; the bucket opens them again when it is used again."""
        self._client.close()

    def _make(self) -> Any:
        try:
            from s3fs import S3FileSystem  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError as exc:
            raise StoreUnavailableError("s3:// needs s3fs: pip install 'ejcache[s3]'") from exc
        options = dict(self._options)
        config = {
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "connect_timeout": self.policy.deadline,
            "read_timeout": self.policy.deadline,
            "max_pool_connections": 64,
            "connector_args": {"resolver": make_resolver()},
            **options.pop("config_kwargs", {}),
        }
        return S3FileSystem(skip_instance_cache=True, use_listings_cache=False, config_kwargs=config, **options)

    # Requests.

    def _call(self, function: Callable[[Any], Awaitable[T]], timeout: float, *, writing: bool = False) -> T:
        """What the coroutine does with the client; raises `_Refused` for the answers that mean something here."""

        async def call(fs: Any) -> T:
            await fs.set_session()
            return await function(await fs.get_s3(self._bucket))

        from aiohttp import ClientError as HttpError
        from botocore import exceptions as boto  # type: ignore[import-untyped, import-not-found, unused-ignore]

        try:
            return self._client.run(call, timeout)
        except boto.ClientError as exc:
            raise self._refusal(exc, writing=writing) from exc
        except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError) as exc:
            raise StoreUnavailableError(f"{self.url}: {exc}") from exc
        except (boto.SSLError, boto.ParamValidationError, boto.ProfileNotFound) as exc:
            raise StoreUnavailableError(f"{self.url}: {exc}") from exc
        except boto.EndpointConnectionError as exc:
            raise TransientError(str(exc), unreachable=True) from exc
        except (boto.ConnectTimeoutError, boto.ReadTimeoutError) as exc:
            raise TransientError(str(exc), ambiguous=True, busy=True) from exc
        except (boto.BotoCoreError, boto.HTTPClientError, HttpError, ConnectionError) as exc:
            raise TransientError(f"the connection broke: {exc}", ambiguous=True) from exc
        except RuntimeError as exc:
            # "cannot schedule new futures", "Session is closed": the program is at its end.
            raise StoreUnavailableError(f"{self.url}: {exc}") from exc

    def _refusal(self, exc: Any, *, writing: bool) -> Exception:
        code = str(exc.response.get("Error", {}).get("Code", ""))
        said = str(exc.response.get("Error", {}).get("Message", ""))[:200] or code
        status = int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code == "NoSuchBucket":
            return StoreUnavailableError(f"there is no bucket s3://{self._bucket}")
        if code in (*_NO_KEY, *_BROKEN, "InvalidRange") or status in (404, 412, 416):
            return _Refused("NoSuchKey" if status == 404 else "PreconditionFailed" if status == 412 else code)
        if status == 429 or code in _BUSY:
            return TransientError(f"{code}: {said}", busy=True)
        if status == 408 or code == "RequestTimeout" or status >= 500:
            return TransientError(f"{status} {code}: {said}", ambiguous=True)
        if status == 403 and writing:
            return StoreReadOnlyError(f"these credentials may not write to {self.url}: {said}")
        if status in (401, 403):
            return StoreUnavailableError(f"these credentials may not read {self.url} (or not list it): {said}")
        return StoreUnavailableError(f"{self.url} answers {status} {code}: {said}")

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
            return self._call(lambda s3: read(s3, **ranged), timeout)
        except _Refused as exc:
            if exc.code == "NoSuchKey":
                return None
            if exc.code != "InvalidRange" or start > 0:
                raise VersionGoneError from exc
        try:
            # No range of an empty object can be satisfied.
            return self._call(read, timeout)
        except _Refused as exc:
            raise VersionGoneError from exc

    def _stat(self, name: str, timeout: float) -> BlobInfo | None:
        found = self._head(name, timeout)
        if found is None:
            return None
        return BlobInfo(name, found["ContentLength"], found["LastModified"].timestamp(), found["ETag"])

    def _head(self, name: str, timeout: float) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._call(lambda s3: s3.head_object(**self._at(name)), timeout)
        except _Refused:
            return None
        return found

    def _write(self, name: str, data: bytes, version: str | None, token: str, timeout: float) -> str | None:
        condition = {} if version is None else {"IfNoneMatch": "*"} if version == ABSENT else {"IfMatch": version}

        async def write(s3: Any) -> str:
            # Bytes would be sent in one piece, with a warning.
            body = io.BytesIO(data)
            answer = await s3.put_object(**self._at(name), Body=body, Metadata={_METADATA_KEY: token}, **condition)
            return str(answer["ETag"])

        try:
            return self._call(write, timeout, writing=True)
        except _Refused as exc:
            if exc.code == "NoSuchKey" and version in (None, ABSENT):
                raise StoreUnavailableError(f"{self.url}/{name} cannot be written: {exc.code}") from exc
            return None

    def _version_if_ours(self, name: str, token: str, timeout: float) -> str | None:
        found = self._head(name, timeout)
        ours = found is not None and found.get("Metadata", {}).get(_METADATA_KEY) == token
        return str(found["ETag"]) if found is not None and ours else None

    def _delete(self, name: str, version: str | None, timeout: float) -> bool:
        # S3 deletes what is not there with success, so it is looked at first, and deleted as what was seen.
        found = self._head(name, timeout)
        if found is None or (version is not None and found["ETag"] != version):
            return False
        try:
            self._call(lambda s3: s3.delete_object(**self._at(name), IfMatch=found["ETag"]), timeout, writing=True)
        except _Refused:
            return version is None and self._delete(name, version, timeout)
        return True

    def _delete_batch(self, batch: list[tuple[str, str | None]]) -> list[str]:
        left = {self._prefix + name: version for name, version in batch}
        deleted: list[str] = []

        def attempt(timeout: float) -> None:
            wanted = [
                {"Key": key} if version is None else {"Key": key, "ETag": version} for key, version in left.items()
            ]
            answer = self._call(
                lambda s3: s3.delete_objects(Bucket=self._bucket, Delete={"Objects": wanted}), timeout, writing=True
            )
            for item in answer.get("Deleted", ()):
                left.pop(item["Key"], None)
                deleted.append(item["Key"][len(self._prefix) :])
            for item in answer.get("Errors", ()):
                if item.get("Code") in _GONE:
                    left.pop(item["Key"], None)
                elif item.get("Code") == "AccessDenied":
                    said = item.get("Message", "access denied")
                    raise StoreReadOnlyError(f"these credentials may not delete what is in {self.url}: {said}")
                elif item.get("Code") not in (*_BUSY, "InternalError"):
                    raise StoreUnavailableError(f"{self.url} does not delete: {item.get('Code')} {item.get('Message')}")
            if left:
                raise TransientError(f"{len(left)} deletions of a batch were refused for now", busy=True)

        self.policy.run(f"deleting {len(batch)} objects of {self.url}", attempt)
        return deleted

    def _page(
        self, prefix: str, token: str | None, timeout: float, *, deep: bool = True
    ) -> tuple[list[BlobInfo], list[str]]:
        after = {} if token is None else {"ContinuationToken": token}
        if not deep:
            after["Delimiter"] = "/"
        try:
            page = self._call(
                lambda s3: s3.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + prefix, **after), timeout
            )
        except _Refused as exc:
            raise StoreUnavailableError(f"{self.url} cannot be listed: {exc.code}") from exc
        infos = [
            BlobInfo(item["Key"][len(self._prefix) :], item["Size"], item["LastModified"].timestamp(), item["ETag"])
            for item in page.get("Contents", ())
        ]
        return infos, [page["NextContinuationToken"]] if page.get("NextContinuationToken") else []


async def _finish(fs: Any) -> None:
    client, creator = getattr(fs, "_s3", None), getattr(fs, "_s3creator", None)
    if client is not None and creator is not None:
        await creator.__aexit__(None, None, None)
