"""One compilation, from the moment that JAX asks for its key until its executable is stored.

JAX carries the text of a key from the key to the read and the write. Our text is a `KeyText`, which holds the
`Compilation`, so that no step has to look up what an earlier one found.

What a thread wants of its compilations (`no_compile_blocks`) is here, too: each asks.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from ejcache.cache.policy import Miss
from ejcache.keys.key import PGLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.cache.policy import CachePolicy
    from ejcache.coordination.single_flight import SingleFlight
    from ejcache.jax_integration.executable_comparison import StoredExecutable
    from ejcache.jax_integration.pgle_profile import Profile
    from ejcache.keys.key import CacheKey
    from ejcache.settings.table import Settings
    from ejcache.util.time_budget import Budget


_ALONE_SECONDS: Final = 9.5
"""How long a look-up waits for storage that refuses or is silent."""
_RANKS_SECONDS: Final = 6.5
"""How long a look-up of a program takes that spans processes: less than half of what its ranks wait for each other,
with the time in which storage is asked for another name before it counts as dead."""


class Compilation:
    """One compilation. The thread that compiles changes it; nothing else refers to it.

    Attributes:
        key: what the result is stored under. Becomes the key of another variant where that one is compiled instead.
        text: the text of the key.
        settings: as they were when JAX asked for the key; all steps follow them.
        cache: the cache that these settings ask for.
        device_ids: the ids of the program's devices, in their order.
        ranks: the processes that take part in the program, ascending.
        is_multi_process: there are several.
        devices_absent: the client has no devices; the result is stored, and another process loads it.
        has_profile: PGLE has just collected a profile, and JAX compiles the program with it.
        module: the lowered program, if it spans processes.
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
        to_check: the stored executable that the result is to be compared with, or None.
        seconds: what each phase has taken so far (`journal.line.PHASES`).
        forbidden_on: the ranks that forbid its compilation, as they have told each other; None if they have not.
    """

    def __init__(
        self,
        *,
        key: CacheKey,
        settings: Settings,
        cache: CachePolicy,
        device_ids: tuple[int, ...],
        ranks: tuple[int, ...],
        devices_absent: bool = False,
        has_profile: bool = False,
        module: Any = None,
    ) -> None:
        self.key = key
        self.text = key.text
        self.settings = settings
        self.cache = cache
        self.device_ids = device_ids
        self.ranks = ranks
        self.is_multi_process = len(ranks) > 1
        self.devices_absent = devices_absent
        self.has_profile = has_profile
        self.module = module
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
        self.to_check: StoredExecutable | None = None
        self.forbidden_on: tuple[int, ...] | None = None
        self.seconds: dict[str, float] = {}

    def begin_lookup(self) -> None:
        """Note that its entry is looked up from now on."""
        self.looked = time.monotonic()
        self._budget = None

    def budget(self) -> Budget:
        """Return the budget of time for storage that all lookups of this program share, made at the first of them."""
        if self._budget is None:
            from ejcache.util.time_budget import Budget

            several = self.is_multi_process
            self._budget = Budget(_RANKS_SECONDS, every_second=True) if several else Budget(_ALONE_SECONDS)
        return self._budget

    def spent(self, phase: str, began: float) -> float:
        """Add the time since `began` to a phase; returns the monotonic time now."""
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - began
        return now

    def waits(self) -> Callable[[], None]:
        """Begin a wait, and return the function that ends it; what other phases get meanwhile is no waiting."""
        began, before = time.monotonic(), sum(self.seconds.values())

        def end() -> None:
            took = time.monotonic() - began - (sum(self.seconds.values()) - before)
            self.seconds["waited"] = self.seconds.get("waited", 0.0) + max(0.0, took)

        return end

    def use_variant(self, variant: str) -> None:
        """Go on as the compilation of another variant of the program."""
        self.key = self.key._replace(variant=variant)
        self.text = self.key.text

    @property
    def texts(self) -> tuple[str, ...]:
        """The keys under which an executable of the program may be stored, the best one first."""
        from ejcache.keys.parsing import untuned_key  # of absent devices and questions alone

        return tuple(filter(None, (self.text, untuned_key(self.key))))

    @property
    def is_optimised(self) -> bool:
        """True if JAX asks for the variant that was compiled with a profile."""
        return self.key.variant == PGLE

    def report_failure(self, doing: str, exc: Exception) -> None:
        """Count and log a failure of one of our own steps.

        Raises:
            Exception: `exc` itself, if the settings ask for that.
        """
        self.cache.report_failure(doing, exc, self.settings, program=self.key.name)


class KeyText(str):
    """The text of a key, as JAX carries it, and the compilation that it is the key of."""

    __slots__ = ("compilation",)

    compilation: Compilation

    def __new__(cls, compilation: Compilation) -> Self:
        text = str.__new__(cls, compilation.text)
        text.compilation = compilation
        return text


class AlreadyStoredError(Exception):
    """The program is stored, and its caller wants no more than that."""


class AskedError(Exception):
    """The keys of a program are known, and its caller wants no more than that."""


class Storing:
    """What is asked of programs that are compiled only to store them, and what becomes of them.

    Attributes:
        memory: bytes of a device; 0 if it is not known.
        peak: bytes of a device that the program needs at its peak.
    """

    def __init__(self, memory: int = 0) -> None:
        self.memory = memory
        self.peak = 0


class _EnteredBlocks(threading.local):
    """How many blocks this thread is in, and whether it compiles only to store."""

    blocks = 0
    storing: Storing | None = None
    asked: list[Compilation] | None = None


entered_blocks: Final = _EnteredBlocks()
# Its methods that are used here are atomic, so that no lock can be held while the process forks.
blocks_everywhere: Final[list[None]] = []


def is_forbidden() -> bool:
    """True if this thread may not compile now."""
    return bool(entered_blocks.blocks or blocks_everywhere)


def stores_only() -> Storing | None:
    """Return the block of a thread that only stores, and needs no executable if there is an entry; else None."""
    return entered_blocks.storing


def being_asked() -> list[Compilation] | None:
    """Return the list for the keys of what this thread compiles, if it wants no more than those."""
    return entered_blocks.asked
