"""The keys of entries that are kept behind JAX's own cache: JAX's key, and no components (`key` says how one looks)."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from ejcache.keys.key import BEHIND_JAX, ENVIRONMENT_DIGITS, listed_name
from ejcache.util.store_keys import is_key

_LONGEST_JAX_KEY: Final = 600
"""Bytes; a longer one, or one that no store can hold, is known by its digest."""


def key_behind_jax(jax_key: str, environment: str) -> str:
    """Return the text of the key of an entry that is kept behind JAX's own cache.

    Args:
        jax_key: what JAX asks for.
        environment: digest (hex) of what that lacks.
    """
    named = jax_key
    if len(jax_key.encode("utf-8", "surrogatepass")) > _LONGEST_JAX_KEY or not is_key(jax_key):
        digest = hashlib.sha256(jax_key.encode("utf-8", "surrogatepass")).hexdigest()
        named = f"{listed_name(jax_key)}-{digest}"
    return f"{named}{BEHIND_JAX}{environment[:ENVIRONMENT_DIGITS]}"


def is_key_behind_jax(key: str) -> bool:
    """True if an entry is kept under `key` behind JAX's own cache; such a key has no components."""
    return re.fullmatch(rf".+{BEHIND_JAX}[0-9a-f]{{{ENVIRONMENT_DIGITS}}}", key) is not None
