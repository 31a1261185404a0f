"""`Compilation` holds what JAX hands over, what is found out until its executable is stored, and what JAX gets.

`pipeline.Compiler` makes a `Compilation` of each call of JAX's that has a key, and hands it from step to step.
"""

from __future__ import annotations

import hashlib
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.cache.reasons import Miss
from ejcache.util.time_budget import Budget

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Callable, Hashable, Sequence

    from ejcache.cache.reading import CacheReader
    from ejcache.coordination.single_flight import SingleFlight
    from ejcache.entry import Header
    from ejcache.jax_integration.preload.run_profile import ProgramUse
    from ejcache.keys.key import CacheKey
    from ejcache.settings.table import Settings

    Origins = OrderedDict[Hashable, tuple[CacheReader, Settings, str]]
    """By executable: the cache that it was loaded from, the settings then, and the key of the entry."""


class Profile(NamedTuple):
    """What PGLE measured of a program.

    Attributes:
        data: as XLA takes it (`fdo_profile`).
        percentile: over devices and runs.
        runs: how many runs were profiled.
        devices: how many devices the program has.
        from_store: it was read from the store.
    """

    data: bytes
    percentile: int
    runs: int
    devices: int
    from_store: bool = False

    @property
    def digest(self) -> str:
        """Names the profile in the header of what was compiled with it."""
        return hashlib.sha256(self.data).hexdigest()

    def fields(self) -> dict[str, Any]:
        """Return the fields of headers that describe it."""
        return {"percentile": self.percentile, "runs": self.runs, "devices": self.devices}


_ALONE_SECONDS: Final = 9.5
"""How long a look-up waits for storage that refuses or is silent."""
_RANKS_SECONDS: Final = 6.5
"""How long a look-up of a program takes that spans processes: less than half of what its ranks wait for each other,
with the time in which storage is asked for another name before it counts as dead."""


class Placement(NamedTuple):
    """The devices and options that an executable is compiled or loaded for.

    Attributes:
        backend: the PJRT client.
        devices: in the order of the program's device assignment.
        options: XLA's compile options, with that assignment; PGLE changes them between two compilations.
        callbacks: Python functions of this process that the program calls.
    """

    backend: Any
    devices: Sequence[Any]
    options: Any
    callbacks: Sequence[Any] = ()


class KeyRequest(NamedTuple):
    """What JAX wants a key of.

    Attributes:
        module: the MLIR module.
        devices: JAX's array of devices.
        options: XLA's compile options.
        backend: the PJRT client.
        profile_sentinel: what JAX passes when it asks for the key of the optimised variant, otherwise None.
    """

    module: Any
    devices: Any
    options: Any
    backend: Any
    profile_sentinel: bytes | None = None


class LoadedExecutable(NamedTuple):
    """An executable that was loaded from an entry.

    Attributes:
        executable: as XLA loaded it.
        key: the key of the entry, which may be the alternative key of this kind of host.
        header: the entry's header.
        raw: the serialised executable; empty if it was loaded ahead.
        seconds: what reading and loading took, or waiting for it if it was loaded ahead.
        ahead: what to remember of it for the next run, if it was loaded ahead.
        candidate: the number of the candidate that it is (`candidates.candidates`).
    """

    executable: Any
    key: str
    header: Header
    raw: bytes
    seconds: float
    ahead: ProgramUse | None = None
    candidate: int = 0


