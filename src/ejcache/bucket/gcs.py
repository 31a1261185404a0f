"""Keeps objects in Google Cloud Storage, by plain HTTPS.

gcsfs is not used, because its import takes most of a second of computing, and its requests have no timeout, are retried
for half a minute, log a traceback each time, frame uploads with a boundary that a payload may contain, and cannot tell
that an object exists because we just wrote it. What it alone can do is left to it (`gcsfs_bucket.py`).

The requests are those of https://cloud.google.com/storage/docs/json_api/v1/objects, the conditions those of
https://cloud.google.com/storage/docs/request-preconditions. Every upload states the MD5 digest of its bytes, and Google
refuses an upload whose bytes have another one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from ejcache._version import __version__
from ejcache.bucket.base import ABSENT, Blob, BlobInfo, VersionGoneError
from ejcache.bucket.client_bucket import ClientBucket
from ejcache.bucket.digests import check_digest, content_md5
from ejcache.bucket.google_credentials import (
    CREDENTIALS,
    Token,
    credentials_of,
    default_credentials,
    load_google_auth,
    named_credentials,
    sign_in,
)
from ejcache.bucket.https_client import HttpAnswer, HttpsClient
from ejcache.bucket.responses import MAX_DOCUMENT, AnswerError, shorten_answer
from ejcache.bucket.retry import RetryPolicy, TransientError, try_within
from ejcache.errors import MALFORMED, StorageCause, StoreReadOnlyError, StoreRefusedError, StoreUnavailableError
from ejcache.settings.environment import environment_variable
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_GOOGLE: Final = "https://storage.googleapis.com"
_PAGE: Final = 1000
_LISTED: Final = "items(name,size,timeCreated,generation),nextPageToken"
_RATE_LIMITS: Final = ("rateLimitExceeded", "userRateLimitExceeded")
_NO_BATCHES: Final = (404, 405, 501)
"""Answers of emulators, gateways and proxies that do not know the request for many deletions."""


class _Google(NamedTuple):
    """What sends requests, and the token that they show."""

    https: HttpsClient
    token: Token


class GcsBucket(ClientBucket):
    """Objects of one bucket below a prefix; versions are generations.

    Args:
        bucket: the name of the bucket.
        prefix: begins all names, without a slash at its ends; "" for none.
        policy: how long an operation may take.
        credentials: path of a credentials file; None to find credentials as Google's own libraries do.
        endpoint_url: of an emulator, which gets no credentials unless `credentials` names some.
        anonymous: show no credentials.
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
        anonymous: bool = False,
    ) -> None:
        super().__init__(f"gs://{bucket}/{prefix}", policy=policy)
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        self._credentials = None if anonymous else credentials
        self._anonymous = anonymous or bool(endpoint_url and not credentials)
        # STORAGE_EMULATOR_HOST is often a host and a port alone.
        is_place = not endpoint_url or "://" in endpoint_url
        self._endpoint = endpoint_url if is_place else f"http://{endpoint_url}"
        self._has_batches = True

    def _load(self) -> None:
        if not self._anonymous:
            load_google_auth()

    def _make(self) -> Any:
        held = None
        if not self._anonymous:
            found = named_credentials(self._credentials)
            held = default_credentials() if found is None else credentials_of(found)
        google = _Google(HttpsClient(self._endpoint or _GOOGLE), Token(held))
        if google.token.is_stale:
            sign_in(google.token.renew)
        return google

    @classmethod
    def _release(cls, client: Any) -> None:
        client.https.close()

    def _cause_of(self, exc: Exception) -> StorageCause | None:
        from google.auth.exceptions import GoogleAuthError

        named = self._credentials or environment_variable(CREDENTIALS)
        if named and isinstance(exc, MALFORMED):  # Google's error for such a file is a ValueError, too
            return StorageCause.BAD_KEY_FILE
        return StorageCause.CREDENTIALS if isinstance(exc, GoogleAuthError) else None

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
    ) -> HttpAnswer:
        """Send one request, once; return its answer, unless that is none of the storage or refuses the request."""
        uncompressed = {"Accept-Encoding": "identity", **(headers or {})}
        try:
            answer = self._send(method, path, params, timeout, headers=uncompressed, data=data, most=most)
        except AnswerError as exc:
            raise self._foreign(exc) from exc
        if answer.status not in accepted:
            self._check(answer, writing=writing)
        return answer

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
        google = self._signed_in(timeout)
        shown = {"User-Agent": f"ejcache/{__version__}"}
        google.token.apply(shown)
        answer: HttpAnswer = google.https.send(
            method,
            path,
            params,
            headers={**shown, **headers},
            body=data,
            seconds=timeout,
            body_seconds=self._body_seconds(),
            most=most,
        )
        return answer

    def _signed_in(self, timeout: float) -> Any:
        """Return the client, with a token that is good for the next request; raises StoreRefusedError without one."""
        client = self._prepare()
        if client.token.is_stale:
            self._renew(client.token.renew, timeout)
        return client

    def _renew(self, renew: Callable[[], object], timeout: float) -> None:
        """Get another token, for which libraries wait without an end."""
        from google.auth.exceptions import GoogleAuthError

        try:
            try_within("renewing the credentials", renew, timeout)
        except GoogleAuthError as exc:
            said = f"{self.url}: the credentials cannot be renewed: {exc}"
            raise StoreRefusedError(said).because(StorageCause.CREDENTIALS) from exc

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
        after = answer.headers.get("retry-after")
        raise self._refusal(status, said, writing=writing, retry_after=after, throttled=reason in _RATE_LIMITS)

    @contextlib.contextmanager
    def _understood(self, answer: HttpAnswer) -> Iterator[None]:
        """Take what the code inside does not find in the answer as a sign that Google has not written it."""
        try:
            yield
        except MALFORMED as exc:
            start = shorten_answer(answer.body[:60].decode("ascii", errors="replace"))
            why = f"status {answer.status}, {type(exc).__name__} {shorten_answer(exc)}, beginning with {start!r}"
            raise self._not_an_answer_of("Google Cloud Storage", why) from exc

    def _object(self, name: str, *, root: str = "storage/v1") -> str:
        return f"{root}/b/{quote(self._bucket, safe='')}/o/{quote(self._prefix + name, safe='')}"

    # One try each.

    def _read(self, name: str, start: int, length: int, version: str | None, timeout: float) -> Blob | None:
        params = {"alt": "media"}
        if version is not None:
            params["ifGenerationMatch"] = version
        path = self._object(name, root="download/storage/v1")
        ranged = {"Range": f"bytes={start}-{start + length - 1}"}
        answer = self._request("GET", path, params, timeout, headers=ranged, most=max(length, MAX_DOCUMENT))
        if answer.status == 416 and start == 0:
            # An empty object has no range at all.
            answer = self._request("GET", path, params, timeout)
        if answer.status == 404:
            return None
        if answer.status in (412, 416):
            raise VersionGoneError
        span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("content-range", ""))
        size = int(span[3]) if span else len(answer.body)
        if span and len(answer.body) != int(span[2]) - int(span[1]) + 1:
            raise TransientError(f"{len(answer.body)} bytes came of {span[0]}")
        if len(answer.body) == size:
            check_digest(answer.body, _md5_of(answer.headers))
        with self._understood(answer):
            return Blob(answer.body, answer.headers["x-goog-generation"], size)

    def _stat(self, name: str, timeout: float) -> BlobInfo | None:
        params = {"fields": "size,timeCreated,generation"}
        answer = self._request("GET", self._object(name), params, timeout)
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
        )
        if answer.status == 412:
            return None
        if answer.status == 404:
            raise StoreUnavailableError(f"{self.url} is not found")
        with self._understood(answer):
            return str(answer.json()["generation"])

    def _delete(self, name: str, version: str | None, timeout: float) -> bool:
        params = {} if version is None else {"ifGenerationMatch": version}
        answer = self._request("DELETE", self._object(name), params, timeout, writing=True)
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


def _error(body: bytes) -> tuple[str, str]:
    """Return the message of an error's body, for a person, and its reason, for a program."""
    try:
        error = json.loads(body)["error"]
        return shorten_answer(error["message"]), str(error["errors"][0]["reason"])
    except MALFORMED:
        return shorten_answer(body[:200].decode(errors="replace")), ""


def _md5_of(headers: Mapping[str, str]) -> str:
    """Take Google's digest of the whole object, in base64; nothing if there is none (composed objects)."""
    parts = (part.strip() for part in headers.get("x-goog-hash", "").split(","))
    return next((part.removeprefix("md5=") for part in parts if part.startswith("md5=")), "")


def _info(name: str, item: Mapping[str, Any]) -> BlobInfo:
    created = dt.datetime.fromisoformat(item["timeCreated"]).timestamp()
    return BlobInfo(name, int(item["size"]), created, str(item["generation"]))
