"""What follows a miss: the program is compiled, once among all that want it, and stored.

`pipeline.Compiler` makes the one `MissedPrograms` that it has at its first miss.
"""

from __future__ import annotations

import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.counters import Skip, count_miss, count_skip
from ejcache.cache.policy import Miss
from ejcache.jax_integration.compilation import LoadedExecutable, compilation_of
from ejcache.jax_integration.executable_origins import forget_origin
from ejcache.jax_integration.lowering.quick_programs import QuickPrograms, is_worth_a_lease
from ejcache.jax_integration.no_compile_blocks import (
    AlreadyStoredError,
    is_forbidden,
    refuse_if_forbidden,
    stores_only,
)
from ejcache.jax_integration.seam import backends as seam_backends
from ejcache.jax_integration.seam import compiling
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.substitutes import OWN
from ejcache.keys.key import PGLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from ejcache.cache.policy import CachePolicy
    from ejcache.jax_integration.compilation import Compilation, KeyRequest, Origins, Placement
    from ejcache.jax_integration.preload.preloader import Preloader
    from ejcache.jax_integration.program import LoweredProgram
    from ejcache.jax_integration.publishing import Publisher
    from ejcache.jax_integration.xla_options import XlaCaches
    from ejcache.settings.table import Settings

    class Hits(Protocol):
        """What a miss needs of what makes hits; `pipeline.Compiler` has it."""

        origins: Origins
        own_xla_caches: XlaCaches | None

        @property
        def preloader(self) -> Preloader: ...
        def load(self, compilation: Compilation, text: str, placement: Placement) -> LoadedExecutable | Miss: ...
        def note_origin(self, executable: Any, compilation: Compilation, key: str) -> None: ...
        def count_hit(self, compilation: Compilation, placement: Placement, found: LoadedExecutable) -> None: ...
        def report_failure(self, doing: str, exc: Exception) -> None: ...


WAIT_SECONDS: Final = 600.0
"""How long this process waits, in all, for entries that others compile and do not deliver; then it compiles."""


