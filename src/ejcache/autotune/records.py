"""The record of one tuned call: a JSON document, as pure functions `encode_record` and `decode_record`.

    {"ejcache": "autotune record", "schema": 1, "key": text, "digest": …,
     "operation": …, "version": …, "device": …, "environment": {…}, "call": {…},
     "configuration": …, "source": "tuned", "default": …,
     "candidates": [{"configuration": …, "status": "ok", "seconds": {"p20": …, "p50": …, "p80": …}, …}, …],
     "measurement": {…}, "provenance": {…}, "checksum": "sha256:…"}

The checksum is over the canonical JSON of everything else. A document without one was written by hand and is taken as
it is. Fields that are not known are ignored, a schema that is not known is a miss.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.key import RecordKey
from ejcache.autotune.plain import canonical_json
from ejcache.errors import EntryCorruptError, EntryForeignError, EntryVersionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "SCHEMA",
    "Candidate",
    "Record",
    "Source",
    "Status",
    "Timing",
    "decode_record",
    "encode_record",
    "fastest_first",
    "merged",
    "pinned",
]

KIND: Final = "autotune record"
SCHEMA: Final = 1
"""1: the first."""
_MAX_BYTES: Final = 32 * 2**20


class Source(StrEnum):
    """Where a configuration came from, strongest first. A weaker one never shadows or overwrites a stronger one."""

    OVERRIDE = "override"
    """The call itself gave it. Never stored."""
    OVERLAY = "overlay"
    """An `overlay` is active. Never stored."""
    PINNED = "pinned"
    """A person fixed it (`ejcache autotune pin`)."""
    PGLE = "pgle"
    """Measured in a program that was compiled with its profile."""
    TUNED = "tuned"
    """Measured."""
    IMPORTED = "imported"
    """From a file that does not say how it was found."""
    SEED = "seed"
    """From a read-only layer that was shipped."""
    STALE = "stale"
    """Measured for this call in another environment."""
    NEAREST = "nearest"
    """Measured for a similar call; only if asked for."""
    HEURISTIC = "heuristic"
    """The operation's own guess. Never stored."""

    @property
    def rank(self) -> int:
        """0 for the strongest."""
        return _RANKS[self]

    @property
    def storable(self) -> bool:
        """A record may say this of itself."""
        return self in _STORABLE


_RANKS: Final = {source: rank for rank, source in enumerate(Source)}
_STORABLE: Final = frozenset({Source.PINNED, Source.PGLE, Source.TUNED, Source.IMPORTED})


class Status(StrEnum):
    """What became of a candidate."""

    OK = "ok"
    FAILED = "failed"
    """It does not compile or run; `error` says why. It is not tried again."""
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    """It ended the process that tried it."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one execution: quantiles of `samples` samples."""

    p20: float
    p50: float
    p80: float
    samples: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is known of one configuration.

    Attributes:
        configuration: plain JSON.
        seconds: None unless the status is OK.
        error: one line, where it is not.
        compile_seconds: lowering and compilation.
        memory_bytes: temporary memory of the executable, if the backend tells.
        measured: seconds since the epoch.
    """

    configuration: Any
    status: Status = Status.OK
    seconds: Timing | None = None
    error: str = ""
    compile_seconds: float | None = None
    memory_bytes: int | None = None
    measured: float = 0.0

    @property
    def digest(self) -> str:
        """Tells configurations apart."""
        return canonical_json(self.configuration)


@dataclass(frozen=True, slots=True)
class Record:
    """One tuned call with its evidence.

    Attributes:
        key: what it is for.
        configuration: the chosen one, as plain JSON.
        source: PINNED, PGLE, TUNED or IMPORTED.
        default: what the operation would have used, or None.
        candidates: everything that was tried, fastest first, failures last.
        measurement: how it was measured.
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
    def configuration_digest(self) -> str:
        """Tells whether two processes use the same configuration."""
        return hashlib.sha256(canonical_json(self.configuration).encode()).hexdigest()

    def candidate(self, configuration: Any) -> Candidate | None:
        """What is known of this (plain) configuration."""
        wanted = canonical_json(configuration)
        return next((candidate for candidate in self.candidates if candidate.digest == wanted), None)


def merged(old: Record, new: Record) -> Record:
    """What stands when `new` is published where `old` is: the stronger choice, the newer of equals, all evidence."""
    winner = old if old.source.rank < new.source.rank else new
    says_nothing_new = not new.candidates and canonical_json(old.configuration) == canonical_json(new.configuration)
    if old.source.rank == new.source.rank and (old.created > new.created or says_nothing_new):
        winner = old
    known = {candidate.digest: candidate for candidate in old.candidates}
    for candidate in new.candidates:
        held = known.get(candidate.digest)
        if held is None or candidate.measured >= held.measured:
            known[candidate.digest] = candidate
    return replace(winner, candidates=fastest_first(known.values()))


