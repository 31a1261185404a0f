"""One compile, from JAX's request to the stored executable.

JAX asks in this order, and each question is a method of `Compiler`:

1. `make_key`: the key of the program, on which JAX carries our `Compilation`.
2. `contains`: only with PGLE, which variant to use (`pgle.py`).
3. `read`: look the entry up, load it, agree with the other ranks of the program, perhaps check it. A hit ends here.
4. `compile`, or `share` for a program that spans processes: compile once among all threads, processes and hosts that
   want the same program, and store the result (`publishing.py`). Where `forbid_compile` forbids it, this raises.

A failure in one of our own steps means that the step is left out, whatever the type of the error; the program compiles
as it would without a cache. `jax_raise_persistent_cache_errors` lets the error through.
"""

from __future__ import annotations

import threading
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.cache.policy import Miss
from ejcache.jax_integration.compilation_state import (
    AlreadyStoredError,
    AskedError,
    Compilation,
    KeyText,
    being_asked,
    is_forbidden,
    stores_only,
)
from ejcache.jax_integration.lookup import OWN, EntryLoader
from ejcache.jax_integration.lowering.key import make_key
from ejcache.jax_integration.program import LoadedExecutable
from ejcache.jax_integration.seam import backends as seam_backends
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.seam.tracebacks import caller
from ejcache.jax_integration.seam.watching import take_durations
from ejcache.journal.line import HIT, Process, ProgramRecord
from ejcache.journal.recorder import recorder
from ejcache.keys.key import CROSS, PGLE
from ejcache.stores.location import display_value
from ejcache.util.log import log, warn_once
from ejcache.util.threads import submit

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from ejcache.cache.counters import Skip
    from ejcache.cache.policy import CachePolicy
    from ejcache.jax_integration.lowering.quick_programs import QuickPrograms
    from ejcache.jax_integration.preload.preloader import Preloader
    from ejcache.jax_integration.program import KeyRequest, LoweredProgram, Placement
    from ejcache.jax_integration.publishing import Publisher
    from ejcache.jax_integration.ranks.agreement import RankAgreement
    from ejcache.jax_integration.xla_options import XlaCaches
    from ejcache.settings.table import Settings

    T = TypeVar("T")

WAIT_SECONDS: Final = 600.0
"""How long this process waits, in all, for entries that others compile and do not deliver; then it compiles."""
_PLATFORMS_WITH_CACHES: Final = frozenset({"cuda", "gpu", "rocm", "sycl"})
"""The platforms on which XLA has caches of its own."""


