"""Every touch of JAX's internals.

JAX decides what to do with its persistent cache in `jax._src.compiler`: `compile_or_get_cached` asks
`_get_cache_key` (eligibility and key), `_is_executable_in_cache` (PGLE preference), `_share_fdo_profiles` (PGLE over
several processes), `_cache_read`, and then `_compile_and_write_cache` or `_compile_and_share_module`. These six are
replaced, because the rank-0 gate, whole seconds, the platform list and the double read live in them; everything around
them (donation, shardings, monitoring events, PGLE, module dumps) stays JAX's own.

`mismatches` says whether this JAX is built as expected. If it is not, nothing is replaced.

Read for this: jax 0.10.2 and 0.12.0.1, `compiler.py`, `compilation_cache.py`, `cache_key.py`, `config.py`.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import pathlib
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

import jaxlib.version
from jax._src import cache_key as jax_cache_key
from jax._src import compilation_cache as jax_cache
from jax._src import compiler as jax_compiler
from jax._src import config as jax_config
from jax._src import distributed as jax_distributed
from jax._src import monitoring as jax_monitoring
from jax._src.compilation_cache_interface import CacheInterface
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jaxlib import _hlo

from ejcache.jaxside.request import Request, Target
from ejcache.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Hooks",
    "compile_executable",
    "install",
    "jaxlib_version",
    "load_executable",
    "mismatches",
    "uninstall",
]

log = logging.getLogger("ejcache")

_PARAMETERS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "_get_cache_key": (("options", "backend", "computation", "devices", "override_fdo_profile"),),
    "_is_executable_in_cache": (("backend", "cache_key"),),
    "_cache_read": (
        ("module_name", "cache_key", "compile_options", "backend", "executable_devices"),
        ("module_name", "cache_key", "compile_options", "backend", "executable_devices", "host_callbacks"),
    ),
    "_compile_and_write_cache": (
        (
            "backend",
            "computation",
            "executable_devices",
            "compile_options",
            "host_callbacks",
            "module_name",
            "cache_key",
        ),
    ),
    "_compile_and_share_module": (
        (
            "backend",
            "computation",
            "executable_devices",
            "compile_options",
            "host_callbacks",
            "global_client",
            "module_name",
            "cache_key",
            "first_process_id",
        ),
    ),
    "_share_fdo_profiles": (
        ("computation", "devices", "compile_options", "backend", "global_client", "min_process_id"),
    ),
}
"""The functions of `jax._src.compiler` that are replaced, with the parameters they may have."""

_CALLERS: Final[dict[str, tuple[str, ...]]] = {
    "compile_or_get_cached": (
        "_resolve_compilation_strategy",
        "_cache_read",
        "_compile_and_write_cache",
        "_compile_and_share_module",
    ),
    "_resolve_compilation_strategy": ("_get_cache_key", "_is_executable_in_cache", "_share_fdo_profiles"),
}
"""Who must look the replaced functions up in the module, or replacing them changes nothing."""

_USED: Final[dict[Any, tuple[str, ...]]] = {
    jax_compiler: ("backend_compile_and_load", "get_compile_options"),
    jax_cache: ("reset_cache", "_cache", "_cache_initialized", "_UNSUPPORTED_RUNTIMES", "is_persistent_cache_enabled"),
    jax_cache_key: (
        "_hash_serialized_compile_options",
        "_hash_accelerator_config",
        "custom_hook",
        "get_flag_prefixes",
    ),
    jax_config: ("config", "config_states"),
}


class Hooks(Protocol):
    """What takes the place of JAX's cache."""

    def make_key(
        self, *, module: Any, devices: Any, options: Any, backend: Any, profile_sentinel: bytes | None
    ) -> str | None:
        """The key of this compilation, or None to leave the cache out of it."""

    def contains(self, key: str) -> bool:
        """Whether an entry stands under `key`."""

    def read(self, key: str, target: Target) -> Any:
        """The loaded executable and its compile time in seconds, or (None, None)."""

    def compile(self, request: Request) -> Any:
        """Compile after a miss, and keep the result."""

    def share(self, request: Request, *, client: Any, first_process: int) -> Any:
        """Compile a program that spans processes once for all of them."""

    def share_profile(
        self, *, module: Any, devices: tuple[int, ...], options: Any, client: Any, first_process: int
    ) -> bytes:
        """The profile that every process of this program compiles with; empty for none."""

    def xla_caches(self, backend: Any) -> dict[str, str]:
        """Values of XLA's options that say where its own caches are, by name; those that lack are left alone."""

    def reset(self) -> None:
        """JAX's `reset_cache()` was called."""

    def get(self, key: str) -> bytes | None:
        """Bytes for code that asks JAX's cache object itself."""

    def put(self, key: str, value: bytes) -> None:
        """Bytes from code that asks JAX's cache object itself."""


