"""Switches ejcache on and off in this process, and off for a block."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax

from ejcache.cache.compilation_cache import CompilationCache, use_cache
from ejcache.cache.opening import open_cache, open_single_flight
from ejcache.cache.reading import CacheReader
from ejcache.cache.report_destination import is_off
from ejcache.errors import UsageError
from ejcache.jax_integration import in_charge, why_not_ours
from ejcache.jax_integration.lowering.native_libraries import read_libraries_ahead
from ejcache.jax_integration.seam.flags import FlagReader
from ejcache.jax_integration.seam.pickling import patch_pickler
from ejcache.settings.environment import environment_variable
from ejcache.settings.resolve import (
    SettingsSource,
    name_of,
    parse,
    resolve,
    resolve_if_changed,
    say_problems,
    use_settings,
)
from ejcache.settings.table import FLAGS, Origin, Settings, Value
from ejcache.stores.location import Location, display_url
from ejcache.util.daemon_threads import idle_threads
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Unpack

    from ejcache.jax_integration.pipeline import Compiler
    from ejcache.settings.table import SettingOptions


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


class Session:
    """One activation: the flags that it watches, the caches that it opened, what it changed in JAX.

    Attributes:
        is_left_to_jax: JAX's own cache is in charge, because this JAX takes none of ours.
    """

    def __init__(self) -> None:
        self.flags = FlagReader()
        self.source = SettingsSource(self.flags)
        self.changed: dict[str, tuple[Any, Any]] = {}
        self.compiler: Compiler | None = None
        self.is_left_to_jax = False
        self._caches: dict[str, tuple[CacheReader, CompilationCache]] = {}
        self._opened_as: tuple[str, int, bool] | None = None
        self._current: tuple[Settings, CacheReader | None, CompilationCache | None] | None = None
        self._lock = threading.RLock()

    def settings(self) -> Settings:
        return self.source.resolve_if_changed()

    def reader(self, settings: Settings) -> CacheReader | None:
        """Return the reader of the cache that the settings name; None if they disable caching or name no cache."""
        return self._at(settings)[1]

    def cache(self) -> CompilationCache | None:
        """Return the cache that the settings name now; None if they disable caching or name no cache."""
        return self._at(self.settings())[2]

    def _at(self, settings: Settings) -> tuple[Settings, CacheReader | None, CompilationCache | None]:
        current = self._current
        if current is None or current[0] is not settings:
            replaced: list[CacheReader] = []
            with self._lock:
                current = self._current = (settings, *self._named_by(settings, replaced))
            # Not under the lock: closing may wait for uploads, and other threads compile meanwhile.
            for reader in replaced:
                reader.close()
        return current

    def _named_by(
        self, settings: Settings, replaced: list[CacheReader]
    ) -> tuple[CacheReader, CompilationCache] | tuple[None, None]:
        say_problems(settings)
        if settings.disabled_reason or self.is_left_to_jax:
            return None, None
        url = str(settings.dir)
        overruled = self.flags.overruled_directory()
        if overruled not in (None, url):
            warn_once(
                ("overruled", overruled),
                "ejcache: ejkernel has set the cache directory %s for itself; entries are kept in %s instead (%s)",
                overruled,
                display_url(url),
                settings["dir"].source,
            )
        opened_as = url, settings.max_size, settings.read_only
        if self._opened_as != opened_as:
            # The directory or a limit has changed: stores opened with the old values are no longer used.
            replaced.extend(reader for reader, _ in self._caches.values())
            self._opened_as = opened_as
        if url not in self._caches:
            try:
                Location.parse(url)
            except UsageError as exc:
                warn_once(str(exc), "ejcache: nothing is cached: %s: %s", settings["dir"].source, exc)
                return None, None
            self._caches[url] = self.make(url, settings)
        return self._caches[url]

    def make(self, url: str, settings: Settings) -> tuple[CacheReader, CompilationCache]:
        place = _place_now(url)
        reader = CacheReader(
            str(place),
            open_store=lambda: open_cache(place, self.settings()),
            open_single_flight=lambda store: open_single_flight(place, store, self.settings()),
        )
        _note_for_report(reader, settings)
        return reader, CompilationCache(reader, settings=self.settings)

    def begin(self) -> None:
        """Begin what the first programs need, ahead of them; it takes the settings as they are now."""
        if self.compiler is not None:
            if self.cache() is not None:
                read_libraries_ahead()
            self.compiler.begin()
        else:
            self._tell_jax()

    def _tell_jax(self) -> None:
        """Have JAX's own cache go by the settings, where it asks our store, or none of ours."""
        settings = self.settings()
        if settings.disabled_reason:
            return
        is_here = Location.parse(str(settings.dir)).kind == "directory"
        floor = settings.floors.keep if is_here else settings.floors.publish
        wanted: dict[str, Any] = {"dir": str(settings.dir), "min_compile_seconds": floor}
        if not is_here:
            wanted["xla_caches"] = "none"  # below a URL, XLA aborts the process
        for name, value in wanted.items():
            if getattr(jax.config, FLAGS[name], value) != value:
                self.set(name, value)

    def set(self, name: str, value: Any) -> None:
        """Set a setting as the latest call in the program."""
        flag = FLAGS.get(name, "")
        current = self.flags.read(flag) if flag else None
        if current is None:
            self.source.calls = {**self.source.calls, name: value}
            return
        before, _ = self.changed.get(flag, (current.value, None))
        jax.config.update(flag, value)
        self.changed[flag] = (before, value)

    def save(self) -> SavedState:
        """Copy all that `enable` may change, as it is now."""
        return SavedState(self.source.calls, dict(self.changed), self.flags.save())

    def load(self, saved: SavedState) -> None:
        """Undo what was set since `saved`, to flags that the program has changed since then as well."""
        for flag in self.changed.keys() | saved.changed.keys():
            if self.changed.get(flag) != saved.changed.get(flag):
                self.flags.put_back(flag, saved.flags[flag])
        self.changed = dict(saved.changed)
        self.source.calls = saved.calls

    def put_back(self) -> None:
        """Put back the flags whose values are still those that `enable` gave them."""
        for flag, (before, ours) in self.changed.items():
            current = self.flags.read(flag)
            if current is not None and current.value == ours:
                jax.config.update(flag, before)
        self.changed.clear()
        self.source.calls = {}

    def close(self) -> None:
        """Close the stores. The caches stay, and open their store again when they are used again."""
        for reader, _ in list(self._caches.values()):
            reader.close()


