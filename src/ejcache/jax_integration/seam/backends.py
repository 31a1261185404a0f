"""JAX's backends, devices of a topology, and the service that the processes of a job share: a part of the seam.

When JAX has made a backend, and what loads an executable ahead of JAX's own request: a part of the seam.

JAX makes its backends in `jax._src.xla_bridge.backends`, under a lock, by a call of `_init_backend` for each platform.
That function is replaced by one that tells the watchers of the result, so that nobody here ever asks for a backend:
asking makes one, and takes JAX's locks. JAX holds its lock meanwhile, so a watcher must not ask for a backend either,
nor wait for another thread or another machine.

Read for this: jax 0.10.2 and 0.12.0.1, `xla_bridge.py` and `interpreters/pxla.py`.

Devices of a topology, which a process can compile for without having them: a part of the seam.

Read for this: jax 0.10.2 and 0.12.0.1, `jax/experimental/topologies.py` and `xla_bridge.py`.

JAX's coordination service: a key-value store that every process of a `jax.distributed` job can reach.

The service keeps a value under a name for as long as the job runs and refuses to change it. A value that several
processes try to set is therefore the same for all of them: exactly one of them sets it, and the others read that one.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import jax
from jax._src import distributed as jax_distributed
from jax._src import xla_bridge
from jax._src.lib import _jax, xla_client

from ejcache.errors import StoreUnavailableError, UsageError
from ejcache.jax_integration.program import Placement
from ejcache.jax_integration.seam.tracebacks import without_our_frames
from ejcache.util.log import LONG_WAIT, log, say_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_lock = threading.Lock()
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
    """Return what JAX would load an executable for; None if the client lacks a device, or the options are for others.

    Raises whatever XLA raises for options that it cannot read.

    Args:
        client: the PJRT client.
        options: from `raw_options`.
        devices: ids, in the order of the device assignment.
    """
    by_id = {device.id: device for device in client.local_devices()}
    if not all(device in by_id for device in devices):
        return None
    parsed = _parsed(options)
    build = parsed.executable_build_options
    # XLA ends the process where options that it was given name no devices.
    if build.device_assignment is None or build.num_replicas * build.num_partitions != len(devices):
        return None
    assigned = _jax.DeviceList(tuple(by_id[device] for device in devices))
    return Placement(client, assigned, parsed)


@functools.lru_cache(maxsize=8)
def _parsed(options: bytes) -> Any:
    # The programs of a process share them, and XLA takes a copy.
    return xla_client.CompileOptions.ParseFromString(options)


def load_ahead(client: Any, serialized: bytes, options: bytes, devices: Sequence[int]) -> tuple[Any, Any] | None:
    """The executable as JAX would load it for these devices, and their list; None if the client lacks one of them.

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
    return client.deserialize_executable(serialized, placement.devices, placement.options), placement.devices


Devices = Sequence[Any]


def absent_devices(platform: str, topology: bytes) -> Devices:
    """The devices of a serialised topology.

    Raises:
        UsageError: this JAX cannot read one, or has no compiler for its platform.
    """
    from jax.experimental import topologies

    read = getattr(topologies.TopologyDescription, "deserialize", None)
    if read is None:
        raise UsageError("this JAX cannot read a saved topology; JAX 0.11 or later can")
    try:
        return list(read(topology).devices)
    except Exception as exc:
        raise UsageError(f"this JAX has no compiler for a topology of {platform}: {exc}") from exc


def named_devices(platform: str, name: str, options: Mapping[str, Any]) -> Devices:
    """The devices of a topology that the platform's plug-in knows by name.

    Raises:
        UsageError: there is no such topology, or no plug-in.
    """
    from jax.experimental import topologies

    try:
        return list(topologies.get_topology_desc(name, platform, **options).devices)
    except Exception as exc:
        raise UsageError(f"this installation does not know the topology {name} of {platform}: {exc}") from exc


