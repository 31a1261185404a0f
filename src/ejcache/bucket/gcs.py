"""A bucket of Google Cloud Storage: small requests by plain HTTPS (`gcs_https.py`), the others through gcsfs.

What a start reads and writes does not import gcsfs, which takes most of a second of computing: that is done in another
thread for the first upload of a large entry, listing or deletion of many objects.

gcsfs provides the credentials, the session and the address, from `gcsfs.core.GCSFileSystem`: its default class first
asks the gRPC control API for the bucket's layout, which takes a minute where that cannot be reached. The requests are
made here, because those of gcsfs have no timeout, are retried for half a minute, log a traceback each time, frame
uploads with a boundary that a payload may contain, and cannot tell that an object exists because we just wrote it.

The requests are those of https://cloud.google.com/storage/docs/json_api/v1/objects, the conditions those of
https://cloud.google.com/storage/docs/request-preconditions. Every upload states the MD5 digest of its bytes, and Google
refuses an upload whose bytes have another one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ejcache.bucket.base import ABSENT, Blob, BlobInfo, VersionGoneError, is_light
from ejcache.bucket.client_bucket import IDENTITY, ClientBucket, ClientStartup, wait_for
from ejcache.bucket.gcs_https import (
    GOOGLE,
    READ_WRITE,
    GoogleHttps,
    is_left_to_gcsfs,
    is_stale,
    load_credentials,
    open_google,
)
from ejcache.bucket.https_client import HttpAnswer, load_https
from ejcache.bucket.responses import MAX_DOCUMENT, AnswerError, check_digest, content_md5, guard, shorten_answer
from ejcache.bucket.retry import RetryPolicy, TransientError, try_within
from ejcache.bucket.storage_causes import StorageCause
from ejcache.errors import MALFORMED, StoreReadOnlyError, StoreRefusedError, StoreUnavailableError
from ejcache.settings.environment import environment_variable
from ejcache.util.lifecycle import is_ending, run_exit_phases_first
from ejcache.util.units import plural

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from concurrent.futures import Future

_PAGE: Final = 1000
_LISTED: Final = "items(name,size,timeCreated,generation),nextPageToken"
_CONNECTIONS: Final = 64
_IDLE: Final = 60.0
_ONE_PIECE: Final = 1 << 20
_PIECE: Final = 1 << 18
_RATE_LIMITS: Final = ("rateLimitExceeded", "userRateLimitExceeded")
_NO_BATCHES: Final = (404, 405, 501)
"""Answers of emulators, gateways and proxies that do not know the request for many deletions."""
_KNOWN_OPTIONS: Final = frozenset({"token", "endpoint_url"})
_CREDENTIALS: Final = "GOOGLE_APPLICATION_CREDENTIALS"


class GcsBucket(ClientBucket):
    """Objects of one bucket below a prefix; versions are generations.

    Args:
        bucket: the name of the bucket.
        prefix: begins all names, without a slash at its ends; "" for none.
        policy: how long an operation may take.
        credentials: path of a credentials file; None to find credentials as Google's own libraries do.
        endpoint_url: of an emulator, which gets no credentials unless `credentials` names some.
        options: further arguments of `GCSFileSystem`.
    """

    make_seconds = 8.0  # a server of tokens may take some seconds for the first one

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
        token = {"token": credentials or ("anon" if endpoint_url else None)}
        super().__init__(f"gs://{bucket}/{prefix}", policy=policy, options={**token, **(options or {})})
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        if endpoint_url:
            # STORAGE_EMULATOR_HOST is often a host and a port alone.
            self._options["endpoint_url"] = endpoint_url if "://" in endpoint_url else f"http://{endpoint_url}"
        self._credentials = credentials
        self._has_batches = True
        self._light: ClientStartup | None = None

    def after_fork_in_child(self) -> None:
        """Make other clients: the parent's connections are not ours."""
        super().after_fork_in_child()
        self._light = None

    def prepare(self, *, wait: float = 0.0, fully: bool = False) -> None:
        """Begin to make the client of small requests, or with `fully` both, and wait so many seconds for the last."""
        making = self._start_light()
        if fully:
            super().prepare(wait=wait)
        else:
            wait_for(making, wait)

    @property
    def is_prepared(self) -> bool:
        """True if this process has begun to make a client."""
        return self._light is not None or self.is_fully_prepared

    @property
    def is_fully_prepared(self) -> bool:
        """True if this process has begun to make the client of large uploads and listings."""
        return super().is_prepared

    def close(self) -> None:
        """Close the connections, if there are any; the next use makes them again."""
        with self._lock:
            light, self._light = self._light, None
        if light is not None:
            light.future.add_done_callback(_close_light)
        super().close()

    def _start_light(self) -> ClientStartup | None:
        with self._lock:
            if self._light is None and not is_ending():
                self._light = ClientStartup(self._load_light, self._make_light, None)
                run_exit_phases_first()
            return self._light

    def _load_light(self) -> None:
        if self._options["token"] == "anon":  # noqa: S105 (a word, not a secret)
            load_https()
        else:
            load_credentials()

    def _make_light(self, _: object) -> GoogleHttps | None:
        """Make what sends small requests; None if gcsfs has to send them, too."""
        if not self._options.keys() <= _KNOWN_OPTIONS or is_left_to_gcsfs():
            return None
        found, token = None, self._options["token"]
        if self._credentials:
            found = _check_credentials(self._credentials, "the credentials file")
        elif token is None and environment_variable(_CREDENTIALS):
            _check_credentials(str(environment_variable(_CREDENTIALS)), f"the credentials file of {_CREDENTIALS}")
        google = open_google(self._options.get("endpoint_url", GOOGLE), token=token, found=found)
        if google is not None and google.is_stale:
            _sign_in(google.renew)
        return google

    def _prepare(self, make_seconds: float = math.inf, *, light: bool = False) -> Any:
        """Return what sends the request: a `GoogleHttps` for a small one, if it can be had, or the file system."""
        # A program that is ending has the client that it has.
        making = self._start_light() if light else None
        if making is not None or (light and self._made is None):
            google = self._made_by(making, make_seconds)
            if google is not None:
                return google
        return super()._prepare(make_seconds)

    def _forget(self, making: ClientStartup) -> None:
        with self._lock:
            self._light = None if self._light is making else self._light
        super()._forget(making)

    def _make(self, loop: asyncio.AbstractEventLoop) -> Any:
        if self._credentials:
            # gcsfs would take a path without a file for a token, and send it.
            found = _check_credentials(self._credentials, "the credentials file")
            if found.get("type") == "external_account":
                from google.auth.identity_pool import Credentials

                # Workload identity, which gcsfs knows in Google's own variable only.
                self._options["token"] = Credentials.from_info(found, scopes=[READ_WRITE])  # type: ignore[no-untyped-call]
        elif self._options["token"] is None and environment_variable(_CREDENTIALS):
            _check_credentials(str(environment_variable(_CREDENTIALS)), f"the credentials file of {_CREDENTIALS}")
        options = {"loop": loop, "skip_instance_cache": True, "use_listings_cache": False, **self._options}
        fs = self._load()(**options)
        held = fs.credentials.credentials
        if held is not None and is_stale(held):
            _sign_in(fs.credentials.maybe_refresh)
        return fs

    def _cause_of(self, exc: Exception) -> StorageCause | None:
        from google.auth.exceptions import GoogleAuthError

        named = self._credentials or environment_variable(_CREDENTIALS)
        if named and isinstance(exc, MALFORMED):  # Google's error for such a file is a ValueError, too
            return StorageCause.BAD_KEY_FILE
        return StorageCause.CREDENTIALS if isinstance(exc, GoogleAuthError) else None

    def _load(self) -> Any:
        from gcsfs.core import GCSFileSystem

        return GCSFileSystem

    @staticmethod
    async def _finish(fs: Any) -> None:
        if fs.session is not None:
            await fs.session.close()

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
        accepted: tuple[int, ...] = (),
        most: int = MAX_DOCUMENT,
        light: bool = False,
    ) -> HttpAnswer:
        fs = self._prepare(light=light)
        if isinstance(fs, GoogleHttps):
            answer = self._send_light(fs, method, path, params, timeout, headers or {}, data, most)
            self._check(answer, writing=writing)
            return answer
        all_headers = {**self._authorization(fs, timeout), **IDENTITY, **(headers or {})}
        url = f"{fs._location}/{path}"  # noqa: SLF001  # no public name has the address that was chosen
        all_params = fs._get_params(dict(params))  # noqa: SLF001  # who pays for a requester-pays bucket

        async def send(fs: Any) -> HttpAnswer:
            return await _send(fs, method, url, all_params, all_headers, data)

        answer = self._run_on_loop(send, timeout, most=most)
        if answer.status not in accepted:
            self._check(answer, writing=writing)
        return answer

    def _send_light(
        self,
        google: GoogleHttps,
        method: str,
        path: str,
        params: Mapping[str, str],
        timeout: float,
        headers: Mapping[str, str],
        data: tuple[bytes, ...],
        most: int,
    ) -> HttpAnswer:
        if google.is_stale:
            from google.auth.exceptions import GoogleAuthError

            try:
                try_within("renewing the credentials", google.renew, timeout)
            except GoogleAuthError as exc:
                raise self._not_renewed(exc) from exc
        try:
            return google.client.send(
                method,
                path,
                params,
                headers={**google.headers(), **IDENTITY, **headers},
                body=b"".join(data),
                seconds=timeout,
                body_seconds=self._body_seconds(),
                most=most,
            )
        except AnswerError as exc:
            raise StoreUnavailableError(f"{self.url}: {exc}").because(StorageCause.PORTAL) from exc

    def _not_renewed(self, why: object) -> StoreRefusedError:
        said = f"{self.url}: the credentials cannot be renewed: {why}"
        return StoreRefusedError(said).because(StorageCause.CREDENTIALS)

    def _authorization(self, fs: Any, timeout: float) -> dict[str, str]:
        from gcsfs.retry import HttpError
        from google.auth.exceptions import GoogleAuthError

        held = fs.credentials.credentials
        try:
            if held is not None and is_stale(held):
                # A renewal is a blocking request without a timeout of its own.
                try_within("renewing the credentials", fs.credentials.maybe_refresh, timeout)
            headers: dict[str, str] = fs._get_headers({})  # noqa: SLF001  # also says which client this is
        except (GoogleAuthError, HttpError) as exc:
            # gcsfs replaces Google's reason, such as "invalid_grant: account not found", by "Invalid Credentials".
            why = exc.__cause__ if isinstance(exc.__cause__, GoogleAuthError) else exc
            raise self._not_renewed(why) from exc
        return headers

    def _check(self, answer: HttpAnswer, *, writing: bool) -> None:
        status = answer.status
        if status < 300 or status in (412, 416):
            return
        said, reason = _error(answer.body)
        if status == 404 and "bucket does not exist" in said:
            said = f"there is no bucket gs://{self._bucket}, or these credentials may not see it"
            raise StoreRefusedError(said).because(StorageCause.NO_BUCKET)
        if status == 404:
            return
        if status == 400 and "hash" in said:
            raise TransientError(f"the upload was damaged on its way: {said}")
        after = answer.headers.get("Retry-After")
        raise self._refusal(status, said, writing=writing, retry_after=after, throttled=reason in _RATE_LIMITS)

    @contextlib.contextmanager
    def _understood(self, answer: HttpAnswer) -> Iterator[None]:
        """Take what the code inside does not find in the answer as a sign that Google has not written it."""
        try:
            yield
        except MALFORMED as exc:
            start = shorten_answer(answer.body[:60].decode("ascii", errors="replace"))
            raise StoreUnavailableError(
                f"{self.url}: the answer is not one of Google Cloud Storage, perhaps of a proxy or a login page: "
                f"status {answer.status}, {type(exc).__name__} {shorten_answer(exc)}, beginning with {start!r}"
            ).because(StorageCause.PORTAL) from exc

    def _object(self, name: str, *, root: str = "storage/v1") -> str:
        return f"{root}/b/{quote(self._bucket, safe='')}/o/{quote(self._prefix + name, safe='')}"

    # One try each.

    def _read(self, name: str, start: int, length: int, version: str | None, timeout: float) -> Blob | None:
        params = {"alt": "media"}
        if version is not None:
            params["ifGenerationMatch"] = version
        path = self._object(name, root="download/storage/v1")
        ranged = {"Range": f"bytes={start}-{start + length - 1}"}
        answer = self._request("GET", path, params, timeout, headers=ranged, most=max(length, MAX_DOCUMENT), light=True)
        if answer.status == 416 and start == 0:
            # An empty object has no range at all.
            answer = self._request("GET", path, params, timeout, light=True)
        if answer.status == 404:
            return None
        if answer.status in (412, 416):
            raise VersionGoneError
        span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
        size = int(span[3]) if span else len(answer.body)
        if span and len(answer.body) != int(span[2]) - int(span[1]) + 1:
            raise TransientError(f"{len(answer.body)} bytes came of {span[0]}")
        if len(answer.body) == size:
            check_digest(answer.body, _md5_of(answer.headers))
        with self._understood(answer):
            return Blob(answer.body, answer.headers["X-Goog-Generation"], size)

    def _stat(self, name: str, timeout: float) -> BlobInfo | None:
        params = {"fields": "size,timeCreated,generation"}
        answer = self._request("GET", self._object(name), params, timeout, light=True)
        with self._understood(answer):
            return None if answer.status == 404 else _info(name, answer.json())

    def _write(self, name: str, data: bytes, version: str | None, timeout: float) -> str | None:
        params = {"uploadType": "multipart", "fields": "generation"}
        if version is not None:
            params["ifGenerationMatch"] = "0" if version == ABSENT else version
        boundary = uuid.uuid4().hex
        metadata = {"name": self._prefix + name, "md5Hash": content_md5(data)}
        head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(metadata)}\r\n"
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
            light=is_light(len(data)),
        )
        if answer.status == 412:
            return None
        if answer.status == 404:
            raise StoreUnavailableError(f"{self.url} is not found")
        with self._understood(answer):
            return str(answer.json()["generation"])

    def _delete(self, name: str, version: str | None, timeout: float) -> bool:
        params = {} if version is None else {"ifGenerationMatch": version}
        answer = self._request("DELETE", self._object(name), params, timeout, writing=True, light=True)
        with self._understood(answer):
            if answer.status < 300 and answer.body:
                raise ValueError("an answer to a deletion has no body")
        return answer.status < 300

    def _delete_batch(self, batch: list[tuple[str, str | None]]) -> list[str]:
        deleted: list[str] = []
        left = dict(batch)

        def attempt(timeout: float, *, lost: bool) -> None:
            answer = self._send_batch(list(left.items()), timeout)
            # Status and body of each part by turns, after what precedes the first part.
            parts = re.split(rb"\r?\nHTTP/1\.[01] (\d+)", answer.body)[1:]
            if answer.status in _NO_BATCHES or not parts:
                self._has_batches = False
                return
            if len(parts) != 2 * len(left):
                raise TransientError(f"a batch of {len(left)} had {len(parts) // 2} answers", ambiguous=True)
            for name, status, body in zip(list(left), map(int, parts[::2]), parts[1::2], strict=True):
                if self._is_settled(status, body):
                    del left[name]
                    if status < 300 or (lost and status == 404):
                        deleted.append(name)
            if left:
                raise TransientError(
                    f"the storage refused {plural(len(left), 'deletion')} of a batch for now", busy=True, throttled=True
                )

        if self._has_batches:
            self._change(f"deleting {len(batch)} objects of {self.url}", attempt)
        return deleted if self._has_batches else [*deleted, *super()._delete_batch(list(left.items()))]

    def _send_batch(self, batch: list[tuple[str, str | None]], timeout: float) -> HttpAnswer:
        boundary = uuid.uuid4().hex
        lines = []
        for number, (name, version) in enumerate(batch):
            condition = "" if version is None else f"?ifGenerationMatch={version}"
            lines += [f"--{boundary}", "Content-Type: application/http", f"Content-ID: <{number}>", ""]
            lines += [f"DELETE /{self._object(name)}{condition} HTTP/1.1", "Content-Length: 0", "", ""]
        return self._request(
            "POST",
            "batch/storage/v1",
            {},
            timeout,
            headers={"Content-Type": f"multipart/mixed; boundary={boundary}"},
            data=("\r\n".join([*lines, f"--{boundary}--", ""]).encode(),),
            writing=True,
            accepted=_NO_BATCHES,
        )

    def _is_settled(self, status: int, body: bytes) -> bool:
        """True if a part of a batch has an answer that another try would not change."""
        why, reason = _error(body[body.find(b"{") : body.rfind(b"}") + 1])
        if status == 403 and reason not in _RATE_LIMITS:
            raise StoreReadOnlyError(f"these credentials may not delete objects of {self.url}: {why}")
        return status not in (403, 408, 429) and status < 500

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
        with self._understood(answer):
            page = answer.json()
            infos = [_info(item["name"][len(self._prefix) :], item) for item in page.get("items", ())]
            return infos, [page["nextPageToken"]] if "nextPageToken" in page else []


