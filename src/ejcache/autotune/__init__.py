"""Tuned configurations: records, choice, measurement, and the drop-in for ejkernel.

Each name is imported when it is first used; none of them imports JAX before something is measured.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ejcache.autotune.choice import Choice, Chooser, ConfigurationMissingError, Event
    from ejcache.autotune.decorator import Autotuned, autotuned
    from ejcache.autotune.key import RecordKey
    from ejcache.autotune.measure import Tuner
    from ejcache.autotune.plain import ConfigurationError
    from ejcache.autotune.policy import Policy, forward_only, overlay, policy_override, require
    from ejcache.autotune.progress import show_progress
    from ejcache.autotune.recording import record
    from ejcache.autotune.records import Candidate, Record, Source
    from ejcache.autotune.store import AutotuneStore, Found, default_store, set_default_store

_HOMES: Final = {
    "Autotuned": "decorator",
    "AutotuneStore": "store",
    "Candidate": "records",
    "Choice": "choice",
    "Chooser": "choice",
    "ConfigurationError": "plain",
    "ConfigurationMissingError": "choice",
    "Event": "choice",
    "Found": "store",
    "Policy": "policy",
    "Record": "records",
    "RecordKey": "key",
    "Source": "records",
    "Tuner": "measure",
    "autotuned": "decorator",
    "default_store": "store",
    "forward_only": "policy",
    "overlay": "policy",
    "policy_override": "policy",
    "record": "recording",
    "require": "policy",
    "set_default_store": "store",
    "show_progress": "progress",
}

__all__ = [
    "AutotuneStore",
    "Autotuned",
    "Candidate",
    "Choice",
    "Chooser",
    "ConfigurationError",
    "ConfigurationMissingError",
    "Event",
    "Found",
    "Policy",
    "Record",
    "RecordKey",
    "Source",
    "Tuner",
    "autotuned",
    "default_store",
    "forward_only",
    "overlay",
    "policy_override",
    "record",
    "require",
    "set_default_store",
    "show_progress",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ejcache.autotune' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"ejcache.autotune.{home}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
