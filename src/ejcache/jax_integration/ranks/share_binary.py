"""An executable that one process compiles and sends to all that a program spans (`jax_share_binary_between_hosts`)."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any, Protocol

from ejcache import entry, entry_encoding
from ejcache.cache.counters import count_miss
from ejcache.errors import StoreError
from ejcache.jax_integration.seam import compiling
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.seam.coordination_service import WITHDRAWN
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.jax_integration.compilation import Compilation
    from ejcache.jax_integration.program import LoweredProgram
    from ejcache.jax_integration.seam.coordination_service import CoordinationClient


class StoreReceived(Protocol):
    """Stores an executable that another process has compiled: `Publisher.publish` of one compilation."""

    def __call__(self, executable: Any, *, compile_seconds: float, raw: bytes) -> object: ...


def share(
    compilation: Compilation,
    program: LoweredProgram,
    coordination: CoordinationClient,
    *,
    note_origin: Callable[[Any, Compilation, str], None],
    first_process: int,
    compile_here: Callable[[], Any],
    store: StoreReceived,
) -> Any:
    """Return the executable: compiled on the first process, and on each process that does not receive it in time.

    It is shared by key and ordered device ids. JAX does so by key alone: a permuted mesh has the same key where the
    device assignment is not part of it, and JAX then returns the other mesh's executable. Each process loads the bytes
    itself, with its own callbacks. They travel in an entry's envelope, so that damaged ones are not loaded.

    Args:
        compilation: which missed.
        program: what to compile.
        coordination: the job's coordination service.
        note_origin: remembers which entry an executable came from.
        first_process: the process that compiles.
        compile_here: compiles in this process.
        store: called in the other processes with what they received.
    """
    devices = hashlib.sha256(repr(compilation.device_ids).encode()).hexdigest()[:16]
    name = f"ejcache/share/{compilation.text}/{devices}"
    if coordination.process == first_process:
        return _send(compilation, coordination, name, compile_here)
    try:
        value = coordination.get(
            name,
            timeout=compilation.settings.share_binary_timeout_ms / 1000,
            what=f"the first process, which compiles {program.name}",
        )
        received = None
        if value is not None and value != WITHDRAWN:
            received = entry.decode(value, key=name, kind="executable")
            executable = seam.load_executable(received.raw, program.placement)
            note_origin(executable, compilation, compilation.text)
    except Exception as exc:
        compilation.report_failure("receive an executable from another process", exc)
        received = None
    if received is None:
        log.info("ejcache: %s did not come from the first process, so it is compiled here", program.name)
        return compile_here()
    count_miss(compilation.cache, compilation.miss)
    store(executable, compile_seconds=received.header.compile_seconds, raw=received.raw)
    return executable


def _send(
    compilation: Compilation, coordination: CoordinationClient, name: str, compile_here: Callable[[], Any]
) -> Any:
    """Compile, and send the bytes to the others, or tell them at once that there are none to wait for."""
    started = time.monotonic()
    try:
        executable = compile_here()
    except BaseException:
        _withdraw(coordination, name)
        raise
    header = entry.Header(key=name, compile_seconds=time.monotonic() - started)
    try:
        # False where the name is set already, by an earlier compilation or before the cache was enabled anew.
        coordination.set_once(name, entry_encoding.encode(header, compiling.serialize_executable(executable)))
    except Exception as exc:
        _withdraw(coordination, name)
        compilation.report_failure("send an executable to the other processes", exc)
    return executable


def _withdraw(coordination: CoordinationClient, name: str) -> None:
    try:
        coordination.set_once(name, WITHDRAWN)
    except StoreError as exc:
        log.debug("ejcache: the processes that wait for %s could not be told that it does not come: %s", name, exc)
