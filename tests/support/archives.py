"""Archives as bytes."""

from __future__ import annotations

import tarfile

from ejcache.bucket.object_names import entry_name
from ejcache.maintenance.archive import encode_member


def archive(*pairs: tuple[str, bytes], end: bool = True) -> bytes:
    """An archive of these keys and entries."""
    members = [encode_member(entry_name(key), data) for key, data in pairs]
    return b"".join(members) + (bytes(1024) if end else b"")


def member(name: str = "v1/entries/83/k", data: bytes = b"x", *, promised: int | None = None, **fields) -> bytes:
    """A member with these fields, as a person with bad intentions would make it."""
    info = tarfile.TarInfo(name)
    info.size = len(data) if promised is None else promised
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % 512)
