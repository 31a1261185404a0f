"""Reads the text of a key: its parts, what stands in for its entry, and which entries are of no use beside it.

A hit reads none.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ejcache.keys.key import BEHIND_JAX, CROSS, ENVIRONMENT_DIGITS, LOGICAL_DIGITS, PGLE, PLAIN, PROFILING, CacheKey
from ejcache.keys.side_keys import is_profile_key

AUTOTUNED: Final = frozenset({"gpu", "cuda", "rocm"})
"""The platforms on whose devices XLA runs parts of a program while it compiles, to choose among its kernels."""

_REPLACING: Final = (f"-{PGLE}-", *(f"-{platform}-{PLAIN}-" for platform in sorted(AUTOTUNED)))
"""In the keys of entries that replace others."""
# Not compiled here: a hit does without it.
_TEXT: Final = (
    rf"(?P<name>[A-Za-z0-9_.]{{1,96}})-(?P<platform>[a-z0-9_]+)-(?P<variant>{PLAIN}|{PROFILING}|{PGLE}|{CROSS})"
    rf"-(?P<logical>[0-9a-f]{{{LOGICAL_DIGITS}}})-(?P<environment>[0-9a-f]{{{ENVIRONMENT_DIGITS}}})"
)
_JAX_KEY: Final = rf"(?P<name>.+)-[0-9a-f]{{64}}(?:{BEHIND_JAX}[0-9a-f]{{{ENVIRONMENT_DIGITS}}})?"
"""The module's name and a SHA-256 digest: `jax._src.cache_key.get` in JAX 0.4.38 to 0.12."""


class KeyParts(NamedTuple):
    """The parts of a key's text."""

    name: str
    platform: str
    variant: str
    logical: str
    environment: str


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


def parse_key(text: str) -> KeyParts | None:
    """Parse the text of a key; None if it is not the text of a `CacheKey` (a caller's own key, say)."""
    match = re.fullmatch(_TEXT, text)
    return KeyParts(**match.groupdict()) if match else None


def parse_any_key(key: str) -> KeyParts:
    """Parse the text of any key, whether ejcache, JAX or a caller made it; parts that it does not say are empty.

    A `~` and what follows it tell hosts apart that cannot load each other's executables; they belong to no part. A key
    of plain JAX, or of the thin form, says only a name, and any other key is its own name.
    """
    own = parse_key(key.partition("~")[0])
    if own is not None:
        return own
    match = re.fullmatch(_JAX_KEY, key)
    return KeyParts(name=match["name"] if match else key, platform="", variant="", logical="", environment="")


def is_made_by_pgle(key: str) -> bool:
    """True if `key` is the key of a profile, or of an executable that was compiled with one."""
    return is_profile_key(key) or parse_any_key(key).variant == PGLE
