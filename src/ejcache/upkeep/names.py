"""What the text of any key tells a reader, whoever made the key."""

from __future__ import annotations

import re
from typing import Final

from ejcache.keys.key import KeyParts, parse_key

__all__ = ["describe_key"]

_JAX_KEY: Final = re.compile(r"(?P<name>.+)-[0-9a-f]{64}")
"""The module's name and a sha256: `jax._src.cache_key.get` in jax 0.10 to 0.12."""


def describe_key(key: str) -> KeyParts:
    """The parts that `key` says, empty where it does not.

    A key of ours says them all; what follows a `~` tells hosts apart that cannot load each other's executables, and
    is no part of them. A key of plain JAX says its name; any other key is its own name.
    """
    own = parse_key(key.partition("~")[0])
    if own is not None:
        return own
    match = _JAX_KEY.fullmatch(key)
    return KeyParts(name=match["name"] if match else key, platform="", variant="", logical="", environment="")