class Compiler:
    """The hooks that `seam.install` takes.

    Args:
        settings: returns the current settings.
        cache: the cache that these settings ask for, or None.
        reset: closes the caches; called when the program calls JAX's `reset_cache()`.
    """

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
        self._checked: set[str] = set()
        self._watching = False
        self._last: tuple[Settings, str] | None = None
        self._entries = EntryLoader(self._take_ahead)
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
            submit(self._greet_ranks)  # in the background: JAX holds its lock, and the service may be slow

    def _greet_ranks(self) -> None:
        self._agreement()

    # What a hit does not need is imported later: importing it took a third of the time from `enable` to the first hit.

    @cached_property
    def preloader(self) -> Preloader:
        """Load ahead, and note what the next start is to load ahead."""
        from ejcache.jax_integration.preload.preloader import Preloader

        return Preloader(settings=self.settings, cache=self.cache_of)

    def _take_ahead(self, compilation: Compilation, key: str, placement: Placement) -> LoadedExecutable | None:
        return self.preloader.take(compilation, key, placement) if compilation.settings.preload else None

    @cached_property
    def _quick(self) -> QuickPrograms:
        from ejcache.jax_integration.lowering.quick_programs import QuickPrograms

        return QuickPrograms()

    @cached_property
    def _publisher(self) -> Publisher:
        from ejcache.jax_integration.publishing import Publisher

        return Publisher()

    @cached_property
    def _xla_caches(self) -> XlaCaches:
        from ejcache.jax_integration.xla_options import XlaCaches

        return XlaCaches(settings=self.settings, report_failure=self._report_failure)

    # -- the key ---------------------------------------------------------------------------------------------------

    def make_key(self, request: KeyRequest) -> KeyText | None:
        """Make the key of a program, which carries its `Compilation`; None if it is compiled without the cache."""
        if (asked := being_asked()) is not None:
            self._answer(asked, request)
            return None
        began, measured = time.monotonic(), take_durations()
        settings = self.settings()
        cache = self.cache_of(settings)
        if cache is None:
            from ejcache.cache.counters import Skip  # no hit skips a program

            return self._keyless(request, Skip.DISABLED)
        self._last = settings, str(request.backend.platform)
        if not seam.can_serialize(request.backend):
            from ejcache.cache.counters import Skip, count_skip

            count_skip(cache, Skip.PLATFORM)
            return self._keyless(request, Skip.PLATFORM)
        try:
            compilation = _compilation(request, settings, cache)
        except Exception as exc:
            # A program that has no key is compiled without the cache, as in JAX.
            from ejcache.cache.counters import Skip, count_skip
            from ejcache.jax_integration.lowering.python_functions import UnkeyableError

            if isinstance(exc, UnkeyableError):
                name = seam.module_name(request.module)
                self._publisher.skip_without_key(cache, settings, name, exc.skip, measured)
                cache.warn(exc.skip, f"{name} {exc}")
                return self._keyless(request, exc.skip)
            count_skip(cache, Skip.NO_KEY)
            cache.report_failure("make a key", exc, settings)
            return self._keyless(request, Skip.NO_KEY)
        compilation.seconds.update(measured)
        compilation.spent("keyed", began)
        return KeyText(compilation)

    def _keyless(self, request: KeyRequest, reason: Skip) -> KeyText | None:
        """Return no key, so that JAX compiles the program itself, unless this thread may not compile."""
        from ejcache.jax_integration.no_compile_blocks import refuse_if_forbidden

        refuse_if_forbidden(seam.module_name(request.module), reason)
        self._fill_xla_caches(request.backend)
        return None

    def _answer(self, asked: list[Compilation], request: KeyRequest) -> None:
        """Note the key that would be looked up, and end JAX's request when it has asked for the last key."""
        settings = self.settings()
        cache = self.cache_of(settings)
        if cache is not None and seam.can_serialize(request.backend):
            try:
                asked.append(_compilation(request, settings, cache))
            except Exception as exc:
                log.debug("ejcache: %s has no key: %s", seam.module_name(request.module), exc)
        if request.profile_sentinel is None:
            raise AskedError

    def contains(self, key: str) -> bool:
        """Answer PGLE's question whether to use the optimised variant, or, of the plain one, whether to warn."""
        compilation = _compilation_of(key)
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
        miss. A failure of the storage is a miss, whose reason `compilation.miss` has.
        """
        compilation = _compilation_of(key)
        if compilation is None:
            return None, None
        if compilation.devices_absent:
            from ejcache.jax_integration.devices.absent import look_for_others

            compilation.miss = look_for_others(compilation)
            return None, None
        if compilation.cache.tiers is not None:
            compilation.is_local_only = self._quick.is_quick(compilation) and not is_forbidden()
        # Also if nobody knows the tiers yet: another thread may still be opening the store.
        compilation.beside = partial(_ask_ahead, compilation, placement)
        compilation.begin_lookup()
        found = self._entries.find(compilation, placement)
        if compilation.is_multi_process:
            found = self._agree(compilation, placement, found)
        if found is not None and compilation.settings.check_contents and self._wants_check(compilation, found):
            from ejcache.jax_integration.executable_comparison import StoredExecutable

            compilation.to_check = StoredExecutable(found)
            compilation.miss = Miss.CHECKED
            found = None
        if found is None:
            return None, None
        _drop_ahead(compilation)
        self._count_hit(compilation, placement, found)
        return found.executable, found.header.compile_seconds

    def _agree(
        self, compilation: Compilation, placement: Placement, found: LoadedExecutable | None
    ) -> LoadedExecutable | None:
        """Agree with the other ranks: return the executable only if every one of them can load it, else None."""
        agreement = self._agreement()
        if agreement is None:
            return found
        from ejcache.jax_integration.ranks.common_hit import agree

        return agree(
            compilation,
            agreement,
            found,
            load=lambda number: self._entries.load_candidate(compilation, number, placement),
        )

    def _count_hit(self, compilation: Compilation, placement: Placement, found: LoadedExecutable) -> None:
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
        compilation.cache.count_hit(found.header, load_seconds=found.seconds)
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

    def _describe(self) -> Process:
        """Describe this process, by what JAX and the settings say of it, for its start record."""
        settings, platform = self._last or (self.settings(), "")
        chosen = {name: str(display_value(value)) for name, value in settings.chosen().items()}
        versions = {"jax": jax.__version__, "jaxlib": seam.jaxlib_version(), "platform": platform}
        return Process(
            rank=seam_backends.process_index(),
            ranks=seam_backends.processes_of_job(),
            versions=versions,
            settings=chosen,
        )

    # -- a miss ----------------------------------------------------------------------------------------------------

    def compile(self, key: str, program: LoweredProgram) -> Any:
        """Compile after a miss, and store the result."""
        compilation = _compilation_of(key)
        if compilation is None:
            from ejcache.jax_integration.seam import compiling

            self._fill_xla_caches(program.placement.backend)
            return compiling.compile_executable(program)
        _choose_compiled(compilation, program)
        return self._compile_once(compilation, program)

    def share(self, key: str, program: LoweredProgram, *, first_process: int) -> Any:
        """Compile a program that spans processes on the first of them, and load its result on the others."""
        from ejcache.jax_integration.seam.coordination_service import coordination_client

        compilation, coordination = _compilation_of(key), coordination_client()
        if compilation is None or coordination is None or compilation.devices_absent or compilation.is_drifted:
            return self.compile(key, program)
        from ejcache.jax_integration.ranks.share_binary import share

        _choose_compiled(compilation, program)
        waited = compilation.waits()

        def store(executable: Any, **more: Any) -> Any:
            waited()
            return self._publisher.publish(compilation, program, executable, **more)

        return share(
            compilation,
            program,
            coordination,
            origins=self._entries.origins,
            first_process=first_process,
            compile_here=partial(self._compile_once, compilation, program),
            store=store,
        )

    def _compile_once(self, compilation: Compilation, program: LoweredProgram) -> Any:
        """Compile, or load what another thread, process or host is compiling now."""
        placement = program.placement
        if _is_compiled_alone(compilation, program):
            _drop_ahead(compilation)
            return self._compile_here(compilation, program)
        from ejcache.jax_integration.lowering.quick_programs import is_worth_requests

        own: list[Any] = []  # the outcome of compiling here: an executable or the program's own error
        waited = compilation.waits()

        def work() -> Any:
            waited()
            try:
                own.append(self._compile_here(compilation, program))
            except BaseException as exc:
                own.append(exc)
                raise
            return own[0]

        def lookup() -> LoadedExecutable | None:
            if compilation.devices_absent:
                from ejcache.jax_integration.devices.absent import look_for_others

                look_for_others(compilation)
                return None
            found = self._entries.load(compilation, compilation.text, placement)
            return found if isinstance(found, LoadedExecutable) else None

        try:
            flight = compilation.cache.single_flight(compilation.settings)
            if flight is None:
                return work()
            made = flight.run(
                compilation.text,
                lookup=lookup,
                work=work,
                deadline=WAIT_SECONDS,
                missed_since=compilation.looked,
                between_hosts=is_worth_requests(compilation),
                left_entry=lambda: compilation.is_stored or not own,  # what was not compiled here was found
                in_words=_program_in_words,
            )
        except AlreadyStoredError:
            raise
        except Exception as exc:
            if own and isinstance(own[0], BaseException):
                raise own[0] from own[0].__cause__
            compilation.report_failure("compile this program only once", exc)  # leases failed, or waiting
            return own[0] if own else self._compile_here(compilation, program)
        if not isinstance(made, LoadedExecutable):
            return made
        waited()
        self._count_hit(compilation, placement, made)
        from ejcache.jax_integration.seam.compiling import record_hit

        record_hit(program.name, compilation.text, made.header.compile_seconds, made.seconds)
        return made.executable

    def _compile_here(self, compilation: Compilation, program: LoweredProgram) -> Any:
        from ejcache.cache.counters import Skip, count_miss
        from ejcache.jax_integration.progress import progress_of
        from ejcache.jax_integration.seam import compiling

        self._refuse_if_forbidden(compilation, program)
        self._fill_xla_caches(program.placement.backend)
        started = time.monotonic()
        with progress_of(program.name):
            if compilation.devices_absent:
                from ejcache.jax_integration.devices.absent import check_memory, compile_for_others

                executable = compile_for_others(compilation, program)
            else:
                executable = compiling.compile_executable(program)
        seconds = compilation.seconds["compiled"] = time.monotonic() - started
        if compilation.devices_absent:
            check_memory(executable)
        self._quick.note(compilation.key, seconds)
        self._entries.origins.compiled(executable)
        if "_xla_caches" in vars(self):
            self._try("store what XLA's own caches hold", self._xla_caches.collect, None)
        if _holds_callbacks(program.placement):
            self._publisher.skip(compilation, program, Skip.CALLBACK, seconds)
        elif compilation.miss is Miss.NO_DEVICES or compilation.is_drifted:
            count_miss(compilation.cache, compilation.miss, compile_seconds=seconds)
            skipped = Skip.RANKS_DIFFER if compilation.is_drifted else Skip.DUPLICATE
            self._publisher.skip(compilation, program, skipped, seconds)
        elif compilation.to_check is not None:
            count_miss(compilation.cache, Miss.CHECKED, compile_seconds=seconds)
            self._checked.add(compilation.to_check.key)
            from ejcache.jax_integration.executable_comparison import check

            check(compilation.to_check, program, executable, compilation.cache, compilation.settings)
        else:
            count_miss(compilation.cache, compilation.miss, compile_seconds=seconds)
            skip = self._publisher.publish(compilation, program, executable, compile_seconds=seconds)
            compilation.is_stored = skip in {None, Skip.DUPLICATE}
            is_next_time = compilation.settings.preload and not compilation.devices_absent
            if is_next_time and skip in {None, Skip.QUICK, Skip.DUPLICATE}:
                self.preloader.note(compilation, program.placement, seconds=seconds, stored=skip is not Skip.QUICK)
        return executable

    def _refuse_if_forbidden(self, compilation: Compilation, program: LoweredProgram) -> None:
        """Raise CompileForbiddenError if this thread forbids compilations, or a rank of the program does.

        Here all ranks have had their answer, so that none waits for one that raises.
        """
        ranks = compilation.forbidden_on
        if is_forbidden() if ranks is None else ranks:
            from ejcache.cache.counters import Skip

            where = "here" if not ranks or seam_backends.process_index() in ranks else f"on rank {ranks[0]}"
            never = Skip.CALLBACK if _holds_callbacks(program.placement) else None
            raise self._publisher.refusal(compilation, program, never, where)

    # -- checks ----------------------------------------------------------------------------------------------------

    def _wants_check(self, compilation: Compilation, found: LoadedExecutable) -> bool:
        """True if this is the first hit of the key in this process, where `check_contents` is set.

        Never where compilations are forbidden.

        Never of a program that spans processes: the ranks must all load or all compile. Never of an optimised
        executable: compiled without its profile, the program is another one. Never of what stands in for another
        variant: what would be compiled is that one.
        """
        if found.candidate != OWN or compilation.is_multi_process or found.header.variant == PGLE or is_forbidden():
            return False
        return found.key not in self._checked

    # -- beside compilations ---------------------------------------------------------------------------------------

    def share_profile(self, request: KeyRequest, *, first_process: int) -> bytes:
        """Return the profile with which every process of this program compiles; empty for none."""
        from ejcache.jax_integration.pgle import share_profile

        return self._try("share a profile", lambda: share_profile(request, first_process=first_process), b"")

    def xla_caches(self, backend: Any) -> dict[str, str]:
        """Return the values of XLA's options that say where its own caches are, by name."""
        if backend is None or str(backend.platform) not in _PLATFORMS_WITH_CACHES:
            return {}
        return self._try("find a directory for XLA's own caches", lambda: self._xla_caches.paths(backend), {})

    def _fill_xla_caches(self, backend: Any) -> None:
        """Let XLA, before it compiles, find what its own caches have stored, if it was told where they are."""
        if "_xla_caches" in vars(self):
            self._try("fetch what XLA's own caches hold", partial(self._xla_caches.fill, backend), None)

    def stored_bytes(self, executable: Any) -> bytes | None:
        """Return the bytes that an executable was loaded from, or None."""
        return self._try("read an entry", lambda: self._entries.origins.stored_bytes(executable), None)

    def is_enabled(self) -> bool:
        """True if compilations use a cache now."""
        return self.cache_of(self.settings()) is not None

    def reset(self) -> None:
        """Close the stores, because JAX's `reset_cache()` was called, and check contents anew."""
        self._checked.clear()
        self._close()

    def _agreement(self) -> RankAgreement | None:
        if seam_backends.processes_of_job() == 1:
            return None
        from ejcache.jax_integration.ranks.agreement import agreement_of_job

        return agreement_of_job()

    def _try(self, doing: str, step: Callable[[], T], otherwise: T) -> T:
        """Return the result of a step of ours, or `otherwise` if it fails."""
        try:
            return step()
        except Exception as exc:
            self._report_failure(doing, exc)
            return otherwise

    def _report_failure(self, doing: str, exc: Exception) -> None:
        settings = self.settings()
        cache = self.cache_of(settings)
        if cache is not None:
            cache.report_failure(doing, exc, settings)


