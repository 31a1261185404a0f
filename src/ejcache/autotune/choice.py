"""Defines the configuration a call gets (`Choice`), a step of choosing it (`Event`), and the error if there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ejcache.autotune.records.json_values import json_or_repr
from ejcache.autotune.records.record_key import RecordKey, differences
from ejcache.errors import EjcacheError

if TYPE_CHECKING:
    from ejcache.autotune.records.record import Record, Source


class ConfigurationMissingError(EjcacheError, LookupError):
    """A kernel has no tuned configuration for a call, and no default configuration that it may use.

    Usually the setting `autotune_policy` is `error`, or the call is inside of `autotune.require()`.

    Attributes:
        key: the tuning key of the call, which by default has the shapes and data types of its arrays.
        nearest: the most similar tuning key that has a tuned configuration, or None.
        reason: why ejcache neither measured the call nor used the default configuration; empty if it is not known.
        differences: the parts in which `key` and `nearest` differ: the name of each part, with both values.
    """

    def __init__(self, key: RecordKey, nearest: RecordKey | None, reason: str = "") -> None:
        super().__init__(key, nearest, reason)
        self.key = key
        self.nearest = nearest
        self.reason = reason
        self.differences = {} if nearest is None else differences(key, nearest)

    def __str__(self) -> str:
        lines = [f"no tuned configuration for {self.key.text}" + (f": {self.reason}" if self.reason else "")]
        if self.nearest is None:
            lines.append("  no other call of this operation has one")
        else:
            lines.append(f"  the nearest is      {self.nearest.text}")
            lines += [f"  {name}: {here!r} here, {there!r} there" for name, (here, there) in self.differences.items()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration, and the reason for it.

    Attributes:
        configuration: as the operation takes it.
        source: its origin.
        key: of the call.
        layer: the layer of the record, `memory` if this process measured it, or `pod` if a job agreed on it.
        record: the record, if there is one.
    """

    configuration: Any
    source: Source
    key: RecordKey
    layer: str = ""
    record: Record | None = None

    def __repr__(self) -> str:
        origin = f"{self.source.value}, {self.layer}" if self.layer else self.source.value
        return f"<Choice {self.key.operation}:{self.key.digest} {json_or_repr(self.configuration)} ({origin})>"


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a choice.

    Attributes:
        name: `chosen`, `miss`, `tuning`, `tuned`, `unusable`, `ambiguous`, `unhashable` or `error`.
        key: of the call.
        source: of the configuration, for `chosen`.
        detail: one line.
    """

    name: str
    key: RecordKey
    source: Source | None = None
    detail: str = ""
