"""What the first bytes of an entry say, without decoding its header."""

from __future__ import annotations

import re
from typing import Final

from ejcache.stores.base import worth_of_use

_SECONDS: Final = re.compile(rb'"compile_seconds":([0-9]{1,9}(?:\.[0-9]{1,20})?)[,}]')
_CREATED: Final = re.compile(rb'"created":([0-9]{1,11}(?:\.[0-9]{1,20})?)[,}]')
"""In the header of an entry, which is canonical JSON, so that within a text the quotation marks are escaped. To decode
the header takes as long as a tenth of a put."""
_BEFORE_HEADER: Final = 8
"""Bytes of an entry before its header: the name of the format, and the header's length."""


def worth_of_bytes(start: bytes) -> float:
    """Weigh one use of an entry, by the compile seconds in its first bytes."""
    found = _SECONDS.search(start, 0, _end_of_header(start))
    return worth_of_use(float(found[1]) if found is not None else 0.0)


def created_of(start: bytes, *, otherwise: float) -> float:
    """Return when an entry was made, by its first bytes, in seconds since the epoch; `otherwise` if they do not say."""
    found = _CREATED.search(start, 0, _end_of_header(start))
    return float(found[1]) or otherwise if found is not None else otherwise


def _end_of_header(start: bytes) -> int:
    return _BEFORE_HEADER + int.from_bytes(start[4:_BEFORE_HEADER], "big")
