"""Replaces functions of JAX, so that it asks ejcache for executables, and loads and describes these for it.

`compile_or_get_cached` is replaced by a wrapper, which knows the module, the devices, the options and the callbacks of
a compilation. It hands them as a `JaxCall` to `pipeline.Compiler`, which finds an executable or not, and then has JAX's
own function run, once. While that runs, JAX's function asks `compilation_cache`, and is answered with what is known
already: `is_cache_used`, `get_cache_key`, `is_executable_in_cache`, `get_executable_and_time`,
`put_executable_and_time`. So events, log lines, dumps, PGLE and the errors of XLA stay JAX's own.

Outside of such a call the five do what JAX's own do. `mismatches` says whether this JAX asks in this way. If not,
nothing is replaced here, and the store works behind JAX's cache (`file_cache`).

Read for this: jax 0.4.38, 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1, `compiler.py`, `compilation_cache.py`, `cache_key.py`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import jax
from jax._src import cache_key as jax_cache_key
from jax._src import compilation_cache as jax_cache
from jax._src import compiler as jax_compiler
from jax._src.lib import xla_client

from ejcache.jax_integration import own_failures
from ejcache.jax_integration.compilation import KeyRequest, Placement
from ejcache.jax_integration.seam import durations, registered_functions
from ejcache.jax_integration.seam.parts import names_of
from ejcache.jax_integration.seam.tracebacks import cut_our_frames, register_our_frames
from ejcache.jax_integration.seam.xla_cache_options import MAKES_OPTIONS
from ejcache.util.late_patches import is_patched_late
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ejcache.jax_integration.compilation import LoadedExecutable

    class CompileCache(Protocol):
        """What takes JAX's compilations; `pipeline.Compiler` does."""

        def compile(self, call: JaxCall) -> Any:
            """Return the executable of a program, by `JaxCall.run`."""

        def is_enabled(self) -> bool:
            """True if compilations use a cache now."""

        def reset(self) -> None:
            """Do what JAX's `reset_cache()` asks for."""

        def report_failure(self, doing: str, exc: Exception) -> None:
            """Count and log a failure of one of our own steps; raise it if the settings ask for that."""


_WRAPPED: Final = "compile_or_get_cached"
_FIRST: Final = ("backend", "computation", "devices", "compile_options", "host_callbacks")
"""The first parameters of that function, in every version."""
_MORE: Final = ("executable_devices", "pgle_profiler")
"""Those that may follow."""
_ASKED: Final[dict[str, tuple[str, ...]]] = {
    "is_cache_used": ("backend",),
    "get_cache_key": ("module", "devices", "compile_options", "backend"),
    "is_executable_in_cache": ("backend", "cache_key"),
    "get_executable_and_time": ("cache_key", "compile_options", "backend"),
    "put_executable_and_time": ("cache_key", "module_name", "executable", "backend", "compile_time"),
}
"""The functions of `compilation_cache` that it asks, and their first parameters."""
_SAID: Final = "is_persistent_cache_enabled"
"""By this one JAX's lines say correctly whether a cache is on."""
_LOADING: Final = {"executable_devices", "host_callbacks"}
"""What `get_executable_and_time` may take besides: an executable is loaded with what it takes."""
_OF_KEYS: Final = ("_hash_serialized_compile_options", "custom_hook", "get_flag_prefixes")
"""What our keys need of `cache_key`."""
PROFILED: Final = b"pgle profiled"
"""What JAX puts in place of the profile when it asks for the key of a program that was optimised with one."""
_RETRIEVAL: Final = "/jax/compilation_cache/cache_retrieval_time_sec"
_SAVED: Final = "/jax/compilation_cache/compile_time_saved_sec"
_NOT_STORED: Final = "Not writing persistent cache entry"
"""How the lines begin in which JAX says why it stores nothing, while we may."""


class CacheAnswer(NamedTuple):
    """What JAX's own function is told while it runs.

    Attributes:
        key: of the program.
        executable: that was loaded for it; None if JAX is to compile.
        compile_seconds: what it took to compile that.
        seconds: what it took to get it.
        optimised: the key of the variant that was optimised with a profile; empty where JAX does not ask for it.
        is_optimised: whether JAX is to take that variant, and to stop profiling.
        is_expected: whether JAX is to warn that the other variant was found in its place.
    """

    key: str
    executable: Any = None
    compile_seconds: float = 0.0
    seconds: float = 0.0
    optimised: str = ""
    is_optimised: bool = False
    is_expected: bool = False

    def of(self, found: LoadedExecutable) -> CacheAnswer:
        """Return this answer where an executable was found."""
        seconds = found.header.compile_seconds
        return self._replace(executable=found.executable, compile_seconds=seconds, seconds=found.seconds)


