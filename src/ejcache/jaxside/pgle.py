"""PGLE: which variant of a program is used, and its profile.

JAX asks `contains` of the optimised entry; if that is True it stops profiling and asks for the optimised executable,
and if not it compiles the program to be profiled, and after some runs compiles it once more with the profile. So a
program that has no optimised entry, but a profile that was kept, is answered True as well: what follows is a miss, and
`prepare` gives that compilation the profile.

Ranks of a program that spans processes see different things, and one that goes on profiling would wait for a profile
that the others never send. So they agree: the optimised variant is used if all see it, or all see the same profile.

Read for this: jax 0.10.2 and 0.12.0.1, `_resolve_compilation_strategy` and `_share_fdo_profiles` in `compiler.py`.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache import entry
from ejcache.jaxside import seam
from ejcache.jaxside.agreement import Agreement
from ejcache.jaxside.keying import KeyText
from ejcache.jaxside.modules import digest_module
from ejcache.keys.key import PGLE, PLAIN, PROFILING, profile_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.compilation import CompilationCache
    from ejcache.settings import Settings

__all__ = ["PROFILE_KIND", "Profile", "Variants"]

log = logging.getLogger("ejcache")

PROFILE_KIND: Final = "pgle_profile"
"""`kind` in the header of a kept profile."""

_ENTRY: Final = "entry"
_PROFILE: Final = "profile"
_NEITHER: Final = "neither"
_SECONDS: Final = 120.0
"""How long a rank waits for the profile that the first one collected; they finished the same run."""
_SENT: Final = b"P"
_WITHDRAWN: Final = b"-"


@dataclass(frozen=True, slots=True)
class Profile:
    """What PGLE measured of a program.

    Attributes:
        data: as XLA takes it (`fdo_profile`).
        percentile: over devices and runs.
        runs: how many were profiled.
        devices: of the program.
        kept: it came from the store.
    """

    data: bytes
    percentile: int
    runs: int
    devices: int
    kept: bool = False

    @property
    def digest(self) -> str:
        """Names the profile in the header of what was compiled with it."""
        return hashlib.sha256(self.data).hexdigest()

    def fields(self) -> dict[str, Any]:
        """What headers say of it."""
        return {"percentile": self.percentile, "runs": self.runs, "devices": self.devices}


class _Asked(threading.local):
    """What this thread's compilation is about: JAX makes its keys first."""

    module: int = 0
    optimised: KeyText | None = None
    plain: KeyText | None = None
    has_profile: bool = False
    to_use: Profile | None = None


