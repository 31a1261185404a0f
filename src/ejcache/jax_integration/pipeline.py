"""One compile, from JAX's request to the stored executable.

JAX asks in this order. The questions up to a hit are methods of `Compiler`, the others of `misses.MissedPrograms`:

1. `make_key`: the key of the program, on which JAX carries our `Compilation`.
2. `contains`: only with PGLE, which variant to use (`pgle.py`).
3. `read`: `find` an entry and load it, agree with the other ranks of the program, perhaps check it. A hit ends here.
4. `compile`, or `share` for a program that spans processes: compile once among all threads, processes and hosts that
   want the same program, and store the result (`publishing.py`). Where `forbid_compile` forbids it, this raises.

A failure in one of our own steps means that the step is left out, whatever the type of the error; the program compiles
as it would without a cache. `jax_raise_persistent_cache_errors` lets the error through.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.cache.policy import Miss
from ejcache.entry import Entry
from ejcache.jax_integration.compilation import Compilation, KeyText, LoadedExecutable, asking_threads, compilation_of
from ejcache.jax_integration.load_journal import load_journal
from ejcache.jax_integration.lowering.key import make_key
from ejcache.jax_integration.seam import backends as seam_backends
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.seam.tracebacks import caller
from ejcache.jax_integration.seam.watching import take_durations
from ejcache.journal.line import HIT, ProgramRecord
from ejcache.journal.recorder import recorder
from ejcache.keys.key import CROSS
from ejcache.stores.location import display_value
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.cache.policy import CachePolicy
    from ejcache.jax_integration.compilation import KeyRequest, Origins, Placement
    from ejcache.jax_integration.misses import MissedPrograms
    from ejcache.jax_integration.preload.preloader import Preloader
    from ejcache.jax_integration.xla_options import XlaCaches
    from ejcache.settings.table import Settings

_MAX_EXECUTABLES: Final = 10_000
_PLATFORMS_WITH_CACHES: Final = ("cuda", "gpu", "rocm", "sycl")
"""The platforms on which XLA has caches of its own."""


class Compiler:
    """The hooks that `seam.install` takes.

    Args:
        settings: returns the current settings.
        cache: the cache that these settings ask for, or None.
        reset: closes the caches; called when the program calls JAX's `reset_cache()`.

    Attributes:
        origins: the entries of the executables that were loaded last.
        own_xla_caches: the directories for XLA's own caches; None before a program of a GPU needs them.
    """

    own_xla_caches: XlaCaches | None = None

    def __init__(
        self,
        *,
        settings: Callable[[], Settings],
        cache: Callable[[Settings], CachePolicy | None],
        reset: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.cache_of = cache
        self._close = reset
        self._watching = False
        self._last: tuple[Settings, str] | None = None
        self.origins: Origins = OrderedDict()  # a call of it is atomic
        recorder.describe = self._describe

    def begin(self) -> None:
        """Do ahead what the first programs need, from the moment that there is a backend; may be called again."""
        if self.settings().preload:
            self.preloader.watch()
        if not self._watching:
            self._watching = True
            seam_backends.watch(self._meet_ranks)

    def end(self) -> None:
        """Do nothing more ahead, and release what was not used."""
        seam_backends.unwatch(self._meet_ranks)
        if "preloader" in vars(self):
            self.preloader.close()

    def _meet_ranks(self, _: Any) -> None:
        if seam_backends.processes_of_job() > 1:
            from ejcache.util.threads import submit  # by ranks only

            def greet_ranks() -> None:
                from ejcache.jax_integration.ranks.agreement import agreement_of_job

                agreement_of_job()

            submit(greet_ranks)  # in the background: JAX holds its lock, and the service may be slow

    # What a hit does not need is imported later: importing it took a third of the time from `enable` to the first hit.

    @cached_property
    def preloader(self) -> Preloader:
        """Load ahead, and note what the next start is to load ahead."""
        from ejcache.jax_integration.preload.preloader import Preloader

        return Preloader(settings=self.settings, cache=self.cache_of)

    @cached_property
    def misses(self) -> MissedPrograms:
        """Compile what was not found."""
        from ejcache.jax_integration.misses import MissedPrograms

        return vars(self).setdefault("misses", MissedPrograms(self))  # type: ignore[no-any-return]  # one for all threads

    # -- the key ---------------------------------------------------------------------------------------------------

    def make_key(self, request: KeyRequest) -> KeyText | None:
        """Make the key of a program, which carries its `Compilation`; None if it is compiled without the cache."""
        if asking_threads and (asked := asking_threads.get(threading.current_thread())) is not None:
            from ejcache.jax_integration.no_compile_blocks import note_key

            settings = self.settings()
            cache = self.cache_of(settings)
            note_key(asked, request, None if cache is None else partial(_compilation, request, settings, cache))
            return None
        began, measured = time.monotonic(), take_durations()
        settings = self.settings()
        cache = self.cache_of(settings)
        if cache is not None:
            self._last = settings, str(request.backend.platform)
        if cache is None or not seam.can_serialize(request.backend):
            self.misses.begin_without_cache(request, cache)
            return None
        try:
            compilation = _compilation(request, settings, cache)
        except Exception as exc:
            self.misses.begin_without_key(request, settings, cache, exc, measured)
            return None
        compilation.seconds.update(measured)
        compilation.spent("keyed", began)
        text = KeyText(compilation.text)
        text.compilation = compilation
        return text

    def contains(self, key: str) -> bool:
        """Answer PGLE's question whether to use the optimised variant, or, of the plain one, whether to warn."""
        compilation = compilation_of(key)
        if compilation is None:
            return False
        from ejcache.jax_integration.pgle import is_wanted

        try:
            return is_wanted(compilation)
        except Exception as exc:
            compilation.report_failure("look for an optimised entry", exc)
            return False

    # -- a hit -----------------------------------------------------------------------------------------------------

    def read(self, key: str, placement: Placement) -> tuple[Any, float | None]:
        """Find and load an executable: return it, and the seconds that it took to compile; (None, None) after a miss.

        All ranks of a program load, or none does. A hit that is to be compared with a fresh executable counts as a
        miss. A failure of the storage is a miss, whose reason the compilation has as its `miss`.
        """
        compilation = compilation_of(key)
        if compilation is None:
            return None, None
        if compilation.devices_absent:
            from ejcache.jax_integration.devices.absent import look_for_others

            compilation.miss = look_for_others(compilation)
            return None, None
        if compilation.cache.tiers is not None:
            # Until something was compiled, nobody knows what is quick.
            compilation.is_local_only = "misses" in vars(self) and self.misses.is_surely_quick(compilation)
        # Also if nobody knows the tiers yet: another thread may still be opening the store.
        compilation.beside = lambda: self.misses.ask_ahead(compilation, placement)
        compilation.begin_lookup()
        found = self.find(compilation, placement)
        if compilation.is_multi_process:
            from ejcache.jax_integration.ranks.common_hit import agree_in_job

            found = agree_in_job(compilation, found, placement, load=self.load)
        if found is not None and compilation.settings.check_contents and self.misses.wants_check(compilation, found):
            from ejcache.jax_integration.executable_comparison import StoredExecutable

            compilation.to_check = StoredExecutable(found)
            compilation.miss = Miss.CHECKED
            found = None
        if found is None:
            return None, None
        compilation.beside = None  # it refers to the compilation, which is not to wait for the garbage collector
        if compilation.asked_ahead is not None:
            compilation.asked_ahead.drop_ahead(compilation.text)
        self.count_hit(compilation, placement, found)
        return found.executable, found.header.compile_seconds

    def find(self, compilation: Compilation, placement: Placement) -> LoadedExecutable | None:
        """Load the first candidate that can be loaded. `miss` gets the reason why the program's own key failed."""
        found = self.load(compilation, compilation.text, placement)
        if isinstance(found, LoadedExecutable):
            return found
        compilation.miss = found
        from ejcache.jax_integration.substitutes import OWN, candidates  # a hit of its own key needs none

        for number, text in enumerate(candidates(compilation)):
            if number != OWN:
                found = self.load(compilation, text, placement)
                if isinstance(found, LoadedExecutable):
                    return found._replace(candidate=number)
        return None

    def load(self, compilation: Compilation, text: str, placement: Placement) -> LoadedExecutable | Miss:
        """Return the executable of one candidate, from the first source that has it, or why the store gives none."""
        found = self._load_entry(compilation, text, placement)
        if not isinstance(found, LoadedExecutable) and text in compilation.unloadable:
            # Hosts of this kind may have stored what they compiled beside an entry that XLA refuses on them.
            from ejcache.jax_integration.lowering.key import alternative_key

            beside = self._load_entry(compilation, alternative_key(text, placement.backend), placement)
            if isinstance(beside, LoadedExecutable):
                found = beside
        if isinstance(found, LoadedExecutable):
            self.note_origin(found.executable, compilation, found.key)
        return found

    def note_origin(self, executable: Any, compilation: Compilation, key: str) -> None:
        """Remember that an executable was loaded from the entry under `key` (`executable_origins` says what for)."""
        self.origins[seam.executable_identity(executable)] = (compilation.cache, compilation.settings, key)
        if len(self.origins) > _MAX_EXECUTABLES:
            self.origins.popitem(last=False)

    def _load_entry(self, compilation: Compilation, key: str, placement: Placement) -> LoadedExecutable | Miss:
        if compilation.settings.preload:
            ahead = self.preloader.take(compilation, key, placement)
            if ahead is not None:
                return ahead
        if key in compilation.unloadable:
            return Miss.REJECTED
        began, is_own = time.monotonic(), key == compilation.text
        if is_own:
            compilation.looked = began
        try:
            stored = compilation.cache.read(
                key,
                compilation.settings,
                local_only=compilation.is_local_only,
                budget=compilation.budget,
                beside=compilation.beside if is_own else None,
            )
        except Exception as exc:
            compilation.report_failure("read an entry", exc)
            stored = Miss.ERROR
        read = compilation.spent("lost" if stored is Miss.ERROR else "fetched", began)
        if not isinstance(stored, Entry):
            return stored
        header = stored.header
        if load_journal.is_suspected(header):
            compilation.is_suspected = True
            said = f"two starts in a row have ended while they loaded {key}, so it is compiled anew and replaced"
            compilation.cache.warn(f"suspected:{key}", said)
            return Miss.SUSPECTED
        executable, place = None, load_journal.begin(header)
        try:
            executable = seam.load_executable(stored.raw, placement)
        except Exception as exc:
            # XLA refuses an intact entry: another CPU, another driver. Other hosts may still be able to use it.
            compilation.unloadable.add(key)
            compilation.cache.warn(f"unloadable:{key}", f"XLA does not load {key} here, so it is compiled anew: {exc}")
            return Miss.REJECTED
        finally:
            load_journal.end(place, header, is_loaded=executable is not None)
            loaded = compilation.spent("loaded", read)
        return LoadedExecutable(executable, key, header, stored.raw, loaded - began)

    def count_hit(self, compilation: Compilation, placement: Placement, found: LoadedExecutable) -> None:
        """Count a hit, note it for preload and record it; warn of a program that XLA has not tuned."""
        if found.header.variant == CROSS:
            compilation.cache.warn(
                "cross",
                f"{compilation.key.name} was compiled without a GPU, so XLA has not tuned it; `ejcache warm` on a host "
                "with the GPU stores such programs tuned",
            )
        if target := seam_backends.dump_target(placement.options):
            warn_once(
                "dumps",
                "ejcache: XLA dumps to %s what it compiles, and %s was loaded, as with JAX's own cache: "
                "jax.config.update('jax_enable_compilation_cache', False) has every program compiled",
                target,
                compilation.key.name,
            )
        spent = sum(compilation.seconds.values())
        compilation.cache.count_hit(found.header, load_seconds=found.seconds, since=spent)
        if compilation.settings.preload:
            self.preloader.note(compilation, placement, found)
        program = ProgramRecord(
            name=compilation.key.name,
            time=time.time(),
            url=compilation.cache.url,
            key=compilation.text,
            outcome=HIT,
            compile_seconds=found.header.compile_seconds,
            size=found.header.payload_size,
            caller=caller(),
            thread=threading.current_thread().name,
            seconds=compilation.seconds,
            preloaded=found.ahead is not None,
        )
        recorder.add(program)
        for watcher in recorder.watchers:
            watcher(program)

    def _describe(self) -> dict[str, Any]:
        """Describe this process, by what JAX and the settings say of it, for its start record."""
        settings, platform = self._last or (self.settings(), "")
        chosen = {name: str(display_value(value)) for name, value in settings.chosen().items()}
        versions = {"jax": jax.__version__, "jaxlib": seam.jaxlib_version(), "platform": platform}
        rank, ranks = seam_backends.process_index(), seam_backends.processes_of_job()
        return {"rank": rank, "ranks": ranks, "versions": versions, "settings": chosen}

    def xla_caches(self, backend: Any) -> dict[str, str]:
        """Return the values of XLA's options that say where its own caches are, by name."""
        if backend is None or str(backend.platform) not in _PLATFORMS_WITH_CACHES:
            return {}
        caches = self.own_xla_caches
        try:
            if caches is None:
                from ejcache.jax_integration.xla_options import XlaCaches

                caches = XlaCaches(settings=self.settings, report_failure=self.report_failure)
                caches = vars(self).setdefault("own_xla_caches", caches)
            return caches.paths(backend)
        except Exception as exc:
            self.report_failure("find a directory for XLA's own caches", exc)
            return {}

    def stored_bytes(self, executable: Any) -> bytes | None:
        """Return the bytes that an executable was loaded from, or None."""
        try:
            from ejcache.jax_integration.executable_origins import stored_bytes  # few programs ask this

            return stored_bytes(self.origins, executable)
        except Exception as exc:
            self.report_failure("read an entry", exc)
            return None

    def is_enabled(self) -> bool:
        """True if compilations use a cache now."""
        return self.cache_of(self.settings()) is not None

    def reset(self) -> None:
        """Close the stores, because JAX's `reset_cache()` was called, and check contents anew."""
        if "misses" in vars(self):
            self.misses.checked.clear()
        self._close()

    def report_failure(self, doing: str, exc: Exception) -> None:
        """Count and log a failure of one of our own steps.

        Raises:
            Exception: `exc` itself, if the settings ask for that.
        """
        settings = self.settings()
        cache = self.cache_of(settings)
        if cache is not None:
            cache.report_failure(doing, exc, settings)


def _compilation(request: KeyRequest, settings: Settings, cache: CachePolicy) -> Compilation:
    key = make_key(request, settings)
    participants = list(request.devices.flat)
    devices_absent = not seam.can_load(request.backend)
    # The processes of absent devices take no part in compiling for them.
    here, involved = seam_backends.process_index(), {each.process_index for each in participants}
    ranks = (here,) if devices_absent else tuple(sorted(involved))
    optimised = request.profile_sentinel is not None
    return Compilation(
        key=key,
        settings=settings,
        cache=cache,
        device_ids=tuple([device.id for device in participants]),  # a generator takes longer
        ranks=ranks,
        module=request.module if len(ranks) > 1 else None,
        devices_absent=devices_absent,
        has_profile=optimised and bool(request.options.executable_build_options.fdo_profile),
    )