def _close_light(made: Future[GoogleHttps | None]) -> None:
    if made.exception() is None and (google := made.result()) is not None:
        google.client.close()


async def _send(
    fs: Any,
    method: str,
    url: str,
    params: Mapping[str, str],
    headers: Mapping[str, str],
    data: tuple[bytes, ...],
) -> HttpAnswer:
    import aiohttp

    session = await _session(fs)
    # With the length, a body that comes in pieces is not sent "chunked", which not every proxy forwards.
    length = {"Content-Length": str(sum(map(len, data)))} if data else {}
    try:
        async with session.request(
            method,
            url,
            params=params,
            headers={**headers, **length},
            data=_body(data),
            timeout=aiohttp.ClientTimeout(),
            allow_redirects=False,
        ) as response:
            return HttpAnswer(response.status, response.headers, await response.read())
    except (aiohttp.ClientSSLError, aiohttp.InvalidURL) as exc:
        raise StoreUnavailableError(f"{url}: {exc}") from exc
    except aiohttp.ClientConnectorError as exc:
        raise TransientError(str(exc), unreachable=True) from exc
    except (aiohttp.ClientError, ConnectionError) as exc:
        raise TransientError(f"the connection broke: {str(exc) or type(exc).__name__}", ambiguous=True) from exc
    except RuntimeError as exc:
        # "cannot schedule new futures", "Session is closed": the program is ending.
        raise StoreUnavailableError(f"{url}: {exc}") from exc


