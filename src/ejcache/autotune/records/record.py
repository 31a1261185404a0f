"""Describes the record of a tuned call: its origin (`Source`), its JSON document, and which of two records counts.

    {"ejcache": "autotune record", "schema": 1, "key": text, "digest": …,
     "operation": …, "version": …, "device": …, "environment": {…}, "call": {…},
     "configuration": …, "source": "tuned", "default": …,
     "candidates": [{"configuration": …, "status": "ok", "seconds": {"p20": …, "p50": …, "p80": …}, …}, …],
     "measurement": {…}, "provenance": {…}, "checksum": "sha256:…"}

The checksum covers the canonical JSON of all other fields. People who write a record by hand leave it out, and such a
record is accepted. Unknown fields are ignored. A record of an unknown schema is a miss.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.records.document_frame import decode_document, encode_document
from ejcache.autotune.records.json_values import canonical_json, finite, json_digest
from ejcache.autotune.records.record_key import RecordKey
from ejcache.errors import MALFORMED, EntryCorruptError, EntryForeignError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def origin_of(key: RecordKey, record: Record) -> CandidateOrigin:
    """Return the origin of a candidate of the call `key` that is tried because `record` has it."""
    if record.key.device != key.device:
        return CandidateOrigin.DEVICE
    if record.key.call_digest != key.call_digest:
        return CandidateOrigin.CALL
    return CandidateOrigin.ENVIRONMENT if record.key != key else CandidateOrigin.CONFIGS


KIND: Final = "autotune record"
SCHEMA: Final = 1
MAX_RECORD_BYTES: Final = 32 * 2**20

CODE: Final = "code"
"""Where the provenance of a record has the digest of the operation's code."""

RETRY_SECONDS: Final = 86_400.0
"""A candidate whose failure was transient is tried again after this time."""

SPACE: Final = "space"
"""Where the measurement of a record has the digest of the configurations among which it chose."""

WITH_PROFILE: Final = "pgle"
"""Where the measurement of a record says that the winner was compiled with a profile of PGLE. It then goes first."""

_GRADIENTS: Final = "gradients"
"""Where the measurement of a record says of chosen configurations whether their gradient is that of the default."""

INTERRUPTED: Final = "interrupted"
"""Where the measurement of a record says that it had no end."""

_BEFORE_PIN: Final = "before_pin"
"""Where the measurement of a pinned record has the configuration that was chosen before, and its source."""

NO_CONFIGURATION: Final = object()
"""Says that no configuration was given. None can be a configuration."""


class Source(StrEnum):
    """The origin of a configuration, strongest first. A weaker one never hides or overwrites a stronger one."""

    OVERRIDE = "override"
    """The call gave it. Never stored."""
    OVERLAY = "overlay"
    """An active `overlay` gave it. Never stored."""
    PINNED = "pinned"
    """A person fixed it (`ejcache tuned pin`)."""
    TUNED = "tuned"
    """Measured."""
    IMPORTED = "imported"
    """Measured by others: it comes from a package, a read-only place or a file of ejkernel."""
    SIMILAR = "similar"
    """Measured for this call on such a device, with other cores or another version of jaxlib or the toolkit."""
    HEURISTIC = "heuristic"
    """The operation's own guess. Never stored."""

    @property
    def rank(self) -> int:
        """0 for the strongest."""
        return _RANKS[self]

    @property
    def storable(self) -> bool:
        """True if a record may have this source."""
        return self in _STORABLE


_RANKS: Final = {source: rank for rank, source in enumerate(Source)}
_STORABLE: Final = frozenset({Source.PINNED, Source.TUNED, Source.IMPORTED})


class Status(StrEnum):
    """The result of trying a candidate."""

    OK = "ok"
    FAILED = "failed"
    """It raised an error while it was compiled or run, or its results differ; `error` has the message."""
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    """The process that tried it ended."""


