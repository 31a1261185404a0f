"""The monkey patch of JAX's persistent cache: functions of `jax._src.compiler` that ejcache replaces.

JAX decides what to do with its persistent cache in `jax._src.compiler`: `compile_or_get_cached` asks
`_get_cache_key` (eligibility and key), `_is_executable_in_cache` (PGLE preference), `_share_fdo_profiles` (PGLE over
several processes), `_cache_read`, and then `_compile_and_write_cache` or `_compile_and_share_module`. These six are
replaced, because they contain the rule that only rank 0 writes, whole seconds, the list of platforms and the double
read. Everything around them (donation, shardings, monitoring events, PGLE, module dumps) stays JAX's own.

`mismatches` says whether this JAX has the functions and flags that the patch expects. If not, nothing is replaced.

Read for this: jax 0.10.2 and 0.12.0.1, `compiler.py`, `compilation_cache.py`, `cache_key.py`, `config.py`.
"""

from __future__ import annotations

import functools
import inspect
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol

import jaxlib.version
from jax._src import cache_key as jax_cache_key
from jax._src import compilation_cache as jax_cache
from jax._src import compiler as jax_compiler
from jax._src import config as jax_config
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax.experimental import serialize_executable as jax_serialization
from jaxlib import _hlo

from ejcache.jax_integration.compilation import KeyRequest, Placement
from ejcache.jax_integration.own_failures import answer
from ejcache.jax_integration.seam import watching
from ejcache.jax_integration.seam.tracebacks import cut_our_frames, register_our_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ejcache.jax_integration.program import LoweredProgram

    class CompileMisses(Protocol):
        """The functions of `jax._src.compiler` that follow a miss; `misses.MissedPrograms` has them."""

        def compile(self, key: str, program: LoweredProgram) -> Any:
            """Compile after a miss, and store the result."""

        def share(self, key: str, program: LoweredProgram, *, first_process: int) -> Any:
            """Compile a program that spans processes once for all of them."""

        def share_profile(self, request: KeyRequest, *, first_process: int) -> bytes:
            """Return the profile with which every process of this program compiles; empty for none."""

    class CompileCache(Protocol):
        """The functions of `jax._src.compiler` that ejcache replaces, up to a hit; `pipeline.Compiler` has them."""

        def make_key(self, request: KeyRequest) -> str | None:
            """Return the key of this compilation, or None to compile it without the cache."""

        def contains(self, key: str) -> bool:
            """True if there is an entry under `key`."""

        def read(self, key: str, placement: Placement) -> Any:
            """Return the loaded executable and its compile time in seconds, or (None, None)."""

        @property
        def misses(self) -> CompileMisses:
            """What answers the questions after a miss."""

        def xla_caches(self, backend: Any) -> dict[str, str]:
            """Return the values of XLA's options that say where its own caches are, by name."""

        def stored_bytes(self, executable: Any) -> bytes | None:
            """Return the bytes that an executable was loaded from, or None."""

        def is_enabled(self) -> bool:
            """True if compilations use a cache now."""

        def reset(self) -> None:
            """Do what JAX's `reset_cache()` asks for."""

        def report_failure(self, doing: str, exc: Exception) -> None:
            """Count and log a failure of one of our own steps."""


_READ: Final = "module_name cache_key compile_options backend executable_devices"
_COMPILE: Final = "backend computation executable_devices compile_options host_callbacks"
PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "_get_cache_key": ("options backend computation devices override_fdo_profile",),
    "_is_executable_in_cache": ("backend cache_key",),
    "_cache_read": (_READ, f"{_READ} host_callbacks"),
    "_compile_and_write_cache": (f"{_COMPILE} module_name cache_key",),
    "_compile_and_share_module": (f"{_COMPILE} global_client module_name cache_key first_process_id",),
    "_share_fdo_profiles": ("computation devices compile_options backend global_client min_process_id",),
}
"""The functions of `jax._src.compiler` that take part in a compilation, with the parameters that they may have.

The last text of each has all of them, in the order of ours.
"""

_XLA_CACHES: Final = "jax_persistent_cache_enable_xla_caches"
_RAISE: Final = "jax_raise_persistent_cache_errors"
_NEEDED_FLAGS: Final = (
    "jax_compilation_cache_dir",
    "jax_enable_compilation_cache",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    _XLA_CACHES,
    _RAISE,
)

