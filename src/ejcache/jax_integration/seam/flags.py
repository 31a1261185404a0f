"""Reads JAX's flags, and finds out where their values came from. A part of the seam."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.jax_integration.seam.parts import Part
from ejcache.settings.environment import environment_variable
from ejcache.settings.table import JAX_DEFAULTS, KINDS, NAMES, Origin, Value, jax_reading

if TYPE_CHECKING:
    from collections.abc import Callable

PART: Final = Part(
    "the origin of a flag that a call sets to the value that the environment gave it", {"jax._src.config": ("config",)}
)
_config = PART.module("jax._src.config")


class _PublicFlag:
    """A flag by what JAX says of it in public, where its own object is not known."""

    _update_global_hook: Any = None

    def __init__(self, flag: str) -> None:
        self._flag = flag

    @property
    def value(self) -> Any:
        return getattr(jax.config, self._flag)


def flag_states() -> dict[str, Any]:
    """Return what holds the values of JAX's flags, by flag."""
    found: dict[str, Any] | None = getattr(_config, "config_states", None)
    return found or getattr(getattr(_config, "config", None), "_value_holders", {})  # before JAX 0.5


def _states() -> dict[str, Any]:
    """Return JAX's objects of the flags that are settings of ours, by flag."""
    known = flag_states()
    found = {}
    for flag in JAX_DEFAULTS:
        state = known.get(flag)
        if hasattr(state, "_update_global_hook") and hasattr(state, "value"):
            found[flag] = state
        elif hasattr(jax.config, flag):
            found[flag] = _PublicFlag(flag)
    return found


class FlagReader:
    """JAX's flags and where their values came from. Safe to use from several threads.

    JAX stores the value of a flag but not what set it. So from activation on, we watch the flags that are settings of
    ours; a value that then differs from the one in the environment was set by an earlier call.

    A directory that ejkernel sets for itself is not the program's word: `read` answers with the one before it.
    """

    def __init__(self) -> None:
        self._states = _states()
        self._initial = {flag: _initial_value(flag, state) for flag, state in self._states.items()}
        self._called: set[str] = {flag for flag, state in self._states.items() if state.value != self._initial[flag]}
        self._calls_noted = 0
        self._directory = Value(self._initial[_DIRECTORY], Origin.ENVIRONMENT)
        self._directory = self.read(_DIRECTORY) or self._directory
        self._lock = threading.RLock()
        self._hooks: dict[str, functools.partial[None]] = {}

    def watch(self) -> None:
        """Notice calls of `jax.config.update` from now on."""
        note = self._note
        for flag, state in self._states.items():
            self._hooks[flag] = functools.partial(note, flag, state._update_global_hook)
            state._update_global_hook = self._hooks[flag]

    def unwatch(self) -> None:
        """Stop watching."""
        for flag, hook in self._hooks.items():
            state = self._states[flag]
            if state._update_global_hook is hook:
                _, state._update_global_hook = hook.args
        self._hooks.clear()

    def _note(self, flag: str, previous: Callable[[Any], None] | None, value: Any) -> None:
        """Note the call, in place of a flag's hook, and call the hook that was there before."""
        with self._lock:
            self._calls_noted += 1
            if flag != _DIRECTORY:
                self._called.add(flag)
            elif value != _directory_of_ejkernel():
                self._called.add(flag)
                self._directory = Value(value, Origin.CALL)
        if previous is not None:
            previous(value)

    def save(self) -> dict[str, Value]:
        """Return every flag as it is now."""
        return {flag: value for flag in self._states if (value := self.read(flag)) is not None}

    def put_back(self, flag: str, before: Value) -> None:
        """Give a flag the value and the origin that `save` found."""
        jax.config.update(flag, before.value)
        if before.origin not in (Origin.CALL, Origin.COMMAND_LINE):
            with self._lock:
                self._called.discard(flag)
                self._calls_noted += 1
                if flag == _DIRECTORY:
                    self._directory = before

    def overruled_directory(self) -> str | None:
        """Return the directory that ejkernel has set and that `read` ignores; None if JAX has another one."""
        value = self._states[_DIRECTORY].value
        return value if value is not None and value == _directory_of_ejkernel() else None

    def fingerprint(self) -> tuple[Any, ...]:
        """Return a value that changes whenever `read` would answer differently for some flag."""
        return (self._calls_noted, *[state.value for state in self._states.values()])

    def read(self, flag: str) -> Value | None:
        state = self._states.get(flag)
        if state is None:
            return None
        value = state.value
        if flag == _DIRECTORY and self.overruled_directory() is not None:
            return self._directory
        if _set_by_absl(flag, value):
            origin = Origin.COMMAND_LINE  # of JAX's own default, too
        elif flag in self._called or value != self._initial[flag]:
            origin = Origin.CALL
        else:
            origin = Origin.ENVIRONMENT
        return Value(value, origin)


def _initial_value(flag: str, state: Any) -> Any:
    """Return the value that JAX read from the environment when it was imported.

    JAX keeps an empty text as it is. We must too: otherwise it would look like a call that switches the cache off.
    """
    text = environment_variable(flag.upper())
    if text is None:
        return JAX_DEFAULTS.get(flag, state.value)
    try:
        return jax_reading(KINDS[NAMES[flag]], text)
    except ValueError:
        return state.value


def _directory_of_ejkernel() -> str | None:
    """Find the directory that ejkernel gives to JAX whenever it decorates a function; None if it is not loaded."""
    directory = getattr(sys.modules.get("ejkernel.callib._ejit"), "COMPILE_FUNC_DIR", None)
    return None if directory is None else str(directory)


_DIRECTORY: Final = "jax_compilation_cache_dir"


def _set_by_absl(flag: str, value: Any) -> bool:
    if not getattr(jax.config, "use_absl", False):
        return False
    flags = getattr(jax.config, "absl_flags", None)
    try:
        given = flags.FLAGS[flag] if flags is not None else None
    except KeyError:
        return False
    return given is not None and bool(given.present) and given.value == value