def _body(parts: tuple[bytes, ...]) -> bytes | AsyncIterator[memoryview] | None:
    if sum(map(len, parts)) <= _ONE_PIECE:
        return b"".join(parts) or None
    # aiohttp warns about large bodies that are bytes. A file of them would hold them a second time.
    return _pieces(parts)


async def _pieces(parts: tuple[bytes, ...]) -> AsyncIterator[memoryview]:
    for part in parts:
        for start in range(0, len(part), _PIECE):
            yield memoryview(part)[start : start + _PIECE]


async def _session(fs: Any) -> Any:
    session = fs.session
    if session is not None and not session.closed:
        return session
    fs._session = None  # noqa: SLF001  # where gcsfs keeps its session
    if getattr(fs, "_use_client_cert", False):
        return guard(await fs._set_session())  # noqa: SLF001  # only gcsfs's own session shows a client's certificate
    import aiohttp

    # gcsfs's own session closes itself before the last uploads of a program that is ending.
    connector = aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_IDLE)
    options = {"auto_decompress": False, **fs.session_kwargs}
    session = fs._session = guard(aiohttp.ClientSession(connector=connector, **options))  # noqa: SLF001
    return session


def _sign_in(renew: Callable[[], object]) -> None:
    """Get the first token while the client is made: the storage's own time has not begun then.

    If that fails, in whatever way, the first request tries it again and says why.
    """
    with contextlib.suppress(Exception):
        renew()


