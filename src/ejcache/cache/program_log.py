"""The program log: the texts of the last programs that this user compiled on this host, with their source lines.

It serves `ejcache why`: a shared cache holds texts without source lines, and cannot always be reached.

    line := {"computation": digest of the program (a component of its key), "text": base64(zlib(text))}
    text := the module with debug locations, then a line `LARGE_CONSTANT digest` for each constant that it leaves out
"""

from __future__ import annotations

import base64
import json
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ejcache.cache.appended_log import AppendedLog
from ejcache.errors import MALFORMED
from ejcache.util.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["LARGE_CONSTANT", "recall_programs", "remember_program"]

LARGE_CONSTANT: Final = "// large constant "
"""Begins a line after a text: the digest of a constant whose elements the text leaves out, in their order."""

_LOG: Final = AppendedLog("programs", limit=8_000_000)
_LARGEST: Final = 8_000_000
"""Characters of a text; what compiles a larger program has worse to explain than its source lines."""
_LARGEST_LINE: Final = 2_000_000
_MANY: Final = 4096

# The programs that this process has logged: some are compiled over and over.
_logged: set[tuple[str, str]] = set()
_lock: Final = ForkLock()


def remember_program(computation: str, text: str) -> None:
    """Log a program's text; does nothing if it is very large, or the log cannot be written."""
    if len(text) > _LARGEST:
        return
    this = str(_LOG.path), computation
    with _lock:
        if this in _logged:
            return
        if len(_logged) >= _MANY:
            _logged.clear()
        _logged.add(this)
    packed = base64.b64encode(zlib.compress(text.encode(), 1)).decode()
    if len(packed) < _LARGEST_LINE:
        _LOG.append(json.dumps({"computation": computation, "text": packed}, separators=(",", ":")).encode())


def recall_programs(computations: Collection[str]) -> dict[str, str]:
    """The texts of those of these programs that the log holds, by digest."""
    wanted = {f'{{"computation":"{computation}"'.encode(): computation for computation in computations if computation}
    found: dict[str, str] = {}
    for line in _LOG.lines() if wanted else ():
        computation = wanted.get(line.partition(b",")[0])
        if computation is None or computation in found:
            continue
        with suppress(zlib.error, *MALFORMED):
            packed = base64.b64decode(json.loads(line)["text"], validate=True)
            # A line may be cut, and may unpack to anything.
            unpacking = zlib.decompressobj()
            text = unpacking.decompress(packed, 4 * _LARGEST)
            if unpacking.eof:
                found[computation] = text.decode()
    return found