_CALLERS: Final[dict[str, tuple[str, ...]]] = {
    "compile_or_get_cached": (
        "_resolve_compilation_strategy",
        "_cache_read",
        "_compile_and_write_cache",
        "_compile_and_share_module",
    ),
    "_resolve_compilation_strategy": ("_get_cache_key", "_is_executable_in_cache", "_share_fdo_profiles"),
}
"""The functions that must look the replaced ones up in the module: otherwise replacing them changes nothing."""

_USED: Final[dict[Any, tuple[str, ...]]] = {
    jax_compiler: ("backend_compile_and_load", "get_compile_options", "log_persistent_cache_hit"),
    jax_cache: (
        "reset_cache",
        "_cache_initialized",
        "_UNSUPPORTED_RUNTIMES",
        "is_cache_used",
        "is_persistent_cache_enabled",
    ),
    jax_cache_key: (
        "_hash_serialized_compile_options",
        "_hash_accelerator_config",
        "custom_hook",
        "get_flag_prefixes",
    ),
    jax_config: ("config", "config_states"),
    _hlo: ("HloPrintOptions",),
}
"""What is used of these modules here, in `compiling.py` and in `topologies.py`."""


def mismatches() -> list[str]:
    """List how this JAX differs from what is replaced here; empty if it does not."""
    found = [
        f"{module.__name__}.{name} is gone"
        for module, names in _USED.items()
        for name in names
        if not hasattr(module, name)
    ]
    for name, accepted in PARAMETERS.items():
        function = original(name)
        if function is None:
            found.append(f"jax._src.compiler.{name} is gone")
        elif " ".join(inspect.signature(function).parameters) not in accepted:
            found.append(f"jax._src.compiler.{name} takes {tuple(inspect.signature(function).parameters)}")
    for caller, callees in _CALLERS.items():
        # Others may have put something around it, as profilers do; the function itself is inside.
        function = getattr(jax_compiler, caller, None)
        code = None if function is None else getattr(inspect.unwrap(function), "__code__", None)
        missing = [callee for callee in callees if code is None or callee not in code.co_names]
        found += [f"jax._src.compiler.{caller} does not call {callee}" for callee in missing]
    states = getattr(jax_config, "config_states", {})
    missing = [flag for flag in _NEEDED_FLAGS if not hasattr(states.get(flag), "_update_global_hook")]
    return found + [f"the flag {flag} is gone" for flag in missing] + watching.mismatches()


# -- replacing -----------------------------------------------------------------------------------------------------

_originals: dict[str, Any] = {}
_lock = threading.RLock()

_XLA_CACHE_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    # JAX lets process 0 alone write, because the directory is shared; here each process has its own.
    "xla_gpu_per_fusion_autotune_cache_dir": {
        "xla_gpu_experimental_autotune_cache_mode": xla_client.AutotuneCacheMode.UPDATE
    },
    "xla_gpu_kernel_cache_file": {"xla_gpu_enable_llvm_module_compilation_parallelism": True},
}
"""The options that JAX sets together with the path of a cache, in those versions that do."""

_BY_EJCACHE: Final = "set by ejcache"
"""The value of JAX's flag for XLA's own caches, in the thread that makes compile options, while it makes them."""


# The functions that replace JAX's. They have its parameters, those of `PARAMETERS`, because JAX passes some by name.


def _make_compile_options(
    hooks: CompileCache, own: Callable[..., Any], known: Sequence[str], /, *arguments: Any, **named: Any
) -> Any:
    """Make compile options by JAX's `own` function, which names all the options that are `known` in this version."""
    # JAX would put XLA's own caches below the cache directory, which aborts the process if that is a URL.
    with jax_config.config_states[_XLA_CACHES](_BY_EJCACHE):
        options = own(*arguments, **named)
    debug = options.executable_build_options.debug_options
    for name, path in hooks.xla_caches(named.get("backend")).items():
        setattr(debug, name, path)
        for option, value in _XLA_CACHE_OPTIONS.get(name, {}).items():
            if option in known:
                setattr(debug, option, value)
    return options


def _is_enabled(hooks: CompileCache) -> bool:
    return jax_config.config_states[_XLA_CACHES].value != _BY_EJCACHE and hooks.is_enabled()


def _make_key(
    hooks: CompileCache, options: Any, backend: Any, computation: Any, devices: Any, override_fdo_profile: Any = None
) -> str | None:
    if not jax_cache._cache_initialized:
        hooks.reset()
        _keep_jax_cache_closed()
    jax_cache.is_cache_used(backend)  # sends JAX's event about the use of the cache, once in a process
    return hooks.make_key(KeyRequest(computation, devices, options, backend, override_fdo_profile))


