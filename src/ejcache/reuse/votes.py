"""Lets the ranks of a job decide together about a call that spans them: all reuse, or all trace.

A trace can run programs of all ranks itself. If one rank traced and another one reused, the first would wait for the
second in such a program until it fails. So before a reuse the ranks whose devices hold the arguments vote, once for
each call that JAX's dispatch does not know: each publishes what it would compile. If that is the same everywhere, all
reuse, and otherwise all trace. The vote binds, so a rank has read and built its program before it says yes.

A rank that traces in any case says no at once, and no other rank waits for those that are late. The lowest rank alone
draws one start in twenty: its no is everybody's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from ejcache.jax_integration.lowering.key import short_digest
from ejcache.jax_integration.ranks.agreement import agreement_of_job
from ejcache.jax_integration.seam.reuse.calls import placed_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ejcache.jax_integration.ranks.agreement import RankAgreement


def ranks_of(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """List the processes whose devices hold the arguments, or that an option or a mesh names, ascending."""
    return tuple(sorted({device.process_index for device in placed_on(jitted, args, kwargs)}))


class Vote:
    """The vote on one call. It is cast once, by `all_reuse` or `trace`, whichever comes first.

    Args:
        agreement: of the ranks; None if nobody else is asked.
        name: of the function.
        ranks: those that take part.
        why_impossible: why these ranks cannot vote, as the end of a sentence; empty if they can.

    Attributes:
        why_impossible: as given.
    """

    def __init__(
        self,
        agreement: RankAgreement | None,
        name: str,
        ranks: tuple[int, ...],
        *,
        why_impossible: str = "",
    ) -> None:
        self.why_impossible = why_impossible
        self._agreement = agreement
        self._name = name
        self._ranks = ranks
        self._is_open = agreement is not None
        self._topic = "" if agreement is None else agreement.topic(f"reuse/{name}/{short_digest(repr(ranks))}")

    def trace(self) -> None:
        """Say no: all ranks trace."""
        if self._is_open and self._agreement is not None:
            self._is_open = False
            self._agreement.settle(self._topic, decision=False)

    def all_reuse(self, program: Mapping[str, Any]) -> bool:
        """Say yes, and return whether all ranks do, with the same program.

        Args:
            program: what this rank would compile, as JSON.
        """
        agreement = self._agreement
        if agreement is None:
            return True
        self._is_open = False
        decision = agreement.decide(
            self._topic,
            participants=self._ranks,
            mine=program,
            decide=lambda said: len(said) == len(self._ranks) and all(each == program for each in said.values()),
            about=f"the question whether {self._name} is traced",
        )
        return decision is True

    def spans(self, devices: Iterable[Any]) -> bool:
        """True if no device of a program belongs to a process that does not vote."""
        return {device.process_index for device in devices} <= {jax.process_index(), *self._ranks}


def vote_on(jitted: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Vote:
    """Return the vote of the ranks that a call spans. Where it is of this process alone, nobody else is asked."""
    ranks = ranks_of(jitted, args, kwargs) if jax.process_count() > 1 else ()
    if not set(ranks) - {jax.process_index()}:
        return Vote(None, name, ranks)
    agreement = agreement_of_job()
    if agreement is None or agreement.rank not in ranks:
        return Vote(None, name, ranks, why_impossible="the ranks of the job have no service on which they could vote")
    return Vote(agreement, name, ranks)