class JaxCall:
    """One compilation that JAX asks for.

    Args:
        own: JAX's own function.
        given: what it was called with, its first parameters in their order.
        rest: the parameters that follow those.

    Attributes:
        backend: the PJRT client.
        module: the MLIR module.
        devices: JAX's array of devices.
        options: XLA's compile options; JAX's function gets them as they are when it runs.
        callbacks: Python functions of this process that the program calls.
        loaded_on: the devices as XLA takes them to load an executable.
        answer: what JAX's function was told last.
        runs: how often it was called.
        error: what it raised last; None if it has returned.
        executable: what it has returned.
    """

    def __init__(self, own: Callable[..., Any], given: Sequence[Any], rest: Sequence[Any]) -> None:
        self.backend, self.module, self.devices, self.options, self.callbacks = given
        self._own = own
        self._rest = rest
        self.loaded_on = rest[0] if rest and _passes_devices else xla_client.DeviceList(tuple(self.devices.flat))
        self.answer: CacheAnswer | None = None
        self.runs = 0
        self.error: BaseException | None = None
        self.executable: Any = None

    def request(self, *, options: Any = None, profile_sentinel: bytes | None = None) -> KeyRequest:
        """Return what a key is made of."""
        chosen = self.options if options is None else options
        return KeyRequest(self.module, self.devices, chosen, self.backend, profile_sentinel)

    def placement(self, options: Any = None) -> Placement:
        """Return where the program is to run."""
        return Placement(self.backend, self.loaded_on, self.options if options is None else options, self.callbacks)

    def run(self, answer: CacheAnswer | None = None, *, options: Any = None) -> Any:
        """Call JAX's own function, which asks the cache and is told this; without an answer it has no cache.

        Raises whatever JAX raises, which `error` has then.

        Args:
            answer: for JAX.
            options: other options than its own.
        """
        before, _here.call = _here.call, self
        self.answer = answer
        self.runs += 1
        chosen = self.options if options is None else options
        sharing: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if answer is not None and is_shared_between_hosts():
            found = _sharing_is_off()
            if found is None and answer.executable is not None:
                return answer.executable
            self.answer, sharing = (None, sharing) if found is None else (answer, found)
        given = (self.backend, self.module, self.devices, chosen, self.callbacks, *self._rest)
        try:
            with sharing:
                self.executable = own_failures.note_compilation(functools.partial(self._own, *given))
            self.error = None
            return self.executable
        except BaseException as exc:
            self.error = exc
            raise
        finally:
            _here.call = before


class _Here(threading.local):
    """The call whose function of JAX runs in this thread."""

    call: JaxCall | None = None


_here: Final = _Here()
_originals: Final[dict[tuple[Any, str], Any]] = {}
_lock = threading.RLock()
_passes_devices = True
_loads_with: frozenset[str] = frozenset(_LOADING)


def mismatches() -> list[str]:
    """List how this JAX differs from what is replaced here; empty if it does not."""
    found = [
        f"{module.__name__}.{name} is gone"
        for module, names in {jax_compiler: (_WRAPPED,), jax_cache: tuple(_ASKED), jax_cache_key: _OF_KEYS}.items()
        for name in names
        if original(module, name) is None
    ]
    if found:
        return found
    wrapped = original(jax_compiler, _WRAPPED)
    parameters = tuple(inspect.signature(wrapped).parameters)
    if parameters[: len(_FIRST)] != _FIRST or not set(parameters[len(_FIRST) :]) <= set(_MORE):
        found.append(f"{jax_compiler.__name__}.{_WRAPPED} takes {parameters}")
    for name, first in _ASKED.items():
        parameters = tuple(inspect.signature(original(jax_cache, name)).parameters)
        more = set(parameters[len(first) :])
        if parameters[: len(first)] != first or (name == "get_executable_and_time" and not more <= _LOADING):
            found.append(f"{jax_cache.__name__}.{name} takes {parameters}")
    # Replacing them changes nothing where JAX does not look them up in the module.
    asked = {name for each in vars(jax_compiler).values() for name in names_of(each)}
    found += [f"{jax_compiler.__name__} does not ask {name}" for name in _ASKED if name not in asked]
    return found


def original(module: Any, name: str) -> Any:
    """Return JAX's own function of this name, also while ours is in its place; None if it has none."""
    return _originals.get((module, name)) or getattr(module, name, None)


# -- replacing -----------------------------------------------------------------------------------------------------