def mismatches() -> list[str]:
    """How this JAX differs from what is replaced here; empty if it does not."""
    found = [
        f"{module.__name__}.{name} is gone"
        for module, names in _USED.items()
        for name in names
        if not hasattr(module, name)
    ]
    for name, accepted in _PARAMETERS.items():
        function = _original(name)
        if function is None:
            found.append(f"jax._src.compiler.{name} is gone")
        elif tuple(inspect.signature(function).parameters) not in accepted:
            found.append(f"jax._src.compiler.{name} takes {tuple(inspect.signature(function).parameters)}")
    for caller, callees in _CALLERS.items():
        code = getattr(getattr(jax_compiler, caller, None), "__code__", None)
        missing = [callee for callee in callees if code is None or callee not in code.co_names]
        found += [f"jax._src.compiler.{caller} does not call {callee}" for callee in missing]
    states = getattr(jax_config, "config_states", {})
    found += [
        f"the flag {setting.flag} is gone"
        for setting in SETTINGS
        if setting.flag in _NEEDED_FLAGS and not hasattr(states.get(setting.flag), "_update_global_hook")
    ]
    return found


_NEEDED_FLAGS: Final = frozenset(
    {
        "jax_compilation_cache_dir",
        "jax_enable_compilation_cache",
        "jax_compilation_cache_max_size",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    }
)


# -- replacing -----------------------------------------------------------------------------------------------------

_originals: dict[str, Any] = {}
_lock = threading.Lock()

_XLA_CACHE_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    # JAX lets process 0 alone write, because the directory is shared; here each process has its own.
    "xla_gpu_per_fusion_autotune_cache_dir": {
        "xla_gpu_experimental_autotune_cache_mode": xla_client.AutotuneCacheMode.UPDATE
    },
    "xla_gpu_kernel_cache_file": {"xla_gpu_enable_llvm_module_compilation_parallelism": True},
}
"""What JAX sets beside the path of a cache, in those versions that do."""


