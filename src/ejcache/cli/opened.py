"""The place that a command works on, found and opened, and how trouble with it is worded."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ejcache.cli.output import warn
from ejcache.errors import EntryError, JaxImportError, SettingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ejcache.settings import Settings
    from ejcache.stores.base import Store
    from ejcache.stores.jaxdir import JaxEntries
    from ejcache.stores.places import Place

__all__ = ["Opened", "chosen_settings", "opened_place"]


@dataclass(frozen=True, slots=True)
class Opened:
    """A place that holds entries.

    Attributes:
        url: where it is.
        store: the store of ours, if there is one; a shared one knows what other processes use.
        jax: the entries of plain JAX, if it has any there.
        max_size: the limit that is stored with it or that the settings here give it; -1 for none.
        shared: whether it is shared between hosts.
        limits: what may stay there, by the policy that is stored with it; None without one.
    """

    url: str
    store: Store | None
    jax: JaxEntries | None
    max_size: int
    shared: bool = False
    limits: Mapping[str, Any] | None = None


def chosen_settings(directory: str | None) -> Settings:
    """The settings, with `--dir` where it belongs among them; values that cannot be used are said on stderr."""
    from ejcache.settings import resolve, set_command_line

    if directory is not None and not directory.strip():
        # A shell variable that was not set must not turn `clear --dir "$CACHE"` on the default cache.
        raise SettingError("--dir", directory, "a directory or a URL")
    set_command_line({"cache_dir": directory} if directory is not None else {})
    settings = resolve()
    for problem in settings.problems:
        warn(str(problem) if isinstance(problem, JaxImportError) else f"{problem}; it is ignored")
    return settings


@contextlib.contextmanager
def opened_place(directory: str | None, *, write: bool = False) -> Iterator[Opened]:
    """The place that `--dir`, or else the settings, name.

    Raises:
        UsageError: they name no place at all; the message says which setting does.
        NotAStoreError: there is no cache there; nothing was made.
        StoreError: it cannot be opened.
    """
    from ejcache.stores.places import find_place

    settings = chosen_settings(directory)
    try:
        place = find_place(str(settings.cache_dir), settings=settings)
    except UsageError as exc:
        raise UsageError(f"{settings['cache_dir'].source}: {exc}") from exc
    limit = settings.max_size
    store = place.open(max_size=limit if limit > 0 else -1, read_only=not write)
    try:
        yield _opened(place, store, limit)
    finally:
        if store is not None:
            store.close()
        place.close()


def _opened(place: Place, store: Store | None, limit: int) -> Opened:
    from ejcache.stores.shared import SharedStore

    if not isinstance(store, SharedStore):
        return Opened(place.url, store, place.jax, limit, shared=place.bucket is not None)
    from ejcache.upkeep.stored_policy import read_limits
    from ejcache.upkeep.surveyed import SurveyedStore

    limits = None
    try:
        limits = read_limits(store.bucket)
    except EntryError as exc:
        warn(f"the policy that is stored with {place.url} cannot be read: {exc}")
    stored = (limits or {}).get("max_size")
    max_size = limit if stored is None else int(stored)
    return Opened(place.url, SurveyedStore(store), place.jax, max_size, shared=True, limits=limits)
