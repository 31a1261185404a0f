"""Digests the bytes that are sent to shared storage, and compares those that come with the digest that it tells."""

from __future__ import annotations

import base64
import hashlib

from ejcache.bucket.retry import TransientError


def check_digest(body: bytes, expected: str) -> None:
    """Compare a body with the base64 MD5 digest of the whole object, if the storage told one.

    Raises:
        TransientError: the body was damaged on its way: the object itself is not to blame.
    """
    if expected and content_md5(body) != expected:
        said = "the answer was damaged on its way: its bytes have another digest than the storage says"
        raise TransientError(said, ambiguous=True)


def content_md5(data: bytes) -> str:
    """Return the MD5 digest of an upload's bytes, as GCS and S3 expect it."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
