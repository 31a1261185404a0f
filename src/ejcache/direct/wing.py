"""What direct mode adds to the core: see `ejcache.wings`."""

from __future__ import annotations

from typing import Final

from ejcache.wings import Wing

__all__ = ["WING"]

WING: Final = Wing(
    name="direct",
    settings="ejcache.direct.settings:DirectSettings",
    hooks={
        "jit": "ejcache.direct.hooks:jit",
        "why": "ejcache.direct.verdicts:direct_log",
        "verify": "ejcache.direct.verifying:verify_direct",
    },
)
