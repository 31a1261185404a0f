"""`Call` is the base class of one call of an operation: its key, its configurations, and what other records suggest."""

from __future__ import annotations

import abc
import contextlib
import math
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.call_documents import UnrecordableError, encode_value
from ejcache.autotune.descriptions import MAPPED, Describer
from ejcache.autotune.key_environment import device_and_environment
from ejcache.autotune.measure.inputs import split_arguments
from ejcache.autotune.records.json_values import canonical_json
from ejcache.autotune.records.record import NO_CONFIGURATION, CandidateOrigin, Source, origin_of
from ejcache.autotune.records.record_key import RecordKey, is_similar, only_sizes_differ
from ejcache.errors import EjcacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ejcache.autotune.measure.space import CallSpace
    from ejcache.autotune.measure.tuner import Tuner
    from ejcache.autotune.records.record import Record
    from ejcache.autotune.records.store import AutotuneStore, Found
    from ejcache.autotune.tuning_blocks import TuningPolicy
    from ejcache.jax_integration.seam.autotune.tracing import MappedAxis


_SIMILAR: Final = 3
_MOST_RECORDS: Final = 200
DIFFERENTIATED: Final = "gradient"
"""The part of a call whose gradient counts. The configuration of its key may have been compared without that."""

_being_measured: Final[ContextVar[frozenset[str]]] = ContextVar("ejcache_autotune_being_measured", default=frozenset())


