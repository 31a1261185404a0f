"""What became of one call that was to be tuned."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ejcache.autotune.records.record import Record


class TuningOutcome(StrEnum):
    """The result of tuning a call."""

    TUNED = "tuned"
    ALREADY = "already tuned"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TunedCall:
    """One call that was to be tuned.

    Attributes:
        path: of the document that recorded it, or of its record.
        operation: its name.
        outcome: the result.
        record: of the call, if there is one.
        problem: the reason for a failure.
    """

    path: str
    operation: str
    outcome: TuningOutcome
    record: Record | None = None
    problem: str = ""