class CandidateOrigin(StrEnum):
    """Why a candidate was tried."""

    DEFAULT = "default"
    CONFIGS = "configs"
    """The operation lists it, or the search found it in the operation's space."""
    USER = "user"
    """A person fixed it for this call."""
    ENVIRONMENT = "another environment"
    """A record of the same call has it, on this kind of device with other cores, versions or flags."""
    CALL = "another call"
    """A record of another call of the operation on this kind of device has it."""
    DEVICE = "another device"
    """A record of another kind of device has it."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one execution: quantiles of `samples` samples."""

    p20: float
    p50: float
    p80: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        """Return the quantiles of these seconds."""
        return cls(quantile(samples, 0.2), quantile(samples, 0.5), quantile(samples, 0.8), len(samples))


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return the value below which `fraction` of the values lie, interpolated."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Candidate:
    """The result of measuring one configuration.

    Attributes:
        configuration: a JSON value.
        seconds: None unless the status is OK.
        error: one line, unless the status is OK.
        reason: why it failed: `compile`, `run`, `resources`, `wrong result`, `crash` or `time-out`.
        transient: the failure may have had another cause than the candidate, such as a lack of memory.
        compile_seconds: for lowering and compilation.
        memory_bytes: temporary memory of the executable, if the backend reports it.
        measured: seconds since the epoch.
        origin: why it was tried; None in a record that does not say.
    """

    configuration: Any
    status: Status = Status.OK
    seconds: Timing | None = None
    error: str = ""
    transient: bool = False
    compile_seconds: float | None = None
    memory_bytes: int | None = None
    measured: float = 0.0
    reason: str = ""
    origin: CandidateOrigin | None = None

    def expired(self, now: float) -> bool:
        """True if the candidate may be tried again at `now`, in seconds since the epoch, because it could work then."""
        # A time-out may always have another cause.
        may_work = self.transient or self.status is Status.TIMEOUT
        # A date in the future is of a clock that was ahead, so the failure may be of any age.
        return may_work and not 0 <= now - self.measured <= RETRY_SECONDS

    @property
    def digest(self) -> str:
        """Equal for equal configurations only."""
        return canonical_json(self.configuration)


@dataclass(frozen=True, slots=True)
class Record:
    """One tuned call with its evidence.

    Attributes:
        key: of the call.
        configuration: the chosen one, a JSON value.
        source: PINNED, TUNED or IMPORTED.
        default: the configuration that the operation would have used, or None.
        candidates: all that were tried, fastest first, failures last.
        measurement: how they were measured.
        provenance: versions, host, flags.
        created: seconds since the epoch.
    """

    key: RecordKey
    configuration: Any
    source: Source = Source.TUNED
    default: Any = None
    candidates: tuple[Candidate, ...] = ()
    measurement: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0

    @property
    def failed(self) -> bool:
        """True if all candidates failed when the record was made. Its configuration is then the default."""
        return self.source is not Source.PINNED and bool(self.measurement.get("failed"))

    @property
    def interrupted(self) -> bool:
        """True if the measurement had no end: its process was killed, or a candidate hung."""
        return self.source is not Source.PINNED and bool(self.measurement.get(INTERRUPTED))

    @property
    def works(self) -> bool:
        """True if the configuration may be used: a candidate worked, and the configuration is not known to fail."""
        if self.source is Source.PINNED or not self.candidates:
            return True
        chosen = self.candidate(self.configuration)
        if chosen is None:
            return not self.failed and any(candidate.status is Status.OK for candidate in self.candidates)
        return chosen.status is Status.OK

    @property
    def unsure(self) -> str:
        """Why another measurement may choose another configuration; empty if this is not likely."""
        return "" if self.source is Source.PINNED else str(self.measurement.get("unsure", ""))

    @property
    def with_profile(self) -> bool:
        """True if it was measured under PGLE, with a profile."""
        return bool(self.measurement.get(WITH_PROFILE))

    @property
    def gradient_agrees(self) -> bool | None:
        """Whether the gradient of the chosen configuration is right; None if nobody compared it."""
        return _gradients(self).get(canonical_json(self.configuration))

    def with_gradient(self, *, agrees: bool) -> Record:
        """Return the record, which says whether the gradient of its configuration is right."""
        known = _gradients(self) | {canonical_json(self.configuration): agrees}
        return replace(self, measurement={**self.measurement, _GRADIENTS: known})

    def failures(self) -> str:
        """Return the first three failures, for a message."""
        failed = [item for item in self.candidates if item.status is not Status.OK]
        said = [f"{item.digest}: {item.error or item.status.value}" for item in failed[:3]]
        return "; ".join([*said, f"and {len(failed) - 3} more"] if len(failed) > 3 else said)

    def repeats(self, held: Record) -> bool:
        """True if `held` says all that this record says: the same choice, from the same kind of source."""
        same = canonical_json(self.configuration) == canonical_json(held.configuration)
        return same and not self.candidates and self.source is held.source

    def covers(self, stored: Iterable[Any]) -> bool:
        """True if exactly these configurations (JSON values) were measured together, to the end."""
        return not self.interrupted and space_digest(stored) == self.measurement.get(SPACE)

    def candidate(self, configuration: Any) -> Candidate | None:
        """Return the candidate with this configuration (a JSON value), or None."""
        wanted = canonical_json(configuration)
        return next((candidate for candidate in self.candidates if candidate.digest == wanted), None)


