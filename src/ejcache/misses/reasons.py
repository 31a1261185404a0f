"""Why lookups fail and executables are not stored, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.cache.counters import Miss, Skip

if TYPE_CHECKING:
    from collections.abc import Callable

    IsWithin = Callable[[str, float], bool]


_REASONS: Final[dict[str, str]] = {
    Miss.ABSENT: "no entry is stored under its key",
    Miss.CORRUPT: "its entry was damaged; it was quarantined, and this compilation replaces it",
    Miss.FOREIGN: "the store returned another program's entry, which was quarantined",
    Miss.VERSION: "its entry is of a format that this version of ejcache does not read",
    Miss.SUSPECTED: "its entry is intact, but two starts in a row ended while they loaded it; it was replaced",
    Miss.REJECTED: "its entry is intact, but XLA cannot load it on this host; this host stored another one beside it",
    Miss.FORCED: "EASYDEL_RECOMPILE_FORCE asks for a fresh compilation",
    Miss.DISAGREED: "it could be loaded here, but not on every rank of its program, and all ranks must do the same",
    Miss.CHECKED: "the hit was recompiled to check it",
    Miss.ERROR: "the storage could not be read",
    Miss.DISABLED: "the cache is switched off",
    Miss.QUICK: "it is known to compile too quickly to be published, so shared storage was not read",
    Miss.NO_DEVICES: "its entry is for devices that this process does not have, so its caller compiled it again",
}

_SKIPS: Final = {
    Skip.DUPLICATE: "another process stored it first",
    Skip.OTHER_RANK: "another rank of its program stores it in the same place",
    Skip.QUICK: "it compiled in less than the minimum compile time (jax_persistent_cache_min_compile_time_secs; 0.01 s "
    "unless it is set)",
    Skip.SMALL: "its entry is below the minimum entry size (jax_persistent_cache_min_entry_size_bytes)",
    Skip.LARGE: "its entry is larger than the whole limit (jax_compilation_cache_max_size)",
    Skip.READ_ONLY: "the cache is read-only",
    Skip.CALLBACK: "it calls back into the process, which this version of JAX cannot restore",
    Skip.PARTITIONING: "it uses custom_partitioning, whose Python function has no identity outside the process",
    Skip.INSPECTION: "it shows a sharding to a Python function while it compiles (jax.debug.inspect_array_sharding)",
    Skip.PLATFORM: "this platform cannot serialise executables",
    Skip.NO_KEY: "no key could be made",
    Skip.DISABLED: "the cache is switched off",
    Skip.ERROR: "the storage could not be written",
    Skip.FORBIDDEN: "it was not compiled, because the program forbids compilations (ejcache.forbid_compile)",
    Skip.RANKS_DIFFER: "another rank compiles another program under its name, as the log of that run says",
    Skip.HLO_PASS: "the program has registered a pass over the HLO (jax.extend.xla), which no key can describe",
}


def why_not_found(reason: str) -> str:
    """Return the `Miss` of this name in words; an unknown name is returned as it is."""
    return _REASONS.get(Miss(reason), reason) if reason in set(Miss) else reason


def why_not_stored(outcome: str) -> str:
    """Return the `Skip` of this name in words; an unknown name is returned as it is."""
    return _SKIPS.get(Skip(outcome), outcome) if outcome in set(Skip) else outcome
