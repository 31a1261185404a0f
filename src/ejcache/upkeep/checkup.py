"""Whether a place can hold a cache: what is tried, what came of it, and what to do about it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from ejcache.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Check", "Stopwatch", "Verdict", "failed", "fine", "skipped", "warning"]

T = TypeVar("T")


class Verdict(StrEnum):
    """What came of a check. Codes are append-only."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not as it should."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """It was not tried."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried.

    Attributes:
        name: what, in a word or two.
        verdict: what came of it.
        detail: one sentence on what was seen.
        advice: one sentence on what to do; empty if there is nothing to do.
    """

    name: str
    verdict: Verdict
    detail: str
    advice: str = ""


def fine(name: str, detail: str) -> Check:
    """Nothing is wrong."""
    return Check(name, Verdict.OK, detail)


def warning(name: str, detail: str, advice: str) -> Check:
    """It works, but not as it should."""
    return Check(name, Verdict.WARNING, detail, advice)


def failed(name: str, detail: object, advice: str) -> Check:
    """It does not work."""
    return Check(name, Verdict.FAILED, str(detail), advice)


def skipped(name: str, why: str) -> Check:
    """It was not tried."""
    return Check(name, Verdict.SKIPPED, why)


class Stopwatch:
    """Seconds that a call took, whether it succeeds or fails.

    Attributes:
        began, ended: seconds since the epoch.
        seconds: between the two.
        problem: what the last call raised, if it was a `StoreError`.
    """

    def __init__(self) -> None:
        self.began = self.ended = time.time()
        self.seconds = 0.0
        self.problem: StoreError | None = None

    def time(self, function: Callable[[], T]) -> T | None:
        """What `function` returns; None if it raises a `StoreError`, which `problem` then is."""
        self.problem = None
        self.began, started = time.time(), time.perf_counter()
        try:
            return function()
        except StoreError as exc:
            self.problem = exc
            return None
        finally:
            self.seconds = time.perf_counter() - started
            self.ended = self.began + self.seconds

    @property
    def text(self) -> str:
        """The seconds as a person reads them."""
        return f"{self.seconds * 1000:.0f} ms" if self.seconds < 1 else f"{self.seconds:.1f} s"