def _gradients(record: Record) -> dict[str, bool]:
    held = record.measurement.get(_GRADIENTS)
    return {str(text): bool(agrees) for text, agrees in held.items()} if isinstance(held, dict) else {}


def merged(one: Record, other: Record) -> Record:
    """Return the record of two measurements of one call: the choice that counts, and all candidates.

    The choice of a process in which a candidate worked counts before that of one in which all failed, then the one of
    the stronger source, the one with a profile, the one of a measurement that ended, the sure one, the later one, and
    that with the larger digest. Of two results for a candidate, one that is not transient counts, then the later one.
    So records that are merged in any order give the same record. A process that knows a record and replaces it uses
    `dated_after`, because its clock may be behind.
    """
    loser, winner = sorted((one, other), key=_precedence)
    if loser.failed and not winner.failed:
        # What made all candidates fail there, such as a lack of memory, says little about each of them.
        return winner
    candidates: dict[str, Candidate] = {}
    for candidate in (*one.candidates, *other.candidates):
        held = candidates.setdefault(candidate.digest, candidate)
        candidates[candidate.digest] = max(held, candidate, key=_candidate_precedence)
    measurement = winner.measurement
    if gradients := _gradients(loser):
        known = _gradients(winner)
        # What was found to be wrong stays wrong.
        found = known | {text: agrees and known.get(text, True) for text, agrees in gradients.items()}
        measurement = {**measurement, _GRADIENTS: dict(sorted(found.items()))}
    return replace(winner, candidates=fastest_first(candidates.values()), measurement=measurement)


def dated_after(record: Record, known: Iterable[Record]) -> Record:
    """Return `record` with dates after those of the records that it replaces, whichever clock these were dated by.

    Args:
        record: a new one.
        known: records of the same key that its writer has read.
    """
    for held in known:
        candidates = []
        for candidate in record.candidates:
            before = held.candidate(candidate.configuration)
            if before is not None and before != candidate:
                candidate = replace(candidate, measured=_after(before.measured, candidate.measured))  # noqa: PLW2901
            candidates.append(candidate)
        record = replace(record, candidates=tuple(candidates), created=_after(held.created, record.created))
    return record


def _after(date: float, now: float) -> float:
    later = math.nextafter(date, math.inf)
    return max(now, later) if math.isfinite(later) else now


def _precedence(record: Record) -> tuple[bool, int, bool, bool, bool, float, str]:
    choice = replace(record, candidates=(), measurement={**record.measurement, _GRADIENTS: {}})
    text = canonical_json(_body(choice))
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    ended = not record.interrupted
    sure = not record.unsure
    return not record.failed, -record.source.rank, record.with_profile, ended, sure, record.created, digest


def _candidate_precedence(candidate: Candidate) -> tuple[bool, float, str]:
    return not candidate.transient, candidate.measured, canonical_json(_candidate_body(candidate))


def pinned(record: Record, configuration: Any, *, now: float) -> Record:
    """Return the record with a configuration (a JSON value) that a person fixed at `now`, in seconds since the
    epoch.
    """
    measurement = dict(record.measurement)
    if record.source is not Source.PINNED:
        measurement[_BEFORE_PIN] = {"configuration": record.configuration, "source": record.source.value}
    fixed = replace(
        record, configuration=configuration, source=Source.PINNED, measurement=measurement, created=now
    )  # fmt: skip
    return dated_after(fixed, [record])


def unpinned(record: Record, *, now: float) -> Record | None:
    """Return the record with what was chosen before a person fixed a configuration; None if nothing was."""
    before = record.measurement.get(_BEFORE_PIN)
    if not isinstance(before, dict):
        return None
    measurement = {name: value for name, value in record.measurement.items() if name != _BEFORE_PIN}
    changed = replace(
        record,
        configuration=before.get("configuration"),
        source=Source(before.get("source", Source.TUNED)),
        measurement=measurement,
        created=now,
    )
    return dated_after(changed, [record])


def space_digest(stored: Iterable[Any]) -> str:
    """Return 16 hexadecimal digits that are equal for equal sets of configurations (JSON values)."""
    texts = sorted({canonical_json(item) for item in stored})
    return json_digest(texts)[:16]