def pinned(record: Record, configuration: Any, *, now: float) -> Record:
    """The record with its (plain) configuration fixed by a person, at `now` in seconds since the epoch."""
    return replace(record, configuration=configuration, source=Source.PINNED, created=now)


def fastest_first(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """By their medians, those that do not work last."""
    return tuple(sorted(candidates, key=_speed))


def _speed(candidate: Candidate) -> tuple[bool, float, str]:
    seconds = math.inf if candidate.seconds is None else candidate.seconds.p50
    return candidate.status is not Status.OK, seconds, candidate.digest


def encode_record(record: Record) -> bytes:
    """The document, ready to be written.

    Raises:
        ValueError: something in it is not JSON, or its source is never stored.
    """
    if not record.source.storable:
        raise ValueError(f"a configuration that is {record.source.value} is never stored")
    body = {
        "ejcache": KIND,
        "schema": SCHEMA,
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
    body["checksum"] = _checksum(body)
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def decode_record(data: bytes, *, path: str = "") -> Record:
    """The record in a document.

    Args:
        data: the document.
        path: where it was found; a record of another key does not belong there.

    Raises:
        EntryCorruptError: truncated, changed, or no record.
        EntryForeignError: a whole record, of another key than `path` is of.
        EntryVersionError: of a schema that this version does not read.
    """
    body = _parsed(data)
    schema = body.get("schema")
    if schema != SCHEMA:
        if isinstance(schema, int) and schema > SCHEMA:
            raise EntryVersionError(f"the record is of schema {schema}, and this version reads {SCHEMA}")
        raise EntryCorruptError(f"a record cannot be of schema {schema!r}")
    if "checksum" in body and body["checksum"] != _checksum(body):
        raise EntryCorruptError("the record does not match its checksum")
    try:
        key = RecordKey(
            _typed(body["operation"], str),
            _typed(body["version"], str),
            _typed(body["device"], str),
            {_typed(name, str): _typed(value, str) for name, value in _typed(body["environment"], dict).items()},
            _typed(body["call"], dict),
        )
        record = Record(
            key=key,
            configuration=body["configuration"],
            source=Source(body.get("source", "tuned")),
            default=body.get("default"),
            candidates=tuple(_candidate(item) for item in _typed(body.get("candidates", []), list)),
            measurement=_typed(body.get("measurement", {}), dict),
            provenance=_typed(body.get("provenance", {}), dict),
            created=_number(body.get("created", 0.0)),
        )
        digest = key.digest
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as exc:
        raise EntryCorruptError(f"the record is incomplete or malformed: {exc!r}") from exc
    if not record.source.storable:
        raise EntryCorruptError(f"a record cannot be of source {record.source.value}")
    if path and path.rpartition("/")[2] != f"{digest}.json":
        raise EntryForeignError(f"the record under {path} is of {key.text}")
    return record


def _parsed(data: bytes) -> dict[str, Any]:
    if len(data) > _MAX_BYTES:
        raise EntryCorruptError(f"a record has at most {_MAX_BYTES} bytes, and this has {len(data)}")
    try:
        # Infinity and NaN are no JSON, but Python reads them, and 1e999 as infinity; no record can be written with one.
        body = json.loads(data, parse_constant=_number, parse_float=_number)
    except (ValueError, RecursionError) as exc:
        raise EntryCorruptError(f"the record is no JSON: {exc}") from exc
    if not isinstance(body, dict) or body.get("ejcache") != KIND:
        raise EntryCorruptError("the document is JSON, but no autotune record")
    return body


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is no number")
    return number


def _candidate_body(candidate: Candidate) -> dict[str, Any]:
    body: dict[str, Any] = {"configuration": candidate.configuration, "status": candidate.status.value}
    if candidate.seconds is not None:
        timing = candidate.seconds
        body["seconds"] = {"p20": timing.p20, "p50": timing.p50, "p80": timing.p80, "samples": timing.samples}
    for name in ("error", "compile_seconds", "memory_bytes", "measured"):
        value = getattr(candidate, name)
        if value is not None and value != "":
            body[name] = value
    return body


def _candidate(body: Any) -> Candidate:
    timing = _typed(body, dict).get("seconds")
    return Candidate(
        configuration=body["configuration"],
        status=Status(body.get("status", "ok")),
        seconds=None
        if timing is None
        else Timing(_number(timing["p20"]), _number(timing["p50"]), _number(timing["p80"]), int(timing["samples"])),
        error=str(body.get("error", "")),
        compile_seconds=None if body.get("compile_seconds") is None else _number(body["compile_seconds"]),
        memory_bytes=None if body.get("memory_bytes") is None else int(body["memory_bytes"]),
        measured=_number(body.get("measured", 0.0)),
    )


def _checksum(body: Mapping[str, Any]) -> str:
    covered = {name: value for name, value in body.items() if name != "checksum"}
    try:
        text = canonical_json(covered)
    except (ValueError, RecursionError) as exc:
        raise EntryCorruptError(f"the record holds what JSON does not have: {exc}") from exc
    return "sha256:" + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
