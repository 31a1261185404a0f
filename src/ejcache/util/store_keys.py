"""Checks the keys of stores, and makes digests, file names and object names of them.

`is_hex`, for names that are made of digests and random digits, takes the place of patterns on the path of a hit: each
takes 0.2 ms to compile.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from ejcache.errors import InvalidKeyError

MAX_KEY_BYTES: Final = 700
"""A key must fit, escaped, into one file name or object name of every backend."""

_SAFE: Final = " !$&'(),-.;=@^_{}~"
"""Characters, beside letters and digits, that every file system and object store takes as they are."""
_PLAIN: Final = frozenset(_SAFE + "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_COMPONENT: Final = 240
"""File names have at most 255 bytes; a longer key is split into directories, each part but the last ending in `+`."""
_HEX: Final = frozenset("0123456789abcdef")
_CONTROL: Final = "[\x00-\x1f\x7f]"


def key_digest(key: str, digits: int = 64) -> str:
    """Return hexadecimal digits that stand for `key` in names of files and objects."""
    import hashlib  # in none of the commands that only print a text

    return hashlib.sha256(key.encode()).hexdigest()[:digits]


def is_hex(text: str, digits: int) -> bool:
    """True if `text` is so many hexadecimal digits, in lower case."""
    return len(text) == digits and _HEX.issuperset(text)


def check_key(key: object) -> str:
    """Return `key` if a store can hold it.

    Raises:
        InvalidKeyError: it is not text, is empty, is longer than `MAX_KEY_BYTES` in UTF-8, holds a NUL, a line break
            or another control character, or a surrogate.
    """
    if not isinstance(key, str) or not key:
        raise InvalidKeyError(f"a key is text that is not empty, not {key!r}")
    try:
        length = len(key.encode())
    except UnicodeEncodeError as exc:
        raise InvalidKeyError(f"a key must be encodable as UTF-8, which {key!r} is not") from exc
    if length > MAX_KEY_BYTES:
        raise InvalidKeyError(f"a key has at most {MAX_KEY_BYTES} bytes, and {key[:40]!r}… has {length}")
    if not key.isprintable() and re.search(_CONTROL, key):
        raise InvalidKeyError(f"a key has no control characters, and {key!r} does")
    return key


def is_key(key: object) -> bool:
    """True if a store can hold `key`: `check_key` returns it."""
    try:
        return check_key(key) == key
    except InvalidKeyError:
        return False


def escape_key(key: str) -> str:
    """Return a path, of one component or of several for a long key, that is different for every key.

    Percent-encoding keeps keys readable. A key whose percent-encoding is longer than a file name and longer than base64
    is written in base64 instead, after a `=`, with which no percent-encoded key begins. So each key fits an object name
    (1024 bytes).
    """
    if len(key) <= _COMPONENT and key[0] not in "=. -~" and key[-1] not in ". " and _PLAIN.issuperset(key):
        return key  # as those of programs are
    import base64  # by other keys only
    from urllib.parse import quote

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
    """Return the key from which `escape_key` made `name`; None if it did not make `name`."""
    joined = name.replace("+/", "")
    try:
        if not joined.startswith("=") and "%" not in joined:
            key = joined
        elif joined.startswith("="):
            import base64

            key = base64.urlsafe_b64decode(joined[1:] + "=" * (-(len(joined) - 1) % 4)).decode()
        else:
            from urllib.parse import unquote_to_bytes

            key = unquote_to_bytes(joined).decode()
        # Other users may have made the object, and a command must not take another name for a key of ours.
        return key if escape_key(check_key(key)) == name else None
    except ValueError:
        return None


@functools.lru_cache(maxsize=64)
def place_of_key(key: str) -> str:
    """Return the path of the entry under `key` below the directory of a store's entries.

    The two digits of SHA-256 of the key spread listings and directories.
    """
    return f"{key_digest(key, 2)}/{escape_key(key)}"


def key_of_place(place: str) -> str | None:
    """Return the key of the entry at this path; None if no entry is at such a path."""
    key = unescape_key(place[3:])
    return key if key is not None and place_of_key(key) == place else None
