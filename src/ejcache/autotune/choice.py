"""The types of a choice: what a call asks for, what it gets, and what is reported on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ejcache.autotune.records.key import differences
from ejcache.autotune.records.record import NO_CONFIGURATION, Source
from ejcache.errors import EjcacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ejcache.autotune.policy import Policy
    from ejcache.autotune.records.key import RecordKey
    from ejcache.autotune.records.record import Record
    from ejcache.autotune.records.store import Found

__all__ = ["Choice", "ChoiceRequest", "ConfigurationMissingError", "Event"]


class ConfigurationMissingError(EjcacheError, LookupError):
    """The policy requires a tuned configuration, and none was found.

    Attributes:
        key: of the call.
        nearest: the most similar key that has a record, or None.
        reason: why no configuration was made instead.
        differences: the parts in which the nearest key differs, by name: (here, there).
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


@dataclass(frozen=True)
class ChoiceRequest:
    """One call that needs a configuration.

    Attributes:
        key: of its record.
        restore: (stored configuration, its source) → the operation's own form; raises `ConfigurationError` if the
            operation cannot use it.
        heuristic: returns the operation's own guess; None if it has none.
        candidates: returns the configurations that may be measured.
        tune: measures the candidates, given an earlier record or None and the default; returns a record, which does
            not work if all candidates failed.
        override: the configuration that the call gave.
        legacy: returns a configuration from outside the store, such as a file of ejkernel; asked after the layers.
        policy: the operation's own.
        unhashable: reasons why the call has no key of its own. Such a call is neither looked up nor measured.
        describe: returns the call as `call_documents` records it; raises `UnrecordableError`.
        code: returns a digest of the operation's code, or an empty text; a record may be of other code.
        untraced: returns this request without tracers, so that it can be measured when the trace has ended.
    """

    key: RecordKey
    restore: Callable[[Any, Source], Any] = lambda stored, _: stored
    heuristic: Callable[[], Any] | None = None
    candidates: Callable[[], Sequence[Any]] = tuple
    tune: Callable[[Record | None, Any], Record] | None = None
    override: Any = NO_CONFIGURATION
    legacy: Callable[[], Found | None] | None = None
    policy: Policy | None = None
    unhashable: Sequence[str] = ()
    describe: Callable[[], dict[str, Any]] | None = None
    code: Callable[[], str] = str
    untraced: Callable[[], ChoiceRequest] | None = None
