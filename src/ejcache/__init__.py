"""ejcache: the persistent compilation cache and autotune store for JAX.

Importing this module imports neither JAX nor any storage backend: each name is imported when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # `typing` takes a tenth of a start of `ejcache run`
if TYPE_CHECKING:
    from typing import Any, Final

    from ejcache._version import __version__ as __version__
    from ejcache.api import clear, current_settings, entries, prune, stats, verify, why
    from ejcache.autotune.operation import autotuned
    from ejcache.autotune.records.store import AutotuneStore
    from ejcache.cache.compilation_cache import CompilationCache
    from ejcache.cache.stats import Stats
    from ejcache.errors import (
        CompileForbiddenError,
        EjcacheError,
        EntryError,
        SettingError,
        StoreError,
        StoreReadOnlyError,
        StoreUnavailableError,
        UsageError,
    )
    from ejcache.history.guard import warn_recompiles
    from ejcache.jax_integration.activate import active, disable, disabled, enable
    from ejcache.jax_integration.decorator import ejit
    from ejcache.jax_integration.devices.targets import target
    from ejcache.jax_integration.key_questions import key_of, would_hit
    from ejcache.jax_integration.no_compile_blocks import forbid_compile
    from ejcache.jax_integration.warm_start import warm
    from ejcache.journal.recorder import on_event
    from ejcache.notebook import load_ipython_extension, unload_ipython_extension
    from ejcache.settings.table import Settings
    from ejcache.stores.base import EntryInfo, Store
    from ejcache.stores.opening import open_store
    from ejcache.values.code_files import code_digest

if sys.platform == "win32":
    raise ImportError("ejcache does not support Windows: it needs the file locks of Linux or macOS (WSL has them)")

__all__ = [
    "AutotuneStore",
    "CompilationCache",
    "CompileForbiddenError",
    "EjcacheError",
    "EntryError",
    "EntryInfo",
    "SettingError",
    "Settings",
    "Stats",
    "Store",
    "StoreError",
    "StoreReadOnlyError",
    "StoreUnavailableError",
    "UsageError",
    "active",
    "autotuned",
    "clear",
    "code_digest",
    "current_settings",
    "disable",
    "disabled",
    "ejit",
    "enable",
    "entries",
    "forbid_compile",
    "key_of",
    "load_ipython_extension",
    "on_event",
    "open_store",
    "prune",
    "stats",
    "target",
    "unload_ipython_extension",
    "verify",
    "warm",
    "warn_recompiles",
    "why",
    "would_hit",
]

_MODULES: Final = {
    "history.guard": ("warn_recompiles",),
    "autotune.operation": ("autotuned",),
    "autotune.records.store": ("AutotuneStore",),
    "api": ("clear", "current_settings", "entries", "prune", "stats", "verify", "why"),
    "cache.compilation_cache": ("CompilationCache",),
    "cache.stats": ("Stats",),
    "journal.recorder": ("on_event",),
    "jax_integration.activate": ("active", "disable", "disabled", "enable"),
    "jax_integration.decorator": ("ejit",),
    "jax_integration.devices.targets": ("target",),
    "jax_integration.key_questions": ("key_of", "would_hit"),
    "jax_integration.no_compile_blocks": ("forbid_compile",),
    "jax_integration.warm_start": ("warm",),
    "notebook": ("load_ipython_extension", "unload_ipython_extension"),
    "values.code_files": ("code_digest",),
    "settings.table": ("Settings",),
    "stores.base": ("EntryInfo", "Store"),
    "stores.opening": ("open_store",),
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "autotune":
        return import_module("ejcache.autotune")
    if name == "__version__":
        return import_module("ejcache._version").__version__
    if name not in __all__:
        raise AttributeError(f"module 'ejcache' has no attribute {name!r}")
    try:
        value = getattr(import_module(_home(name)), name)
    except ValueError as exc:
        # JAX refuses to be imported with a variable, and does not say which values it accepts.
        refused = import_module("ejcache.errors").JaxImportError
        problems = import_module("ejcache.settings.resolve").resolve().problems
        raise next((problem for problem in problems if isinstance(problem, refused)), exc) from None
    globals()[name] = value
    return value


def _home(name: str) -> str:
    """Return the module of a public name."""
    return f"ejcache.{_HOMES.get(name, 'errors')}"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
