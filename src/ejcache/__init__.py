"""ejcache: the persistent compilation cache and autotune store for JAX.

Importing this module imports neither JAX nor any storage backend; each name below is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ejcache._version import __version__

if TYPE_CHECKING:
    from ejcache.autotune.decorator import autotuned
    from ejcache.autotune.store import AutotuneStore
    from ejcache.compilation import CompilationCache
    from ejcache.errors import EjcacheError
    from ejcache.jaxside.activate import active, disable, enable
    from ejcache.jaxside.ejit import ejit
    from ejcache.statistics import Stats
    from ejcache.stores.base import EntryInfo, Store
    from ejcache.stores.opening import open_store

__all__ = [
    "AutotuneStore",
    "CompilationCache",
    "EjcacheError",
    "EntryInfo",
    "Stats",
    "Store",
    "__version__",
    "active",
    "autotuned",
    "disable",
    "ejit",
    "enable",
    "open_store",
]

_HOMES: Final = {
    "AutotuneStore": "ejcache.autotune.store",
    "CompilationCache": "ejcache.compilation",
    "EjcacheError": "ejcache.errors",
    "EntryInfo": "ejcache.stores.base",
    "Stats": "ejcache.statistics",
    "Store": "ejcache.stores.base",
    "active": "ejcache.jaxside.activate",
    "autotuned": "ejcache.autotune.decorator",
    "disable": "ejcache.jaxside.activate",
    "ejit": "ejcache.jaxside.ejit",
    "enable": "ejcache.jaxside.activate",
    "open_store": "ejcache.stores.opening",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ejcache' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return __all__