class MissedPrograms:
    """Compiles what was not found, once among all threads, processes and hosts that want it. Safe for threads.

    Args:
        hits: what makes hits, which a program may become while another process compiles it.

    Attributes:
        checked: the keys whose executables were compared with fresh ones.
    """

    def __init__(self, hits: Hits) -> None:
        self._hits = hits
        self.checked: set[str] = set()
        self._quick = QuickPrograms()

    @cached_property
    def _publisher(self) -> Publisher:
        from ejcache.jax_integration.publishing import Publisher  # a program without a cache needs none

        return Publisher()

    def is_surely_quick(self, compilation: Compilation) -> bool:
        """True if shared storage need not be asked for a program, because it surely compiles quickly, and may."""
        return self._quick.is_quick(compilation) and not is_forbidden()

    @staticmethod
    def ask_ahead(compilation: Compilation, placement: Placement) -> None:
        """Ask for the leases of a program that is probably compiled next, unless it is compiled without them."""
        if (
            compilation.is_multi_process
            or compilation.key.variant == PGLE  # another variant may be compiled
            or _holds_callbacks(placement)
            or is_forbidden()
        ):
            return
        flight = compilation.cache.single_flight(compilation.settings)
        if flight is not None and is_worth_a_lease(compilation, flight):
            compilation.asked_ahead = flight
            flight.ask_ahead(compilation.text)

    def compile(self, key: str, program: LoweredProgram) -> Any:
        """Compile after a miss, and store the result."""
        compilation = compilation_of(key)
        if compilation is None:
            self._fill_xla_caches(program.placement.backend)
            return compiling.compile_executable(program)
        _choose_compiled(compilation, program)
        return self._compile_once(compilation, program)

    def share(self, key: str, program: LoweredProgram, *, first_process: int) -> Any:
        """Compile a program that spans processes on the first of them, and load its result on the others."""
        from ejcache.jax_integration.seam.coordination_service import coordination_client

        compilation, coordination = compilation_of(key), coordination_client()
        if compilation is None or coordination is None or compilation.devices_absent or compilation.is_drifted:
            return self.compile(key, program)
        from ejcache.jax_integration.ranks.share_binary import share

        _choose_compiled(compilation, program)
        waited = _wait(compilation)

        def store(executable: Any, **more: Any) -> Any:
            waited()
            return self._publisher.publish(compilation, program, executable, **more)

        return share(
            compilation,
            program,
            coordination,
            note_origin=self._hits.note_origin,
            first_process=first_process,
            compile_here=partial(self._compile_once, compilation, program),
            store=store,
        )

    def _compile_once(self, compilation: Compilation, program: LoweredProgram) -> Any:
        """Compile, or load what another thread, process or host is compiling now."""
        placement = program.placement
        if _is_compiled_alone(compilation, program):
            if compilation.asked_ahead is not None:
                compilation.asked_ahead.drop_ahead(compilation.text)
            return self._compile_here(compilation, program)
        own: list[Any] = []  # the outcome of compiling here: an executable or the program's own error
        waited = _wait(compilation)

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
            found = self._hits.load(compilation, compilation.text, placement)
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
                between_hosts=is_worth_a_lease(compilation, flight),
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
        self._hits.count_hit(compilation, placement, made)
        compiling.record_hit(program.name, compilation.text, made.header.compile_seconds, made.seconds)
        return made.executable

    def _compile_here(self, compilation: Compilation, program: LoweredProgram) -> Any:
        from ejcache.jax_integration.progress import progress_of

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
        self._note_speed(compilation, seconds)
        forget_origin(self._hits.origins, executable)
        if self._hits.own_xla_caches is not None:
            try:
                self._hits.own_xla_caches.collect()
            except Exception as exc:
                self._hits.report_failure("store what XLA's own caches hold", exc)
        if _holds_callbacks(program.placement):
            self._publisher.skip(compilation, program, Skip.CALLBACK, seconds)
        elif compilation.miss is Miss.NO_DEVICES or compilation.is_drifted:
            count_miss(compilation.cache, compilation.miss, compile_seconds=seconds)
            skipped = Skip.RANKS_DIFFER if compilation.is_drifted else Skip.DUPLICATE
            self._publisher.skip(compilation, program, skipped, seconds)
        elif compilation.to_check is not None:
            count_miss(compilation.cache, Miss.CHECKED, compile_seconds=seconds)
            self.checked.add(compilation.to_check.key)
            from ejcache.jax_integration.executable_comparison import check

            check(compilation.to_check, program, executable, compilation.cache, compilation.settings)
        else:
            count_miss(compilation.cache, compilation.miss, compile_seconds=seconds)
            skip = self._publisher.publish(compilation, program, executable, compile_seconds=seconds)
            compilation.is_stored = skip in {None, Skip.DUPLICATE}
            is_next_time = compilation.settings.preload and not compilation.devices_absent
            if is_next_time and skip in {None, Skip.QUICK, Skip.DUPLICATE}:
                self._hits.preloader.note(
                    compilation, program.placement, seconds=seconds, stored=skip is not Skip.QUICK
                )
        return executable

    def _note_speed(self, compilation: Compilation, seconds: float) -> None:
        try:
            flight = compilation.cache.single_flight(compilation.settings)
            if flight is not None:
                flight.note_compiled(compilation.key.platform, compilation.key.size, seconds)
        except Exception as exc:
            self._hits.report_failure("note how long a program compiled", exc)

    def _refuse_if_forbidden(self, compilation: Compilation, program: LoweredProgram) -> None:
        """Raise CompileForbiddenError if this thread forbids compilations, or a rank of the program does.

        Here all ranks have had their answer, so that none waits for one that raises.
        """
        ranks = compilation.forbidden_on
        if is_forbidden() if ranks is None else ranks:
            where = "here" if not ranks or seam_backends.process_index() in ranks else f"on rank {ranks[0]}"
            never = Skip.CALLBACK if _holds_callbacks(program.placement) else None
            raise self._publisher.refusal(compilation, program, never, where)

    def wants_check(self, compilation: Compilation, found: LoadedExecutable) -> bool:
        """True if this is the first hit of the key in this process, where `check_contents` is set.

        Never where compilations are forbidden.

        Never of a program that spans processes: the ranks must all load or all compile. Never of an optimised
        executable: compiled without its profile, the program is another one. Never of what stands in for another
        variant: what would be compiled is that one.
        """
        if found.candidate != OWN or compilation.is_multi_process or found.header.variant == PGLE or is_forbidden():
            return False
        return found.key not in self.checked

    def begin_without_cache(self, request: KeyRequest, cache: CachePolicy | None) -> None:
        """Begin a compilation for which there is no cache, or on a platform whose executables `cache` cannot store.

        Raises:
            CompileForbiddenError: this thread may not compile.
        """
        if cache is not None:
            count_skip(cache, Skip.PLATFORM)
        self._begin_alone(request, Skip.DISABLED if cache is None else Skip.PLATFORM)

    def begin_without_key(
        self,
        request: KeyRequest,
        settings: Settings,
        cache: CachePolicy,
        error: Exception,
        seconds: Mapping[str, float],
    ) -> None:
        """Begin the compilation of a program that has no key: it is compiled without the cache, as in JAX.

        Args:
            request: for the key.
            settings: of the compilation.
            cache: that it would use.
            error: why there is no key.
            seconds: what each phase has taken so far.

        Raises:
            CompileForbiddenError: this thread may not compile.
        """
        from ejcache.jax_integration.lowering.python_functions import UnkeyableError  # most misses have a key

        if isinstance(error, UnkeyableError):
            reason, name = error.skip, seam.module_name(request.module)
            self._publisher.skip_without_key(cache, settings, name, reason, seconds)
            cache.warn(reason, f"{name} {error}")
        else:
            reason = Skip.NO_KEY
            count_skip(cache, reason)
            cache.report_failure("make a key", error, settings)
        self._begin_alone(request, reason)

    def _begin_alone(self, request: KeyRequest, reason: Skip) -> None:
        refuse_if_forbidden(seam.module_name(request.module), reason)
        self._fill_xla_caches(request.backend)

    def share_profile(self, request: KeyRequest, *, first_process: int) -> bytes:
        """Return the profile with which every process of this program compiles; empty for none."""
        try:
            from ejcache.jax_integration.pgle import share_profile  # few programs are guided by profiles

            return share_profile(request, first_process=first_process)
        except Exception as exc:
            self._hits.report_failure("share a profile", exc)
            return b""

    def _fill_xla_caches(self, backend: Any) -> None:
        """Let XLA, before it compiles, find what its own caches have stored, if it was told where they are."""
        if self._hits.own_xla_caches is not None:
            try:
                self._hits.own_xla_caches.fill(backend)
            except Exception as exc:
                self._hits.report_failure("fetch what XLA's own caches hold", exc)


