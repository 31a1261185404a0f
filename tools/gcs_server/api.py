"""The JSON API over the buckets: one call in, one reply out, no network."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from gcs_server.objects import ApiError, Bucket, Stored, check_conditions, timestamp
from gcs_server.wire import boundary_of, byte_range, parse_fields, select_fields, split_multipart

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Call", "Reply", "StorageApi", "error_body"]

_MAX_BATCH = 100
_REMEMBERED = 1000
_QUANTUM = 256 * 1024
"""The service takes parts of a resumable upload, but the last, in multiples of this."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request; `path` is as it was sent, percent-encoded."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(slots=True)
class Reply:
    """One response."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json; charset=UTF-8"


@dataclass(slots=True)
class _Upload:
    bucket: Bucket
    name: str
    properties: dict[str, Any]
    params: dict[str, str]
    data: bytearray = field(default_factory=bytearray)


def error_body(status: int, reason: str, message: str) -> bytes:
    """An error as the JSON API writes it."""
    detail = {"message": message, "domain": "global", "reason": reason}
    return json.dumps({"error": {"code": status, "message": message, "errors": [detail]}}).encode()


class StorageApi:
    """Buckets, and what the JSON API does with them; used from one thread."""

    def __init__(self, *, base: str = "", page_size: int = 1000, write_interval: float = 0.0) -> None:
        self.base = base
        self.page_size = page_size
        self.write_interval = write_interval
        self.buckets: dict[str, Bucket] = {}
        self._uploads: dict[str, _Upload] = {}
        self._finished: dict[str, Reply] = {}

    def create_bucket(self, name: str) -> Bucket:
        if name in self.buckets:
            raise ApiError(409, "conflict", "Your previous request to create the named bucket succeeded.")
        self.buckets[name] = Bucket(name)
        return self.buckets[name]

    def handle(self, call: Call) -> Reply:
        try:
            return self._route(call)
        except ApiError as exc:
            body = b"" if exc.status == 304 else error_body(exc.status, exc.reason, exc.message)
            return Reply(exc.status, body)
        except (ValueError, KeyError) as exc:
            return Reply(400, error_body(400, "badRequest", f"Bad request: {exc!r}"))

    def _route(self, call: Call) -> Reply:
        segments = [unquote(s) for s in call.path.strip("/").split("/")]
        match segments:
            case ["storage", "v1", "b"]:
                return self._buckets(call)
            case ["storage", "v1", "b", bucket]:
                return self._bucket(call, self._find(bucket))
            case ["storage", "v1", "b", bucket, "o"] if call.method == "GET":
                return self._list(call, self._find(bucket))
            case ["storage", "v1", "b", bucket, "o", name]:
                return self._object(call, self._find(bucket), name)
            case ["download", "storage", "v1", "b", bucket, "o", name] if call.method == "GET":
                return self._media(call, self._find(bucket), name)
            case ["upload", "storage", "v1", "b", bucket, "o"]:
                return self._upload(call, self._find(bucket))
            case ["storage", "v1", "b", bucket, "o", name, "compose"] if call.method == "POST":
                return self._compose(call, self._find(bucket), name)
            case ["storage", "v1", "b", one, "o", source, "rewriteTo" | "copyTo" as verb, "b", two, "o", target]:
                return self._copy(call, self._find(one), source, self._find(two), target, rewrite=verb == "rewriteTo")
            case ["storage", "v1", "b", bucket, "o", source, "moveTo", "o", target] if call.method == "POST":
                return self._move(call, self._find(bucket), source, target)
            case ["batch", "storage", "v1"] if call.method == "POST":
                return self._batch(call)
        raise ApiError(404, "notFound", f"No such call: {call.method} {call.path}")

    def _find(self, name: str) -> Bucket:
        try:
            bucket = self.buckets[name]
        except KeyError:
            raise ApiError(404, "notFound", "The specified bucket does not exist.") from None
        bucket.write_interval = self.write_interval
        return bucket

    def _json(self, call: Call, value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
        if "fields" in call.params:
            value = select_fields(value, parse_fields(call.params["fields"]))
        return Reply(status, json.dumps(value).encode(), headers or {})

    def _resource(self, call: Call, bucket: Bucket, name: str, stored: Stored) -> Reply:
        return self._json(call, stored.resource(bucket.name, name, self.base), headers={"ETag": stored.etag()})

    # Buckets.

    def _describe(self, bucket: Bucket) -> dict[str, Any]:
        return {
            "kind": "storage#bucket",
            "id": bucket.name,
            "name": bucket.name,
            "timeCreated": bucket.created,
            "updated": bucket.created,
            "metageneration": "1",
            "location": "US",
            "storageClass": "STANDARD",
            "etag": "CAE=",
        }

    def _buckets(self, call: Call) -> Reply:
        if call.method == "GET":
            found = [
                self._describe(b) for b in self.buckets.values() if b.name.startswith(call.params.get("prefix", ""))
            ]
            return self._json(
                call, {"kind": "storage#buckets", "items": found} if found else {"kind": "storage#buckets"}
            )
        if call.method == "POST":
            return self._json(call, self._describe(self.create_bucket(str(json.loads(call.body)["name"]))))
        raise ApiError(405, "methodNotAllowed", call.method)

    def _bucket(self, call: Call, bucket: Bucket) -> Reply:
        if call.method == "DELETE":
            if bucket.objects:
                raise ApiError(409, "conflict", "The bucket you tried to delete is not empty.")
            del self.buckets[bucket.name]
            return Reply(204)
        if call.method in ("GET", "PATCH"):
            return self._json(call, self._describe(bucket))
        raise ApiError(405, "methodNotAllowed", call.method)

    def _list(self, call: Call, bucket: Bucket) -> Reply:
        params = call.params
        limit = min(int(params.get("maxResults") or self.page_size), self.page_size)
        after = base64.urlsafe_b64decode(params["pageToken"]).decode() if params.get("pageToken") else ""
        items: list[dict[str, Any]] = []
        prefixes: list[str] = []
        last = token = ""
        walk = bucket.walk(
            params.get("prefix", ""),
            params.get("delimiter", ""),
            after,
            params.get("startOffset", ""),
            params.get("endOffset", ""),
        )
        for name, common in walk:
            if len(items) + len(prefixes) == limit:
                token = base64.urlsafe_b64encode(last.encode()).decode()
                break
            last = name
            if common:
                prefixes.append(name)
            else:
                items.append(bucket.objects[name].resource(bucket.name, name, self.base))
        out: dict[str, Any] = {"kind": "storage#objects"}
        if items:
            out["items"] = items
        if prefixes:
            out["prefixes"] = prefixes
        if token:
            out["nextPageToken"] = token
        return self._json(call, out)

    # Objects.

    def _object(self, call: Call, bucket: Bucket, name: str) -> Reply:
        if call.method == "GET":
            if call.params.get("alt") == "media":
                return self._media(call, bucket, name)
            return self._resource(call, bucket, name, bucket.find(name, call.params, reading=True))
        if call.method == "DELETE":
            bucket.delete(name, call.params)
            return Reply(204)
        if call.method in ("PATCH", "PUT"):
            changes = json.loads(call.body or b"{}")
            stored = bucket.patch(name, changes, call.params, whole=call.method == "PUT")
            return self._resource(call, bucket, name, stored)
        raise ApiError(405, "methodNotAllowed", call.method)

    def _media(self, call: Call, bucket: Bucket, name: str) -> Reply:
        stored = bucket.find(name, call.params, reading=True)
        headers = {
            "ETag": stored.etag(),
            "Accept-Ranges": "bytes",
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Metageneration": str(stored.metageneration),
            "X-Goog-Hash": f"crc32c={stored.crc32c},md5={stored.md5}",
            "X-Goog-Stored-Content-Length": str(len(stored.data)),
        }
        span = byte_range(call.headers.get("Range"), len(stored.data))
        kind = str(stored.properties["contentType"])
        if span is None:
            return Reply(200, stored.data, headers, kind)
        headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{len(stored.data)}"
        return Reply(206, stored.data[span[0] : span[1]], headers, kind)

    def _compose(self, call: Call, bucket: Bucket, name: str) -> Reply:
        wanted = json.loads(call.body)
        pieces = []
        for source in wanted["sourceObjects"]:
            params = {"generation": str(source["generation"])} if source.get("generation") else {}
            condition = source.get("objectPreconditions", {}).get("ifGenerationMatch")
            if condition is not None:
                params["ifGenerationMatch"] = str(condition)
            pieces.append(bucket.find(source["name"], params).data)
        if not 1 <= len(pieces) <= 32:
            raise ApiError(400, "invalid", "The number of source components provided is out of range.")
        stored = bucket.insert(name, b"".join(pieces), wanted.get("destination") or {}, call.params)
        return self._resource(call, bucket, name, stored)

    def _copy(self, call: Call, one: Bucket, source: str, two: Bucket, target: str, *, rewrite: bool) -> Reply:
        stored = self._insert_copy(call, one, source, two, target)
        if not rewrite:
            return self._resource(call, two, target, stored)
        size = str(len(stored.data))
        resource = stored.resource(two.name, target, self.base)
        done = {"kind": "storage#rewriteResponse", "done": True, "objectSize": size, "totalBytesRewritten": size}
        return self._json(call, {**done, "resource": resource})

    def _move(self, call: Call, bucket: Bucket, source: str, target: str) -> Reply:
        stored = self._insert_copy(call, bucket, source, bucket, target)
        bucket.delete(source, {})
        return self._resource(call, bucket, target, stored)

    def _insert_copy(self, call: Call, one: Bucket, source: str, two: Bucket, target: str) -> Stored:
        conditions = {
            "if" + key.removeprefix("ifSource"): value
            for key, value in call.params.items()
            if key.startswith("ifSource")
        }
        if "sourceGeneration" in call.params:
            conditions["generation"] = call.params["sourceGeneration"]
        found = one.find(source, conditions)
        changes = json.loads(call.body) if call.body.strip() else {}
        properties = {**found.properties, "metadata": found.metadata, **changes}
        return two.insert(target, found.data, properties, call.params)

    # Uploads.

    def _upload(self, call: Call, bucket: Bucket) -> Reply:
        if "upload_id" in call.params:
            return self._continue_upload(call, call.params["upload_id"])
        if call.method not in ("POST", "PUT"):
            raise ApiError(405, "methodNotAllowed", call.method)
        kind = call.params.get("uploadType", "media")
        if kind == "media":
            properties: dict[str, Any] = {"contentType": call.headers.get("Content-Type")}
            data = call.body
        elif kind == "multipart":
            parts = split_multipart(call.body, boundary_of(call.headers.get("Content-Type", "")))
            if len(parts) != 2:
                raise ApiError(400, "badRequest", f"Multipart body has {len(parts)} parts, not two.")
            properties = {"contentType": parts[1][0].get("content-type"), **json.loads(parts[0][1] or b"{}")}
            data = parts[1][1]
        elif kind == "resumable":
            return self._start_upload(call, bucket)
        else:
            raise ApiError(400, "badRequest", f"Unknown uploadType {kind}.")
        name = str(properties.get("name") or call.params["name"])
        return self._resource(call, bucket, name, bucket.insert(name, data, properties, call.params))

    def _start_upload(self, call: Call, bucket: Bucket) -> Reply:
        properties = json.loads(call.body) if call.body.strip() else {}
        properties.setdefault("contentType", call.headers.get("X-Upload-Content-Type"))
        name = str(properties.get("name") or call.params["name"])
        token = secrets.token_urlsafe(24)
        self._uploads[token] = _Upload(bucket, name, properties, dict(call.params))
        query = f"uploadType=resumable&upload_id={token}"
        return Reply(200, b"", {"Location": f"{self.base}/upload/storage/v1/b/{bucket.name}/o?{query}"})

    def _continue_upload(self, call: Call, token: str) -> Reply:
        if token in self._finished and call.method != "DELETE":
            return self._finished[token]  # the last part again, because its answer was lost
        try:
            upload = self._uploads[token]
        except KeyError:
            raise ApiError(404, "notFound", "No such upload session.") from None
        if call.method == "DELETE":
            del self._uploads[token]
            return Reply(499)
        span, _, total = call.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        if not span:
            upload.data[:] = call.body
        elif span != "*":
            first = int(span.partition("-")[0])
            if first > len(upload.data):
                raise ApiError(503, "backendError", f"Expected byte {len(upload.data)}, not {first}.")
            # A part that is sent again after a lost answer starts before the end; what is stored already stays.
            upload.data += call.body[len(upload.data) - first :]
        if not span or (total not in ("", "*") and len(upload.data) >= int(total)):
            check_conditions(upload.params, upload.bucket.objects.get(upload.name))
            stored = upload.bucket.insert(upload.name, bytes(upload.data), upload.properties, upload.params)
            del self._uploads[token]
            reply = self._resource(call, upload.bucket, upload.name, stored)
            while len(self._finished) >= _REMEMBERED:
                del self._finished[next(iter(self._finished))]
            self._finished[token] = reply
            return reply
        whole = len(upload.data) // _QUANTUM * _QUANTUM
        del upload.data[whole:]
        return Reply(308, b"", {"Range": f"bytes=0-{whole - 1}"} if whole else {})

    # Batches.

    def _batch(self, call: Call) -> Reply:
        parts = split_multipart(call.body, boundary_of(call.headers.get("Content-Type", "")))
        if len(parts) > _MAX_BATCH:
            raise ApiError(400, "badRequest", f"The batch holds {len(parts)} requests, more than {_MAX_BATCH}.")
        boundary = f"batch_{secrets.token_hex(12)}"
        out = []
        for headers, content in parts:
            reply = self.handle(_inner_call(content))
            identity = headers.get("content-id", "").replace("<", "<response-", 1)
            lines = [
                f"--{boundary}",
                "Content-Type: application/http",
                *([f"Content-ID: {identity}"] if identity else []),
                "",
                f"HTTP/1.1 {reply.status} {'OK' if reply.status < 300 else 'Error'}",
                *(f"{name}: {value}" for name, value in reply.headers.items()),
                f"Content-Type: {reply.content_type}",
                f"Content-Length: {len(reply.body)}",
                "",
                "",
            ]
            out.append("\r\n".join(lines).encode() + reply.body + b"\r\n")
        out.append(f"--{boundary}--\r\n".encode())
        return Reply(200, b"".join(out), {"Date": timestamp()}, f"multipart/mixed; boundary={boundary}")


def _inner_call(content: bytes) -> Call:
    newline = b"\r\n" if b"\r\n" in content.partition(b"HTTP/1.")[2][:3] else b"\n"
    head, _, body = content.partition(newline * 2)
    first, *lines = head.decode("latin-1").splitlines()
    method, target, _ = first.split(" ")
    url = urlsplit(target)
    headers = dict(line.partition(":")[::2] for line in lines if ":" in line)
    headers = {name.title(): value.strip() for name, value in headers.items()}
    return Call(method, url.path, dict(parse_qsl(url.query)), headers, body)
