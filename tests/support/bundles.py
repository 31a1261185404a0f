"""Bundles, as bytes, of the version that is written and of the one that is only read."""

from __future__ import annotations

import hashlib
import struct

from ejcache.maintenance.transfer import MAGIC, encode_member


def bundle(*pairs: tuple[str, bytes], end: bool = True) -> bytes:
    """A bundle of these keys and entries."""
    members = [(MAGIC, b"2\n"), *((f"entries/{key}", data) for key, data in pairs)]
    if end:
        members.append(("ejcache-bundle-end", b"%d\n" % len(pairs)))
    return b"".join(encode_member(name, data) for name, data in members) + (bytes(1024) if end else b"")


def old_record(key: bytes, data: bytes, *, size: int | None = None) -> bytes:
    """A record of version 1, which may promise more than there is."""
    return struct.pack(">IQ", len(key), len(data) if size is None else size) + key + data


def old_bundle(*pairs: tuple[str, bytes]) -> bytes:
    """A bundle of version 1."""
    body = b"EJB1" + b"".join(old_record(key.encode(), data) for key, data in pairs)
    return body + struct.pack(">IQ", 0, len(pairs)) + hashlib.sha256(body).digest()