def _contains(hooks: CompileCache, backend: Any, cache_key: str) -> bool:  # noqa: ARG001 (JAX's parameters)
    return hooks.contains(cache_key)


def _read(
    hooks: CompileCache,
    module_name: str,  # noqa: ARG001 (JAX's parameters)
    cache_key: str,
    compile_options: Any,
    backend: Any,
    executable_devices: Any,
    host_callbacks: Sequence[Any] = (),
) -> Any:
    return hooks.read(cache_key, Placement(backend, executable_devices, compile_options, host_callbacks))


def _compile(
    hooks: CompileCache,
    backend: Any,
    computation: Any,
    executable_devices: Any,
    compile_options: Any,
    host_callbacks: Sequence[Any],
    module_name: str,
    cache_key: str,
) -> Any:
    from ejcache.jax_integration.program import LoweredProgram  # no hit has one

    placement = Placement(backend, executable_devices, compile_options, host_callbacks)
    return hooks.misses.compile(cache_key, LoweredProgram(computation, module_name, placement))


def _share(
    hooks: CompileCache,
    backend: Any,
    computation: Any,
    executable_devices: Any,
    compile_options: Any,
    host_callbacks: Sequence[Any],
    global_client: Any,  # noqa: ARG001 (JAX's parameters)
    module_name: str,
    cache_key: str,
    first_process_id: int,
) -> Any:
    from ejcache.jax_integration.program import LoweredProgram  # no hit has one

    placement = Placement(backend, executable_devices, compile_options, host_callbacks)
    program = LoweredProgram(computation, module_name, placement)
    return hooks.misses.share(cache_key, program, first_process=first_process_id)


def _share_profile(
    hooks: CompileCache,
    computation: Any,
    devices: Any,
    compile_options: Any,
    backend: Any,
    global_client: Any,  # noqa: ARG001 (JAX's parameters)
    min_process_id: int,
) -> bytes:
    request = KeyRequest(computation, devices, compile_options, backend)
    return hooks.misses.share_profile(request, first_process=min_process_id)


REPLACEMENTS: Final[dict[str, Callable[..., Any]]] = {
    "_get_cache_key": _make_key,
    "_is_executable_in_cache": _contains,
    "_cache_read": _read,
    "_compile_and_write_cache": _compile,
    "_compile_and_share_module": _share,
    "_share_fdo_profiles": _share_profile,
    "get_compile_options": _make_compile_options,
    "is_persistent_cache_enabled": _is_enabled,
}
"""What stands in the place of JAX's functions, by their names; each is called with the hooks before JAX's arguments."""


def _call(own: Callable[..., Any], ours: tuple[Any, ...], /, *arguments: Any, **named: Any) -> Any:
    """Call our function, and JAX's `own` if a step of ours fails."""
    function, hooks, *more = ours
    try:
        return answer(
            functools.partial(function, hooks, *more, *arguments, **named),
            functools.partial(own, *arguments, **named),
            is_raised=_raises_errors,
            report=hooks.report_failure,
        )
    except BaseException as exc:
        cut_our_frames(exc)
        raise


def _raises_errors() -> bool:
    return bool(jax_config.config_states[_RAISE].value)


def _compile_alone(
    backend: Any, computation: Any, executable_devices: Any, compile_options: Any, host_callbacks: Any, *_: Any
) -> Any:
    """Compile a program that spans processes, where sharing it fails: JAX's own way would wait for a rank of ours."""
    return jax_compiler.backend_compile_and_load(
        backend, computation, executable_devices, compile_options, host_callbacks
    )


def _no_profile(*_: Any, **__: Any) -> bytes:
    return b""


_INSTEAD: Final[dict[str, Callable[..., Any]]] = {
    "_compile_and_share_module": _compile_alone,
    "_share_fdo_profiles": _no_profile,
}
"""What takes the place of our function, if it fails, where JAX's own would wait for processes that have ours."""


def install(hooks: CompileCache) -> None:
    """Put `hooks` in the place of JAX's cache; `mismatches` must be empty."""
    with _lock:
        if _originals:
            raise RuntimeError("the seam is already in use")
        own = jax_compiler.get_compile_options
        more = {"get_compile_options": (own, own.__code__.co_names)}
        for name, function in REPLACEMENTS.items():
            module = _module_of(name)
            _originals[name] = getattr(module, name)
            own_or_alone = _INSTEAD.get(name, _originals[name])
            setattr(module, name, functools.partial(_call, own_or_alone, (function, hooks, *more.get(name, ()))))
        register_our_frames()
        watching.watch()
        _keep_jax_cache_closed()
        _patch_pickler(hooks)


