"""Tuned configurations: records, choice, measurement, and the drop-in for ejkernel.

Each name is imported at its first use. No JAX is imported before a call is described or measured.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ejcache.autotune import ejkernel
    from ejcache.autotune.choice import Choice, ConfigurationMissingError, Event
    from ejcache.autotune.chooser import Chooser, chooser_for, default_chooser
    from ejcache.autotune.measure.space import Space, powers_of_two
    from ejcache.autotune.measure.tuner import Tuner
    from ejcache.autotune.operation import Autotuned, Implementation, autotuned, implementations
    from ejcache.autotune.progress import show_progress
    from ejcache.autotune.recording import record
    from ejcache.autotune.records.json_values import ConfigurationError
    from ejcache.autotune.records.record import Candidate, Record, Source, Timing
    from ejcache.autotune.records.record_key import RecordKey
    from ejcache.autotune.records.store import AutotuneStore, Found, default_store, set_default_store
    from ejcache.autotune.tuning_blocks import TuningPolicy, forward_only, overlay, policy_override, require
    from ejcache.autotune.tuning_in_advance import TunedCall, tune

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
    "Implementation",
    "Record",
    "RecordKey",
    "Source",
    "Space",
    "Timing",
    "TunedCall",
    "Tuner",
    "TuningPolicy",
    "autotuned",
    "chooser_for",
    "default_chooser",
    "default_store",
    "ejkernel",
    "forward_only",
    "implementations",
    "overlay",
    "policy_override",
    "powers_of_two",
    "record",
    "require",
    "set_default_store",
    "show_progress",
    "tune",
]

_MODULES: Final = {
    "choice": ("Choice", "ConfigurationMissingError", "Event"),
    "chooser": ("Chooser", "chooser_for", "default_chooser"),
    "tuning_blocks": ("TuningPolicy", "forward_only", "overlay", "policy_override", "require"),
    "progress": ("show_progress",),
    "measure.tuner": ("Tuner",),
    "operation": ("Autotuned", "Implementation", "autotuned", "implementations"),
    "recording": ("record",),
    "records.json_values": ("ConfigurationError",),
    "records.record": ("Candidate", "Record", "Source", "Timing"),
    "records.record_key": ("RecordKey",),
    "records.store": ("AutotuneStore", "Found", "default_store", "set_default_store"),
    "tuning_in_advance": ("TunedCall", "tune"),
    "measure.space": ("Space", "powers_of_two"),
}


def __getattr__(name: str) -> Any:
    if name == "ejkernel":
        # A package, which `import ejcache` alone would not make an attribute.
        return import_module("ejcache.autotune.ejkernel")
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"ejcache.autotune.{module}"), name)
            return value
    raise AttributeError(f"module 'ejcache.autotune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
