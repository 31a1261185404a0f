"""Takes a compilation from JAX's request to a hit, or to what follows a miss.

`Compiler.compile` is the path: the key; find and load, agree with the other ranks of the program, perhaps check; a hit
ends here. Otherwise `misses.MissedPrograms` compiles once among all threads, processes and hosts that want the same
program, and `publishing` stores the result. Where `forbid_compile` forbids it, that raises.

JAX's own function is called once, whatever was found: it returns what was loaded, or compiles (`seam/patch.py`). Only a
program that is refused does not come to it.

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

from ejcache.cache.reasons import Miss
from ejcache.entry import Entry
from ejcache.jax_integration.compilation import Compilation, LoadedExecutable, asking_threads
from ejcache.jax_integration.executable_origins import stored_bytes
from ejcache.jax_integration.load_journal import load_journal
from ejcache.jax_integration.lowering.key import alternative_key, make_key
from ejcache.jax_integration.seam import backends as seam_backends
from ejcache.jax_integration.seam import key_parts
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.seam.calling_line import caller
from ejcache.jax_integration.seam.durations import take_durations
from ejcache.jax_integration.seam.job import process_index, processes_of_job
from ejcache.jax_integration.seam.patch import CacheAnswer
from ejcache.jax_integration.seam.xla_cache_options import set_xla_caches
from ejcache.journal.line import HIT, ProgramRecord
from ejcache.journal.recorder import recorder
from ejcache.keys.key import CROSS
from ejcache.stores.location import display_value
from ejcache.util.log import warn_once
from ejcache.util.threads import submit

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.cache.reading import CacheReader
    from ejcache.jax_integration.compilation import Origins
    from ejcache.jax_integration.misses import MissedPrograms
    from ejcache.jax_integration.preload.preloader import Preloader
    from ejcache.jax_integration.seam.patch import JaxCall
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
        cache: Callable[[Settings], CacheReader | None],
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
        if processes_of_job() > 1:

            def greet_ranks() -> None:
                from ejcache.jax_integration.ranks.agreement import agreement_of_job  # the door to the ranks of a job

                agreement_of_job()

            submit(greet_ranks)  # in the background: JAX holds its lock, and the service may be slow

    # What a hit does not need is imported later: importing it took a third of the time from `enable` to the first hit.

    @cached_property
    def preloader(self) -> Preloader:
        """Load ahead, and note what the next start is to load ahead."""
        from ejcache.jax_integration.preload.preloader import Preloader  # the door to preloading

        return Preloader(settings=self.settings, cache=self.cache_of)

    @cached_property
    def misses(self) -> MissedPrograms:
        """Compile what was not found."""
        from ejcache.jax_integration.misses import MissedPrograms  # the door to a miss

        return vars(self).setdefault("misses", MissedPrograms(self))  # type: ignore[no-any-return]  # one for all threads

    # -- the path --------------------------------------------------------------------------------------------------

    def compile(self, call: JaxCall) -> Any:
        """Return the executable of a program: loaded, or compiled by JAX's own function.

        Raises:
            CompileForbiddenError: it would be compiled, and a block forbids that.
            Exception: what XLA and the functions of the program raise, or an error of ours: `own_failures.answer` has
                the program go on without the cache then.
        """
        began, measured = time.monotonic(), take_durations()
        settings = self.settings()
        cache = self.cache_of(settings)
        set_xla_caches(call.options, self._xla_caches(call.backend))
        if asking_threads and (asked := asking_threads.get(threading.current_thread())) is not None:
            from ejcache.jax_integration.no_compile_blocks import note_keys  # the door to questions about keys

            note_keys(asked, call, None if cache is None else partial(self._compilations, call, settings, cache))
        if cache is not None:
            self._last = settings, str(call.backend.platform)
        if cache is None or not seam.can_serialize(call.backend):
            return self.misses.compile_without_cache(call, cache)
        try:
            variants = self._compilations(call, settings, cache)
        except Exception as exc:
            return self.misses.compile_without_key(call, settings, cache, exc, measured)
        answer, compilation = CacheAnswer(variants[-1].text), variants[-1]
        if len(variants) > 1:
            from ejcache.jax_integration.pgle import choose_variant  # the door to PGLE

            answer, compilation = choose_variant(variants[0], variants[1], call)
        compilation.seconds.update(measured)
        compilation.spent("keyed", began)
        found = self._look_up(compilation)
        if found is None:
            return self.misses.compile_missed(compilation, call, answer)
        compilation.beside = None  # it refers to the compilation, which is not to wait for the garbage collector
        if compilation.asked_ahead is not None:
            compilation.asked_ahead.drop_ahead(compilation.text)
        self.count_hit(compilation, found)
        if settings.compare:
            from ejcache.jax_integration.call_comparison import comparisons  # the door to a comparison

            return comparisons.run_hit(compilation, found, call, answer)
        return call.run(answer.of(found))

    def _compilations(self, call: JaxCall, settings: Settings, cache: CacheReader) -> list[Compilation]:
        """Make the compilation of a call; with PGLE one of the variant that was optimised comes before it."""
        if not (settings.enable_pgle and settings.pgle_profiling_runs > 0) and not settings.expect_pgle:
            return [_compilation(call, settings, cache)]
        optimised = _compilation(call, settings, cache, sentinel=seam.PROFILED)
        return [optimised, _compilation(call, settings, cache, options=seam.options_to_profile(call.options))]

    def _look_up(self, compilation: Compilation) -> LoadedExecutable | None:
        """Find and load the executable of a program; None after a miss, whose reason the compilation has as its `miss`.

        All ranks of a program load, or none does. A hit that is to be compared with a fresh executable counts as a
        miss. A failure of the storage is a miss.
        """
        if compilation.devices_absent:
            from ejcache.jax_integration.devices.absent import look_for_others  # the door to other devices

            compilation.miss = look_for_others(compilation)
            return None
        found = None
        if not compilation.holds_callbacks:  # such an executable would call functions of a process that has ended
            if compilation.cache.tiers is not None:
                # Until something was compiled, nobody knows what is quick.
                compilation.is_local_only = "misses" in vars(self) and self.misses.is_surely_quick(compilation)
            # Also if nobody knows the tiers yet: another thread may still be opening the store.
            compilation.beside = lambda: self.misses.ask_ahead(compilation)
            compilation.begin_lookup()
            found = self.find(compilation)
        if compilation.is_multi_process:
            from ejcache.jax_integration.ranks.common_hit import agree_in_job  # the door to the ranks of a job

            found = agree_in_job(compilation, found, load=self.load)
        if found is not None and compilation.settings.check_contents and self.misses.wants_check(compilation, found):
            from ejcache.jax_integration.executable_comparison import StoredExecutable  # the door to a comparison

            compilation.to_check = StoredExecutable(found)
            compilation.miss = Miss.CHECKED
            found = None
        return found

    # -- finding ---------------------------------------------------------------------------------------------------

    def find(self, compilation: Compilation) -> LoadedExecutable | None:
        """Load the first candidate that can be loaded. `miss` gets the reason why the program's own key failed."""
        found = self.load(compilation, compilation.text)
        if isinstance(found, LoadedExecutable):
            return found
        compilation.miss = found
        from ejcache.jax_integration.candidates import OWN, candidates  # the door to a miss

        for number, text in enumerate(candidates(compilation)):
            if number != OWN:
                found = self.load(compilation, text)
                if isinstance(found, LoadedExecutable):
                    return found._replace(candidate=number)
        return None

    def load(self, compilation: Compilation, text: str) -> LoadedExecutable | Miss:
        """Return the executable of one candidate, from the first source that has it, or why the store gives none."""
        found = self._load_entry(compilation, text)
        if not isinstance(found, LoadedExecutable) and text in compilation.unloadable:
            # Hosts of this kind may have stored what they compiled beside an entry that XLA refuses on them.

            beside = self._load_entry(compilation, alternative_key(text, compilation.placement.backend))
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

    def _load_entry(self, compilation: Compilation, key: str) -> LoadedExecutable | Miss:
        if compilation.settings.preload:
            ahead = self.preloader.take(compilation, key, compilation.placement)
            if ahead is not None:
                return ahead
        if key in compilation.unloadable:
            return Miss.REJECTED
        began, is_own = time.monotonic(), key == compilation.text
        if is_own:
            compilation.looked = began
        # If a program is noted as quick, storage is not asked for what stands in for it either. Ranks have other notes.
        is_quick = not is_own and compilation.miss is Miss.QUICK and not compilation.is_multi_process
        try:
            stored = compilation.cache.read(
                key,
                compilation.settings,
                local_only=compilation.is_local_only or is_quick,
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
            executable = seam.load_executable(stored.raw, compilation.placement)
        except Exception as exc:
            # XLA refuses an intact entry: another CPU, another driver. Other hosts may still be able to use it.
            compilation.unloadable.add(key)
            compilation.cache.warn(f"unloadable:{key}", f"XLA does not load {key} here, so it is compiled anew: {exc}")
            return Miss.REJECTED
        finally:
            load_journal.end(place, header, is_loaded=executable is not None)
            loaded = compilation.spent("loaded", read)
        return LoadedExecutable(executable, key, header, stored.raw, loaded - began)

    def count_hit(self, compilation: Compilation, found: LoadedExecutable) -> None:
        """Count a hit, note it for preload and record it; warn of a program that XLA has not tuned."""
        if found.header.variant == CROSS:
            compilation.cache.warn(
                "cross",
                f"{compilation.name} was compiled without a GPU, so XLA has not tuned it; `ejcache warm` on a host "
                "with the GPU stores such programs tuned",
            )
        if target := _dump_target(compilation.placement.options):
            warn_once(
                "dumps",
                "ejcache: XLA dumps to %s what it compiles, and %s was loaded, as with JAX's own cache: "
                "jax.config.update('jax_enable_compilation_cache', False) has every program compiled",
                target,
                compilation.name,
            )
        spent = sum(compilation.seconds.values())
        compilation.cache.count_hit(found.header, load_seconds=found.seconds, since=spent)
        if compilation.settings.preload:
            self.preloader.note(compilation, compilation.placement, found)
        program = ProgramRecord(
            name=compilation.name,
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
        if recorder.watchers:
            from ejcache.jax_integration.watched_programs import tell_watchers  # the door to a guard

            tell_watchers(program, compilation.cache, compilation.settings)

    def _describe(self) -> dict[str, Any]:
        """Describe this process, by what JAX and the settings say of it, for its start record."""
        settings, platform = self._last or (self.settings(), "")
        chosen = {name: str(display_value(value)) for name, value in settings.chosen().items()}
        versions = {"jax": jax.__version__, "jaxlib": key_parts.jaxlib_version(), "platform": platform}
        rank, ranks = process_index(), processes_of_job()
        return {"rank": rank, "ranks": ranks, "versions": versions, "settings": chosen}

    def _xla_caches(self, backend: Any) -> dict[str, str]:
        """Return the values of XLA's options that say where its own caches are, by name."""
        if backend is None or str(backend.platform) not in _PLATFORMS_WITH_CACHES:
            return {}
        caches = self.own_xla_caches
        try:
            if caches is None:
                from ejcache.jax_integration.xla_options import XlaCaches  # the door to XLA's caches

                caches = XlaCaches(settings=self.settings, report_failure=self.report_failure)
                caches = vars(self).setdefault("own_xla_caches", caches)
            return caches.paths(backend)
        except Exception as exc:
            self.report_failure("find a directory for XLA's own caches", exc)
            return {}

    def stored_bytes(self, executable: Any) -> bytes | None:
        """Return the bytes that an executable was loaded from, or None."""
        try:
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


def _compilation(
    call: JaxCall, settings: Settings, cache: CacheReader, *, options: Any = None, sentinel: bytes | None = None
) -> Compilation:
    """Make the key of a call, and the compilation that goes by it."""
    key = make_key(call.request(options=options, profile_sentinel=sentinel), settings)
    participants = list(call.devices.flat)
    devices_absent = not seam.can_load(call.backend)
    # The processes of absent devices take no part in compiling for them.
    here, involved = process_index(), {each.process_index for each in participants}
    return Compilation(
        key=key,
        settings=settings,
        cache=cache,
        module=call.module,
        placement=call.placement(options),
        device_ids=tuple([device.id for device in participants]),  # a generator takes longer
        ranks=(here,) if devices_absent else tuple(sorted(involved)),
        devices_absent=devices_absent,
        has_profile=sentinel is not None and bool(call.options.executable_build_options.fdo_profile),
        holds_callbacks=bool(call.callbacks) and not seam.callbacks_are_cacheable(),
    )


def _dump_target(options: Any) -> str:
    """Return where XLA dumps what it compiles with these options; "" if it dumps nothing."""
    overridden = (str(value) for name, value in options.env_option_overrides if name == "xla_dump_to")
    return next(overridden, "") or str(options.executable_build_options.debug_options.xla_dump_to)
