"""How a hit is made: the keys that may have an executable of a program, and the places where each is looked for; and
which entry each executable came from.

`find` goes through the candidates, and for each of them through the sources; the first executable that XLA loads is the
hit. The candidates are made only of what all ranks of a program know alike, so that a number names one of them
(`ranks/common_hit.py`). A process that waits for another one, or that has agreed with other ranks on one candidate,
goes through the sources of that one (`load`).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.policy import Lookup, Miss
from ejcache.jax_integration.compilation_state import stores_only
from ejcache.jax_integration.load_journal import load_journal
from ejcache.jax_integration.lowering.key import alternative_key
from ejcache.jax_integration.program import LoadedExecutable
from ejcache.jax_integration.seam import patch as seam
from ejcache.keys.key import CROSS
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from ejcache.cache.policy import CachePolicy
    from ejcache.jax_integration.compilation_state import Compilation
    from ejcache.jax_integration.program import Placement
    from ejcache.settings.table import Settings

_MAX_EXECUTABLES: Final = 10_000
OWN: Final = 0
"""The number of the candidate that is the program's own key. All others stand in for it."""


def candidates(compilation: Compilation) -> Iterator[str]:
    """List the keys whose executables do what the program does, the best first: its own, then its substitutes.

    What stands in is looked up only when it is asked for, because that may cost a request.
    """
    return itertools.chain((compilation.text,), _what_stands_in(compilation))


def _what_stands_in(compilation: Compilation) -> Iterator[str]:
    if compilation.is_optimised:
        from ejcache.jax_integration.pgle import fallbacks

        try:
            others = fallbacks(compilation)
        except Exception as exc:
            compilation.report_failure("look for another variant", exc)
            return
    else:
        from ejcache.keys.parsing import untuned_key  # by a miss alone

        others = (untuned_key(compilation.key),)
    for text in others:
        # `warm` stores a tuned executable where it has the devices, so an untuned one does not count as a hit for it.
        if text and not (f"-{CROSS}-" in text and stores_only()):
            yield text


class ExecutableOrigins:
    """The entries of the executables that were loaded last. Safe to use from several threads.

    XLA:CPU (jaxlib 0.10 and 0.12) serialises an executable that it has loaded, instead of compiled, to bytes that fail
    when the program runs. So when the program serialises an executable that came from a hit
    (`jax.experimental.serialize_executable`), it gets the bytes of the entry, which is read again.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, tuple[CachePolicy, Settings, str]] = OrderedDict()
        self._lock = threading.RLock()

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
        """Return the bytes that an executable was loaded from; None if it was not loaded, or if its entry is gone."""
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


class EntryLoader:
    """Loads the executables of entries, ahead or now. Safe to use from several threads.

    Args:
        take_ahead: hands over what was loaded ahead, or None.
    """

    def __init__(self, take_ahead: Callable[[Compilation, str, Placement], LoadedExecutable | None]) -> None:
        self.origins = ExecutableOrigins()
        self._take_ahead = take_ahead
        self._sources = (take_ahead, self._load_stored, self._stored_by_hosts_like_this)

    def find(self, compilation: Compilation, placement: Placement) -> LoadedExecutable | None:
        """Load the first candidate that can be loaded. `miss` gets the reason why the program's own key failed."""
        for number, text in enumerate(candidates(compilation)):
            found = self.load(compilation, text, placement)
            if isinstance(found, LoadedExecutable):
                return found if number == OWN else found._replace(candidate=number)
            if number == OWN:
                compilation.miss = found
        return None

    def load_candidate(self, compilation: Compilation, number: int, placement: Placement) -> LoadedExecutable | None:
        """Return the candidate of this number, or None if this process cannot load it."""
        for text in itertools.islice(candidates(compilation), number, number + 1):
            found = self.load(compilation, text, placement)
            if isinstance(found, LoadedExecutable):
                return found._replace(candidate=number)
        return None

    def load(self, compilation: Compilation, text: str, placement: Placement) -> LoadedExecutable | Miss:
        """Return the executable of one candidate, from the first source that has it, or why the store gives none."""
        reason = Miss.ABSENT
        for source in self._sources:
            found = source(compilation, text, placement)
            if isinstance(found, LoadedExecutable):
                self.origins.loaded(found.executable, compilation, found.key)
                return found
            reason = found or reason
        return reason

    def _load_stored(self, compilation: Compilation, key: str, placement: Placement) -> LoadedExecutable | Miss:
        if key in compilation.unloadable:
            return Miss.REJECTED
        began, is_own = time.monotonic(), key == compilation.text
        if is_own:
            compilation.looked = began
        try:
            looked = compilation.cache.read(
                key,
                compilation.settings,
                local_only=compilation.is_local_only,
                budget=compilation.budget,
                beside=compilation.beside if is_own else None,
            )
        except Exception as exc:
            compilation.report_failure("read an entry", exc)
            looked = Lookup(None, Miss.ERROR)
        read = compilation.spent("lost" if looked.miss is Miss.ERROR else "fetched", began)
        if looked.entry is None:
            return looked.miss or Miss.ABSENT
        header = looked.entry.header
        if load_journal.is_suspected(header):
            compilation.is_suspected = True
            said = f"two starts in a row have ended while they loaded {key}, so it is compiled anew and replaced"
            compilation.cache.warn(f"suspected:{key}", said)
            return Miss.SUSPECTED
        executable, place = None, load_journal.begin(header)
        try:
            executable = seam.load_executable(looked.entry.raw, placement)
        except Exception as exc:
            # XLA refuses an intact entry: another CPU, another driver. Other hosts may still be able to use it.
            compilation.unloadable.add(key)
            compilation.cache.warn(f"unloadable:{key}", f"XLA does not load {key} here, so it is compiled anew: {exc}")
            return Miss.REJECTED
        finally:
            load_journal.end(place, header, is_loaded=executable is not None)
            loaded = compilation.spent("loaded", read)
        return LoadedExecutable(executable, key, header, looked.entry.raw, loaded - began)

    def _stored_by_hosts_like_this(
        self, compilation: Compilation, text: str, placement: Placement
    ) -> LoadedExecutable | None:
        """Load what hosts of this kind have stored beside an entry that XLA refuses on them; None if nothing."""
        if text not in compilation.unloadable:
            return None
        key = alternative_key(text, placement.backend)
        found = self._take_ahead(compilation, key, placement) or self._load_stored(compilation, key, placement)
        return found if isinstance(found, LoadedExecutable) else None