def runtime_version() -> int:
    """The version of the CUDA runtime that the plug-in was built with, as CUDA counts; 0 without a plug-in."""
    for module in ("jax_cuda13_plugin", "jax_cuda12_plugin"):
        try:
            versions = __import__(f"{module}._versions", fromlist=["_versions"])
            return int(versions.cuda_runtime_build_version())
        except (ImportError, AttributeError, RuntimeError):
            continue
    return 0


def peak_memory(executable: Any) -> int:
    """Bytes of a device's memory that a run of the executable needs at its peak; 0 if XLA does not say."""
    stats = executable.get_compiled_memory_stats()
    peak = int(getattr(stats, "peak_memory_in_bytes", 0) or 0)
    whole = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    return peak or int(whole - stats.alias_size_in_bytes)


def initialize_job() -> None:
    """Join the job of this process, as its environment describes it, unless it has joined already."""
    import jax

    if jax_distributed.global_state.client is None:
        jax.distributed.initialize()


WITHDRAWN: Final = b"-"
"""The value of a name whose owner has nothing to send, so that the processes that wait for it stop waiting."""


class CoordinationClient:
    """Values under names, for all processes of a job. Safe to use from several threads.

    Args:
        client: JAX's own client of the service.
        process: the index of this process.
        processes: how many processes the job has.
        say_after: seconds of waiting after which a line says for what.
    """

    def __init__(self, client: Any, *, process: int = 0, processes: int = 1, say_after: float = LONG_WAIT) -> None:
        self._client = client
        self.process = process
        self.processes = processes
        self._say_after = say_after

    def is_of_job(self, other: CoordinationClient) -> bool:
        """True if both are clients of one job."""
        return self._client is other._client

    def set_once(self, name: str, value: bytes) -> bool:
        """Set a value; False if the name has one. Of several processes that set a name, exactly one gets True.

        Raises:
            StoreUnavailableError: the service cannot be reached.
        """
        try:
            self._client.key_value_set_bytes(name, value)
        except Exception as exc:
            if "ALREADY_EXISTS" in str(exc):
                return False
            raise StoreUnavailableError(f"the job's coordination service failed: {exc}") from exc
        return True

    def get(self, name: str, *, timeout: float, what: str = "") -> bytes | None:
        """The value of a name, or None if no process sets it within `timeout` seconds.

        Args:
            name: of the value.
            timeout: seconds to wait at most.
            what: who is waited for, and what that process does; logged if it takes long.

        Raises:
            StoreUnavailableError: the service cannot be reached.
        """
        silent = min(timeout, self._say_after) if what else timeout
        value = self._get(name, silent)
        if value is not None or silent >= timeout:
            return value
        say_waiting(what, so_far=silent, limit=timeout)
        return self._get(name, timeout - silent)

    def _get(self, name: str, timeout: float) -> bytes | None:
        try:
            return bytes(self._client.blocking_key_value_get_bytes(name, max(1, int(timeout * 1000))))
        except Exception as exc:
            if "DEADLINE_EXCEEDED" in str(exc) or "NOT_FOUND" in str(exc):
                return None
            raise StoreUnavailableError(f"the job's coordination service failed: {exc}") from exc

    def list(self, directory: str) -> dict[str, bytes]:
        """The values set so far under `directory`, by the part of the name that follows it.

        Raises:
            StoreUnavailableError: the service cannot be reached.
        """
        try:
            found = self._client.key_value_dir_get_bytes(directory)
        except Exception as exc:
            raise StoreUnavailableError(f"the job's coordination service failed: {exc}") from exc
        return {name.rpartition("/")[2]: bytes(value) for name, value in found}


def coordination_client() -> CoordinationClient | None:
    """The job's client; None in a program of one process and before `jax.distributed.initialize()`."""
    state = jax_distributed.global_state
    processes = int(state.num_processes or 1)
    if state.client is None or processes < 2:
        return None
    return CoordinationClient(state.client, process=process_index(), processes=processes)


def process_index() -> int:
    """The index of this process in its job; 0 in a program of one process."""
    return int(jax_distributed.global_state.process_id or 0)
