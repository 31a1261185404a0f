"""What a memo of a library (`functools.cache`) remembers: it may have been computed from other values than today's."""

from __future__ import annotations

import functools
import gc
from typing import Any, Final

from ejcache.fingerprint.guarding.places import find
from ejcache.fingerprint.guarding.tokens import own_dict, token

__all__ = ["MEMO", "Memo", "memo_name", "remembered", "shows_values"]

MEMO: Final = "()"
"""After the name of a memo: what it remembers."""

Memo: Final = type(functools.lru_cache(len))


def memo_name(memo: Any, module: dict[str, Any]) -> str | None:
    """The name of a memo in the module where its function is; None if it is not found there."""
    for name, value in list(module.items()):
        if value is memo:
            return name
    path: str = memo.__wrapped__.__qualname__
    return path if find(str(module.get("__name__")), path) is memo else None


def shows_values(memo: Any) -> bool:
    """Whether the values can be read. Where the number of entries is limited, C code keeps them out of sight."""
    return memo.cache_parameters()["maxsize"] is None


def remembered(module: str, name: str) -> str | None:
    """What the memo remembers, as a text; None if there is no memo of this name."""
    memo = find(module, name)
    if type(memo) is not Memo:
        return None
    values = shows_values(memo)
    own = own_dict(memo)
    return repr(
        sorted(
            repr((token(key), token(value) if values else None))
            for entries in gc.get_referents(memo)
            if type(entries) is dict and entries is not own
            for key, value in list(entries.items())
        )
    )
