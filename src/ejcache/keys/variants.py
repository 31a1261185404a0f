"""Says which variant of a program stands in for another one, and which is evicted before another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.keys.key import CROSS, PGLE, PLAIN, PROFILING, is_profile_key, parse_any_key, parse_key

if TYPE_CHECKING:
    from ejcache.keys.key import CacheKey

AUTOTUNED: Final = frozenset({"gpu", "cuda", "rocm"})
"""The platforms on whose devices XLA runs parts of a program while it compiles, to choose among its kernels."""

_REPLACING: Final = (f"-{PGLE}-", *(f"-{platform}-{PLAIN}-" for platform in sorted(AUTOTUNED)))
"""In the keys of entries that replace others."""


def untuned_key(key: CacheKey) -> str:
    """Return the text of the key of the plain program as it was compiled without its devices; empty where that is the
    same.
    """
    return key._replace(variant=CROSS).text if key.variant == PLAIN and key.platform in AUTOTUNED else ""


def evicted_before(key: str) -> tuple[str, ...]:
    """Return the keys of entries that are to be evicted before the one of `key`.

    An optimised executable serves every program that would use the other variants, and it took profiling to make. What
    was compiled without its devices is not used once there is another.
    """
    if not any(beginning in key for beginning in _REPLACING):
        return ()
    parts = parse_key(key)
    if parts is None or parts.variant not in {PGLE, PLAIN}:
        return ()
    before, after = f"{parts.name}-{parts.platform}-", f"-{parts.logical}-{parts.environment}"
    worse = (CROSS, PROFILING, PLAIN) if parts.variant == PGLE else (CROSS,)
    return tuple(f"{before}{variant}{after}" for variant in worse)


def is_made_by_pgle(key: str) -> bool:
    """True if `key` is the key of a profile, or of an executable that was compiled with one."""
    return is_profile_key(key) or parse_any_key(key).variant == PGLE