def _check_credentials(path: str, what: str) -> dict[str, Any]:
    """Read the credentials file. Raises an error that names the file, which the libraries that read it do not."""
    remedy = "correct its path, or create it with `gcloud auth application-default login`"
    try:
        found = json.loads(Path(os.path.expanduser(path)).read_bytes())  # noqa: PTH111 (pathlib raises RuntimeError)
    except FileNotFoundError as exc:
        error = StoreUnavailableError(f"{what}, {path}, does not exist: {remedy}")
        raise error.because(StorageCause.NO_KEY_FILE) from exc
    except OSError as exc:
        error = StoreUnavailableError(f"{what}, {path}, cannot be read: {exc.strerror}: {remedy}")
        raise error.because(StorageCause.NO_KEY_FILE) from exc
    except ValueError as exc:
        error = StoreUnavailableError(f"{what}, {path}, is not JSON: {remedy}")
        raise error.because(StorageCause.BAD_KEY_FILE) from exc
    if not isinstance(found, dict):
        error = StoreUnavailableError(f"{what}, {path}, does not hold credentials: {remedy}")
        raise error.because(StorageCause.BAD_KEY_FILE)
    return found


def _error(body: bytes) -> tuple[str, str]:
    """Return the message of an error's body, for a person, and its reason, for a program."""
    try:
        error = json.loads(body)["error"]
        return shorten_answer(error["message"]), str(error["errors"][0]["reason"])
    except MALFORMED:
        return shorten_answer(body[:200].decode(errors="replace")), ""


def _md5_of(headers: Mapping[str, str]) -> str:
    """Take Google's digest of the whole object, in base64; nothing if there is none (composed objects)."""
    values = headers.getall("X-Goog-Hash", []) if hasattr(headers, "getall") else [headers.get("X-Goog-Hash", "")]
    parts = [part.strip() for value in values for part in value.split(",")]
    return next((part.removeprefix("md5=") for part in parts if part.startswith("md5=")), "")


def _info(name: str, item: Mapping[str, Any]) -> BlobInfo:
    created = dt.datetime.fromisoformat(item["timeCreated"]).timestamp()
    return BlobInfo(name, int(item["size"]), created, str(item["generation"]))
