"""What `enable` changes in JAX and in the settings: saved, brought back, and put back as it was at first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from ejcache.jax_integration.seam.flags import FlagReader
    from ejcache.jax_integration.thin import ThinFlags
    from ejcache.settings.resolve import SettingsSource
    from ejcache.settings.table import Value

    class Session(Protocol):
        """What has the values that change; `activate.Session` is it."""

        source: SettingsSource
        changed: dict[str, tuple[Any, Any]]

        @property
        def flags(self) -> FlagReader | ThinFlags: ...


class SavedState(NamedTuple):
    """What `enable` changes, as it was at one moment.

    Attributes:
        calls: the values of settings that are not JAX flags.
        changed: what was changed in JAX.
        flags: JAX's flags.
    """

    calls: Mapping[str, Any]
    changed: Mapping[str, tuple[Any, Any]]
    flags: Mapping[str, Value]


def save(session: Session) -> SavedState:
    """Copy all that `enable` may change, as it is now."""
    return SavedState(session.source.calls, dict(session.changed), session.flags.save())


def load(session: Session, saved: SavedState) -> None:
    """Undo what was set since `saved`, to flags that the program has changed since then as well."""
    for flag in session.changed.keys() | saved.changed.keys():
        if session.changed.get(flag) != saved.changed.get(flag):
            session.flags.put_back(flag, saved.flags[flag])
    session.changed = dict(saved.changed)
    session.source.calls = saved.calls


def put_back(session: Session) -> None:
    """Put back the flags whose values are still those that `enable` gave them."""
    for flag, (before, ours) in session.changed.items():
        current = session.flags.read(flag)
        if current is not None and current.value == ours:
            jax.config.update(flag, before)
    session.changed.clear()
    session.source.calls = {}


def set_flags(values: Mapping[str, Any]) -> None:
    """Give JAX's flags these values."""
    for flag, value in values.items():
        if getattr(jax.config, flag) != value:
            jax.config.update(flag, value)