class Call(abc.ABC):
    """A call of an operation: its key, its possible configurations, and how to measure them.

    Attributes:
        key: of its record.
        args: of the call.
        kwargs: of the call.
        names: of the positional arguments.
        describer: has described the arguments.
        axes: over which `jax.vmap` maps the call, outermost first.
        policy: the operation's own.
        may_guess: the default may be used for a call that was not measured.
        differentiated: its results are differentiated, and its key does not say so.
        shares_key: calls with other arguments may have its key.
        part: what tells the call from others with its key; empty if nothing does.
    """

    key: RecordKey
    axes: tuple[MappedAxis, ...]
    policy: TuningPolicy | None = None
    may_guess = True
    differentiated = False
    shares_key = False
    part = ""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]) -> None:
        self.args = args
        self.kwargs = kwargs
        self.names = names
        self.describer = Describer()

    @property
    def unhashable(self) -> list[str]:
        """Reasons why the call has no key of its own. Such a call is neither looked up nor measured."""
        return self.describer.unhashable

    @property
    def is_being_measured(self) -> bool:
        """True if a candidate makes this call while this call is measured."""
        return self.key.digest in _being_measured.get()

    @abc.abstractmethod
    def candidates(self) -> list[Any]:
        """Return the configurations to measure."""

    def space(self) -> CallSpace | None:
        """Return the configurations, if they are described and not listed."""
        return None

    @abc.abstractmethod
    def default(self) -> Any:
        """Return the operation's own guess."""

    @abc.abstractmethod
    def restored(self, stored: Any, source: Source) -> Any:
        """Return the configuration that a record has; raises `ConfigurationError` if the operation cannot use it."""

    @abc.abstractmethod
    def build(self, configuration: Any) -> Callable[..., Any]:
        """Return the function of the call's arguments that runs with this configuration."""

    @abc.abstractmethod
    def how(self) -> dict[str, Any]:
        """Return the names by which another process finds the operation; raises `UnrecordableError`."""

    @abc.abstractmethod
    def tuner(self) -> Tuner:
        """Return the `Tuner` that measures the call."""

    @abc.abstractmethod
    def store(self) -> AutotuneStore:
        """Return the records of the operation."""

    def code(self) -> str:
        """Return a digest of the operation's code, or an empty text; a record may be of other code."""
        return ""

    def legacy(self) -> Found | None:
        """Return a configuration from outside the store, such as a file of ejkernel; it ranks as imported."""
        return None

    def keyed(self, operation: str, version: str, call: dict[str, Any], *, gradient: bool) -> RecordKey:
        """Return the key of a call that has been described, with what every operation's key has."""
        from ejcache.jax_integration.seam.trace_settings import changed_trace_settings  # JAX itself

        call["mode"] = "forward and backward" if gradient else "forward"
        # Settings at their default are left out, so that keys from before they existed stay valid.
        if settings := changed_trace_settings():
            call["settings"] = settings
        try:
            leaves = split_arguments(self.args, self.kwargs, self.names)
        except ValueError as exc:
            # Of a dictionary whose names have no order, JAX makes no leaves; eagerly, the operation may take it.
            self.describer.unhashable.append(f"JAX cannot take its arguments apart: {str(exc).splitlines()[0]}")
            leaves = split_arguments((), {})
        self.differentiated = leaves.differentiated and not gradient
        self.part = DIFFERENTIATED if self.differentiated else ""
        self.axes, mapped = leaves.axes, leaves.mapped()
        if mapped:
            call[MAPPED] = mapped
        device, environment = device_and_environment(leaves.leaves)
        return RecordKey(operation, version, device, environment, call)

    def described(self) -> dict[str, Any]:
        """Return the call as `call_documents` records it; raises `UnrecordableError`."""
        if MAPPED in self.key.call:
            # Its arguments have the shapes of one element.
            raise UnrecordableError(f"this call of {self.key.operation} is under jax.vmap")
        return {
            "how": self.how(),
            "args": [encode_value(item, name=f"argument {i}") for i, item in enumerate(self.args)],
            "kwargs": {name: encode_value(item, name=name) for name, item in self.kwargs.items()},
        }

    def measured(self, known: Record | None = None) -> Record:
        """Measure the candidates against the default. If all fail, the record does not work.

        Args:
            known: an earlier record. Its candidates are not measured again.
        """
        tuner, default, space = self.tuner(), self.default(), self.space()
        token = _being_measured.set(_being_measured.get() | {self.key.digest})
        try:
            record = tuner.tune(
                self.build,
                self.args,
                self.kwargs,
                key=self.key,
                candidates=self.candidates() if space is None else [default],
                space=space,
                default=NO_CONFIGURATION if default is None else default,
                known=known,
                names=self.names,
                differentiated=self.differentiated,
                starts=self._starts,
                history=lambda: self._history(known),
                keep=self._keep,
            )
        finally:
            _being_measured.reset(token)
        return record.with_gradient(agrees=True) if self.differentiated and record.works else record

    def agrees(self, stored: Any) -> bool:
        """True if a configuration, a JSON value, computes for this call what the default computes."""
        token = _being_measured.set(_being_measured.get() | {self.key.digest})
        try:
            configuration, tuner = self.restored(stored, Source.TUNED), self.tuner()
            return tuner.agrees(
                self.build, self.args, self.kwargs, default=self.default(), other=configuration, names=self.names,
                differentiated=self.differentiated, operation=self.key.operation,
            )  # fmt: skip
        finally:
            _being_measured.reset(token)

    def _keep(self, part: Record) -> None:
        """Publish what a search has measured so far. Publishing the record at its end says if it fails."""
        if not self.unhashable:
            with contextlib.suppress(EjcacheError):
                self.store().publish(part)

    def _starts(self) -> dict[str, CandidateOrigin]:
        """Return configurations, canonical JSON, that a person fixed, or that are chosen elsewhere or for similar
        calls.
        """
        own = [found for found in self.store().find_all(self.key) if found.source is Source.PINNED]
        starts = {canonical_json(item.record.configuration): CandidateOrigin.USER for item in own}
        near, key = self.store().near(self.key), self.key
        likely = [item for item in near if is_similar(key, item.record.key) or only_sizes_differ(key, item.record.key)]
        for item in likely[:_SIMILAR]:
            if item.record.works:
                starts.setdefault(canonical_json(item.record.configuration), origin_of(self.key, item.record))
        return starts

    def _history(self, known: Record | None) -> list[tuple[dict[str, float], CandidateOrigin]]:
        """Return the times in the records of the operation, of any call, device and environment, by canonical JSON.

        The record that a measurement goes on from is no history of it.
        """
        found = sorted(self.store().records(operation=self.key.operation), key=lambda item: -item.record.created)
        told = []
        for item in found[:_MOST_RECORDS]:
            if item.record.key == self.key and (known is not None or item.record.interrupted):
                continue
            times = {
                candidate.digest: math.inf if candidate.seconds is None else candidate.seconds.p50
                for candidate in item.record.candidates
                if not candidate.transient
            }
            if len(times) > 1:
                told.append((times, origin_of(self.key, item.record)))
        return told
