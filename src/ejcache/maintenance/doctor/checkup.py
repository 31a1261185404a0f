"""The result of one check of `ejcache doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Check", "CheckVerdict", "failed", "fine", "skipped", "warning"]


class CheckVerdict(StrEnum):
    """The verdict of a check. Codes are append-only."""

    OK = "ok"
    """It was tried and it works."""
    WARNING = "warning"
    """It works, but not as it should."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """It was not tried."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried.

    Attributes:
        name: what was tried, in a word or two.
        verdict: the verdict.
        detail: one sentence on what was observed.
        advice: one sentence on what to do; empty if there is nothing to do.
    """

    name: str
    verdict: CheckVerdict
    detail: str
    advice: str = ""


def fine(name: str, detail: str) -> Check:
    """A check that found nothing wrong."""
    return Check(name, CheckVerdict.OK, detail)


def warning(name: str, detail: str, advice: str) -> Check:
    """A check of something that works, but not as it should."""
    return Check(name, CheckVerdict.WARNING, detail, advice)


def failed(name: str, detail: object, advice: str) -> Check:
    """A check of something that does not work."""
    return Check(name, CheckVerdict.FAILED, str(detail), advice)


def skipped(name: str, why: str) -> Check:
    """A check that was not made."""
    return Check(name, CheckVerdict.SKIPPED, why)
