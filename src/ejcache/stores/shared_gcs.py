"""A bucket that is Google Cloud Storage, through gcsfs.

gcsfs brings the credentials, the session and the address, from `gcsfs.core.GCSFileSystem`: its default class asks the
gRPC control API for the bucket's layout first, which takes a minute where that is not to be had. The requests are made
here, because those of gcsfs have no timeout, take half a minute to give up, log a traceback each time, frame uploads
with a boundary that a payload may contain, and cannot say that an object exists because we have just written it.

The calls are those of https://cloud.google.com/storage/docs/json_api/v1/objects, the conditions those of
https://cloud.google.com/storage/docs/request-preconditions.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from ejcache.errors import StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.shared_bucket import ABSENT, Blob, BlobInfo, Bucket, VersionGoneError
from ejcache.stores.shared_client import AsyncClient, make_resolver
from ejcache.stores.shared_retry import RetryPolicy, TransientError
from ejcache.stores.shared_workers import call_with_timeout

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GcsBucket"]

_PAGE: Final = 1000
_METADATA_KEY: Final = "ejcache-write"
_LISTED: Final = "items(name,size,timeCreated,generation),nextPageToken"
_FRESH: Final = dt.timedelta(minutes=10)
_CONNECTIONS: Final = 64
_IDLE: Final = 60.0
_ONE_PIECE: Final = 1 << 20
_RATE_LIMITS: Final = ("rateLimitExceeded", "userRateLimitExceeded")


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class GcsBucket(Bucket):
    """Objects of one bucket below a prefix; versions are generations.

    Args:
        bucket: its name.
        prefix: of all names, without a slash at its ends; "" for none.
        credentials: path of a credentials file; None for the usual Google ways.
        endpoint_url: of an emulator, which is asked anonymously unless `credentials` says otherwise.
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
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"gs://{bucket}/{prefix}", policy=policy)
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = {"token": credentials or ("anon" if endpoint_url else None), **(options or {})}
        if endpoint_url:
            # STORAGE_EMULATOR_HOST is often a host and a port alone.
            self._options["endpoint_url"] = endpoint_url if "://" in endpoint_url else f"http://{endpoint_url}"
        self._credentials = credentials
        self._client = AsyncClient(f"gs://{bucket}", self._make, _finish)
        self._client.start()

    def close(self) -> None:
        """Close the connections; the bucket opens them again when it is used again."""
        self._client.close()

    def _make(self) -> Any:
        if self._credentials and not Path(self._credentials).is_file():
            # gcsfs would take the path for a token and send it.
            raise StoreUnavailableError(f"there is no credentials file {self._credentials}")
        from gcsfs.core import GCSFileSystem

        options = {"skip_instance_cache": True, "use_listings_cache": False, **self._options}
        return GCSFileSystem(**options)

    # Requests.

    def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        timeout: float,
        *,
        headers: Mapping[str, str] | None = None,
        data: tuple[bytes, ...] = (),
        writing: bool = False,
    ) -> _Answer:
        fs = self._client.file_system(timeout)
        all_headers = {**self._authorization(fs, timeout), **(headers or {})}
        url = f"{fs._location}/{path}"  # noqa: SLF001  # no public name has the address that was chosen
        all_params = fs._get_params(dict(params))  # noqa: SLF001  # who pays for a requester-pays bucket

        async def send(fs: Any) -> _Answer:
            return await _send(fs, method, url, all_params, all_headers, data)

        answer = self._client.run(send, timeout)
        self._check(answer, writing=writing)
        return answer

    def _authorization(self, fs: Any, timeout: float) -> dict[str, str]:
        from gcsfs.retry import HttpError
        from google.auth.exceptions import GoogleAuthError

        held = fs.credentials.credentials
        try:
            if held is not None and _stale(held):
                # A renewal is a blocking request without a timeout of its own.
                call_with_timeout("renewing the credentials", fs.credentials.maybe_refresh, timeout)
            headers: dict[str, str] = fs._get_headers({})  # noqa: SLF001  # also says which client this is
        except (GoogleAuthError, HttpError) as exc:
            raise StoreUnavailableError(f"{self.url}: the credentials cannot be renewed: {exc}") from exc
        return headers

    def _check(self, answer: _Answer, *, writing: bool) -> None:
        status = answer.status
        if status < 400 or status in (412, 416):
            return
        said, reason = _error(answer.body)
        if status == 404 and "bucket does not exist" in said:
            raise StoreUnavailableError(f"there is no bucket gs://{self._bucket}, or these credentials may not see it")
        if status == 404:
            return
        if status == 429 or reason in _RATE_LIMITS:
            raise TransientError(f"{status} {said}", busy=True)
        if status == 408 or status >= 500:
            raise TransientError(f"{status} {said}", ambiguous=True)
        if status == 401:
            raise StoreUnavailableError(f"{self.url} refuses the credentials: {said}")
        if status == 403 and writing:
            raise StoreReadOnlyError(f"these credentials may not write to {self.url}: {said}")
        if status == 403:
            raise StoreUnavailableError(f"these credentials may not read {self.url} (or not list it): {said}")
        raise StoreUnavailableError(f"{self.url} answers {status}: {said}")

    def _object(self, name: str, *, root: str = "storage/v1") -> str:
        return f"{root}/b/{quote(self._bucket, safe='')}/o/{quote(self._prefix + name, safe='')}"

    # One try each.

    def _read(self, name: str, start: int, length: int, version: str | None, timeout: float) -> Blob | None:
        params = {"alt": "media"}
        if version is not None:
            params["ifGenerationMatch"] = version
        path = self._object(name, root="download/storage/v1")
        ranged = {"Range": f"bytes={start}-{start + length - 1}"}
        answer = self._request("GET", path, params, timeout, headers=ranged)
        if answer.status == 416 and start == 0:
            # No range of an empty object can be satisfied.
            answer = self._request("GET", path, params, timeout)
        if answer.status == 404:
            return None
        if answer.status in (412, 416):
            raise VersionGoneError
        span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
        size = int(span[3]) if span else len(answer.body)
        if span and len(answer.body) != int(span[2]) - int(span[1]) + 1:
            raise TransientError(f"{len(answer.body)} bytes came of {span[0]}")
        return Blob(answer.body, answer.headers["X-Goog-Generation"], size)

    def _stat(self, name: str, timeout: float) -> BlobInfo | None:
        params = {"fields": "size,timeCreated,generation"}
        answer = self._request("GET", self._object(name), params, timeout)
        return None if answer.status == 404 else _info(name, answer.json())

    def _write(self, name: str, data: bytes, version: str | None, token: str, timeout: float) -> str | None:
        params = {"uploadType": "multipart", "fields": "generation"}
        if version is not None:
            params["ifGenerationMatch"] = "0" if version == ABSENT else version
        boundary = uuid.uuid4().hex
        metadata = json.dumps({"name": self._prefix + name, "metadata": {_METADATA_KEY: token}})
        head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{metadata}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        answer = self._request(
            "POST",
            f"upload/storage/v1/b/{quote(self._bucket, safe='')}/o",
            params,
            timeout,
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            data=(head.encode(), data, f"\r\n--{boundary}--\r\n".encode()),
            writing=True,
        )
        if answer.status == 412:
            return None
        if answer.status == 404:
            raise StoreUnavailableError(f"{self.url} is not found")
        return str(answer.json()["generation"])

    def _version_if_ours(self, name: str, token: str, timeout: float) -> str | None:
        answer = self._request("GET", self._object(name), {"fields": "generation,metadata"}, timeout)
        if answer.status == 404:
            return None
        found = answer.json()
        return str(found["generation"]) if found.get("metadata", {}).get(_METADATA_KEY) == token else None

    def _delete(self, name: str, version: str | None, timeout: float) -> bool:
        params = {} if version is None else {"ifGenerationMatch": version}
        return self._request("DELETE", self._object(name), params, timeout, writing=True).status < 300

    def _delete_batch(self, batch: list[tuple[str, str | None]]) -> list[str]:
        deleted: list[str] = []
        left = dict(batch)

        def attempt(timeout: float) -> None:
            boundary = uuid.uuid4().hex
            lines = []
            for number, (name, version) in enumerate(left.items()):
                condition = "" if version is None else f"?ifGenerationMatch={version}"
                lines += [f"--{boundary}", "Content-Type: application/http", f"Content-ID: <{number}>", ""]
                lines += [f"DELETE /{self._object(name)}{condition} HTTP/1.1", "Content-Length: 0", "", ""]
            answer = self._request(
                "POST",
                "batch/storage/v1",
                {},
                timeout,
                headers={"Content-Type": f"multipart/mixed; boundary={boundary}"},
                data=("\r\n".join([*lines, f"--{boundary}--", ""]).encode(),),
                writing=True,
            )
            # Status and body of each answer, in turns, after what stands before the first.
            said = re.split(rb"\r?\nHTTP/1\.[01] (\d+)", answer.body)[1:]
            if len(said) != 2 * len(left):
                raise TransientError(f"a batch of {len(left)} had {len(said) // 2} answers", ambiguous=True)
            again = False
            for name, status, part in zip(list(left), map(int, said[::2]), said[1::2], strict=True):
                why, reason = _error(part[part.find(b"{") : part.rfind(b"}") + 1])
                if status == 403 and reason not in _RATE_LIMITS:
                    raise StoreReadOnlyError(f"these credentials may not delete what is in {self.url}: {why}")
                if status in (403, 408, 429) or status >= 500:
                    again = True
                    continue
                del left[name]
                if status < 300:
                    deleted.append(name)
            if again:
                raise TransientError(f"{len(left)} deletions of a batch were refused for now", busy=True)

        self.policy.run(f"deleting {len(batch)} objects of {self.url}", attempt)
        return deleted

    def _page(
        self, prefix: str, token: str | None, timeout: float, *, deep: bool = True
    ) -> tuple[list[BlobInfo], list[str]]:
        params = {"prefix": self._prefix + prefix, "maxResults": str(_PAGE), "fields": _LISTED}
        if not deep:
            params["delimiter"] = "/"
        if token is not None:
            params["pageToken"] = token
        answer = self._request("GET", f"storage/v1/b/{quote(self._bucket, safe='')}/o", params, timeout)
        if answer.status == 404:
            raise StoreUnavailableError(f"{self.url} is not found")
        page = answer.json()
        infos = [_info(item["name"][len(self._prefix) :], item) for item in page.get("items", ())]
        return infos, [page["nextPageToken"]] if "nextPageToken" in page else []