def install(hooks: CompileCache) -> None:
    """Have `hooks` take JAX's compilations; `mismatches` must be empty."""
    global _passes_devices, _loads_with
    with _lock:
        if _originals:
            raise RuntimeError("the seam is already in use")
        own = getattr(jax_compiler, _WRAPPED)
        _passes_devices = _MORE[0] in inspect.signature(own).parameters
        _loads_with = frozenset(inspect.signature(jax_cache.get_executable_and_time).parameters) & _LOADING
        _replace(jax_compiler, _WRAPPED, _wrapper(hooks, own))
        for name, answer in _ANSWERS.items():
            _replace(jax_cache, name, _answering(getattr(jax_cache, name), answer))
        if hasattr(jax_cache, _SAID):
            _replace(jax_cache, _SAID, functools.partial(_is_enabled, hooks))
        if hasattr(jax_compiler, "monitoring"):
            _replace(jax_compiler, "monitoring", _Monitoring(jax_compiler.monitoring))
        logging.getLogger(jax_compiler.__name__).addFilter(_leave_out_untrue)
        register_our_frames()
        registered_functions.watch()
        durations.listen()
        _keep_jax_cache_closed()


def uninstall() -> None:
    """Give JAX its own cache back, not yet opened, so that it follows the flags as they are now."""
    with _lock:
        if not _originals:
            return
        for (module, name), function in _originals.items():
            setattr(module, name, function)
        _originals.clear()
        logging.getLogger(jax_compiler.__name__).removeFilter(_leave_out_untrue)
        registered_functions.unwatch()
        durations.stop()
        jax_cache.reset_cache()


def is_installed() -> bool:
    """True if hooks take JAX's compilations now."""
    return bool(_originals)


def _replace(module: Any, name: str, ours: Any) -> None:
    _originals[module, name] = getattr(module, name)
    setattr(module, name, ours)


def _keep_jax_cache_closed() -> None:
    """Tell JAX that its cache is opened, whose object stays what it is: JAX's own test cases compare it.

    `reset_cache()` takes this back, so that we see it, too, if the program imported that function before activation.
    """
    jax_cache._cache_initialized = True


def _wrapper(hooks: CompileCache, own: Callable[..., Any]) -> Callable[..., Any]:
    names = tuple(inspect.signature(own).parameters)
    count = len(_FIRST)

    @functools.wraps(own)
    def compile_or_get_cached(*arguments: Any, **named: Any) -> Any:
        if is_patched_late():
            warn_once(
                "patched late",
                "ejcache: gevent or eventlet replaced Python's threads after ejcache had begun, so the program goes on "
                "without ejcache: call monkey.patch_all() before the first compilation",
            )
            return own(*arguments, **named)
        if named or len(arguments) < count:
            # JAX's own defaults and errors hold.
            bound = inspect.signature(own).bind(*arguments, **named)
            bound.apply_defaults()
            arguments = tuple(bound.arguments[name] for name in names)
        call = JaxCall(own, arguments[:count], arguments[count:])

        def compile_it() -> Any:
            if not vars(jax_cache).get("_cache_initialized", True):
                hooks.reset()
                _keep_jax_cache_closed()
            return hooks.compile(call)

        try:
            return own_failures.answer(compile_it, call.run, is_raised=_raises_errors, report=hooks.report_failure)
        except BaseException as exc:
            cut_our_frames(exc)
            raise

    return compile_or_get_cached


def _raises_errors() -> bool:
    return bool(getattr(jax.config, "jax_raise_persistent_cache_errors", False))


# -- what JAX's function is told -----------------------------------------------------------------------------------