_unreported: Final[list[CacheReader]] = []
"""The caches that this process has opened while no report was asked for."""


def _note_for_report(reader: CacheReader, settings: Settings) -> None:
    """Have the report at exit count a cache; where nobody asks for a report, its module is not imported."""
    _unreported.append(reader)
    if not environment_variable("EJCACHE_RUN_COUNTS") and is_off(settings.report):
        return
    from ejcache.cache import exit_report  # the door to a report

    for each in _unreported:
        exit_report.include(each, destination=settings.report, disabled_reason=settings.disabled_reason)
    _unreported.clear()


lock = threading.RLock()
_session: Session | None = None
_disabled_by_program = False


def enable(
    dir: str | None = None,
    *,
    max_size: int | str | None = None,
    read_only: bool | None = None,
    **settings: Unpack[SettingOptions],
) -> CompilationCache:
    """Use the cache for every compilation in this process, and return the cache.

    This covers `jax.jit`, `pjit`, `shard_map`, `pmap`, `.lower().compile()` and `@ejit`. `enable` may be called again:
    among its calls and those of `jax.config.update`, the latest wins. In a `with` statement, the state before the call
    comes back at the end of the block, whatever the block does:

        with ejcache.enable("/tmp/cache"):
            ...

    Args:
        dir: a directory or URL; by default, what `ejcache config` shows as `dir`. A relative directory is one of the
            working directory at the time of the call.
        max_size: largest total size of the entries, in bytes or as `"10GB"`; -1 for no limit, 0 for no caching.
        read_only: if true, never write.
        settings: any other setting that `ejcache config` shows, by its name or by the name of its JAX flag.

    Raises:
        UsageError: a setting that does not exist, a value that a setting cannot have, or a URL that names no cache. A
            failure of the storage raises nothing: it is logged once, and the program goes on without a cache.

    The state belongs to the process, not to a thread: blocks of different threads must not overlap.

    With a JAX whose compilations ejcache cannot take, the entries are kept behind JAX's own cache (docs/jax.md). If
    even that is not possible, JAX's own cache is used instead, with the same settings, and `active()` is None. Either
    is logged once.

    Entries are code. A person who can write to the cache can run code in this process: share it with people you trust.
    """
    named = {"dir": None if dir is None else Location.parse(dir).url, "max_size": max_size, "read_only": read_only}
    parsed = _parse_values({**settings, **{name: value for name, value in named.items() if value is not None}})
    global _session
    with lock:
        before, was_disabled = _session, _disabled_by_program
        saved = before.save() if before is not None else None
        session = _session = before or _start()
        for name, value in parsed.items():
            session.set(name, value)
        now = session.settings()
        cache = session.cache() or session.make(str(now.dir), now)[1]
        cache.when_left = functools.partial(_restore, before, saved, was_disabled)
    session.begin()
    return cache


