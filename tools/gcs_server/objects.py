"""Buckets of objects in memory: generations, metadata, sorted names, and the conditions of a request."""

from __future__ import annotations

import base64
import hashlib
import time
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["MUTABLE", "ApiError", "Bucket", "Stored", "check_conditions", "timestamp"]

MUTABLE = ("contentType", "contentEncoding", "contentDisposition", "contentLanguage", "cacheControl", "customTime")
"""The properties of an object, beside its metadata, that an upload gives and a patch changes."""

_FORGET_WRITES = 10_000
_MAX_NAME_BYTES = 1024


class ApiError(Exception):
    """A request that is answered with an error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


def timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def digests_of(data: bytes) -> tuple[str, str]:
    """MD5 and CRC32C of an object, in base 64 as the API writes them."""
    md5 = hashlib.md5(data, usedforsecurity=False).digest()
    return base64.b64encode(md5).decode(), base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


@dataclass(slots=True)
class Stored:
    """One live object."""

    data: bytes
    generation: int
    created: str
    updated: str
    properties: dict[str, Any]
    metadata: dict[str, str] | None
    md5: str
    crc32c: str
    metageneration: int = 1

    def replace_data(self, data: bytes) -> None:
        """Let the storage hold other bytes under the same generation, with their digests: damage at rest."""
        self.data, self.md5, self.crc32c = data, *digests_of(data)

    def etag(self) -> str:
        return base64.b64encode(b"%d/%d" % (self.generation, self.metageneration)).decode()

    def resource(self, bucket: str, name: str, base: str) -> dict[str, Any]:
        """The object as the JSON API describes it."""
        link = f"{base}/storage/v1/b/{bucket}/o/{name}"
        out: dict[str, Any] = {
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{self.generation}",
            "selfLink": link,
            "mediaLink": f"{link}?generation={self.generation}&alt=media",
            "name": name,
            "bucket": bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "storageClass": "STANDARD",
            "size": str(len(self.data)),
            "md5Hash": self.md5,
            "crc32c": self.crc32c,
            "etag": self.etag(),
            "timeCreated": self.created,
            "updated": self.updated,
            "timeStorageClassUpdated": self.created,
            **self.properties,
        }
        if self.metadata:
            out["metadata"] = self.metadata
        return out


@dataclass(slots=True)
class Bucket:
    """Objects by name, and their names in order."""

    name: str
    created: str = field(default_factory=timestamp)
    objects: dict[str, Stored] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    write_interval: float = 0.0
    _last_generation: int = 0
    _last_write: dict[str, float] = field(default_factory=dict)

    def find(self, name: str, params: Mapping[str, str], *, reading: bool = False) -> Stored:
        """The live object, after the request's conditions."""
        stored = self.objects.get(name)
        if stored is None or params.get("generation", str(stored.generation)) != str(stored.generation):
            raise ApiError(404, "notFound", f"No such object: {self.name}/{name}")
        check_conditions(params, stored, reading=reading)
        return stored

    def insert(
        self, name: str, data: bytes, properties: Mapping[str, Any], params: Mapping[str, str], *, throttle: bool = True
    ) -> Stored:
        """Create or overwrite, if the request's conditions hold."""
        if not 1 <= len(name.encode()) <= _MAX_NAME_BYTES or "\n" in name or "\r" in name or name in (".", ".."):
            raise ApiError(400, "invalid", f"Invalid object name: {name[:100]!r}")
        check_conditions(params, self.objects.get(name))
        if throttle:
            self.throttle(name)
        self._last_generation = max(self._last_generation + 1, time.time_ns() // 1000)
        now = timestamp()
        digests = dict(zip(("md5Hash", "crc32c"), digests_of(data), strict=True))
        for kind, digest in digests.items():
            if properties.get(kind, digest) != digest:
                said = f'Provided {kind} hash "{properties[kind]}" doesn\'t match calculated hash "{digest}".'
                raise ApiError(400, "invalid", said)
        given = {key: properties[key] for key in MUTABLE if properties.get(key) is not None}
        given.setdefault("contentType", "application/octet-stream")
        stored = Stored(
            data=data,
            generation=self._last_generation,
            created=now,
            updated=now,
            properties=given,
            metadata={str(k): str(v) for k, v in (properties.get("metadata") or {}).items()} or None,
            md5=digests["md5Hash"],
            crc32c=digests["crc32c"],
        )
        if name not in self.objects:
            insort(self.names, name)
        self.objects[name] = stored
        return stored

    def patch(self, name: str, changes: Mapping[str, Any], params: Mapping[str, str], *, whole: bool) -> Stored:
        """Change metadata; with `whole`, what is not given goes, as the API's update does."""
        stored = self.find(name, params)
        self.throttle(name)
        for key in MUTABLE:
            if key in changes or whole:
                if changes.get(key) is None:
                    stored.properties.pop(key, None)
                else:
                    stored.properties[key] = changes[key]
        if "metadata" in changes or whole:
            kept = {} if whole or changes.get("metadata") is None else dict(stored.metadata or {})
            for key, value in (changes.get("metadata") or {}).items():
                if value is None:
                    kept.pop(key, None)
                else:
                    kept[key] = str(value)
            stored.metadata = kept or None
        stored.metageneration += 1
        stored.updated = timestamp()
        return stored

    def delete(self, name: str, params: Mapping[str, str]) -> None:
        self.find(name, params)
        self.throttle(name)
        del self.objects[name]
        del self.names[bisect_left(self.names, name)]

    def throttle(self, name: str) -> None:
        """Refuse a second change of one object within `write_interval` seconds, as the service's quotas do."""
        if self.write_interval <= 0:
            return
        now = time.monotonic()
        if now - self._last_write.get(name, -1e9) < self.write_interval:
            raise ApiError(
                429,
                "rateLimitExceeded",
                f"The object {self.name}/{name} exceeded the rate limit for object mutation operations"
                " (create, update, and delete). Please reduce your request rate.",
            )
        if len(self._last_write) > _FORGET_WRITES:
            self._last_write = {n: t for n, t in self._last_write.items() if now - t < self.write_interval}
        self._last_write[name] = now

    def walk(self, prefix: str, delimiter: str, after: str, start: str, end: str) -> Iterator[tuple[str, bool]]:
        """Names in order, each with whether it is a common prefix, after the token `after`."""
        position = bisect_left(self.names, max(prefix, start))
        if after:
            # A token that is a common prefix stands for every name under it.
            last = after + "\U0010ffff" if delimiter and after.endswith(delimiter) else after
            position = max(position, bisect_right(self.names, last))
        while position < len(self.names):
            name = self.names[position]
            if not name.startswith(prefix) or (end and name >= end):
                return
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            if cut >= 0:
                common = name[: cut + len(delimiter)]
                yield common, True
                position = bisect_right(self.names, common + "\U0010ffff")
            else:
                yield name, False
                position += 1


def check_conditions(params: Mapping[str, str], stored: Stored | None, *, reading: bool = False) -> None:
    """Raise what `ifGenerationMatch` and its kin ask for: 412, or 304 for a read that is not needed."""
    for what, actual in (
        ("Generation", stored.generation if stored else 0),
        ("Metageneration", stored.metageneration if stored else 0),
    ):
        wanted = params.get(f"if{what}Match")
        if wanted is not None and int(wanted) != actual:
            raise ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        unwanted = params.get(f"if{what}NotMatch")
        if unwanted is not None and int(unwanted) == actual:
            if reading:
                raise ApiError(304, "notModified", "")
            raise ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
