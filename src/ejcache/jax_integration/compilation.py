"""One compilation, where loaded executables came from, and whether one of them equals a fresh one.

`Compilation` is what is known of a compilation, from the moment that JAX asks for its key until its executable is
stored. JAX carries the text of a key from the key to the read and the write. Our text is a `KeyText`, which holds the
`Compilation`, so that no step has to look up what an earlier one found.

`check` is for `jax_compilation_cache_check_contents`. The serialised CPU executables of some programs (a `sort`) differ
from compilation to compilation, and every one holds the source lines of the program that stored it. So equal bytes
prove that two executables are equal, and different bytes prove nothing. Where the bytes differ, the optimised HLO
without its metadata decides, and an entry is called wrong only if two fresh compilations agree with each other and
differ from it.

`ExecutableOrigins` remembers where loaded executables came from. XLA:CPU (jaxlib 0.10 and 0.12) serialises an
executable that it has loaded, instead of compiled, to bytes that fail when the program runs. So when the program
serialises an executable that came from a hit (`jax.experimental.serialize_executable`), it gets the bytes of the entry,
which is read again.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from ejcache.cache.counters import Miss
from ejcache.jax_integration.seam import patch as seam
from ejcache.keys.key import PGLE
from ejcache.util.budget import Budget
from ejcache.util.log import log
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ejcache.cache.policy import CachePolicy
    from ejcache.jax_integration.program import Loaded, LoweredProgram
    from ejcache.keys.key import CacheKey
    from ejcache.settings.table import Settings


T = TypeVar("T")

_ALONE_SECONDS: Final = 9.5
"""How long a look-up waits for storage that refuses or is silent."""
_RANKS_SECONDS: Final = 6.5
"""How long a look-up of a program takes that spans processes: less than half of what its ranks wait for each other,
with the time in which storage is asked for another name before it counts as dead."""


class Comparison(Enum):
    """The result of a check. The values are parts of counters' names."""

    SAME = "same"
    """The bytes are equal, or both come from the same optimised program."""
    DIFFERENT = "different"
    """Two fresh compilations agree, and the stored executable is another program."""
    UNSURE = "unsure"
    """Fresh compilations differ among themselves, or XLA does not show its programs, so nothing is proven."""