def _answering(own: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def answering(*arguments: Any, **named: Any) -> Any:
        call = _here.call
        return own(*arguments, **named) if call is None else answer(call, own, *arguments, **named)

    return answering


def _is_cache_used(call: JaxCall, own: Callable[..., Any], backend: Any) -> bool:
    own(backend)  # sends JAX's event about the use of the cache, once in a process
    return call.answer is not None


def _cache_key(
    call: JaxCall, own: Callable[..., Any], module: Any, devices: Any, options: Any, *more: Any, **named: Any
) -> Any:
    answer = call.answer
    if answer is None or module is not call.module:
        return own(module, devices, options, *more, **named)
    if answer.optimised and bytes(options.executable_build_options.fdo_profile or b"") == PROFILED:
        return answer.optimised
    return answer.key


def _is_in_cache(call: JaxCall, own: Callable[..., Any], backend: Any, key: str) -> bool:  # noqa: ARG001 (JAX's parameters)
    answer = call.answer
    return answer is not None and (answer.is_optimised if key == answer.optimised else answer.is_expected)


def _executable(call: JaxCall, own: Callable[..., Any], key: str, *_: Any, **__: Any) -> tuple[Any, Any]:  # noqa: ARG001
    answer = call.answer
    if answer is None or answer.executable is None:
        return None, None
    return answer.executable, answer.compile_seconds


def _is_enabled(hooks: CompileCache) -> bool:
    """Say whether a cache is on; to JAX's function that makes compile options, that none is.

    It would put XLA's own caches below the cache directory, and raises for the URLs of some.
    """
    if sys._getframe(1).f_code.co_name == MAKES_OPTIONS:
        return False
    call = _here.call
    return hooks.is_enabled() if call is None else call.answer is not None


def _put(*_: Any, **__: Any) -> None:
    """Store nothing: `publishing` has its own rules."""


_ANSWERS: Final[dict[str, Callable[..., Any]]] = {
    "is_cache_used": _is_cache_used,
    "get_cache_key": _cache_key,
    "is_executable_in_cache": _is_in_cache,
    "get_executable_and_time": _executable,
    "put_executable_and_time": _put,
}


class _Monitoring:
    """The module `monitoring`, as `compiler` sees it: a hit took the time in which it was loaded, before JAX asked."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def record_event_duration_secs(self, event: str, duration: float, **more: Any) -> None:
        call = _here.call
        if call is not None and (answer := call.answer) is not None:
            if event == _RETRIEVAL:
                duration = answer.seconds
            elif event == _SAVED:
                duration = answer.compile_seconds - answer.seconds
        self._own.record_event_duration_secs(event, duration, **more)


def _leave_out_untrue(record: logging.LogRecord) -> bool:
    """Leave out a line in which JAX says that nothing is stored of a program which we may store."""
    call = _here.call
    return call is None or call.answer is None or not str(record.msg).startswith(_NOT_STORED)


# -- what the hooks need of JAX ------------------------------------------------------------------------------------


def is_shared_between_hosts() -> bool:
    """True if one process is to compile a program for all that it spans (`jax_share_binary_between_hosts`)."""
    return bool(getattr(jax.config, "jax_share_binary_between_hosts", False))


def _sharing_is_off() -> contextlib.AbstractContextManager[object] | None:
    """Return a context in which JAX sends no executable to other processes, in this thread; None if there is none."""
    from jax._src import config as jax_config  # of programs that span processes

    flag = getattr(jax_config, "share_binary_between_hosts", None)
    return flag(False) if callable(flag) else None


def options_to_profile(options: Any) -> Any:
    """Return the options with which JAX compiles a program that it is to profile."""
    if "xla_gpu_enable_command_buffer" not in _constants_of(jax_compiler):
        return options
    copied = copy.deepcopy(options)
    copied.env_option_overrides = [*copied.env_option_overrides, ("xla_gpu_enable_command_buffer", "")]
    return copied


@functools.cache
def _constants_of(module: Any) -> frozenset[str]:
    codes = [getattr(each, "__code__", None) for each in vars(module).values() if callable(each)]
    found = [constant for code in codes if code is not None for constant in code.co_consts]
    nested = [each for constant in found if isinstance(constant, tuple) for each in constant]
    return frozenset(each for each in (*found, *nested) if isinstance(each, str))


def load_executable(serialized: bytes, placement: Placement) -> Any:
    """Deserialise; raises XLA's own error if it refuses to load the bytes."""
    arguments: tuple[Any, ...] = (placement.options,)
    if "executable_devices" in _loads_with:
        arguments = (placement.devices, placement.options)
    if placement.callbacks and "host_callbacks" in _loads_with:
        arguments = (*arguments, placement.callbacks)
    return placement.backend.deserialize_executable(serialized, *arguments)


def callbacks_are_cacheable() -> bool:
    """True if this JAX restores host callbacks with an executable (0.11 and later do)."""
    return "host_callbacks" in _loads_with


def executable_identity(executable: Any) -> tuple[object, object]:
    """Return what is equal for the same executable only, as long as it lives; later ones of the same program may
    have the address.
    """
    return getattr(executable, "fingerprint", None), id(executable)


def can_serialize(backend: Any) -> bool:
    """True if this backend can serialise executables: any PJRT platform that says so, not a list of names."""
    return bool(getattr(backend, "supports_executable_serialization", True)) and (
        getattr(backend, "runtime_type", None) not in getattr(jax_cache, "_UNSUPPORTED_RUNTIMES", ())
    )


def can_load(backend: Any) -> bool:
    """True if this client has devices to load an executable on; a client of a mere topology has none."""
    return bool(backend.local_device_count())
