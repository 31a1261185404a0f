"""The thin form: a store of ours behind JAX's own cache, for every JAX on which the full form is not proven.

JAX makes the key, decides what is stored, and in a job of several processes only process 0 writes. The name of an entry
is JAX's key with a digest of what that key lacks (`_environment`), so entries of both forms lie in one store. JAX's
flags are set to what the settings say, as far as JAX goes by them, and put back by `disable`.

JAX does not say what a compilation took. Its seconds are counted from the miss to the put, so they are "about".
"""

from __future__ import annotations

import functools
import hashlib
import time
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.cache.counters import count_compilation, count_miss
from ejcache.cache.policy import Miss
from ejcache.cache.writing import EntryWriter
from ejcache.entry import Entry, Header
from ejcache.jax_integration.lowering.platform_toolchain import (
    cpu_identity,
    cpu_threads,
    native_libraries,
    read_libraries_ahead,
)
from ejcache.jax_integration.seam import file_cache
from ejcache.keys.parsing import parse_any_key
from ejcache.keys.thin_keys import thin_key
from ejcache.settings.described import SETTINGS
from ejcache.settings.environment import environment_variable
from ejcache.settings.table import Origin, Value, jax_reading
from ejcache.stores.location import Location
from ejcache.stores.opening import detect_shared_storage
from ejcache.util.log import warn_once
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.cache.policy import CachePolicy
    from ejcache.settings.described import Setting
    from ejcache.settings.table import Settings

_FORMAT: Final = "1"
"""Part of every name; a new number makes every older entry unreachable."""
_DIRECTORY: Final = "jax_compilation_cache_dir"
_OURS_ALONE: Final = frozenset({"max_size"})
"""Settings by which only the store goes."""
_MOST: Final = 10_000
"""Keys that are remembered; programs that are below JAX's floor are never put."""


class ThinForm:
    """What JAX asks in place of its own cache.

    Args:
        flags: those of the session.
        settings: returns the current settings.
        cache: the cache that these settings ask for, or None.
        cache_at: makes the cache at another place, with these settings.
    """

    def __init__(
        self,
        flags: ThinFlags,
        *,
        settings: Callable[[], Settings],
        cache: Callable[[Settings], CachePolicy | None],
        cache_at: Callable[[str, Settings], CachePolicy],
    ) -> None:
        self._flags = flags
        self._settings = settings
        self._cache = cache
        self._cache_at = cache_at
        self._missed: dict[str, float] = {}
        self._given: dict[str, None] = {}

    def install(self) -> None:
        """Take the place of JAX's cache."""
        file_cache.install(self._open, failed=self._give_up)

    def uninstall(self) -> None:
        """Give JAX its own cache back."""
        file_cache.uninstall()

    def begin(self) -> None:
        """Set JAX's flags to what the settings say now, and have JAX open its cache anew."""
        self._flags.follow(self._settings())
        file_cache.reopen()
        read_libraries_ahead()

    def end(self) -> None:
        """Do nothing: nothing is done ahead."""

    def _open(self, path: str) -> file_cache.FileCache | None:
        settings = self._settings()
        if settings.disabled_reason:
            return None
        policy = self._cache(settings) if path == str(settings.dir) else self._cache_at(path, settings)
        return _Store(self, policy, path) if policy is not None else None

    def _give_up(self, exc: Exception) -> str | None:
        """Leave the entries to JAX, in the directory that it would have without us."""
        warn_once("thin", "ejcache: the thin form failed, so JAX's own cache is used: %s: %s", type(exc).__name__, exc)
        self._flags.put_all_back()
        place = self._flags.value(_DIRECTORY)
        return str(place) if place else None

    # -- what JAX asks, for the store that it has opened ---------------------------------------------------------------

    def get(self, key: str, policy: CachePolicy) -> bytes | None:
        """Return the bytes that were put under JAX's key, or None."""
        began, settings = time.monotonic(), self._settings()
        found = policy.read(_name(key, settings), settings)
        policy.tally.add(about=1)
        if not isinstance(found, Entry):
            count_miss(policy, found)
            _remember(self._missed, key, time.monotonic())
            return None
        _remember(self._given, key, None)
        policy.count_hit(found.header, load_seconds=time.monotonic() - began)
        return found.raw

    def put(self, key: str, value: bytes, policy: CachePolicy) -> None:
        """Store what JAX has compiled; what it was given under this key before was of no use to it."""
        settings, missed = self._settings(), self._missed.pop(key, None)
        seconds = time.monotonic() - missed if missed is not None else 0.0
        is_useless = key in self._given and not settings.check_contents
        if is_useless:
            count_miss(policy, Miss.REJECTED)
        name = _name(key, settings)
        header = Header(
            key=name,
            name=parse_any_key(name).name,
            codec="none",  # JAX has compressed it
            compile_seconds=seconds,
            jax=jax.__version__,
            jaxlib=_jaxlib_version(),
        )
        count_compilation(policy, seconds)
        EntryWriter(policy).write(header, value, settings, replacing=is_useless)


