"""From a key to a loaded executable: look up, load, and for a program that spans processes agree that all do."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ejcache.compilation import Lookup
from ejcache.jaxside import seam
from ejcache.jaxside.agreement import Agreement
from ejcache.jaxside.toolchain import cpu_identity, native_libraries
from ejcache.statistics import Miss

if TYPE_CHECKING:
    from ejcache.compilation import CompilationCache
    from ejcache.entry import Header
    from ejcache.jaxside.request import Target

__all__ = ["Loaded", "Loader", "alternative_key"]

log = logging.getLogger("ejcache")


@dataclass(frozen=True, slots=True)
class Loaded:
    """An executable from an entry.

    Attributes:
        executable: what XLA made of it.
        key: the entry's, which may be an alternative.
        header: the entry's.
        raw: its serialised bytes.
        seconds: what it took to get and load.
    """

    executable: Any
    key: str
    header: Header
    raw: bytes
    seconds: float


class Loader:
    """Loads executables, and remembers which entries XLA would not have."""

    def __init__(self) -> None:
        self.rejected: set[str] = set()
        self._turns: dict[str, int] = {}
        self._agreement: Agreement | None = None

    def load(self, cache: CompilationCache, key: str, target: Target) -> Loaded | Miss:
        """The executable, or the reason why it must be compiled: on every rank of a program the same of the two."""
        loaded = self.look_again(cache, key, target)
        ranks = target.ranks
        client = seam.coordination_client()
        if len(ranks) < 2 or client is None:
            return loaded
        if self._agreement is None:
            self._agreement = Agreement(client, rank=seam.process_index())
        decision = self._agreement.decide(
            self._agreement.occurrence(_topic(key, target)),
            participants=ranks,
            mine={"loaded": isinstance(loaded, Loaded), "domain": cache.domain},
            decide=lambda said: {
                "load": len(said) == len(ranks) and all(each["loaded"] for each in said.values()),
                "domains": _by_domain(said),
            },
        )
        domains = decision["domains"] if decision is not None else {}
        self._turns[str(key)] = _turn(domains.get(cache.domain, []), seam.process_index())
        if isinstance(loaded, Loaded) and (decision is None or not decision["load"]):
            return Miss.DISAGREED
        return loaded

    def turn(self, key: str) -> int:
        """0 if this rank is the one that publishes what it compiles under `key`, n if n others come first."""
        return self._turns.get(str(key), 0)

    def look_again(self, cache: CompilationCache, key: str, target: Target) -> Loaded | Miss:
        """The executable as far as this rank can see."""
        miss = Miss.REJECTED if key in self.rejected else None
        # The plain text: stores take exactly str, and JAX carries our subclass of it.
        for candidate in (str(key), alternative_key(key, target.backend)):
            if candidate in self.rejected:
                continue
            started = time.monotonic()
            looked = _look_up(cache, candidate)
            if looked.entry is None:
                return miss or looked.miss or Miss.ABSENT
            try:
                executable = seam.load_executable(looked.entry.raw, target)
            except Exception as exc:
                # XLA says no to an intact entry: another CPU, another driver. Others may still want it.
                self.rejected.add(candidate)
                miss = Miss.REJECTED
                log.warning("ejcache: XLA will not load %s here, so it is compiled anew: %s", candidate, exc)
                continue
            return Loaded(executable, candidate, looked.entry.header, looked.entry.raw, time.monotonic() - started)
        return miss or Miss.REJECTED


def alternative_key(key: str, backend: Any) -> str:
    """Where an executable is kept for hosts like this one when the entry under `key` is of no use to them.

    Hosts that disagree about an entry would otherwise replace each other's for ever.
    """
    kinds = ",".join(sorted({str(device.device_kind) for device in backend.devices()}))
    host = "|".join((cpu_identity(), native_libraries(str(backend.platform)), str(backend.platform_version), kinds))
    return f"{key}~{hashlib.sha256(host.encode()).hexdigest()[:16]}"


def _look_up(cache: CompilationCache, key: str) -> Lookup:
    try:
        return cache.lookup(key)
    except Exception as exc:
        # A fault of ours is a miss to the program; `trouble` raises if the program asked for that.
        cache.trouble("look an entry up", exc)
        return Lookup(None, Miss.ERROR)


def _topic(key: str, target: Target) -> str:
    # Ranks 0 and 1 may do what ranks 2 and 3 do at the same time: one key, two decisions.
    return f"{key}/{hashlib.sha256(repr(target.device_ids).encode()).hexdigest()[:16]}"


def _by_domain(said: dict[int, Any]) -> dict[str, list[int]]:
    domains: dict[str, list[int]] = {}
    for rank in sorted(said):
        domains.setdefault(said[rank]["domain"], []).append(rank)
    return domains


def _turn(ranks: list[int], rank: int) -> int:
    return ranks.index(rank) if rank in ranks else 0
