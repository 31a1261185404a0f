"""Archives and entries as bytes, also as nothing of ours writes them."""

from __future__ import annotations

import hashlib
import json
import struct
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


def framed(header: object, payload: bytes = b"x", *, magic: bytes = b"EJC1") -> bytes:
    """An entry with this header, as it is or as fields, and with a checksum that is right."""
    text = header
    if not isinstance(text, bytes):
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    body = magic + struct.pack(">I", len(text)) + text + payload
    return body + hashlib.sha256(body).digest()


def gigabyte() -> bytes:
    """Some 64 kB of zstd that become a gigabyte: a frame of blocks that each say which byte comes 65,536 times."""
    block, last = ((65_536 << 3 | 1 << 1 | is_last).to_bytes(3, "little") + b"\0" for is_last in (0, 1))
    return bytes.fromhex("28b52ffd 00 38") + block * (2**14 - 1) + last


def flipped(data: bytes, bit: int) -> bytes:
    """The bytes with one bit turned over, which is counted from the first, or from behind, and wraps around."""
    changed = bytearray(data)
    if data:
        changed[bit // 8 % len(data)] ^= 1 << bit % 8
    return bytes(changed)


def of_a_later_version(data: bytes) -> bytes:
    """An entry as a later version writes it, intact."""
    body = b"EJC9" + data[4:-32]
    return body + hashlib.sha256(body).digest()