class _Store:
    """The store that JAX has opened. A failure of ours is a miss, or an entry that is not stored."""

    def __init__(self, form: ThinForm, policy: CachePolicy, path: str) -> None:
        self._form = form
        self._policy = policy
        self._path = path

    def get(self, key: str) -> bytes | None:
        try:
            return self._form.get(key, self._policy)
        except Exception as exc:
            self._report("read an entry", exc)
            return None

    def put(self, key: str, value: bytes) -> None:
        try:
            self._form.put(key, value, self._policy)
        except Exception as exc:
            self._report("write an entry", exc)

    def _report(self, doing: str, exc: Exception) -> None:
        if getattr(jax.config, "jax_raise_persistent_cache_errors", False):
            raise exc
        self._policy.warn(doing, f"could not {doing}; the program goes on without it: {type(exc).__name__}: {exc}")


def _remember(known: dict[str, Any], key: str, value: object) -> None:
    if len(known) >= _MOST:
        known.clear()
    known[key] = value


def _name(key: str, settings: Settings) -> str:
    """Return the key of a store for JAX's key."""
    return thin_key(key, _environment(settings.namespace))


@functools.cache
def _environment(namespace: str) -> str:
    """Digest of what JAX's key lacks: the native libraries by content, the CPU of this host, the namespace.

    JAX does not say for which platform a key is, so the libraries of all plug-ins count, and the CPU for all.
    """
    parts = (_FORMAT, namespace, native_libraries(""), cpu_identity(), cpu_threads())
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _jaxlib_version() -> str:
    import jaxlib.version

    return str(jaxlib.version.__version__)


# -- flags -------------------------------------------------------------------------------------------------------------


class _Followed(NamedTuple):
    """A flag that was set to what a setting says: the value before, and ours."""

    before: Any
    ours: Any


class ThinFlags:
    """JAX's flags, through `jax.config` alone. A value that we have set is read as the one before it.

    A value that is not the environment's counts as one that the program has set.
    """

    def __init__(self) -> None:
        self._initial = {
            each.flag: _initial_value(each) for each in SETTINGS if each.flag and hasattr(jax.config, each.flag)
        }
        self._followed: dict[str, _Followed] = {}

    def watch(self) -> None:
        """Watch nothing: `jax.config` is read each time."""

    def unwatch(self) -> None:
        """Put back what `follow` has set."""
        self.put_all_back()

    def value(self, flag: str) -> Any:
        """Return the value that the flag has without us."""
        now, followed = getattr(jax.config, flag), self._followed.get(flag)
        return followed.before if followed is not None and now == followed.ours else now

    def read(self, flag: str) -> Value | None:
        if flag not in self._initial:
            return None
        value = self.value(flag)
        return Value(value, Origin.ENVIRONMENT if value == self._initial[flag] else Origin.CALL)

    def fingerprint(self) -> tuple[Any, ...]:
        """Return a value that changes whenever `read` would answer differently for some flag."""
        return tuple([self.value(flag) for flag in self._initial])

    def save(self) -> dict[str, Value]:
        """Return every flag as it is now."""
        return {flag: value for flag in self._initial if (value := self.read(flag)) is not None}

    def put_back(self, flag: str, before: Value) -> None:
        """Give a flag the value that `save` found."""
        jax.config.update(flag, before.value)

    def overruled_directory(self) -> str | None:
        """Overrule no directory: whoever sets it last is followed, as by JAX."""

    def follow(self, settings: Settings) -> None:
        """Set the flags by which JAX itself goes to what the settings say, where that is something else."""
        wanted = _wanted(settings)
        for flag in self._initial:
            before = self.value(flag)
            ours = wanted.get(flag, before)
            if getattr(jax.config, flag) != ours:
                jax.config.update(flag, ours)
            if ours != before:
                self._followed[flag] = _Followed(before, ours)
            else:
                self._followed.pop(flag, None)

    def put_all_back(self) -> None:
        """Give the flags that still have our values those from before."""
        for flag, followed in self._followed.items():
            if getattr(jax.config, flag) == followed.ours:
                jax.config.update(flag, followed.before)
        self._followed.clear()


def _wanted(settings: Settings) -> dict[str, Any]:
    """Return the values of flags that the settings ask for, by flag."""
    found = {
        each.flag: settings[each.name].value
        for each in SETTINGS
        if each.flag and not each.read_by_jax and each.name not in _OURS_ALONE
        if settings[each.name].origin not in (Origin.DEFAULT, Origin.CALL)
    }
    found.pop("jax_persistent_cache_enable_xla_caches", None)
    if settings.dir is None:
        return found
    found[_DIRECTORY] = str(settings.dir)
    location = Location.parse(settings.dir)
    floors = settings.floors
    shared = detect_shared_storage(location)
    found["jax_persistent_cache_min_compile_time_secs"] = floors.publish if shared else floors.keep
    if location.kind != "directory":
        # JAX would put XLA's own caches below the cache directory, which aborts the process if that is a URL.
        found["jax_persistent_cache_enable_xla_caches"] = "none"
    return found


def _initial_value(setting: Setting) -> Any:
    """Return the value that JAX read from the environment when it was imported."""
    text = environment_variable(setting.flag.upper())
    try:
        if text is not None:
            return jax_reading(setting.kind, text)
    except ValueError:
        return getattr(jax.config, setting.flag)
    return setting.jax_default