class Compilation:
    """One compilation. The thread that compiles changes it; nothing else refers to it.

    Attributes:
        module: the MLIR module.
        placement: where it is to run.
        key: what the result is stored under. Becomes the key of another variant where that one is compiled instead.
        name: of the program.
        text: the text of the key.
        settings: as they were when JAX asked for the key; all steps follow them.
        cache: the cache that these settings ask for.
        device_ids: the ids of the program's devices, in their order.
        ranks: the processes that take part in the program, ascending.
        is_multi_process: there are several.
        devices_absent: the client has no devices; the result is stored, and another process loads it.
        holds_callbacks: it calls Python functions that this JAX cannot restore with an executable.
        has_profile: PGLE has just collected a profile, and JAX compiles the program with it.
        is_drifted: the ranks compile different programs, so the result is neither loaded nor stored.
        profile: the profile that the program is compiled with, if JAX or we have one for it.
        is_local_only: shared storage is not asked for it.
        looked: when its entry was last looked for, in monotonic seconds.
        beside: called when shared storage is asked for its entry, which probably is not there; None for nothing.
        asked_ahead: what was asked for its leases while it was looked up; None if they were not asked for.
        miss: why no executable was loaded.
        is_suspected: its entry may end the process that loads it, here or on another rank, and is replaced.
        unloadable: keys of intact entries that XLA refuses to load on this host.
        publisher: 0 if this rank stores the result, n if n ranks come before it.
        serialized_size: bytes of the serialised executable that was compiled; 0 until it is serialised.
        stays_here: what is stored of it is stored on this host only.
        is_stored: whether there is an entry of what was compiled.
        to_check: the `executable_comparison.StoredExecutable` that the result is to be compared with, or None.
        seconds: what each phase has taken so far (`journal.line.PHASES`).
        forbidden_on: the ranks that forbid its compilation, as they have told each other; None if they have not.
    """

    def __init__(
        self,
        *,
        key: CacheKey,
        settings: Settings,
        cache: CacheReader,
        module: Any,
        placement: Placement,
        device_ids: tuple[int, ...],
        ranks: tuple[int, ...],
        devices_absent: bool = False,
        has_profile: bool = False,
        holds_callbacks: bool = False,
    ) -> None:
        self.module = module
        self.placement = placement
        self.key = key
        self.name = key.name
        self.text = key.text
        self.settings = settings
        self.cache = cache
        self.device_ids = device_ids
        self.ranks = ranks
        self.is_multi_process = len(ranks) > 1
        self.devices_absent = devices_absent
        self.has_profile = has_profile
        self.holds_callbacks = holds_callbacks
        self.is_drifted = False
        self.profile: Profile | None = None
        self.is_local_only = False
        self.looked = time.monotonic()
        self.beside: Callable[[], object] | None = None
        self.asked_ahead: SingleFlight | None = None
        self._budget: Budget | None = None
        self.miss = Miss.ABSENT
        self.is_suspected = False
        self.unloadable: set[str] = set()
        self.publisher = 0
        self.serialized_size = 0
        self.stays_here = False
        self.is_stored = False
        self.to_check: Any = None
        self.forbidden_on: tuple[int, ...] | None = None
        self.seconds: dict[str, float] = {}

    @cached_property
    def single_flight(self) -> SingleFlight | None:
        """What has the program compiled once among all that want it; None if nobody else can use its result.

        It is asked for once, so that all steps have the same one, also where the cache is turned off meanwhile.
        """
        return self.cache.single_flight(self.settings)

    def begin_lookup(self) -> None:
        """Note that its entry is looked up from now on."""
        self.looked = time.monotonic()
        self._budget = None

    def budget(self) -> Budget:
        """Return the budget of time for storage that all lookups of this program share, made at the first of them."""
        if self._budget is None:
            several = self.is_multi_process
            self._budget = Budget(_RANKS_SECONDS, every_second=True) if several else Budget(_ALONE_SECONDS)
        return self._budget

    def spent(self, phase: str, began: float) -> float:
        """Add the time since `began` to a phase; returns the monotonic time now."""
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - began
        return now

    def use_variant(self, variant: str) -> None:
        """Go on as the compilation of another variant of the program."""
        self.key = self.key._replace(variant=variant)
        self.text = self.key.text

    def report_failure(self, doing: str, exc: Exception) -> None:
        """Count and log a failure of one of our own steps.

        Raises:
            Exception: `exc` itself, if the settings ask for that.
        """
        self.cache.report_failure(doing, exc, self.settings, program=self.name)


asking_threads: Final[dict[object, list[Compilation]]] = {}
"""The threads that want to know the keys of what they compile, and no more (`no_compile_blocks.asking`)."""
