"""The keys of the thin form, which has JAX's key and no components (`key` says how one looks)."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from ejcache.keys.key import ENVIRONMENT_DIGITS, THIN, listed_name
from ejcache.util.store_keys import is_key

_LONGEST_JAX_KEY: Final = 600
"""Bytes; a longer one, or one that no store can hold, is known by its digest."""


def thin_key(jax_key: str, environment: str) -> str:
    """Return the text of the key of an entry that the thin form keeps.

    Args:
        jax_key: what JAX asks for.
        environment: digest (hex) of what that lacks.
    """
    named = jax_key
    if len(jax_key.encode("utf-8", "surrogatepass")) > _LONGEST_JAX_KEY or not is_key(jax_key):
        digest = hashlib.sha256(jax_key.encode("utf-8", "surrogatepass")).hexdigest()
        named = f"{listed_name(jax_key)}-{digest}"
    return f"{named}{THIN}{environment[:ENVIRONMENT_DIGITS]}"


def is_thin_key(key: str) -> bool:
    """True if the thin form keeps an entry under `key`, which has no components."""
    return re.fullmatch(rf".+{THIN}[0-9a-f]{{{ENVIRONMENT_DIGITS}}}", key) is not None
