"""What direct mode did in a process that was started: measured are processes that it answered, and no others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.context import ChildError
from bench.outcome import at_least
from bench.registry import SkipCase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.outcome import Outcome

__all__ = ["Direct", "NotAHitError", "require_direct", "require_hits"]


class NotAHitError(ChildError):
    """A process that direct mode was to answer has traced, so what was measured is something else."""

    def __init__(self, verdicts: Iterable[str]) -> None:
        super().__init__("; ".join(verdicts) or "direct mode said nothing of the call")


@dataclass(frozen=True, slots=True)
class Direct:
    """What direct mode did in a process.

    Attributes:
        verdicts: of each call: the verdict, and why.
        processor: seconds of a processor that its question took.
    """

    verdicts: list[str] = field(default_factory=list)
    processor: float = 0.0

    @property
    def hit(self) -> bool:
        """Whether it answered every call without a trace."""
        return bool(self.verdicts) and all(verdict.startswith("hit:") for verdict in self.verdicts)


def require_direct() -> None:
    """Return if direct mode works here.

    Raises:
        SkipCase: it does not.
    """
    from ejcache.jax_integration.seam.direct.fastpath import fastpath_mismatches

    if fastpath_mismatches():
        raise SkipCase("direct mode does not know this version of JAX.")


def require_hits(outcome: Outcome, starts: Sequence[Direct]) -> None:
    """Tell how many starts were answered without a trace.

    Raises:
        NotAHitError: not all of them.
    """
    missed = [start for start in starts if not start.hit]
    outcome.ratio("warm starts without a trace", 100 * (1 - len(missed) / len(starts)), at_least(100), unit="%")
    if missed:
        raise NotAHitError(missed[0].verdicts)
