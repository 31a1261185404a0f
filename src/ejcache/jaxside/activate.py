"""Switching ejcache on and off in this process."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import jax

from ejcache import reporting
from ejcache.compilation import CompilationCache
from ejcache.compilation_opening import open_cache_store, open_flights
from ejcache.errors import UsageError
from ejcache.settings import Settings, parse, resolve, setting_named
from ejcache.stores.opening import check_url

if TYPE_CHECKING:
    from ejcache.jaxside.seam_flags import FlagReader
    from ejcache.stores.base import Store

__all__ = ["active", "current_settings", "disable", "enable"]

log = logging.getLogger("ejcache")


class _Session:
    """One activation: the flags it watches, the caches it opened, what it changed in JAX."""

    def __init__(self, flags: FlagReader) -> None:
        self.flags = flags
        self.calls: dict[str, Any] = {}
        self.changed: dict[str, tuple[Any, Any]] = {}
        self._caches: dict[str, CompilationCache] = {}
        self._opened_as: dict[str, tuple[int, bool]] = {}
        self._lock = threading.RLock()
        self._said: set[str] = set()

    def settings(self) -> Settings:
        return resolve(flags=self.flags, calls=self.calls)

    def cache(self, settings: Settings) -> CompilationCache | None:
        """The cache that the settings ask for now, or None if they ask for none."""
        for problem in settings.problems:
            self._say_once(f"{problem}; it is ignored")
        if settings.disabled_reason:
            return None
        url, opened_as = str(settings.cache_dir), (settings.max_size, settings.read_only)
        with self._lock:
            cache = self._caches.get(url)
            if cache is None:
                try:
                    check_url(url)
                except UsageError as exc:
                    self._say_once(f"nothing is cached: {settings['cache_dir'].source}: {exc}")
                    return None
                cache = self.make(url)
            if self._opened_as.get(url) != opened_as:
                # The directory or a limit changed under way; stores opened with the old ones are done.
                self.close()
                self._opened_as = {url: opened_as}
                self._caches[url] = cache
            return cache

    def make(self, url: str) -> CompilationCache:
        def open_as_set() -> Store:
            return open_cache_store(url, self.settings())

        cache = CompilationCache(
            url,
            open_store=open_as_set,
            open_flights=lambda store: open_flights(url, store, self.settings()),
            settings=self.settings,
        )
        settings = self.settings()
        reporting.include(cache, destination=settings.report, disabled_reason=settings.disabled_reason)
        return cache

    def set(self, name: str, value: Any) -> None:
        """Make `value` the program's latest word on a setting."""
        flag = setting_named(name).flag
        current = self.flags.read(flag) if flag else None
        if current is None:
            self.calls[name] = value
            return
        before, _ = self.changed.get(flag, (current.value, None))
        jax.config.update(flag, value)
        self.changed[flag] = (before, value)

    def restore(self) -> None:
        """Put back the flags that are still as `set` left them."""
        for flag, (before, ours) in self.changed.items():
            current = self.flags.read(flag)
            if current is not None and current.value == ours:
                jax.config.update(flag, before)
        self.changed.clear()
        self.calls.clear()

    def close(self) -> None:
        """Release the stores; the caches stay, and reopen when they are used again."""
        with self._lock:
            for cache in self._caches.values():
                cache.close()

    def _say_once(self, message: str) -> None:
        with self._lock:
            first = message not in self._said
            self._said.add(message)
        if first:
            log.warning("ejcache: %s", message)


_lock = threading.RLock()
_session: _Session | None = None
_refused: list[str] = []


def enable(
    url: str | None = None,
    *,
    max_size: int | str | None = None,
    read_only: bool | None = None,
    **settings: Any,
) -> CompilationCache:
    """Let every compilation in this process use the cache, and return it.

    `jax.jit`, `pjit`, `shard_map`, `pmap`, `.lower().compile()` and `@ejit` alike. What JAX does around its cache
    stays JAX's. May be called again: the latest call wins, as it does against `jax.config.update`.

    Args:
        url: a directory or URL; if not given, what `ejcache config` shows as `cache_dir`.
        max_size: bytes of all entries, or `"10GB"`; -1 for no limit, 0 for no caching.
        read_only: never write.
        settings: any other setting by its name in `ejcache config`, or by its JAX flag's.

    Raises:
        UsageError: a setting that does not exist, a value it cannot have, or a URL that names no cache. Trouble with
            the storage raises nothing: it is said once and the program goes on without a cache.

    On a JAX whose internals are not as this version expects, JAX's own cache stays in charge, with the same settings;
    this is said once, and `active()` is None.

    A cache that others can write to is code that others can run here: share it with those you trust.
    """
    wanted = dict(settings)
    if url is not None:
        check_url(url)
        wanted["cache_dir"] = url
    if max_size is not None:
        wanted["max_size"] = max_size
    if read_only is not None:
        wanted["read_only"] = read_only
    parsed = {
        setting_named(name).name: parse(setting_named(name), value, source=f"ejcache.enable({name}=…)")
        for name, value in wanted.items()
    }
    global _session
    with _lock:
        if _session is None:
            _session = _start()
        if _session is None:
            return _leave_to_jax(parsed)
        for name, value in parsed.items():
            _session.set(name, value)
        now = _session.settings()
        return _session.cache(now) or _session.make(str(now.cache_dir))


def disable() -> None:
    """Take ejcache out of this process again; JAX's own cache is in charge, with the flags as they were."""
    global _session
    with _lock:
        session, _session = _session, None
        if session is None:
            return
        from ejcache.jaxside import seam

        seam.uninstall()
        session.close()
        session.restore()
        session.flags.unwatch()


def active() -> CompilationCache | None:
    """The cache that compilations use now; None if ejcache is not enabled, or its settings ask for no caching."""
    session = _session
    return session.cache(session.settings()) if session is not None else None


def current_settings() -> Settings:
    """The settings that compilations go by now."""
    session = _session
    return session.settings() if session is not None else resolve()


def _start() -> _Session | None:
    """Take JAX's cache over, or say once why not."""
    if not _refused:
        try:
            from ejcache.jaxside import seam
            from ejcache.jaxside.compiling import Compiler
            from ejcache.jaxside.seam_flags import FlagReader
        except (ImportError, AttributeError) as exc:
            # A module or name of JAX's that the seam is built on is gone.
            _refused.append(str(exc))
        else:
            _refused.extend(seam.mismatches())
        if not _refused:
            session = _Session(FlagReader())
            session.flags.watch()
            seam.install(Compiler(settings=session.settings, cache=session.cache, reset=session.close))
            return session
        log.warning(
            "ejcache: JAX %s is not built as expected, so JAX's own cache stays in charge: %s",
            jax.__version__,
            "; ".join(_refused),
        )
    return None


def _leave_to_jax(values: dict[str, Any]) -> CompilationCache:
    for name, value in values.items():
        flag = setting_named(name).flag
        if flag:
            jax.config.update(flag, value)
    now = resolve(calls=values)
    return CompilationCache(
        str(now.cache_dir),
        open_store=lambda: open_cache_store(str(now.cache_dir), now),
    )