def _ask_ahead(compilation: Compilation, placement: Placement) -> None:
    """Ask for the leases of a program that is probably compiled next, unless it is compiled without them."""
    from ejcache.jax_integration.lowering.quick_programs import is_worth_requests

    if (
        compilation.is_multi_process
        or compilation.is_optimised  # another variant may be compiled
        or _holds_callbacks(placement)
        or is_forbidden()
        or not is_worth_requests(compilation)
    ):
        return
    flight = compilation.cache.single_flight(compilation.settings)
    if flight is not None:
        compilation.asked_ahead = flight
        flight.ask_ahead(compilation.text)


def _drop_ahead(compilation: Compilation) -> None:
    if compilation.asked_ahead is not None:
        compilation.asked_ahead.drop_ahead(compilation.text)


def _is_compiled_alone(compilation: Compilation, program: LoweredProgram) -> bool:
    """True if neither the executable of another process nor waiting for one would do."""
    return (
        compilation.to_check is not None
        # Who wants the executable itself cannot take another process's.
        or (compilation.devices_absent and not stores_only())
        or compilation.text in compilation.unloadable
        or _holds_callbacks(program.placement)
        # The ranks of one program meet in it; they must not wait for each other here.
        or compilation.is_multi_process
        or compilation.miss is Miss.QUICK
    )


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


def _choose_compiled(compilation: Compilation, program: LoweredProgram) -> None:
    if compilation.is_optimised:
        from ejcache.jax_integration.pgle import choose_compiled

        choose_compiled(compilation, program.placement.options)


def _compilation_of(key: str) -> Compilation | None:
    """Find what JAX carried to us; None if other code replaced the key, which then compiles without the cache."""
    return key.compilation if isinstance(key, KeyText) else None


def _holds_callbacks(placement: Placement) -> bool:
    """True if a program calls Python functions that this JAX cannot restore with an executable."""
    if not placement.callbacks:
        return False
    from ejcache.jax_integration.seam.compiling import callbacks_are_cacheable

    return not callbacks_are_cacheable()


def _program_in_words(key: str) -> str:
    """Return `jit_train_step (92 s last time)`: for lines that are logged while a compilation takes long."""
    from ejcache.history.log import last_compile_seconds  # only lines about long waits need it
    from ejcache.keys.parsing import parse_any_key

    name = parse_any_key(key).name
    took = last_compile_seconds(name)
    return name if took is None else f"{name} ({took:.0f} s last time)"
