"""Environment variables that the rest of the package reads.

Settings are read by `settings.resolve`. A few variables are left of JAX, XLA and the operating system that describe the
machine, and the whole environment where a cache key depends on it. Nothing outside this room touches `os.environ`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `ejcache run` reads a variable, and would wait for `typing`
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final


OTHER_VARIABLES: Final = (
    *("EJCACHE", "EJCACHE_AUTOTUNE_CANDIDATE", "EJCACHE_RUN_COUNTS"),
    *("EJCACHE_REUSE_CHECK_ONE_IN", "EJCACHE_REUSE_FLOOR"),
)  # fmt: skip
"""Our variables that are not settings: what enables the cache, what marks a process that measures a candidate, the
file in which processes of an `ejcache run` count, and two that tests and checks of `reuse_lowering` set."""


def environment_variable(name: str) -> str | None:
    """Return the text of one variable as it is now, or None if it is not set."""
    return os.environ.get(name)


def all_variables() -> Mapping[str, str]:
    """Return the whole environment, for cache keys: `compile_variables` picks what changes compiled code."""
    return os.environ


def variables_to_compare() -> Mapping[Any, Any]:
    """Return the live mapping behind `os.environ`, to compare with an earlier copy; copy it before keeping it.

    It compares in a quarter of a microsecond; reading fifty variables through `os.environ` takes thirty. An
    `os.environ` that a program replaced by a plain dictionary is returned as it is.
    """
    variables: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
    return variables
