"""The chooser of this process, for whoever is given none."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ejcache.autotune.choice import Chooser
from ejcache.autotune.pod import job_agreement
from ejcache.autotune.store import default_store

if TYPE_CHECKING:
    from ejcache.autotune.store import AutotuneStore

__all__ = ["chooser_for", "default_chooser"]

_lock: Final = threading.Lock()


def default_chooser() -> Chooser:
    """The chooser over `default_store()`."""
    return chooser_for(default_store())


def chooser_for(store: AutotuneStore) -> Chooser:
    """The one chooser of this process over `store`, so that operations share what it remembers."""
    held = store.beside
    if isinstance(held, Chooser):
        return held
    with _lock:
        held = store.beside
        if not isinstance(held, Chooser):
            held = store.beside = Chooser(store, agreement=job_agreement())
        return held