class _StandIn(CacheInterface):  # type: ignore[misc]  # JAX's base class is untyped
    """Sits where JAX keeps its cache object.

    `reset_cache()` may have been imported by name before activation and cannot be replaced there; it drops this
    object, and that it is gone is how the reset is noticed.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._path = pathlib.Path("ejcache")

    def get(self, key: str) -> bytes | None:
        return self._hooks.get(key)

    def put(self, key: str, value: bytes) -> None:
        self._hooks.put(key, value)


def install(hooks: Hooks) -> None:
    """Put `hooks` in the place of JAX's cache; `mismatches` must be empty."""
    with _lock:
        if _originals:
            raise RuntimeError("the seam is already in use")
        for name in _PARAMETERS:
            _originals[name] = getattr(jax_compiler, name)
        was_enabled = _originals["is_persistent_cache_enabled"] = jax_cache.is_persistent_cache_enabled
        compile_options = _originals["get_compile_options"] = jax_compiler.get_compile_options
        options_known = compile_options.__code__.co_names
        reads_callbacks = "host_callbacks" in inspect.signature(_originals["_cache_read"]).parameters
        _seat(hooks)

        def get_cache_key(
            options: Any, backend: Any, computation: Any, devices: Any, override_fdo_profile: bytes | None = None
        ) -> str | None:
            if not isinstance(jax_cache._cache, _StandIn):
                hooks.reset()
                _seat(hooks)
            return hooks.make_key(
                module=computation,
                devices=devices,
                options=options,
                backend=backend,
                profile_sentinel=override_fdo_profile,
            )

        def is_executable_in_cache(backend: Any, cache_key: str) -> bool:  # noqa: ARG001 (JAX's signature)
            return hooks.contains(cache_key)

        def cache_read(
            module_name: str,  # noqa: ARG001 (JAX's signature)
            cache_key: str,
            compile_options: Any,
            backend: Any,
            executable_devices: Any,
            host_callbacks: Sequence[Any] = (),
        ) -> Any:
            target = Target(
                backend=backend,
                devices=executable_devices,
                options=compile_options,
                callbacks=host_callbacks if reads_callbacks else (),
            )
            return hooks.read(cache_key, target)

        def request_of(
            backend: Any,
            computation: Any,
            executable_devices: Any,
            compile_options: Any,
            host_callbacks: Sequence[Any],
            module_name: str,
            cache_key: str,
        ) -> Request:
            target = Target(
                backend=backend, devices=executable_devices, options=compile_options, callbacks=host_callbacks
            )
            return Request(key=cache_key, module=computation, module_name=module_name, target=target)

        def compile_and_write_cache(
            backend: Any,
            computation: Any,
            executable_devices: Any,
            compile_options: Any,
            host_callbacks: Sequence[Any],
            module_name: str,
            cache_key: str,
        ) -> Any:
            return hooks.compile(
                request_of(
                    backend, computation, executable_devices, compile_options, host_callbacks, module_name, cache_key
                )
            )

        def compile_and_share_module(
            backend: Any,
            computation: Any,
            executable_devices: Any,
            compile_options: Any,
            host_callbacks: Sequence[Any],
            global_client: Any,
            module_name: str,
            cache_key: str,
            first_process_id: int,
        ) -> Any:
            request = request_of(
                backend, computation, executable_devices, compile_options, host_callbacks, module_name, cache_key
            )
            return hooks.share(request, client=global_client, first_process=first_process_id)

        def share_fdo_profiles(
            computation: Any,
            devices: Any,
            compile_options: Any,
            backend: Any,  # noqa: ARG001 (JAX's signature)
            global_client: Any,
            min_process_id: int,
        ) -> bytes:
            return hooks.share_profile(
                module=computation,
                devices=tuple(device.id for device in devices.flat),
                options=compile_options,
                client=global_client,
                first_process=min_process_id,
            )

        making_options = threading.local()

        def is_persistent_cache_enabled() -> bool:
            # Asked before XLA's own caches are put below the directory, which aborts for a URL: those are not JAX's.
            return bool(was_enabled()) and not getattr(making_options, "now", False)

        def get_compile_options(*arguments: Any, **named: Any) -> Any:
            making_options.now = True
            try:
                options = compile_options(*arguments, **named)
            finally:
                making_options.now = False
            debug = options.executable_build_options.debug_options
            for name, path in hooks.xla_caches(named.get("backend")).items():
                setattr(debug, name, path)
                for option, value in _XLA_CACHE_OPTIONS.get(name, {}).items():
                    if option in options_known:
                        setattr(debug, option, value)
            return options

        jax_cache.is_persistent_cache_enabled = is_persistent_cache_enabled
        jax_compiler.get_compile_options = get_compile_options
        jax_compiler._get_cache_key = get_cache_key
        jax_compiler._is_executable_in_cache = is_executable_in_cache
        jax_compiler._cache_read = cache_read
        jax_compiler._compile_and_write_cache = compile_and_write_cache
        jax_compiler._compile_and_share_module = compile_and_share_module
        jax_compiler._share_fdo_profiles = share_fdo_profiles


def uninstall() -> None:
    """Give JAX its own cache back, not yet opened, so that it goes by the flags as they are now."""
    with _lock:
        if not _originals:
            return
        jax_cache.is_persistent_cache_enabled = _originals.pop("is_persistent_cache_enabled")
        for name, function in _originals.items():
            setattr(jax_compiler, name, function)
        _originals.clear()
        if isinstance(jax_cache._cache, _StandIn):
            jax_cache.reset_cache()


def callbacks_are_cacheable() -> bool:
    """Whether this JAX restores host callbacks with an executable (0.11 and later do)."""
    return "host_callbacks" in inspect.signature(_original("_cache_read")).parameters


def _seat(hooks: Hooks) -> None:
    jax_cache._cache = _StandIn(hooks)
    jax_cache._cache_initialized = True


