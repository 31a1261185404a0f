"""Preloads in one process: reads the run profile, has its programs loaded, and writes what this run used.

It begins when JAX has made a backend (`seam.backends`). A profile on this host is read at once, by the thread that made
the backend: that opens the store and reads the small entries, which the first request would do anyway, in hundreds of
short system calls. In another thread each of them would take the interpreter from the program and give it back. One on
shared storage is read in a thread of its own. After that nothing is waited for, except a load that is under way when
the program asks for its result. The key of a program is made as ever, and what was loaded ahead is used only for the
same key, client, devices and compile options: otherwise it is dropped, and the entry is loaded as ever.

Programs with host callbacks are neither recorded nor loaded ahead. In a job of several processes nothing is preloaded:
ranks agree about each program when they ask for it (`ranks/agreement.py`), and a rank's devices have other ids in each
run.
"""

from __future__ import annotations

import hashlib
import math
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache import entry
from ejcache.cache.writing import EntryWriter
from ejcache.errors import EntryCorruptError
from ejcache.jax_integration.compilation import LoadedExecutable
from ejcache.jax_integration.lowering.key import compiler_environment
from ejcache.jax_integration.preload.background_loader import BackgroundLoader
from ejcache.jax_integration.preload.run_profile import (
    MAX_PAYLOAD,
    RUN_PROFILE_KIND,
    ProgramUse,
    RunProfile,
    decode_profile,
    differs,
    encode_profile,
    merge,
)
from ejcache.jax_integration.seam import backends as seam
from ejcache.jax_integration.seam.job import processes_of_job
from ejcache.keys.key import run_profile_key
from ejcache.keys.xla_messages import without_cache_paths
from ejcache.stores.base import two_tiers
from ejcache.util.lifecycle import AtExit, ExitPhase, track_forks
from ejcache.util.log import log
from ejcache.util.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.cache.reading import CacheReader
    from ejcache.jax_integration.compilation import Compilation, Placement
    from ejcache.jax_integration.preload.background_loader import PreloadedExecutable
    from ejcache.settings.table import Settings


def environment(client: Any, settings: Settings) -> str:
    """Return names what compiles and runs the programs: platform, versions, flags, kinds and number of devices."""
    return f"{client.platform}-{compiler_environment(client, settings)}-{client.local_device_count()}"


def read_profile(cache_reader: CacheReader, key: str, settings: Settings) -> RunProfile:
    """Return the run profile of this process's program; an empty one if there is none that can be read.

    Raises:
        StoreError: the storage failed.
    """
    raw = cache_reader.read_beside(key, RUN_PROFILE_KIND, settings, max_size=MAX_PAYLOAD)
    try:
        return decode_profile(raw) if raw is not None else RunProfile()
    except EntryCorruptError as exc:
        # The end of this run replaces it.
        log.debug("ejcache: the run profile %s cannot be read: %s", key, exc)
        return RunProfile()


