"""Names in a shared store: where an entry is, and which key a name stands for.

    v1/entries/<2 hex>/<key>       the entries; the hex is of SHA-256 of the key, to spread listings and directories
    v1/counters/<process>          the counters of one process, and `=baseline`, what a reset subtracts
    v1/quarantine/<digest>         damaged entries, a few, for inspection
    v1/pins/<key>                  empty; the entry under the key is not to be evicted
    v1/used/, v1/leases/, …        other rooms' own
    v1/tmp/<process>               on file systems: what is being written

One layout for file systems and buckets, because a bucket may be mounted as a file system on another host.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import socket
import uuid
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from ejcache.errors import InvalidKeyError

__all__ = [
    "COUNTERS",
    "ENTRIES",
    "PINS",
    "QUARANTINE",
    "TEMPORARY",
    "entry_name",
    "escape_key",
    "key_of_name",
    "process_name",
    "unescape_key",
]

ENTRIES: Final = "v1/entries/"
COUNTERS: Final = "v1/counters/"
PINS: Final = "v1/pins/"
QUARANTINE: Final = "v1/quarantine/"
TEMPORARY: Final = "v1/tmp/"

_SAFE: Final = " !$&'(),-.;=@^_{}~"
"""Beside letters and digits, what every file system and object store takes as it is. `+` marks a continuation."""

_COMPONENT: Final = 240
"""File names have at most 255 bytes; a longer key goes on in a directory below."""


def escape_key(key: str) -> str:
    """A path of one component, or of several for a long key, that is different for every key.

    Percent-encoding keeps what people read readable; a key that it would make too long for an object name (1024
    bytes) is written in base64 instead, after a `=`. Two spellings never meet: an escaped key begins with no `=`.
    """
    escaped = quote(key, safe=_SAFE)
    if escaped[0] in "=. -~":
        escaped = f"%{ord(escaped[0]):02X}{escaped[1:]}"
    if escaped[-1] in ". ":  # Windows drops them from the end of a name
        escaped = f"{escaped[:-1]}%{ord(escaped[-1]):02X}"
    encoded = "=" + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
    if len(escaped) > max(len(encoded), _COMPONENT):
        escaped = encoded
    parts = [escaped[start : start + _COMPONENT] for start in range(0, len(escaped), _COMPONENT)]
    return "+/".join(parts)


def unescape_key(name: str) -> str | None:
    """The key that `escape_key` made `name` of; None for a name that it did not make."""
    joined = name.replace("+/", "")
    try:
        if joined.startswith("="):
            key = base64.urlsafe_b64decode(joined[1:] + "=" * (-(len(joined) - 1) % 4)).decode()
        else:
            key = unquote_to_bytes(joined).decode()
    except ValueError:
        return None
    return key if key and escape_key(key) == name else None


def entry_name(key: str) -> str:
    """The name of the entry under `key`."""
    return f"{ENTRIES}{hashlib.sha256(key.encode()).hexdigest()[:2]}/{escape_key(key)}"


def key_of_name(name: str) -> str | None:
    """The key of the entry of this name; None for anything that is no entry."""
    key = unescape_key(name.removeprefix(ENTRIES)[3:])
    try:
        return key if key is not None and entry_name(key) == name else None
    except (InvalidKeyError, UnicodeEncodeError):
        return None


def process_name() -> str:
    """A name that no other process, and no other call, has: host, process id, and chance."""
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())[:80] or "host"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex}"