def _wait(compilation: Compilation) -> Callable[[], None]:
    """Begin a wait, and return the function that ends it; what other phases get meanwhile is no waiting."""
    seconds = compilation.seconds
    began, before = time.monotonic(), sum(seconds.values())

    def end() -> None:
        took = time.monotonic() - began - (sum(seconds.values()) - before)
        seconds["waited"] = seconds.get("waited", 0.0) + max(0.0, took)

    return end


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


def _choose_compiled(compilation: Compilation, program: LoweredProgram) -> None:
    if compilation.key.variant == PGLE:
        from ejcache.jax_integration.pgle import choose_compiled

        choose_compiled(compilation, program.placement.options)


def _holds_callbacks(placement: Placement) -> bool:
    """True if a program calls Python functions that this JAX cannot restore with an executable."""
    return bool(placement.callbacks) and not compiling.callbacks_are_cacheable()


def _program_in_words(key: str) -> str:
    """Return `jit_train_step (92 s last time)`: for lines that are logged while a compilation takes long."""
    from ejcache.history.log import last_compile_seconds  # only lines about long waits need it
    from ejcache.keys.parsing import parse_any_key

    name = parse_any_key(key).name
    took = last_compile_seconds(name)
    return name if took is None else f"{name} ({took:.0f} s last time)"