def entry_point() -> tuple[str, ...]:
    """Name the program that was started: a script by its path, a module by its name, a `-c` text by its digest.

    What is installed with the interpreter (console scripts, `-m pytest`, `-m ipykernel`) and what has no file runs many
    programs, which the working directory tells apart. A child process of `multiprocessing` is a program of its own:
    it runs a part of what its parent does.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    child = "child" if _is_multiprocessing_child() else ""
    if isinstance(file, str) and file:
        path = Path(file).absolute()
        module = str(getattr(spec, "name", None) or "")
        return "file", str(path), module, child, _directory() if _is_installed(path) else ""
    return "text", _digest_of_text(), "", child, _directory()


def _is_installed(path: Path) -> bool:
    prefixes = {Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    return "site-packages" in path.parts or any(path.is_relative_to(prefix) for prefix in prefixes)


def _is_multiprocessing_child() -> bool:
    # Not imported for this: each child of multiprocessing has imported it.
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def _digest_of_text() -> str:
    arguments = list(getattr(sys, "orig_argv", ()))
    for place, argument in enumerate(arguments[:-1]):
        if argument == "-c":
            return hashlib.sha256(arguments[place + 1].encode("utf-8", "surrogateescape")).hexdigest()
    return ""


def _directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


_PLAN_PATIENCE: Final = 2.0
"""Seconds that an exit waits for the profile to be read, so that it can be written; and, from the beginning of a run,
the requests to a bucket for what this host does not have, so that they need not be made."""
_REQUESTS: Final = 32
"""How many requests fetch entries of a remote cache at once, for all processes of a host together."""
_SETTLED_SECONDS: Final = 60.0
"""A run that has used no other program for so long writes its profile: it may be killed instead of exiting."""


class _Run:
    """What this process used on one backend, in the order of first use.

    Attributes:
        client: the backend; not kept alive, because a program may clear its backends and make new ones.
        platform: of the backend.
        planned: set when the profile was read, and it is known what will be loaded ahead.
        began: when it began to be read, by the monotonic clock.
        environment: names what compiles and runs the programs; empty until it is known.
        uses: by key.
    """

    def __init__(self, client: Any) -> None:
        self.client = weakref.ref(client)
        self.platform = str(client.platform)
        self.planned = threading.Event()
        self.began = time.monotonic()
        self.environment = ""
        self.uses: dict[str, ProgramUse] = {}


class Preloader:
    """Loads ahead what the last runs of this program used. Safe for threads; a forked child preloads nothing.

    Args:
        settings: returns the current settings.
        cache: the cache that these settings ask for, or None.
    """

    def __init__(self, *, settings: Callable[[], Settings], cache: Callable[[Settings], CacheReader | None]) -> None:
        self._settings = settings
        self._cache = cache
        self._runs: list[_Run] = []
        self._cache_reader: CacheReader | None = None
        self._wanted: tuple[Settings, bool] | None = None
        self.loader: BackgroundLoader | None = None
        self._profile_key = ""
        self._before: RunProfile | None = None  # the profile as it was when this run began
        self._stored = RunProfile()
        self._noted_at = 0.0
        self._written_at = 0.0
        self._watching = False
        self._closed = False
        self._scheduler = Scheduler(threads=1, name="ejcache-preload")
        _alive.add(self)
        track_forks(self)

    def watch(self) -> None:
        """Begin as soon as there is a backend; a second call does nothing."""
        if not self._closed and not self._watching:
            self._watching = True
            seam.watch(self.begin)

    def begin(self, client: Any) -> None:
        """Preload for this backend; returns as soon as the profile is read, and does nothing if called again.

        A profile on shared storage is read in the background. A second backend of a platform means that the program has
        cleared its backends. It begins with no executable, as it does without ejcache, and nothing is recorded for it.
        """
        if not self._closed and self._run_of(client) is None:
            run = _Run(client)
            cleared = any(each.platform == run.platform for each in self._runs)
            self._runs.append(run)
            if cleared:
                run.planned.set()
                # It waits for loads that are under way, and JAX holds its lock here.
                self._scheduler.submit(self._close_loader)
            elif "://" in str(self._settings().dir):
                self._scheduler.submit(lambda: self._try_plan(run, at_once=False))
            else:
                self._try_plan(run, at_once=True)

    def close(self) -> None:
        """Write the profile, and release what was loaded and not used."""
        if self._closed:
            return
        seam.unwatch(self.begin)
        self._close_loader()
        if any(run.uses for run in self._runs):
            # A short program may end before its profile was read.
            patience = min(_PLAN_PATIENCE, self._patience())
            self._scheduler.drain(patience=patience, limit=patience)
        self._closed = True
        self._close_loader()
        self._write()
        self._scheduler.stop()

    def drain(self, limit: float) -> bool:
        """Wait until the profile is read and what it plans is loaded; False if `limit` seconds are not enough."""
        planned = self._scheduler.drain(patience=limit, limit=limit)
        return planned and (self.loader is None or self.loader.drain(limit))

    def _close_loader(self) -> None:
        if self.loader is not None:
            self.loader.close()

    # -- asking ----------------------------------------------------------------------------------------------------

    def take(self, compilation: Compilation, key: str, placement: Placement) -> LoadedExecutable | None:
        """Hand over what was loaded ahead for this request; None if it is to be loaded now. Raises nothing."""
        if not compilation.settings.preload or not self._is_concerned(compilation, placement):
            return None
        started = time.monotonic()
        try:
            ahead = self._take(compilation, key, placement, started)
        except Exception as exc:
            log.debug("ejcache: preload could not take %s: %s", key, exc)
            ahead = None
        compilation.spent("waited" if ahead is None else "loaded", started)
        return ahead

    def _take(
        self, compilation: Compilation, key: str, placement: Placement, started: float
    ) -> LoadedExecutable | None:
        run = self._run_of(placement.backend)
        if run is not None and not run.planned.is_set() and "://" in compilation.cache.url:
            self._wait_for_plan(run, compilation, key)
        loader = self.loader
        if loader is None:
            return None
        ahead = loader.take(key)
        if ahead is None:
            return None
        store = compilation.cache.opened(compilation.settings)  # which may find out that the entry was recalled
        is_good = ahead.header is not None and loader.is_current and key not in compilation.cache.taken_back
        if ahead.header is None or not is_good or not _answers(ahead, placement):
            self._count(preload_unused=1)
            return None
        if store is not None:  # what is loaded and not asked for has no use, and becomes old
            store.note_used(key)
        waited = time.monotonic() - started
        self._count(preload_hits=1, preload_seconds=max(0.0, ahead.seconds - waited))
        use = ahead.use._replace(size=ahead.header.raw_size, seconds=ahead.seconds, unused=0)
        return LoadedExecutable(ahead.executable, key, ahead.header, b"", waited, ahead=use)

    def _wait_for_plan(self, run: _Run, compilation: Compilation, key: str) -> None:
        """Wait: a request for what the profile says is quick would take as long as the request for the profile."""
        store = compilation.cache.opened(compilation.settings)
        tiers = two_tiers(store) if store is not None else None
        if tiers is not None and not tiers.has_local(key):
            left = run.began + _PLAN_PATIENCE - time.monotonic()
            run.planned.wait(max(0.0, min(left, tiers.patience())))

    def _patience(self) -> float:
        """Return seconds that it is worth waiting for shared storage."""
        tiers = self._cache_reader.tiers if self._cache_reader is not None else None
        return tiers.patience() if tiers is not None else math.inf

    def note(
        self,
        compilation: Compilation,
        placement: Placement,
        found: LoadedExecutable | None = None,
        *,
        seconds: float = 0.0,
        stored: bool = True,
    ) -> None:
        """Remember that the program used this entry now. Raises nothing.

        Args:
            compilation: of the program.
            placement: what it was loaded or compiled for.
            found: the entry, if it was loaded.
            seconds: that compiling took, if it was compiled.
            stored: whether there is an entry now.
        """
        if not compilation.settings.preload:
            return
        was_taken = found is not None and found.ahead is not None and not self._closed
        if was_taken or self._is_concerned(compilation, placement):
            try:
                self._note(compilation, placement, found, seconds=seconds, stored=stored)
            except Exception as exc:
                log.debug("ejcache: preload could not note %s: %s", compilation.text, exc)

    def _note(
        self,
        compilation: Compilation,
        placement: Placement,
        found: LoadedExecutable | None,
        *,
        seconds: float,
        stored: bool,
    ) -> None:
        run = self._run_of(placement.backend)
        if run is None:
            # This JAX makes backends in another way, so that nobody was told of this one.
            self.begin(placement.backend)
            run = self._runs[-1]
        if found is not None:
            key, compiled = found.key, found.header.compile_seconds
            size, loaded = len(found.raw), found.seconds
            local_only = compilation.cache.is_local_only(compiled, compilation.settings)
        else:
            key, compiled, local_only = compilation.text, seconds, compilation.stays_here
            size, loaded = compilation.serialized_size, 0.0
        if found is None and (key in run.uses or compilation.unloadable):
            return
        quick = compiled if local_only or not stored else 0.0
        if found is not None and found.ahead is not None:
            # It was taken because its options and devices are those of the request.
            run.uses[key] = found.ahead._replace(quick=quick)
        else:
            run.uses[key] = ProgramUse(
                key,
                size=size,
                seconds=loaded,
                quick=quick,
                stored=stored,
                options=without_cache_paths(seam.raw_options(placement.options)) if stored else b"",
                devices=tuple(device.id for device in placement.devices) if stored else (),
            )
        self._noted_at = time.monotonic()

    def _is_concerned(self, compilation: Compilation, placement: Placement) -> bool:
        settings = compilation.settings
        if self._closed or placement.callbacks or compilation.is_multi_process:
            return False
        if self._wanted is None or self._wanted[0] is not settings:
            self._wanted = settings, _is_wanted(settings)  # once there is a backend, a process joins no job
        if not self._wanted[1]:
            return False
        if self._cache_reader is None:
            self._cache_reader = compilation.cache
        return compilation.cache is self._cache_reader

    def _run_of(self, client: Any) -> _Run | None:
        for run in self._runs:
            if run.client() is client:
                return run
        return None

    # -- planning --------------------------------------------------------------------------------------------------

    def _try_plan(self, run: _Run, *, at_once: bool) -> None:
        try:
            self._plan(run, at_once=at_once)
        except Exception as exc:
            log.debug("ejcache: nothing is preloaded: %s", exc)
        finally:
            run.planned.set()

    def _plan(self, run: _Run, *, at_once: bool) -> None:
        settings, client = self._settings(), run.client()
        if client is None or not _is_wanted(settings):
            return
        cache_reader = self._cache(settings)
        if cache_reader is None or self._cache_reader not in {None, cache_reader}:
            return
        self._cache_reader = cache_reader
        store = cache_reader.opened(settings, awaits_policy=False)
        if at_once and cache_reader.is_shared:
            # A directory on a file system that hosts share, whose server may be slow.
            self._scheduler.submit(lambda: self._try_plan(run, at_once=False))
            return
        if cache_reader.epoch is None:
            store = cache_reader.opened(settings)  # where the profile is has to be known first
        shared = two_tiers(store) if store is not None else None
        if self._before is None:
            self._profile_key = run_profile_key(*entry_point(), jax.__version__, settings.namespace)
            self._profile_settings = settings  # a program may have changed them when it ends
            if shared is not None and not shared.patience() and not shared.has_local(self._profile_key):
                return  # storage that gave this host no answer lately is asked for what a program waits for
            self._before = self._stored = read_profile(cache_reader, self._profile_key, settings)
            if cache_reader.opened(settings) is None:
                return
            self._scheduler.later(_SETTLED_SECONDS, self._write_when_settled)
        if at_once and not self._before.environments:
            # There is nothing to load, and the first run on a host hashes the libraries, which may take seconds.
            self._scheduler.submit(lambda: self._try_plan(run, at_once=False))
            return
        run.environment = environment(client, settings)
        uses = self._before.environments.get(run.environment, ())
        if shared is not None:
            for use in uses:
                # What is not on shared storage: this host need not ask for it.
                if use.quick and shared.local_note(use.key) is None:
                    shared.note_local(use.key, use.quick)
        planned = [use for use in uses if use.stored]
        if planned and self.loader is None:
            self.loader = BackgroundLoader(cache_reader, settings)
        run.planned.set()
        loader = self.loader
        if not planned or loader is None:
            return
        loader.plan(client, planned, ready=shared is None)
        if shared is not None:
            keys = [use.key for use in planned]

            def wanted(key: str) -> bool:
                # What another host compiled quickly is stored there only.
                return loader.is_wanted(key) and not cache_reader.is_noted_as_quick(key, settings)

            for key, found in shared.prefetch(keys, requests=_REQUESTS, wanted=wanted):
                loader.now_ready(key, found=found)

    def _write_when_settled(self) -> None:
        left = self._noted_at + _SETTLED_SECONDS - time.monotonic()
        if left > 0:
            self._scheduler.later(left, self._write_when_settled)
        elif not self._closed:
            if self._noted_at > self._written_at:
                self._written_at = time.monotonic()
                self._write()
            self._scheduler.later(_SETTLED_SECONDS, self._write_when_settled)

    def _write(self) -> None:
        """Store what this run has used so far, if the next run would do something else with it."""
        now, cache_reader = self._before, self._cache_reader
        used = {run.environment: list(run.uses.values()) for run in self._runs if run.environment and run.uses}
        if now is None or cache_reader is None or not used:
            return
        try:
            for name, uses in used.items():
                now = merge(now, name, uses)
            if any(differs(self._stored, now, name) for name in used):
                header = entry.Header(key=self._profile_key, kind=RUN_PROFILE_KIND, jax=jax.__version__)

                if EntryWriter(cache_reader).write_beside(header, encode_profile(now), self._profile_settings):
                    self._stored = now
        except Exception as exc:
            log.debug("ejcache: the run profile was not written: %s", exc)

    def _count(self, **amounts: float) -> None:
        cache_reader = self._cache_reader
        if cache_reader is not None:
            cache_reader.tally.add(**amounts)

    def after_fork_in_child(self) -> None:
        """Preload nothing and write nothing: the profile is the parent's."""
        self._closed = True
        self.loader = None


def _is_wanted(settings: Settings) -> bool:
    """True if anything may be preloaded in this process."""
    return bool(
        settings.preload
        # These two want to see what is stored, and the request for it to be made.
        and not settings.check_contents
        and not settings.recompile_force
        and processes_of_job() == 1
        and not seam.frees_clients_at_once()
    )


def _answers(preloaded: PreloadedExecutable, placement: Placement) -> bool:
    """True if JAX would load the very same now."""
    if not (preloaded.client is placement.backend and bool(preloaded.devices == placement.devices)):
        return False
    options, recorded = seam.raw_options(placement.options), preloaded.use.options
    # Most have no paths to take out, and looking for them takes longer than comparing.
    return recorded == options or recorded == without_cache_paths(options)


_alive: Final[AtExit[Preloader]] = AtExit(ExitPhase.WRITE, Preloader.close)