class StoredExecutable:
    """A stored executable that is to be compared with a fresh one.

    Args:
        loaded: as it was loaded from its entry.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.key = loaded.key
        self.raw = loaded.raw
        self.program = _if_given(seam.optimised_program, loaded.executable)


def check(
    stored: StoredExecutable, program: LoweredProgram, fresh: Any, cache: CachePolicy, settings: Settings
) -> None:
    """Compare `stored` with a fresh executable of its program; quarantine its entry if it is another program.

    Raises:
        Exception: it is another program. This is the error that JAX itself raises then, whatever
            `raise_persistent_cache_errors` is.
    """
    result = compare(stored, fresh, compile_again=partial(seam.compile_executable, program))
    cache.count_check(result.value)
    if result is not Comparison.DIFFERENT:
        return
    cache.quarantine(stored.key, settings)
    cache.warn("check", f"{stored.key} differs from what a fresh compilation gives; it is quarantined")
    raise seam.verification_error(stored.key, stored.raw, _if_given(seam.serialize_executable, fresh) or b"")


def compare(stored: StoredExecutable, fresh: Any, *, compile_again: Callable[[], Any]) -> Comparison:
    """Compare `stored` with a fresh executable; `compile_again` makes a second one where that is needed."""
    if _if_given(seam.serialize_executable, fresh) == stored.raw:
        return Comparison.SAME
    program = _if_given(seam.optimised_program, fresh)
    if program is None or stored.program is None:
        return Comparison.UNSURE
    if program == stored.program:
        return Comparison.SAME
    again = _if_given(seam.optimised_program, compile_again())
    return Comparison.DIFFERENT if again == program else Comparison.UNSURE


def _if_given(asked: Callable[[Any], T], executable: Any) -> T | None:
    """The bytes or the optimised program of an executable; None if XLA cannot give them, as that of some plug-ins."""
    try:
        return asked(executable)
    except RuntimeError:
        return None


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
        """The fields of headers that describe it."""
        return {"percentile": self.percentile, "runs": self.runs, "devices": self.devices}


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
        for_others: the client has no devices: the result is stored, and another process loads it.
        has_profile: PGLE has just collected a profile, and JAX compiles the program with it.
        module: the lowered program, if it spans processes.
        is_drifted: the ranks compile different programs, so the result is neither loaded nor stored.
        profile: the profile that the program is compiled with, if JAX or we have one for it.
        is_local_only: shared storage is not asked for it.
        looked: when its last lookup was begun, in monotonic seconds.
        budget: how long storage is waited for in all its lookups.
        miss: why no executable was loaded.
        unloadable: keys of intact entries that XLA refuses to load on this host.
        publisher: 0 if this rank stores the result, n if n ranks come before it.
        serialized_size: bytes of the serialised executable that was compiled; 0 until it is serialised.
        is_stored: whether there is an entry of what was compiled.
        to_check: the stored executable that the result is to be compared with, or None.
        seconds: what each phase has taken so far (`cache.starts.PHASES`).
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
        for_others: bool = False,
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
        self.for_others = for_others
        self.has_profile = has_profile
        self.module = module
        self.is_drifted = False
        self.profile: Profile | None = None
        self.is_local_only = False
        self.looked = time.monotonic()
        self.budget: Budget | None = None
        self.miss = Miss.ABSENT
        self.unloadable: set[str] = set()
        self.publisher = 0
        self.serialized_size = 0
        self.is_stored = False
        self.to_check: StoredExecutable | None = None
        self.forbidden_on: tuple[int, ...] | None = None
        self.seconds: dict[str, float] = {}

    def begin_lookup(self) -> None:
        """Note that its entry is looked up from now on, and how long storage is waited for in all."""
        self.looked = time.monotonic()
        self.budget = Budget(_RANKS_SECONDS, every_second=True) if self.is_multi_process else Budget(_ALONE_SECONDS)

    def spent(self, phase: str, began: float) -> float:
        """Add the time since `began` to a phase; returns the monotonic time now."""
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - began
        return now

    def waits(self) -> Callable[[], None]:
        """A function to call at the end of a wait that begins now; what other phases get meanwhile is no waiting."""
        began, before = time.monotonic(), sum(self.seconds.values())

        def end() -> None:
            took = time.monotonic() - began - (sum(self.seconds.values()) - before)
            self.seconds["waited"] = self.seconds.get("waited", 0.0) + max(0.0, took)

        return end

    def use_variant(self, variant: str) -> None:
        """Go on as the compilation of another variant of the program."""
        self.key = self.key.of_variant(variant)
        self.text = self.key.text

    @property
    def texts(self) -> tuple[str, ...]:
        """The keys under which an executable of the program may be stored, the best one first."""
        return tuple(filter(None, (self.text, self.key.cross_text)))

    @property
    def is_optimised(self) -> bool:
        """Whether JAX asks for the variant that was compiled with a profile."""
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


_MAX_EXECUTABLES: Final = 10_000


class ExecutableOrigins:
    """The entries of the executables that were loaded last. Safe to use from several threads."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, tuple[CachePolicy, Settings, str]] = OrderedDict()
        self._lock = threading.Lock()

    def loaded(self, executable: Any, compilation: Compilation, key: str) -> None:
        """Remember that an executable was loaded from the entry under `key`."""
        identity = seam.executable_identity(executable)
        with self._lock:
            self._entries[identity] = (compilation.cache, compilation.settings, key)
            if len(self._entries) > _MAX_EXECUTABLES:
                self._entries.popitem(last=False)

    def compiled(self, executable: Any) -> None:
        """Forget an older executable, now gone, that had the identity of one that was just compiled."""
        with self._lock:
            self._entries.pop(seam.executable_identity(executable), None)

    def stored_bytes(self, executable: Any) -> bytes | None:
        """The bytes that an executable was loaded from; None if it was not loaded, or if its entry is gone."""
        origin = self._entries.get(seam.executable_identity(executable))
        if origin is None:
            return None
        cache, settings, key = origin
        found = cache.read(key, settings).entry
        if found is None:
            log.warning(
                "ejcache: the entry %s, from which an executable was loaded, is gone. XLA serialises what it loaded "
                "to bytes that may not run: compile it anew with EASYDEL_RECOMPILE_FORCE=1 before you serialise it",
                key,
            )
            return None
        return found.raw
