"""Compiles a program that was missed, once among all that want it, and has it stored.

Programs that surely compile quickly are not looked for on shared storage (`_QuickPrograms`), and others are not waited
for. A request to a bucket takes longer than to compile a program of one operation, and other hosts do not publish it.

`pipeline.Compiler` makes the one `MissedPrograms` that it has at its first miss.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.reasons import Miss, Skip
from ejcache.cache.stats import count_miss, count_skip
from ejcache.coordination.compile_speed import SLOW_SECONDS
from ejcache.history.host_log import last_compile_seconds
from ejcache.jax_integration.candidates import OWN
from ejcache.jax_integration.compilation import LoadedExecutable
from ejcache.jax_integration.devices.absent import check_memory, compile_for_others, look_for_others
from ejcache.jax_integration.executable_comparison import check
from ejcache.jax_integration.executable_origins import forget_origin
from ejcache.jax_integration.lowering.python_functions import UnkeyableError
from ejcache.jax_integration.no_compile_blocks import (
    Refusals,
    is_forbidden,
    refuse_if_forbidden,
    stores_only,
)
from ejcache.jax_integration.own_failures import is_for_program
from ejcache.jax_integration.pgle import choose_compiled, share_profile_without_cache
from ejcache.jax_integration.progress import progress_of
from ejcache.jax_integration.publishing import Publisher
from ejcache.jax_integration.ranks.share_binary import receive, send
from ejcache.jax_integration.seam import key_parts
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.seam.coordination_service import coordination_client
from ejcache.jax_integration.seam.job import process_index
from ejcache.keys.key import PGLE, PLAIN, parse_any_key
from ejcache.settings.table import Floors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from ejcache.cache.reading import CacheReader
    from ejcache.coordination.single_flight import SingleFlight
    from ejcache.jax_integration.compilation import Compilation, Origins
    from ejcache.jax_integration.preload.preloader import Preloader
    from ejcache.jax_integration.seam.patch import CacheAnswer, JaxCall
    from ejcache.jax_integration.xla_options import XlaCaches
    from ejcache.keys.key import CacheKey
    from ejcache.settings.table import Settings

    class Hits(Protocol):
        """What a miss needs of what makes hits; `pipeline.Compiler` has it."""

        origins: Origins
        settings: Callable[[], Settings]
        own_xla_caches: XlaCaches | None

        @property
        def preloader(self) -> Preloader: ...
        def load(self, compilation: Compilation, text: str) -> LoadedExecutable | Miss: ...
        def note_origin(self, executable: Any, compilation: Compilation, key: str) -> None: ...
        def count_hit(self, compilation: Compilation, found: LoadedExecutable) -> None: ...
        def report_failure(self, doing: str, exc: Exception) -> None: ...


WAIT_SECONDS: Final = 600.0
"""How long this process waits, in all, for entries that others compile and do not deliver; then it compiles."""
_SMALLEST: Final = 512
"""Bytes of a program's canonical form below which it has one operation, or a few simple ones. Of 369 programs of eight
libraries, 296 were smaller, and all of these compiled in less than 0.08 s on a busy CPU. Above that, size says less:
2,000 bytes that draw random numbers may take a tenth of a second, or one."""
_LEAST_FLOOR: Final = Floors().publish
"""Seconds. With a lower floor for what other hosts get, small programs are published too."""
_EVIDENCE: Final = 3
"""How many of the smallest programs must have compiled here: an accelerator may need seconds for each."""


class _QuickPrograms:
    """Learns how long the smallest programs of this process take to compile, and so which are quick. Thread-safe."""

    def __init__(self) -> None:
        # Of each platform: how many there were, and the seconds of the slowest. If two threads write at once, one count
        # is lost, and the answer is True one program later.
        self._known: dict[str, tuple[int, float]] = {}

    def note(self, key: CacheKey, seconds: float) -> None:
        """Remember that this program compiled in so many seconds, if it is one of the smallest."""
        if 0 < key.size < _SMALLEST:
            count, slowest = self._known.get(key.platform, (0, 0.0))
            self._known[key.platform] = (count + 1, max(slowest, seconds))

    def is_quick(self, compilation: Compilation) -> bool:
        """True if the program surely compiles in less than the floor for other hosts, so that no host publishes it.

        Once one of the smallest programs of its platform took longer, the answer is False as long as the process lives.
        It is also False for a program of several processes, which agree about what they find, and for PGLE's variants.
        """
        key = compilation.key
        count, slowest = self._known.get(key.platform, (0, 0.0))
        if count < _EVIDENCE or slowest >= _LEAST_FLOOR or not 0 < key.size < _SMALLEST:
            return False
        is_plain = key.variant == PLAIN and not compilation.is_multi_process
        return is_plain and compilation.settings.floors.publish >= _LEAST_FLOOR


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
        self._quick = _QuickPrograms()

    @cached_property
    def _publisher(self) -> Publisher:
        return Publisher()

    @cached_property
    def _refusals(self) -> Refusals:
        return Refusals(self._publisher)

    def is_surely_quick(self, compilation: Compilation) -> bool:
        """True if shared storage need not be asked for a program, because it surely compiles quickly, and may."""
        return self._quick.is_quick(compilation) and not is_forbidden()

    @staticmethod
    def ask_ahead(compilation: Compilation) -> None:
        """Ask for the leases of a program that is probably compiled next, unless it is compiled without them."""
        if (
            compilation.is_multi_process
            or compilation.key.variant == PGLE  # another variant may be compiled
            or is_forbidden()
        ):
            return
        flight = compilation.single_flight
        if flight is not None and _is_worth_a_lease(compilation, flight):
            compilation.asked_ahead = flight
            flight.ask_ahead(compilation.text)

    # -- the path after a miss -------------------------------------------------------------------------------------

    def compile_missed(self, compilation: Compilation, call: JaxCall, answer: CacheAnswer) -> Any:
        """Return the executable of a program that was not found: compiled here, or by whoever compiles it now."""
        if compilation.key.variant == PGLE:
            choose_compiled(compilation, call.options)
        if not _is_compiled_alone(compilation):
            return self._compile_once(compilation, call, answer)
        if compilation.asked_ahead is not None:
            compilation.asked_ahead.drop_ahead(compilation.text)
        is_shared = compilation.is_multi_process and seam.is_shared_between_hosts()
        if is_shared and not (compilation.is_drifted or compilation.holds_callbacks):
            return self._share(compilation, call, answer)
        return self._compile_here(compilation, call, answer)

    def _compile_once(self, compilation: Compilation, call: JaxCall, answer: CacheAnswer) -> Any:
        """Compile, or load what another thread, process or host is compiling now."""
        waited = _wait(compilation)

        def work() -> Any:
            waited()
            try:
                return self._compile_here(compilation, call, answer)
            except BaseException as exc:
                if not isinstance(exc, Exception) or is_for_program(exc):
                    call.error = exc
                raise

        def lookup() -> LoadedExecutable | None:
            if compilation.devices_absent:
                look_for_others(compilation)
                return None
            found = self._hits.load(compilation, compilation.text)
            return found if isinstance(found, LoadedExecutable) else None

        flight = compilation.single_flight
        if flight is None:
            return work()
        try:
            made = flight.run(
                compilation.text,
                lookup=lookup,
                work=work,
                deadline=WAIT_SECONDS,
                missed_since=compilation.looked,
                between_hosts=_is_worth_a_lease(compilation, flight),
                left_entry=lambda: compilation.is_stored or not call.runs,  # what was not compiled here was found
                in_words=_program_in_words,
            )
        except Exception as exc:
            if call.error is not None:
                raise call.error from call.error.__cause__  # also where releasing the lease has failed after it
            if is_for_program(exc):
                raise
            compilation.report_failure("compile this program only once", exc)  # leases failed, or waiting
            return call.executable if call.runs else self._compile_here(compilation, call, answer)
        if not isinstance(made, LoadedExecutable):
            return made
        waited()
        self._hits.count_hit(compilation, made)
        return call.run(answer.of(made))

    def _share(self, compilation: Compilation, call: JaxCall, answer: CacheAnswer) -> Any:
        """Compile a program that spans processes on the first of them, and load its result on the others."""
        coordination = coordination_client()
        if coordination is None:
            return self._compile_here(compilation, call, answer)

        first_process = min(call.devices.flat, key=lambda device: device.id).process_index
        if coordination.process == first_process:
            return send(compilation, coordination, lambda: self._compile_here(compilation, call, answer))
        waited = _wait(compilation)
        received = receive(compilation, coordination)
        waited()
        if received is None:
            return self._compile_here(compilation, call, answer)
        self._hits.note_origin(received.executable, compilation, compilation.text)
        seconds = received.header.compile_seconds
        count_miss(compilation.cache, compilation.miss)
        self._publisher.publish(compilation, received.executable, compile_seconds=seconds, raw=received.raw)
        return call.run(answer.of(received))

    def _compile_here(self, compilation: Compilation, call: JaxCall, answer: CacheAnswer) -> Any:
        self._refuse_if_forbidden(compilation)
        self._fill_xla_caches(call.backend)
        started = time.monotonic()
        with progress_of(compilation.name):
            if compilation.devices_absent:
                executable = compile_for_others(compilation, call, answer)
            else:
                executable = call.run(answer)
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
        self._keep(compilation, call, executable, seconds)
        return executable

    def _keep(self, compilation: Compilation, call: JaxCall, executable: Any, seconds: float) -> None:
        """Count what was compiled, and store it where nothing forbids that."""
        if compilation.holds_callbacks:
            self._publisher.skip(compilation, Skip.CALLBACK, seconds)
        elif compilation.miss is Miss.NO_DEVICES or compilation.is_drifted:
            count_miss(compilation.cache, compilation.miss, compile_seconds=seconds)
            skipped = Skip.RANKS_DIFFER if compilation.is_drifted else Skip.DUPLICATE
            self._publisher.skip(compilation, skipped, seconds)
        elif compilation.to_check is not None:
            count_miss(compilation.cache, Miss.CHECKED, compile_seconds=seconds)
            self.checked.add(compilation.to_check.key)

            check(compilation, executable, compile_again=call.run)
        else:
            count_miss(compilation.cache, compilation.miss, compile_seconds=seconds)
            skip = self._publisher.publish(compilation, executable, compile_seconds=seconds)
            compilation.is_stored = skip in {None, Skip.DUPLICATE}
            is_next_time = compilation.settings.preload and not compilation.devices_absent
            if is_next_time and skip in {None, Skip.QUICK, Skip.DUPLICATE}:
                self._hits.preloader.note(
                    compilation, compilation.placement, seconds=seconds, stored=skip is not Skip.QUICK
                )

    def _note_speed(self, compilation: Compilation, seconds: float) -> None:
        try:
            flight = compilation.single_flight
            if flight is not None:
                flight.note_compiled(compilation.key.platform, compilation.key.size, seconds)
        except Exception as exc:
            self._hits.report_failure("note how long a program compiled", exc)

    def _refuse_if_forbidden(self, compilation: Compilation) -> None:
        """Raise CompileForbiddenError if this thread forbids compilations, or a rank of the program does.

        Here all ranks have had their answer, so that none waits for one that raises.
        """
        ranks = compilation.forbidden_on
        if is_forbidden() if ranks is None else ranks:
            where = "here" if not ranks or process_index() in ranks else f"on rank {ranks[0]}"
            never = Skip.CALLBACK if compilation.holds_callbacks else None
            raise self._refusals.error(compilation, never, where)

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

    # -- without a key ---------------------------------------------------------------------------------------------

    def compile_without_cache(self, call: JaxCall, cache: CacheReader | None) -> Any:
        """Compile where there is no cache, or on a platform whose executables `cache` cannot store.

        Raises:
            CompileForbiddenError: this thread may not compile.
        """
        if cache is not None:
            count_skip(cache, Skip.PLATFORM)
        return self._compile_without_key(call, Skip.DISABLED if cache is None else Skip.PLATFORM)

    def compile_without_key(
        self,
        call: JaxCall,
        settings: Settings,
        cache: CacheReader,
        error: Exception,
        seconds: Mapping[str, float],
    ) -> Any:
        """Compile a program that has no key: it is compiled without the cache, as in JAX.

        Args:
            call: of JAX.
            settings: of the compilation.
            cache: that it would use.
            error: why there is no key.
            seconds: what each phase has taken so far.

        Raises:
            CompileForbiddenError: this thread may not compile.
        """
        if not isinstance(error, UnkeyableError):
            count_skip(cache, Skip.NO_KEY)
            cache.report_failure("make a key", error, settings)
            return self._compile_without_key(call, Skip.NO_KEY)
        name = key_parts.module_name(call.module)
        count_skip(cache, error.skip)
        cache.warn(error.skip, f"{name} {error}")
        began = time.monotonic()
        executable = self._compile_without_key(call, error.skip)
        compiled = time.monotonic() - began
        self._publisher.log_without_key(cache, settings, name, error.skip, {**seconds, "compiled": compiled})
        return executable

    def _compile_without_key(self, call: JaxCall, reason: Skip) -> Any:
        refuse_if_forbidden(key_parts.module_name(call.module), reason)
        self._fill_xla_caches(call.backend)
        settings = self._hits.settings()
        if settings.enable_pgle and call.options.executable_build_options.fdo_profile:
            return call.run(share_profile_without_cache(call))
        return call.run()

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


def _is_compiled_alone(compilation: Compilation) -> bool:
    """True if neither the executable of another process nor waiting for one would do."""
    return (
        compilation.to_check is not None
        # Who wants the executable itself cannot take another process's.
        or (compilation.devices_absent and not stores_only())
        or compilation.text in compilation.unloadable
        or compilation.holds_callbacks
        # The ranks of one program meet in it; they must not wait for each other here.
        or compilation.is_multi_process
        or compilation.miss is Miss.QUICK
    )


def _program_in_words(key: str) -> str:
    """Return `jit_train_step (92 s last time)`: for lines that are logged while a compilation takes long."""
    name = parse_any_key(key).name
    took = last_compile_seconds(name)
    return name if took is None else f"{name} ({took:.0f} s last time)"


def _is_worth_a_lease(compilation: Compilation, flight: SingleFlight) -> bool:
    """True if other hosts are asked before compiling: not for a program that is surely too quick to wait for."""
    key, floor = compilation.key, compilation.settings.floors.publish
    return floor < _LEAST_FLOOR or flight.may_take(key.platform, key.size, max(floor, SLOW_SECONDS))
