"""JAX's flags, and where their values came from: the part of the seam that touches `jax._src.config`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from jax._src import config as jax_config

from ejcache.settings import SETTINGS, FlagValue, Origin, environment, jax_reading, setting_named

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FlagReader"]


class FlagReader:
    """JAX's flags and where their values came from, without asking JAX for what it does not know.

    JAX keeps a flag's value but not who set it. So the states of the flags we honour are watched from activation on,
    and a value that differs from what the environment says was set by a call before that.
    """

    def __init__(self) -> None:
        self._states: dict[str, Any] = {
            setting.flag: jax_config.config_states[setting.flag]
            for setting in SETTINGS
            if setting.flag in jax_config.config_states
        }
        self._initial = {flag: _initial_value(flag, state) for flag, state in self._states.items()}
        self._called: set[str] = {flag for flag, state in self._states.items() if state.value != self._initial[flag]}
        self._lock = threading.Lock()
        self._previous_hooks: dict[str, Any] = {}

    def watch(self) -> None:
        """Notice calls of `jax.config.update` from now on."""
        for flag, state in self._states.items():
            previous = state._update_global_hook
            self._previous_hooks[flag] = previous
            state._update_global_hook = _Watch(self, flag, previous)

    def unwatch(self) -> None:
        """Leave the flags as they were found."""
        for flag, previous in self._previous_hooks.items():
            state = self._states[flag]
            if isinstance(state._update_global_hook, _Watch):
                state._update_global_hook = previous
        self._previous_hooks.clear()

    def note_call(self, flag: str) -> None:
        with self._lock:
            self._called.add(flag)

    def forget_call(self, flag: str, value: Any) -> None:
        """Put back a value that a call of ours had changed."""
        jax_config.config.update(flag, value)
        if value == self._initial.get(flag):
            with self._lock:
                self._called.discard(flag)

    def read(self, flag: str) -> FlagValue | None:
        state = self._states.get(flag)
        if state is None:
            return None
        value = state.value
        if flag in self._called or value != self._initial[flag]:
            origin = Origin.COMMAND_LINE if _set_by_absl(flag, value) else Origin.CALL
        else:
            origin = Origin.ENVIRONMENT
        return FlagValue(value, origin)


class _Watch:
    """An update hook that notes the call and passes it on."""

    def __init__(self, reader: FlagReader, flag: str, previous: Callable[[Any], None] | None) -> None:
        self._reader = reader
        self._flag = flag
        self._previous = previous

    def __call__(self, value: Any) -> None:
        self._reader.note_call(self._flag)
        if self._previous is not None:
            self._previous(value)


def _initial_value(flag: str, state: Any) -> Any:
    """What JAX made of the environment when it was imported.

    Not what we make of it: JAX holds an empty text as it is, and taken for a call it would switch the cache off.
    """
    text = environment().get(flag.upper())
    if text is None:
        return _DEFAULTS.get(flag, state.value)
    try:
        return jax_reading(setting_named(flag), text)
    except ValueError:
        return state.value


_DEFAULTS: Final[dict[str, Any]] = {setting.flag: setting.default for setting in SETTINGS if setting.flag}


def _set_by_absl(flag: str, value: Any) -> bool:
    if not jax_config.config.use_absl:
        return False
    flags = getattr(jax_config.config, "absl_flags", None)
    try:
        given = flags.FLAGS[flag] if flags is not None else None
    except KeyError:
        return False
    return given is not None and bool(given.present) and given.value == value
