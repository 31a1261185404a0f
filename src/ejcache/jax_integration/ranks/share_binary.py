"""Sends an executable that one process compiles to all that a program spans (`jax_share_binary_between_hosts`)."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

from ejcache import entry
from ejcache.errors import StoreError
from ejcache.jax_integration.compilation import LoadedExecutable
from ejcache.jax_integration.seam import compiling
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.seam.coordination_service import WITHDRAWN
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.jax_integration.compilation import Compilation
    from ejcache.jax_integration.seam.coordination_service import CoordinationClient


def receive(compilation: Compilation, coordination: CoordinationClient) -> LoadedExecutable | None:
    """Return what the first process of a program has compiled; None if it does not come in time, or cannot be loaded.

    It is shared by key and ordered device ids. JAX does so by key alone: a permuted mesh has the same key where the
    device assignment is not part of it, and JAX then returns the other mesh's executable. Each process loads the bytes
    itself, with its own callbacks. They travel in an entry's envelope, so that damaged ones are not loaded.

    Args:
        compilation: which missed.
        coordination: the job's coordination service.
    """
    name, began = _name(compilation), time.monotonic()
    try:
        value = coordination.get(
            name,
            timeout=compilation.settings.share_binary_timeout_ms / 1000,
            what=f"the first process, which compiles {compilation.name}",
        )
        if value is not None and value != WITHDRAWN:
            received = entry.decode(value, key=name, kind="executable")
            executable = seam.load_executable(received.raw, compilation.placement)
            seconds = time.monotonic() - began
            return LoadedExecutable(executable, compilation.text, received.header, received.raw, seconds)
    except Exception as exc:
        compilation.report_failure("receive an executable from another process", exc)
    log.info("ejcache: %s did not come from the first process, so it is compiled here", compilation.name)
    return None


def send(compilation: Compilation, coordination: CoordinationClient, compile_here: Callable[[], Any]) -> Any:
    """Compile, and send the bytes to the others, or tell them at once that there are none to wait for.

    Args:
        compilation: which missed.
        coordination: the job's coordination service.
        compile_here: compiles in this process.
    """
    name, started = _name(compilation), time.monotonic()
    try:
        executable = compile_here()
    except BaseException:
        _withdraw(coordination, name)
        raise
    header = entry.Header(key=name, compile_seconds=time.monotonic() - started)
    try:
        raw = compiling.serialize_executable(executable)
        # False where the name is set already, by an earlier compilation or before the cache was enabled anew.
        coordination.set_once(name, entry.encode(header, raw))
    except Exception as exc:
        _withdraw(coordination, name)
        compilation.report_failure("send an executable to the other processes", exc)
    return executable


def _name(compilation: Compilation) -> str:
    devices = hashlib.sha256(repr(compilation.device_ids).encode()).hexdigest()[:16]
    return f"ejcache/share/{compilation.text}/{devices}"


def _withdraw(coordination: CoordinationClient, name: str) -> None:
    try:
        coordination.set_once(name, WITHDRAWN)
    except StoreError as exc:
        log.debug("ejcache: the processes that wait for %s could not be told that it does not come: %s", name, exc)