def _original(name: str) -> Any:
    return _originals.get(name) or getattr(jax_compiler, name, None)


# -- what the hooks need of JAX ------------------------------------------------------------------------------------


def jaxlib_version() -> str:
    """As JAX's own key has it."""
    return str(jaxlib.version.__version__)


def module_name(module: Any) -> str:
    """The module's symbol name, `jit_train_step`."""
    return str(ir.StringAttr(module.operation.attributes["sym_name"]).value)


def signature(module: Any) -> str:
    """The types of the program's arguments and results; empty if it has no main function."""
    for operation in module.body.operations:
        attributes = operation.operation.attributes
        if "function_type" in attributes and ir.StringAttr(attributes["sym_name"]).value == "main":
            return str(ir.TypeAttr(attributes["function_type"]).value)
    return ""


def compile_executable(module: Any, target: Target) -> Any:
    """Compile as JAX does."""
    return jax_compiler.backend_compile_and_load(
        target.backend, module, target.devices, target.options, target.callbacks
    )


def load_executable(serialized: bytes, target: Target) -> Any:
    """Deserialise; raises what XLA raises if it will not have it."""
    callbacks = (target.callbacks,) if target.callbacks else ()  # JAX 0.10 takes none at all
    return target.backend.deserialize_executable(serialized, target.devices, target.options, *callbacks)


def serialize_executable(executable: Any) -> bytes:
    """The bytes that `load_executable` takes."""
    return bytes(executable.serialize())


def optimised_program(executable: Any) -> str:
    """The HLO that XLA made of a program, without what does not run: names of files and lines."""
    options = _hlo.HloPrintOptions.canonical()
    options.print_metadata = False
    options.print_large_constants = True
    return "\n".join(module.to_string(options) for module in executable.hlo_modules())


def verification_error(key: str, stored: bytes, fresh: bytes) -> Exception:
    """JAX's own error for an entry that is not what a fresh compilation gives."""
    error: Exception = jax_cache.CacheVerificationError(
        f"Persistent compilation cache inconsistency for key {key}. The executable found in the cache is not the one "
        "that a fresh compilation gives; it has been taken out.",
        key,
        stored,
        fresh,
    )
    return error


def can_serialize(backend: Any) -> bool:
    """Whether this backend's executables can be kept: any PJRT platform that says so, not a list of names."""
    return bool(getattr(backend, "supports_executable_serialization", True)) and (
        getattr(backend, "runtime_type", None) not in jax_cache._UNSUPPORTED_RUNTIMES
    )


def record_event(name: str) -> None:
    """A monitoring event of JAX's, for those who listen."""
    jax_monitoring.record_event(name)


def coordination_client() -> Any:
    """The client of JAX's coordination service, or None without `jax.distributed`."""
    return jax_distributed.global_state.client


def process_index() -> int:
    """This process's place in `jax.distributed`; 0 without it."""
    return int(jax_distributed.global_state.process_id or 0)


def serialized_options(options: Any) -> bytes:
    """The compile options as JAX's own key has them, the device assignment put in order on every platform.

    JAX strips the assignment on GPU only; elsewhere a rank's own device ids kept it from every other rank's entries.
    """
    collected: list[bytes] = []

    class Collector:
        def update(self, data: bytes) -> None:
            collected.append(data)

    jax_cache_key._hash_serialized_compile_options(Collector(), options, strip_device_assignment=True)
    return b"".join(collected)


def extra_flag_prefixes() -> tuple[str, ...]:
    """Beginnings of command line arguments that a user has added to the key."""
    return tuple(jax_cache_key.get_flag_prefixes())


def topology_bytes(devices: Any) -> bytes | None:
    """The serialised topology of `devices`, where this jaxlib gives it (0.11 and later)."""
    topology = xla_client.get_topology_for_devices(list(devices.flat))
    serialize = getattr(topology, "serialize", None)
    return bytes(serialize()) if serialize is not None else None


def topology_fingerprint(devices: Any) -> str:
    """The topology as JAX's own key has it."""
    hasher = hashlib.sha256()
    jax_cache_key._hash_accelerator_config(hasher, devices)
    return hasher.hexdigest()


def custom_hook() -> str:
    """What a user's hook adds to the key."""
    return str(jax_cache_key.custom_hook())
