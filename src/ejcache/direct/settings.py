"""The settings of this wing."""

from __future__ import annotations

from typing import Any

import ejcache.settings.values as read
from ejcache.settings.values import setting
from ejcache.util.log import warn_once

__all__ = ["DirectSettings"]


def _direct_switch(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in {"strict", "explain"}:
        warn_once(
            f"direct={text}",
            "ejcache: direct=%s has no effect any more and counts as true; `ejcache verify --direct` compares records",
            text,
        )
        return True
    return read.boolean(text)


class DirectSettings:
    """What each setting is; values are those of `resolve()`."""

    direct: bool = setting(
        False,
        "experimental: find executables of @ejit without tracing, by the content of the function",
        parse=_direct_switch,
        accepted=read.YES_NO,
    )
    project: tuple[str, ...] = setting(
        (),
        "what direct mode compares by content besides what it takes for the project",
        parse=read.texts,
        accepted="packages or directories, separated by commas",
    )