def fastest_first(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return sorted by median time, failed candidates last."""
    return tuple(sorted(candidates, key=_speed))


def _speed(candidate: Candidate) -> tuple[bool, float, str]:
    seconds = math.inf if candidate.seconds is None else candidate.seconds.p50
    return candidate.status is not Status.OK, seconds, candidate.digest


def encode_record(record: Record) -> bytes:
    """Return the document, ready to be written.

    Raises:
        ValueError: a part of it is not JSON, a name has control characters, or its source is never stored.
    """
    if not record.source.storable:
        raise ValueError(f"a configuration that is {record.source.value} is never stored")
    _check_names(record.key)
    return encode_document(_body(record), kind=KIND, schema=SCHEMA)


def _body(record: Record) -> dict[str, Any]:
    return {
        "key": record.key.text,
        "digest": record.key.digest,
        "operation": record.key.operation,
        "version": record.key.version,
        "device": record.key.device,
        "environment": dict(record.key.environment),
        "call": dict(record.key.call),
        "configuration": record.configuration,
        "source": record.source.value,
        "default": record.default,
        "candidates": [_candidate_body(candidate) for candidate in fastest_first(record.candidates)],
        "measurement": dict(record.measurement),
        "provenance": dict(record.provenance),
        "created": record.created,
    }


def decode_record(data: bytes, *, path: str = "") -> Record:
    """Return the record in a document.

    Args:
        data: the document.
        path: where it was found; a record of another key does not belong there.

    Raises:
        EntryCorruptError: the document is truncated, changed, or not a record.
        EntryForeignError: it is an intact record of another key.
        EntryVersionError: this version does not read its schema.
    """
    body = decode_document(data, kind=KIND, schema=SCHEMA, max_size=MAX_RECORD_BYTES)
    try:
        key = RecordKey(
            _typed(body["operation"], str),
            _typed(body["version"], str),
            _typed(body["device"], str),
            {_typed(name, str): _typed(value, str) for name, value in _typed(body["environment"], dict).items()},
            _typed(body["call"], dict),
        )
        _check_names(key)
        record = Record(
            key=key,
            configuration=body["configuration"],
            source=Source(body.get("source", "tuned")),
            default=body.get("default"),
            candidates=tuple(_candidate(item) for item in _typed(body.get("candidates", []), list)),
            measurement=_typed(body.get("measurement", {}), dict),
            provenance=_typed(body.get("provenance", {}), dict),
            created=finite(body.get("created", 0.0)),
        )
        _ = key.digest
    except MALFORMED as exc:
        raise EntryCorruptError(f"the record is incomplete or malformed: {exc!r}") from exc
    if not record.source.storable:
        raise EntryCorruptError(f"a record cannot be of source {record.source.value}")
    if path and path != key.path:
        raise EntryForeignError(f"the record under {path} is of {key.text}")
    return record


def _check_names(key: RecordKey) -> None:
    """Raise `ValueError` if a name in the key has control characters, which would reach the terminal."""
    for name in (key.operation, key.version, key.device):
        if not name.isprintable():
            raise ValueError(f"{name!r} has control characters")


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value


def _candidate_body(candidate: Candidate) -> dict[str, Any]:
    body: dict[str, Any] = {"configuration": candidate.configuration, "status": candidate.status.value}
    if candidate.seconds is not None:
        timing = candidate.seconds
        body["seconds"] = {"p20": timing.p20, "p50": timing.p50, "p80": timing.p80, "samples": timing.samples}
    for name in ("origin", "error", "reason", "compile_seconds", "memory_bytes", "measured"):
        value = getattr(candidate, name)
        if value is not None and value != "":
            body[name] = value
    if candidate.transient:
        body["transient"] = True
    return body


def _candidate(body: Any) -> Candidate:
    timing = _typed(body, dict).get("seconds")
    return Candidate(
        configuration=body["configuration"],
        status=Status(body.get("status", "ok")),
        seconds=None
        if timing is None
        else Timing(finite(timing["p20"]), finite(timing["p50"]), finite(timing["p80"]), int(timing["samples"])),
        error=str(body.get("error", "")),
        transient=bool(body.get("transient", False)),
        compile_seconds=None if body.get("compile_seconds") is None else finite(body["compile_seconds"]),
        memory_bytes=None if body.get("memory_bytes") is None else int(body["memory_bytes"]),
        measured=finite(body.get("measured", 0.0)),
        reason=str(body.get("reason", "")),
        origin=None if body.get("origin") is None else CandidateOrigin(body["origin"]),
    )
