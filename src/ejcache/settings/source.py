"""The current settings, resolved again only when something that they depend on has changed.

Resolving all settings takes about 100 microseconds; finding out that nothing has changed takes about two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.settings.environment import variables_to_compare
from ejcache.settings.resolve import Settings, command_line, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.settings.values import FlagSource

__all__ = ["SettingsSource", "resolve_if_changed"]


class SettingsSource:
    """Settings of this process, and the values that `ejcache.enable` was called with.

    Safe to use from several threads. A value of JAX's that a context manager sets for one thread counts in that
    thread only.

    Args:
        flags: reads JAX's flags; None where JAX is not loaded.
    """

    def __init__(self, flags: FlagSource | None = None) -> None:
        self._flags = flags
        self._calls: Mapping[str, Any] = {}
        # Replaced as a whole, so that a reader in another thread sees inputs and settings that belong together.
        self._held: tuple[tuple[Any, ...], Settings] | None = None

    @property
    def calls(self) -> Mapping[str, Any]:
        """Parsed values given to `ejcache.enable` for settings that are not JAX flags. Assign a new mapping."""
        return self._calls

    @calls.setter
    def calls(self, values: Mapping[str, Any]) -> None:
        self._calls = dict(values)

    def resolve_if_changed(self) -> Settings:
        """The settings as they are now.

        The same object is returned as long as no JAX flag, call, command line option or environment variable has
        changed, so that a caller can compare with `is` whether its own copy is still true.
        """
        inputs = self._inputs()
        held = self._held
        if held is not None and held[0] == inputs:
            return held[1]
        kept = (dict(inputs[0]), *inputs[1:])
        settings = resolve(flags=self._flags, calls=inputs[2])
        if self._inputs() == kept:
            # Otherwise an input changed while the settings were resolved, and they may be those of neither state.
            self._held = (kept, settings)
        return settings

    def _inputs(self) -> tuple[Any, ...]:
        """Everything that settings depend on. The first part is live: copy it before keeping it."""
        variables = variables_to_compare()
        return variables, command_line(), self._calls, self._flags.fingerprint() if self._flags is not None else None


_process = SettingsSource()


def resolve_if_changed() -> Settings:
    """The settings of this process without JAX's flags and calls, resolved again only when they have changed."""
    return _process.resolve_if_changed()