async def _send(
    fs: Any, method: str, url: str, params: Mapping[str, str], headers: Mapping[str, str], data: tuple[bytes, ...]
) -> _Answer:
    import aiohttp

    session = await _session(fs)
    body = _body(data)
    try:
        async with session.request(
            method, url, params=params, headers=headers, data=body, timeout=aiohttp.ClientTimeout()
        ) as response:
            return _Answer(response.status, response.headers, await response.read())
    except (aiohttp.ClientSSLError, aiohttp.InvalidURL) as exc:
        raise StoreUnavailableError(f"{url}: {exc}") from exc
    except aiohttp.ClientConnectorError as exc:
        raise TransientError(str(exc), unreachable=True) from exc
    except (aiohttp.ClientError, ConnectionError) as exc:
        raise TransientError(f"the connection broke: {str(exc) or type(exc).__name__}", ambiguous=True) from exc
    except RuntimeError as exc:
        # "cannot schedule new futures", "Session is closed": the program is at its end.
        raise StoreUnavailableError(f"{url}: {exc}") from exc


def _body(parts: tuple[bytes, ...]) -> bytes | io.BytesIO | None:
    if sum(map(len, parts)) <= _ONE_PIECE:
        return b"".join(parts) or None
    # aiohttp warns about large bodies that are bytes, and sends a file in pieces. One that was made from bytes would
    # hold them twice as soon as aiohttp looks into it.
    body = io.BytesIO()
    body.writelines(parts)
    body.seek(0)
    return body