class _Signature(inspect.Signature):
    """That of `enable`, with a keyword for each setting: `help` and editors that inspect a live object show it. It is
    made when somebody asks.
    """

    __slots__ = ()

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:  # type: ignore[override]  # of another kind of mapping

        written = types.FunctionType(enable.__code__, {}, "enable", enable.__defaults__)  # without this signature
        written.__kwdefaults__, written.__annotations__ = enable.__kwdefaults__, enable.__annotations__
        named = [each for each in inspect.signature(written).parameters.values() if each.kind is not each.VAR_KEYWORD]
        given = {each.name for each in named}
        from ejcache.settings.described import SETTINGS  # the door to settings in words

        settings = [
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.annotation
            )
            for each in SETTINGS
            if each.name not in given
        ]
        return inspect.Signature([*named, *settings]).parameters


vars(enable)["__signature__"] = _Signature(return_annotation="CompilationCache")


def _parse_values(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of settings that a call of `enable` gives, by the names of the settings."""
    names = {name: name_of(name) for name in wanted}
    return {
        names[name]: parse(names[name], value, source=f"ejcache.enable({name}=…)") for name, value in wanted.items()
    }


def enable_from_environment() -> None:
    """Enable the cache with the settings as they are, unless the program has enabled or disabled it before.

    `EJCACHE` leads here, through JAX's plug-in discovery, in every process that makes a backend. No backend is asked
    for: JAX holds its plug-in lock.
    """
    with lock:
        if _session is not None or _disabled_by_program:
            return
        settings = resolve()
        if settings.activate:
            enable()
        for problem in settings.problems:
            if problem.setting == "EJCACHE":
                warn_once(str(problem), "ejcache: nothing is cached: %s", problem)


def enable_by_default() -> None:
    """Enable the cache as `@ejit` does: unless it is enabled already, or a variable says no."""
    if active() is None:
        settings = resolve_if_changed()
        if settings.ejit_enables:
            enable()
        say_problems(settings)


def disable() -> None:
    """Stop using ejcache in this process. JAX's own cache is used again, with the flags as they were before."""
    global _session, _disabled_by_program
    with lock:
        _disabled_by_program = True
        session, _session = _session, None
        if session is None:
            return
        _uninstall(session)
        session.put_back()
        session.flags.unwatch()
    if session.compiler is not None:
        session.compiler.end()
    session.close()
    if _session is None:
        idle_threads.end()


def active() -> CompilationCache | None:
    """Return the cache that compilations use now. None if ejcache is not enabled or a setting disables caching."""
    session = _session
    return session.cache() if session is not None else None


def session_in_use() -> Session | None:
    """Return what `enable` has begun; None if ejcache is not enabled."""
    return _session


def compiler_in_use() -> Compiler | None:
    """Return the `Compiler` that JAX uses now; None if ejcache is not enabled, or behind JAX's cache."""
    session = _session
    return session.compiler if session is not None else None


def current_settings() -> Settings:
    """Return the settings that the next compilation will use."""
    session = _session
    return session.settings() if session is not None else resolve_if_changed()


use_settings(current_settings)
use_cache(active)


def _start() -> Session:
    """Put ejcache in the place of JAX's cache; log once if this JAX does not let it take compilations."""
    session = Session()
    _install(session)
    idle_threads.keep()
    return session


def _install(session: Session) -> None:
    session.flags.watch()
    if not why_not_ours():
        from ejcache.jax_integration.pipeline import Compiler  # the door to JAX whose names fit
        from ejcache.jax_integration.seam import patch as seam  # the door to JAX whose names fit

        compiler = Compiler(settings=session.settings, cache=session.reader, reset=session.close)
        seam.install(compiler)
        patch_pickler(compiler.stored_bytes)
        session.compiler = compiler
        return
    kept, said = in_charge()
    warn_once("in charge", "ejcache: %s", said)
    session.is_left_to_jax = kept == "jax"
    if kept == "behind":
        from ejcache.jax_integration.behind_jax import StoreBehindJax  # the door to JAX whose names do not fit
        from ejcache.jax_integration.seam import file_cache  # the door to JAX whose names fit

        def open_cache(path: str) -> StoreBehindJax:
            settings = session.settings()
            current = session.reader(settings) if path == str(settings.dir) else None
            return StoreBehindJax(current or session.make(path, settings)[0], session.settings)

        file_cache.install(open_cache)


def _uninstall(session: Session) -> None:
    if session.compiler is not None:
        from ejcache.jax_integration.seam import patch as seam  # the door to JAX whose names fit

        seam.uninstall()
    elif not session.is_left_to_jax:
        from ejcache.jax_integration.seam import file_cache  # the door to JAX whose names fit

        file_cache.uninstall()


def _restore(before: Session | None, saved: SavedState | None, was_disabled: bool) -> None:  # noqa: FBT001 (private)
    """Bring back the state before a call of `enable`.

    Args:
        before: the activation then.
        saved: what it had changed; None if there was none.
        was_disabled: whether `disable` had been called.
    """
    global _session, _disabled_by_program
    with lock:
        flags = {flag: value for flag, (value, _) in _session.changed.items()} if _session is not None else {}
        if _session is not before:
            disable()
        _disabled_by_program = was_disabled
        if before is None or saved is None:
            for flag, value in flags.items():
                if getattr(jax.config, flag) != value:
                    jax.config.update(flag, value)
            return
        if _session is None:
            _session = before
            _install(before)
        before.load(saved)
    before.begin()


def _place_now(url: str) -> Location | str:
    """Return the location, so that a relative directory stays where it is when the program changes its own.

    A URL that names no cache is returned as it is: opening it says why.
    """
    try:
        return Location.parse(url)
    except UsageError:
        return url


_ENABLED: Final = "jax_enable_compilation_cache"


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Keep compilations of this process from using a persistent cache, for a block: neither ejcache's nor JAX's own.

    A function that was compiled before is not compiled again. `enable` and `@ejit` may be called in the block; they
    have an effect after it. The state belongs to the process, not to a thread.
    """
    with lock:
        session = session_in_use()
        before = session.flags.save()[_ENABLED] if session is not None else None
        value = getattr(jax.config, _ENABLED)
        jax.config.update(_ENABLED, False)
        _forget_whether_jax_caches()
    try:
        yield
    finally:
        with lock:
            session = session_in_use()
            if session is None:
                jax.config.update(_ENABLED, value)
            else:
                session.flags.put_back(_ENABLED, before or Value(value, Origin.DEFAULT))
            _forget_whether_jax_caches()


def _forget_whether_jax_caches() -> None:
    """Make JAX read `jax_enable_compilation_cache` again, which it does once per process otherwise."""
    session = session_in_use()
    if session is None or session.compiler is None:
        from jax.experimental.compilation_cache import compilation_cache

        compilation_cache.reset_cache()
