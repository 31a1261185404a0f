"""Tells when JAX has made a backend, and loads executables on it ahead of JAX's own request. A part of the seam.

JAX makes its backends in `jax._src.xla_bridge.backends`, under a lock, by a call of `_init_backend` for each platform.
That function is replaced by one that tells the watchers of the result, so that nobody here ever asks for a backend:
asking makes one, and takes JAX's locks. JAX holds its lock meanwhile, so a watcher must not ask for a backend either,
nor wait for another thread or another machine.

Read for this: jax 0.4.38, 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1, `xla_bridge.py` and `interpreters/pxla.py`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.jax_integration.compilation import Placement
from ejcache.jax_integration.seam.parts import Part
from ejcache.jax_integration.seam.tracebacks import without_our_frames
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


PART: Final = Part(
    "preload",
    {
        "jax._src.distributed": ("global_state",),  # what a job is not known to span is not loaded ahead
        "jax._src.xla_bridge": ("_init_backend",),
        "jax._src.lib.xla_client": ("CompileOptions", "DeviceList"),
    },
)
xla_bridge = PART.module("jax._src.xla_bridge")
xla_client = PART.module("jax._src.lib.xla_client")

_lock = threading.RLock()
_watchers: list[Callable[[Any], object]] = []


def watch(watcher: Callable[[Any], object]) -> None:
    """Call `watcher` with each backend of this process, at once with those that exist, and with later ones when made.

    It may be called twice with one backend. If this JAX makes backends in another way, it is called with none.
    """
    with _lock:
        _watchers.append(watcher)
        original = getattr(xla_bridge, "_init_backend", None)
        if original is not None and not hasattr(original, "original"):
            xla_bridge._init_backend = _telling(original)
    # A dictionary that JAX replaces and fills under its lock, which is not taken here.
    for client in list(getattr(xla_bridge, "_backends", {}).values()):
        watcher(client)


def unwatch(watcher: Callable[[Any], object]) -> None:
    """Undo `watch`."""
    with _lock:
        with contextlib.suppress(ValueError):
            _watchers.remove(watcher)
        original = getattr(getattr(xla_bridge, "_init_backend", None), "original", None)
        if original is not None and not _watchers:
            xla_bridge._init_backend = original


def _telling(original: Any) -> Any:
    @without_our_frames  # of an interrupt; nothing else leaves a watcher
    @functools.wraps(original)
    def init_backend(*arguments: Any, **named: Any) -> Any:
        client = original(*arguments, **named)
        for watcher in _watchers:
            try:
                watcher(client)
            except Exception as exc:
                # JAX must get its backend.
                log.debug("ejcache: a watcher of backends failed: %s", exc)
        return client

    vars(init_backend)["original"] = original
    return init_backend


def frees_clients_at_once() -> bool:
    """True if a debug flag of JAX ends the process if anything still holds a backend when JAX clears its backends."""
    return bool(getattr(jax.config, "jax_debug_leaked_clients_on_clear_backends", False))


def raw_options(options: Any) -> bytes:
    """Compile options as they are, the device assignment included."""
    return bytes(options.SerializeAsString())


def placement_of(client: Any, options: bytes, devices: Sequence[int]) -> Placement | None:
    """Make the placement that JAX would load for; None if the client lacks a device, or the options are for others.

    Raises whatever XLA raises for options that it cannot read.

    Args:
        client: the PJRT client.
        options: from `raw_options`.
        devices: ids, in the order of the device assignment.
    """
    by_id = {device.id: device for device in client.local_devices()}
    if not all(device in by_id for device in devices):
        return None
    parsed = _parse_options(options)
    build = parsed.executable_build_options
    # XLA ends the process where options that it was given name no devices.
    if build.device_assignment is None or build.num_replicas * build.num_partitions != len(devices):
        return None
    assigned = xla_client.DeviceList(tuple(by_id[device] for device in devices))
    return Placement(client, assigned, parsed)


@functools.lru_cache(maxsize=8)
def _parse_options(options: bytes) -> Any:
    # The programs of a process share them, and XLA takes a copy.
    return xla_client.CompileOptions.ParseFromString(options)


def load_ahead(client: Any, serialized: bytes, options: bytes, devices: Sequence[int]) -> tuple[Any, Any] | None:
    """Load an executable as JAX would for these devices; None if the client lacks one of them.

    Raises whatever XLA raises.

    Args:
        client: the PJRT client.
        serialized: the executable.
        options: from `raw_options`.
        devices: ids, in the order of the device assignment.
    """
    placement = placement_of(client, options, devices)
    if placement is None:
        return None
    from ejcache.jax_integration.seam.patch import load_executable  # the door to JAX whose names fit

    return load_executable(serialized, placement), placement.devices