def _patch_pickler(hooks: CompileCache) -> None:
    """Let `jax.experimental.serialize_executable` serialise what was loaded from the cache.

    This stays after `uninstall`, because executables that were loaded before do.
    """
    pickler = getattr(jax_serialization, "_JaxPjrtPickler", None)
    if pickler is None:
        return
    original = getattr(pickler.persistent_id, "original", pickler.persistent_id)

    def persistent_id(self: Any, value: Any) -> Any:
        stored = hooks.stored_bytes(value) if isinstance(value, xla_client.LoadedExecutable) else None
        return ("exec", stored) if stored is not None else original(self, value)

    vars(persistent_id)["original"] = original
    pickler.persistent_id = persistent_id


def uninstall() -> None:
    """Give JAX its own cache back, not yet opened, so that it follows the flags as they are now."""
    with _lock:
        if not _originals:
            return
        for name, function in _originals.items():
            setattr(_module_of(name), name, function)
        _originals.clear()
        watching.unwatch()
        jax_cache.reset_cache()


def is_installed() -> bool:
    """True if hooks are in the place of JAX's cache now."""
    return bool(_originals)


def _keep_jax_cache_closed() -> None:
    """Tell JAX that its cache is opened, whose object stays what it is: JAX's own test cases compare it.

    `reset_cache()` takes this back, so that we see it, too, if the program imported that function before activation.
    """
    jax_cache._cache_initialized = True


def _module_of(name: str) -> Any:
    return jax_cache if name == "is_persistent_cache_enabled" else jax_compiler


def original(name: str) -> Any:
    """Return JAX's own function of this name, also while ours is in its place; None if it has none."""
    return _originals.get(name) or getattr(jax_compiler, name, None)


# -- what the hooks need of JAX ------------------------------------------------------------------------------------


def jaxlib_version() -> str:
    """Return the version of jaxlib as JAX's own key has it."""
    return str(jaxlib.version.__version__)


def module_name(module: Any) -> str:
    """Return the module's symbol name, `jit_train_step`."""
    return str(ir.StringAttr(module.operation.attributes["sym_name"]).value)


def load_executable(serialized: bytes, placement: Placement) -> Any:
    """Deserialise; raises XLA's own error if it refuses to load the bytes."""
    callbacks = (placement.callbacks,) if placement.callbacks else ()  # JAX 0.10 takes none at all
    return placement.backend.deserialize_executable(serialized, placement.devices, placement.options, *callbacks)


def executable_identity(executable: Any) -> tuple[object, object]:
    """Return what is equal for the same executable only, as long as it lives; later ones of the same program may
    have the address.
    """
    return getattr(executable, "fingerprint", None), id(executable)


def can_serialize(backend: Any) -> bool:
    """True if this backend can serialise executables: any PJRT platform that says so, not a list of names."""
    return bool(getattr(backend, "supports_executable_serialization", True)) and (
        getattr(backend, "runtime_type", None) not in jax_cache._UNSUPPORTED_RUNTIMES
    )


def can_load(backend: Any) -> bool:
    """True if this client has devices to load an executable on; a client of a mere topology has none."""
    return bool(backend.local_device_count())


def serialized_options(options: Any) -> bytes:
    """Return the compile options as JAX's own key has them, the device assignment put in order on every platform.

    JAX strips the assignment on GPU only; elsewhere a rank's own device ids kept it from every other rank's entries.
    """
    collected: list[bytes] = []
    collector = SimpleNamespace(update=collected.append)
    jax_cache_key._hash_serialized_compile_options(collector, options, strip_device_assignment=True)
    return b"".join(collected)


def extra_flag_prefixes() -> tuple[str, ...]:
    """Return beginnings of command line arguments that a user has added to the key."""
    return tuple(jax_cache_key.get_flag_prefixes())


def topology_bytes(devices: Sequence[Any]) -> bytes | None:
    """Return the serialised topology of `devices`, where this jaxlib gives it (0.11 and later)."""
    topology = xla_client.get_topology_for_devices(devices)
    serialize = getattr(topology, "serialize", None)
    return bytes(serialize()) if serialize is not None else None


def custom_hook() -> str:
    """Call the hook by which a user adds a text to every key."""
    return str(jax_cache_key.custom_hook())