class Variants:
    """The choice between the variants of a program, one for each `Compiler`. Safe for threads.

    Args:
        settings: the settings now.
    """

    def __init__(self, *, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._asked = _Asked()
        self._warned: set[str] = set()
        self._agreement: Agreement | None = None
        self._shared: dict[tuple[str, tuple[int, ...]], bytes] = {}

    def note(self, key: KeyText | None, *, module: Any, options: Any) -> None:
        """JAX asked for this key, or one that could not be made; what it asks next is about the same compilation."""
        asked = self._asked
        if key is None or key.key.variant == PGLE:
            asked.module, asked.optimised, asked.plain, asked.to_use = id(module), key, None, None
            asked.has_profile = bool(options.executable_build_options.fdo_profile)
        elif asked.module == id(module):
            asked.plain = key

    def contains(self, cache: CompilationCache, key: str) -> bool:
        """JAX's question whether an entry stands; of the optimised one, whether it is to be used."""
        if not isinstance(key, KeyText):
            return cache.contains(str(key))
        if key.key.variant != PGLE:
            return self._is_news(cache, key)
        self._asked.to_use = None
        stands = cache.contains(str(key))
        kept = None if stands or self._has_profile(key) else self._kept(cache, key)
        choice = _ENTRY if stands else _PROFILE if kept is not None else _NEITHER
        if len(key.processes) > 1:
            choice = self._agreed(key, choice, kept)
        if choice == _PROFILE and kept is not None:
            log.info("ejcache: %s is compiled with the profile that was kept of it", key.key.name)
            self._asked.to_use = kept
        return choice != _NEITHER

    def stand_ins(self, cache: CompilationCache, key: str) -> tuple[KeyText, ...]:
        """What to load in place of an optimised executable that cannot be: better than to compile a plain one.

        Nothing, if there is a profile to compile it with.
        """
        if not isinstance(key, KeyText) or key.key.variant != PGLE or self._has_profile(key):
            return ()
        if self._to_use(key) is None and len(key.processes) == 1 and self._asked.optimised is key:
            self._asked.to_use = self._kept(cache, key)
        return () if self._to_use(key) is not None else (key.of_variant(PLAIN), key.of_variant(PROFILING))

    def prepare(self, key: str, options: Any) -> tuple[str, Profile | None]:
        """Where what is compiled now belongs, and the profile that it is compiled with; `options` are given that.

        JAX would store what it compiles without a profile as the optimised executable, if the entry that it had seen
        cannot be read.
        """
        if not isinstance(key, KeyText) or key.key.variant != PGLE:
            return key, None
        kept = self._to_use(key)
        given = bytes(options.executable_build_options.fdo_profile or b"")
        if given:
            settings = self._settings()
            return key, Profile(
                given,
                percentile=settings.pgle_aggregation_percentile,
                runs=settings.pgle_profiling_runs,
                devices=len(key.devices),
            )
        if kept is None:
            return key.of_variant(PLAIN), None
        options.executable_build_options.fdo_profile = kept.data
        return key, kept

    def keep(self, cache: CompilationCache, key: str, profile: Profile) -> None:
        """Keep a profile for whoever compiles this program with another tool chain."""
        if not isinstance(key, KeyText):
            return
        header = entry.Header(
            key=profile_key(key.key),
            kind=PROFILE_KIND,
            name=key.key.name,
            platform=key.key.platform,
            jax=jax.__version__,
            jaxlib=seam.jaxlib_version(),
            logical_key=key.key.logical,
            profile_digest=profile.digest,
            extra=profile.fields(),
        )
        cache.keep_profile(header, profile.data)

    def share(self, *, module: Any, devices: tuple[int, ...], options: Any, client: Any, first_process: int) -> bytes:
        """The profile that all ranks of this program compile with: the first one's, or none for any of them.

        JAX sends it under a key that differs from rank to rank on some platforms, keeps it under the key alone, and
        raises in the program if it does not come.
        """
        mine = bytes(options.executable_build_options.fdo_profile or b"")
        if not mine:
            return mine
        optimised = self._asked.optimised if self._asked.module == id(module) else None
        if optimised is not None:
            text = str(optimised)
        else:
            text = digest_module(module, metadata=False, ignore_custom_partitioning=True).digest
        memo = (text, devices)
        if memo not in self._shared:
            about = hashlib.sha256(repr(memo).encode()).hexdigest()[:40]
            is_first = seam.process_index() == first_process
            self._shared[memo] = _exchange(client, f"ejcache/profile/{about}", mine if is_first else None)
        return self._shared[memo]

    # -- inside ----------------------------------------------------------------------------------------------------

    def _has_profile(self, key: KeyText) -> bool:
        return self._asked.optimised is key and self._asked.has_profile

    def _to_use(self, key: KeyText) -> Profile | None:
        return self._asked.to_use if self._asked.optimised is key else None

    def _is_news(self, cache: CompilationCache, key: KeyText) -> bool:
        """Whether the plain entry stands, and nobody has been told yet that there is no optimised one.

        JAX asks in order to warn, and would each time that it compiles the program.
        """
        if key.key.logical in self._warned or not cache.contains(str(key)):
            return False
        self._warned.add(key.key.logical)
        return True

    def _kept(self, cache: CompilationCache, key: KeyText) -> Profile | None:
        """The profile that was kept of this program, if it is to be used now."""
        settings = self._settings()
        if not settings.pgle_reuse:
            return None
        profiling = settings.enable_pgle and settings.pgle_profiling_runs > 0
        plain = self._asked.plain if self._asked.optimised is key else None
        if not profiling and plain is not None and cache.contains(str(plain)):
            # Nothing would be profiled, and nothing need be compiled.
            return None
        found = cache.lookup(profile_key(key.key)).entry
        if found is None or found.header.kind != PROFILE_KIND or found.header.logical_key != key.key.logical:
            return None
        fields = found.header.extra
        percentile, runs, devices = (fields.get(name) for name in ("percentile", "runs", "devices"))
        if not (isinstance(percentile, int) and isinstance(runs, int) and devices == len(key.devices) and found.raw):
            return None
        if profiling and percentile != settings.pgle_aggregation_percentile:
            return None
        return Profile(found.raw, percentile, runs, len(key.devices), kept=True)

    def _agreed(self, key: KeyText, choice: str, kept: Profile | None) -> str:
        client = seam.coordination_client()
        if client is None:
            return _NEITHER
        if self._agreement is None:
            self._agreement = Agreement(client, rank=seam.process_index())
        devices = hashlib.sha256(repr(key.devices).encode()).hexdigest()[:16]
        decision = self._agreement.decide(
            self._agreement.occurrence(f"variant/{key}/{devices}"),
            participants=key.processes,
            mine={"choice": choice, "profile": kept.digest if kept is not None else ""},
            decide=lambda said: _common(said, len(key.processes)),
        )
        return decision if decision in {_ENTRY, _PROFILE} else _NEITHER


def _common(said: dict[int, Any], ranks: int) -> str:
    """What all ranks can do: one that said nothing can do neither."""
    views = {(each["choice"], each["profile"]) for each in said.values()}
    if len(said) != ranks or len(views) != 1:
        return _NEITHER
    return str(views.pop()[0])


def _exchange(client: Any, name: str, profile: bytes | None) -> bytes:
    """The first rank's profile, on every rank; or empty on every rank, if one has given it up.

    Both sending and giving up create the same note, of which there can be one only, so that all read the same.

    Args:
        client: JAX's client of the coordination service.
        name: of the note.
        profile: what this rank sends; None if it waits for another's.
    """
    try:
        if profile is None:
            try:
                return _received(client, name, _SECONDS)
            except Exception as exc:
                log.warning("ejcache: no profile came from the first rank; all compile without: %s", exc)
        note = _WITHDRAWN if profile is None else _SENT + profile
        try:
            client.key_value_set_bytes(name, note)
        except Exception:
            return _received(client, name, 1.0)
        return note[1:]
    except Exception as exc:
        # The service itself is gone, and with it the job.
        log.warning("ejcache: the ranks could not exchange a profile: %s", exc)
        return b""


def _received(client: Any, name: str, seconds: float) -> bytes:
    note = bytes(client.blocking_key_value_get_bytes(name, int(seconds * 1000)))
    return note[1:] if note[:1] == _SENT else b""