async def _session(fs: Any) -> Any:
    session = fs.session
    if session is not None and not session.closed:
        return session
    fs._session = None  # noqa: SLF001  # where gcsfs keeps it, too
    if getattr(fs, "_use_client_cert", False):
        return await fs._set_session()  # noqa: SLF001  # which knows how to show a client's certificate
    import aiohttp

    # Not gcsfs's own, which closes itself before the last uploads of a program that ends.
    connector = aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_IDLE, resolver=make_resolver())
    session = fs._session = aiohttp.ClientSession(connector=connector, **fs.session_kwargs)  # noqa: SLF001
    if hasattr(session, "_retry_connection"):
        # A second try in secret would hide that the first one may have done its work.
        session._retry_connection = False  # noqa: SLF001
    return session


async def _finish(fs: Any) -> None:
    if fs.session is not None:
        await fs.session.close()


def _stale(credentials: Any) -> bool:
    if not credentials.valid:
        return True
    expiry = credentials.expiry
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    return expiry is not None and expiry.replace(tzinfo=None) - now < _FRESH


def _error(body: bytes) -> tuple[str, str]:
    """What an error's body says, for a person, and its reason, for a program."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"])[:200], str(error["errors"][0]["reason"])
    except (ValueError, KeyError, TypeError, IndexError):
        return body[:200].decode(errors="replace"), ""


def _info(name: str, item: Mapping[str, Any]) -> BlobInfo:
    created = dt.datetime.fromisoformat(item["timeCreated"]).timestamp()
    return BlobInfo(name, int(item["size"]), created, str(item["generation"]))
