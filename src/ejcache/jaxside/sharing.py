"""`jax_share_binary_between_hosts`: one process compiles a program that spans several, the others take what it made."""

from __future__ import annotations

import hashlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from ejcache import entry
from ejcache.jaxside import seam

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.jaxside.request import Request
    from ejcache.settings import Settings

__all__ = ["Sharing"]

log = logging.getLogger("ejcache")

_WITHDRAWN: Final = b"-"
"""Stands for an executable that does not come; no entry begins like this."""


class Sharing:
    """What was shared, under the key and the ordered device ids.

    JAX keeps it under the key alone; a permuted mesh has the same key where the device assignment is stripped from it,
    and got the other mesh's executable.

    Of a program that calls back into Python only the bytes are kept: a loaded executable is bound to the functions that
    it was loaded with, and programs that differ in nothing but those have one key.

    Args:
        settings: the settings now.
        trouble: is told what could not be done.
    """

    def __init__(self, *, settings: Callable[[], Settings], trouble: Callable[[str, Exception], None]) -> None:
        self._settings = settings
        self._trouble = trouble
        self._loaded: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._bytes: dict[tuple[str, tuple[int, ...]], bytes] = {}

    def again(self, request: Request) -> Any:
        """The executable, if it has been shared before in this process; or None."""
        memo = str(request.key), request.target.device_ids
        if memo in self._loaded:
            return self._loaded[memo]
        if memo in self._bytes:
            try:
                return seam.load_executable(self._bytes[memo], request.target)
            except Exception as exc:
                self._trouble("load a shared executable again", exc)
        return None

    def run(
        self,
        request: Request,
        *,
        client: Any,
        first_process: int,
        compile_here: Callable[[], Any],
        received: Callable[[Any, bytes, float], None],
    ) -> Any:
        """The executable where it is new; compiled on the first process, and wherever its bytes do not come in time.

        `received` is called with an executable that came, its bytes, and the seconds that it took to compile. They
        travel in an entry's envelope, so that what the service damages is not loaded.
        """
        key, ids = str(request.key), request.target.device_ids
        name = f"ejcache/share/{key}/{hashlib.sha256(repr(ids).encode()).hexdigest()[:16]}"
        if seam.process_index() == first_process:
            executable, raw = self._give(client, name, compile_here)
        else:
            executable, raw = self._take(client, name, request, compile_here, received)
        if not request.target.callbacks:
            self._loaded[key, ids] = executable
        elif raw is not None:
            self._bytes[key, ids] = raw
        return executable

    def _give(self, client: Any, name: str, compile_here: Callable[[], Any]) -> tuple[Any, bytes | None]:
        """Compile, and hand the bytes to the others; or let them know at once that none will come."""
        started = time.monotonic()
        try:
            executable = compile_here()
        except BaseException:
            self._post(client, name, _WITHDRAWN)
            raise
        header = entry.Header(key=name, compile_seconds=time.monotonic() - started)
        raw = None
        try:
            raw = seam.serialize_executable(executable)
            client.key_value_set_bytes(name, entry.encode(header, raw))
        except Exception as exc:
            if not _stands(exc):
                self._post(client, name, _WITHDRAWN)
                self._trouble("hand an executable to the other processes", exc)
        return executable, raw

    def _take(
        self,
        client: Any,
        name: str,
        request: Request,
        compile_here: Callable[[], Any],
        received: Callable[[Any, bytes, float], None],
    ) -> tuple[Any, bytes | None]:
        """What the first process made; compiled here if it does not come."""
        patience = max(1, self._settings().share_binary_timeout_ms)
        try:
            note = client.blocking_key_value_get_bytes(name, patience)
            came = entry.decode(note, key=name) if note != _WITHDRAWN else None
            executable = seam.load_executable(came.raw, request.target) if came is not None else None
        except Exception as exc:
            self._trouble("take an executable from another process", exc)
            came = executable = None
        if came is None:
            log.info("ejcache: %s did not come from the first process, so it is compiled here", request.module_name)
            return compile_here(), None
        received(executable, came.raw, came.header.compile_seconds)
        return executable, came.raw

    def _post(self, client: Any, name: str, note: bytes) -> None:
        try:
            client.key_value_set_bytes(name, note)
        except Exception as exc:
            log.debug("ejcache: %s could not be withdrawn: %s", name, exc)


def _stands(exc: Exception) -> bool:
    """Whether a note of this name is up already: from before the cache was enabled anew, or an earlier failure."""
    return "ALREADY_EXISTS" in str(exc)
