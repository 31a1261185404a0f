"""Compile options without the paths of XLA's own caches, which each process has for itself."""

from __future__ import annotations

import functools
from typing import Final

from ejcache.keys.xla_messages import CACHE_PATHS, DEBUG_OPTIONS, REMEMBERED, edit, fields_of, without

_FIELDS: Final = fields_of(CACHE_PATHS)


@functools.lru_cache(maxsize=REMEMBERED)
def without_cache_paths(serialized: bytes) -> bytes:
    """Return a `CompileOptionsProto` without the paths of XLA's own caches, which no executable is loaded by.

    Raises:
        ValueError: it is not such a message.
    """
    return edit(serialized, DEBUG_OPTIONS, _debug_options_without_cache_paths)


@functools.lru_cache(maxsize=REMEMBERED)
def _debug_options_without_cache_paths(serialized: bytes) -> bytes:
    return without(serialized, _FIELDS)
