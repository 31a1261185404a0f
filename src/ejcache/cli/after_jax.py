"""Enabling the cache in a program that knows nothing of it, at the moment its import of JAX has completed.

Not earlier: the program may still be setting `XLA_FLAGS` or `JAX_PLATFORMS`, and one that never imports JAX is not to
wait for it. Not by replacing `jax` in `sys.modules` either: the program gets the module that it asked for.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["after_jax_import"]

log = logging.getLogger("ejcache")


def after_jax_import(action: Callable[[], object]) -> None:
    """Call `action` once, when the next import of `jax` has completed, in the thread that imports it.

    If that import is part of an import of `ejcache.jaxside`, `action` waits for this one, whose modules it needs whole.
    What `action` raises is logged: it is no error of the import.
    """
    sys.meta_path.insert(0, _Finder(action))


class _Finder:
    """Finds what all others would find, and notices when it has been loaded."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._lock = threading.RLock()
        self._loading: set[str] = set()
        self._jax_loaded = False
        self._done = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._done or not _concerns(name) or name in self._loading:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]  # a loader by duck typing
                return spec
        return None

    def begin(self, name: str) -> None:
        with self._lock:
            self._loading.add(name)

    def end(self, name: str, *, completed: bool) -> None:
        with self._lock:
            self._loading.discard(name)
            if name == "jax":
                self._jax_loaded = completed
            if self._done or self._loading or not self._jax_loaded:
                return
            self._done = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            self._action()
        except Exception as exc:
            log.warning("the cache could not be enabled; the program goes on without it: %s", exc)


class _Loader:
    """Loads as the loader it wraps, and takes itself out of the module's sight before any of its code runs."""

    def __init__(self, wrapped: Loader, finder: _Finder) -> None:
        self._wrapped = wrapped
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._wrapped.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._wrapped
        if module.__spec__ is not None:
            module.__spec__.loader = self._wrapped
        name = module.__name__
        self._finder.begin(name)
        completed = False
        try:
            self._wrapped.exec_module(module)
            completed = True
        finally:
            self._finder.end(name, completed=completed)


def _concerns(name: str) -> bool:
    return name == "jax" or name.startswith("ejcache.jaxside")
