"""The settings of this wing."""

from __future__ import annotations

from typing import Any, Literal

import ejcache.settings.values as read
from ejcache.settings.values import setting


def _policy(value: Any) -> str:
    text = str(value).strip().lower()
    if text not in {"autotune", "heuristics", "error"}:
        raise ValueError(text)
    return text


class AutotuneSettings:
    """What each setting is; values are those of `resolve()`."""

    autotune_dir: str | None = setting(
        None,
        "where tuned configurations are stored (unset: in the cache)",
        accepted="a directory or a URL",
        others=("EJKERNEL_PERSISTENT_CACHE_DIR",),
    )
    autotune_seeds: tuple[str, ...] = setting(
        (),
        "read-only sources of tuned configurations, asked after the user's own",
        parse=read.texts,
        accepted="directories or URLs, separated by commas",
    )
    autotune_policy: Literal["autotune", "heuristics", "error"] | None = setting(
        None,
        "what to do for an operation that has not been tuned (unset: what its author chose)",
        parse=_policy,
        accepted="autotune, heuristics or error",
        others=("EJKERNEL_AUTOTUNE_POLICY",),
    )
    autotune_record: bool | str = setting(
        False,
        "record the arguments of operations, to tune them later, with the tuned configurations or there",
        parse=read.switch_or_location,
        accepted="true or false, or a directory or URL",
        others=("EJKERNEL_OPS_RECORD",),
    )
