"""Reads environment variables of ejkernel that are no settings of ours: what a tuning logs and shows, labels, limits.

A value that a variable cannot have is ignored, and one warning says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from ejcache.settings.environment import environment_variable
from ejcache.settings.table import boolean, integer
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")
LIMITS: Final = {
    "triton_smem_limit": "EJKERNEL_TRITON_SMEM_LIMIT",
    "rda_max_candidates": "EJKERNEL_RDA_MAX_CANDIDATES",
}
"""By its name in a key: the variable of the shared memory, in bytes, that candidates may use, and that of the number of
candidates that ragged decode attention tries."""


def logs_candidates() -> bool:
    """True if the time of every candidate is logged (`EJKERNEL_LOG_AUTOTUNE`)."""
    return _read("EJKERNEL_LOG_AUTOTUNE", boolean) or False


def shows_progress() -> bool | None:
    """True if a progress bar is drawn (`EJKERNEL_AUTOTUNE_PROGRESS`); None: on a terminal, after two seconds."""
    return _read("EJKERNEL_AUTOTUNE_PROGRESS", boolean)


def label_of_calls() -> str | None:
    """Say how profiles label calls with their key (`EJKERNEL_OPS_STAMP`): as a `hash`, as `json`, or not."""
    return _read("EJKERNEL_OPS_STAMP", _label)


def label_prefix() -> str:
    """Return the text with which such a label begins (`EJKERNEL_OPS_PREFIX`)."""
    return environment_variable("EJKERNEL_OPS_PREFIX") or "ejkernel_ops#"


def kernel_limits() -> dict[str, str]:
    """Return the limits of candidates that are set; they are part of a tuned configuration's key."""
    found = {name: _read(variable, integer) for name, variable in LIMITS.items()}
    return {name: str(value) for name, value in found.items() if value is not None}


def _label(text: str) -> str | None:
    if text.lower() not in {"hash", "json", "none"}:
        raise ValueError(text)
    return None if text.lower() == "none" else text.lower()


def _read(name: str, parse: Callable[[Any], T]) -> T | None:
    text = environment_variable(name)
    try:
        return parse(text.strip()) if text else None
    except ValueError:
        warn_once((name, text), "ejcache: %s cannot be %r; it is ignored", name, text)
        return None
