"""`jax_share_binary_between_hosts`: one process compiles for all that a program spans."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Protocol

from ejcache import entry
from ejcache.errors import StoreError
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.seam.coordination import WITHDRAWN
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.jax_integration.compilation import Compilation
    from ejcache.jax_integration.origins import ExecutableOrigins
    from ejcache.jax_integration.program import LoweredProgram
    from ejcache.jax_integration.seam.coordination import CoordinationClient

__all__ = ["Sharing"]

_MAX_EXECUTABLES: Final = 256
"""Shared executables that are remembered. One that was dropped is loaded again from the coordination service."""


class StoreReceived(Protocol):
    """Stores an executable that another process has compiled: `Publisher.publish` of one compilation."""

    def __call__(self, executable: Any, *, compile_seconds: float, raw: bytes) -> object: ...


class Sharing:
    """Executables that were shared, by key and ordered device ids. Safe to use from several threads.

    JAX remembers them by key alone. A permuted mesh has the same key where the device assignment is not part of it, and
    JAX then returns the other mesh's executable.

    Of a program that calls back into Python only the bytes are remembered: a loaded executable is bound to the
    functions that it was loaded with, and programs that differ in nothing but those have one key.

    Args:
        origins: remembers which entry an executable came from.
    """

    def __init__(self, origins: ExecutableOrigins) -> None:
        self._origins = origins
        self._executables: OrderedDict[tuple[str, tuple[int, ...]], Any] = OrderedDict()

    def cached(self, compilation: Compilation, program: LoweredProgram) -> Any:
        """The executable if this process has shared it before, or None."""
        found = self._executables.get((compilation.text, compilation.device_ids))
        if not isinstance(found, bytes):
            return found
        try:
            return seam.load_executable(found, program.target)
        except Exception as exc:
            compilation.report_failure("load a shared executable again", exc)
            return None

    def run(
        self,
        compilation: Compilation,
        program: LoweredProgram,
        coordination: CoordinationClient,
        *,
        first_process: int,
        compile_here: Callable[[], Any],
        store: StoreReceived,
    ) -> Any:
        """The executable: compiled on the first process, and on each process that does not receive it in time.

        The bytes travel in an entry's envelope, so that bytes that the service damages are not loaded.

        Args:
            compilation: which missed.
            program: what to compile.
            coordination: the job's coordination service.
            first_process: the process that compiles.
            compile_here: compiles in this process.
            store: called in the other processes with what they received.
        """
        ids = compilation.device_ids
        name = f"ejcache/share/{compilation.text}/{hashlib.sha256(repr(ids).encode()).hexdigest()[:16]}"
        if coordination.process == first_process:
            executable, raw = self._send(compilation, coordination, name, compile_here)
        else:
            executable, raw = self._receive(compilation, program, coordination, name, compile_here, store)
        remembered = raw if program.target.callbacks else executable
        if remembered is not None:
            self._executables[compilation.text, ids] = remembered
            while len(self._executables) > _MAX_EXECUTABLES:
                self._executables.popitem(last=False)
        return executable

    def _send(
        self, compilation: Compilation, coordination: CoordinationClient, name: str, compile_here: Callable[[], Any]
    ) -> tuple[Any, bytes | None]:
        """Compile, and send the bytes to the others, or tell them at once that there are none to wait for."""
        started = time.monotonic()
        try:
            executable = compile_here()
        except BaseException:
            _withdraw(coordination, name)
            raise
        header = entry.Header(key=name, compile_seconds=time.monotonic() - started)
        raw = None
        try:
            raw = seam.serialize_executable(executable)
            # False where the name is set already, by an earlier failure or before the cache was enabled anew.
            coordination.set_once(name, entry.encode(header, raw))
        except Exception as exc:
            _withdraw(coordination, name)
            compilation.report_failure("send an executable to the other processes", exc)
        return executable, raw

    def _receive(
        self,
        compilation: Compilation,
        program: LoweredProgram,
        coordination: CoordinationClient,
        name: str,
        compile_here: Callable[[], Any],
        store: StoreReceived,
    ) -> tuple[Any, bytes | None]:
        """The executable of the first process; compiled here if it does not come."""
        received = executable = None
        try:
            value = coordination.get(
                name,
                timeout=compilation.settings.share_binary_timeout_ms / 1000,
                what=f"the first process, which compiles {program.name}",
            )
            if value is not None and value != WITHDRAWN:
                received = entry.decode(value, key=name, kind="executable")
                executable = seam.load_executable(received.raw, program.target)
                self._origins.loaded(executable, compilation, compilation.text)
        except Exception as exc:
            compilation.report_failure("receive an executable from another process", exc)
            received = None
        if received is None:
            log.info("ejcache: %s did not come from the first process, so it is compiled here", program.name)
            return compile_here(), None
        compilation.cache.count_miss(compilation.miss)
        store(executable, compile_seconds=received.header.compile_seconds, raw=received.raw)
        return executable, received.raw


def _withdraw(coordination: CoordinationClient, name: str) -> None:
    try:
        coordination.set_once(name, WITHDRAWN)
    except StoreError as exc:
        log.debug("ejcache: the processes that wait for %s could not be told that it does not come: %s", name, exc)
