"""Puts the store behind JAX's own cache, for a JAX whose compilations the seam cannot take (`seam/patch.py`).

JAX makes the keys and says what is stored; an entry has JAX's bytes. The store checks, limits, counts and shares them.
"""

from __future__ import annotations

import functools
import hashlib
import time
from typing import TYPE_CHECKING, Final

import jax

from ejcache.cache.stats import count_compilation, count_miss
from ejcache.cache.writing import EntryWriter
from ejcache.entry import Entry, Header
from ejcache.jax_integration.lowering.host_cpu import cpu_identity, cpu_threads
from ejcache.jax_integration.lowering.native_libraries import native_libraries
from ejcache.keys.key import key_behind_jax, parse_any_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.cache.reading import CacheReader
    from ejcache.settings.table import Settings

_FORMAT: Final = "1"
"""Part of every name; a new number makes every older entry unreachable."""


class StoreBehindJax:
    """What JAX asks for the bytes of an executable. A failure of ours is a miss, or an entry that is not stored.

    Args:
        reader: of the cache.
        settings: returns the current settings.
    """

    def __init__(self, reader: CacheReader, settings: Callable[[], Settings]) -> None:
        self._reader = reader
        self._settings = settings
        self._given: set[str] = set()
        self._missed: dict[str, float] = {}

    def get(self, key: str) -> bytes | None:
        """Return the bytes that were put under JAX's key, or None."""
        began, settings = time.monotonic(), self._settings()
        try:
            found = self._reader.read(_name(key, settings.namespace), settings)
        except Exception as exc:
            self._reader.report_failure("read an entry", exc, settings)
            return None
        if not isinstance(found, Entry):
            count_miss(self._reader, found)
            self._missed[key] = time.monotonic()
            return None
        self._given.add(key)
        self._reader.count_hit(found.header, load_seconds=time.monotonic() - began)
        return found.raw

    def put(self, key: str, value: bytes) -> None:
        """Store what JAX has compiled; what it was given under this key before was of no use to it."""
        settings, missed = self._settings(), self._missed.pop(key, None)
        seconds = time.monotonic() - missed if missed is not None else 0.0  # about what compiling took
        name = _name(key, settings.namespace)
        header = Header(
            key=name,
            name=parse_any_key(name).name,
            codec="none",  # JAX has compressed it
            compile_seconds=seconds,
            jax=str(jax.__version__),
        )
        try:
            count_compilation(self._reader, seconds)
            EntryWriter(self._reader).write(header, value, settings, replacing=key in self._given)
        except Exception as exc:
            self._reader.report_failure("write an entry", exc, settings)


def _name(key: str, namespace: str) -> str:
    """Return the key of a store for JAX's key."""
    return key_behind_jax(key, _environment(namespace))


@functools.cache
def _environment(namespace: str) -> str:
    """Digest of what JAX's key lacks: the native libraries by content, the CPU of this host, the namespace.

    JAX does not say for which platform a key is, so the libraries of all plug-ins count, and the CPU for all.
    """
    parts = (_FORMAT, namespace, native_libraries(""), cpu_identity(), cpu_threads())
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
