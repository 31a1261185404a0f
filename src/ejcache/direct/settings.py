"""The settings of this wing."""

from __future__ import annotations

from typing import Any, Final

import ejcache.settings.values as read
from ejcache.settings.values import YES_NO, Setting, variable
from ejcache.util.log import warn_once

__all__ = ["SETTINGS", "direct_switch"]


def direct_switch(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in {"strict", "explain"}:
        warn_once(
            f"direct={text}",
            "ejcache: direct=%s has no effect any more and counts as true; `ejcache verify --direct` compares records",
            text,
        )
        return True
    return read.boolean(text)


SETTINGS: Final[tuple[Setting, ...]] = (
    variable(
        "direct",
        "EJCACHE_DIRECT",
        direct_switch,
        False,
        YES_NO,
        "experimental: find executables of @ejit without tracing, by the content of the function",
    ),
    variable(
        "project",
        "EJCACHE_PROJECT",
        read.texts,
        (),
        "packages or directories, separated by commas",
        "what direct mode compares by content besides what it takes for the project",
    ),
)
