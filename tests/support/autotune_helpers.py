"""Keys, records and stores that the autotune tests share."""

from __future__ import annotations

import time

from ejcache.autotune import Tuner
from ejcache.autotune.records.record import Candidate, Record, Source, Status, Timing
from ejcache.autotune.records.record_key import RecordKey

QUICK = Tuner(sample_seconds=0.0005)
ENVIRONMENT = {"platform": "cpu", "jaxlib": "0.10"}


def key(operation="matmul", *, version="1", device="cpu", environment=None, **arguments) -> RecordKey:
    """A key of a call with these arguments."""
    arguments = arguments or {"x": "float32[8,8]"}
    return RecordKey(
        operation, version, device, environment or ENVIRONMENT, {"arguments": arguments, "mode": "forward"}
    )


def timing(seconds, samples=15) -> Timing:
    return Timing(seconds * 0.5, seconds, seconds * 2, samples)


def candidate(block, seconds=None, *, error="", measured=1.0) -> Candidate:
    status = Status.OK if seconds is not None else Status.FAILED
    return Candidate({"block": block}, status, None if seconds is None else timing(seconds), error, measured=measured)


def record(of=None, *, block=16, source=Source.TUNED, created=None, candidates=None) -> Record:
    """A record that chooses `block`."""
    return Record(
        key=of or key(),
        configuration={"block": block},
        source=source,
        default={"block": 8},
        candidates=candidates if candidates is not None else (candidate(block, 0.001), candidate(8, 0.002)),
        measurement={"mode": "forward", "gain": 0.5},
        provenance={"host": "tuner"},
        created=time.time() if created is None else created,
    )
