"""One decision for all processes that take part in a program.

The ranks of a program may see different things: one has a warm directory, another an empty one, a damaged entry, or
storage that it cannot reach. If each rank followed what it sees, some would load the executable while others compile
it. Where compiling is a collective operation (sharded autotuning on GPU), those that compile would then wait for ever.
So every rank publishes what it sees, the lowest rank decides from all of that, and all ranks do what it decided.

Nothing here raises, and every wait has a deadline. If a rank times out waiting for the lowest rank, it publishes "no
decision" itself, and every rank compiles, as it would without a cache. The coordination service keeps the first value
of a name, so a rank that comes later, the lowest rank included, follows the decision that was published first.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ejcache.jax_integration.seam.coordination import CoordinationClient

__all__ = ["RankAgreement"]

_PATIENCE: Final = 60.0
"""Seconds that the lowest rank waits for the other ranks. They must all arrive before the program can run anyway."""
_IMPATIENCE: Final = 0.1
"""Seconds that a rank waits for all ranks together that did not answer last time: they have no cache, or are gone.

Short, because every program pays it again. A rank that was only late is noticed by `_forgive`.
"""


class RankAgreement:
    """Decisions among the processes of a job. Safe to use from several threads.

    Args:
        coordination: the job's coordination service.
        patience: seconds until a rank that does not answer is counted as silent.
        impatience: seconds for all silent ranks together, from then on.
    """

    def __init__(
        self, coordination: CoordinationClient, *, patience: float = _PATIENCE, impatience: float = _IMPATIENCE
    ) -> None:
        self._coordination = coordination
        self._rank = coordination.process
        self._patience = patience
        self._impatience = impatience
        self._silent: dict[int, str] = {}  # the ranks that did not answer, and the topic on which they did not
        # One number for each program that spans processes. None is ever dropped: a rank that had dropped one would
        # count from 1 again, and follow a decision that was made for an earlier compilation.
        self._topics: dict[str, int] = {}

    def topic(self, name: str) -> str:
        """A new topic: `name`, numbered by how often this process has asked for it.

        Every rank compiles the same programs in the same order, so that all ranks get the same number.
        """
        number = self._topics[name] = self._topics.get(name, 0) + 1
        return f"ejcache/{name}/{number}"

    def decide(
        self,
        topic: str,
        *,
        participants: tuple[int, ...],
        mine: Mapping[str, Any],
        decide: Callable[[dict[int, Any]], Any],
        about: str = "a program",
    ) -> Any:
        """The decision of the lowest of `participants`, or None if there is none.

        Args:
            topic: from `topic`, the same on every rank.
            participants: the ranks that take part, ascending, this one included.
            mine: what this rank publishes, as JSON.
            decide: makes the decision from what each rank published. Called on the lowest rank only. A rank that did
                not answer in time is missing from its argument.
            about: the program, for the line about a long wait.
        """
        lowest = participants[0]
        try:
            self._forgive()
            if self._rank == lowest:
                said = self._collect(topic, participants[1:], about)
                return self._publish(topic, decide({lowest: dict(mine), **said}))
            if not self._coordination.set_once(f"{topic}/{self._rank}", _encode(mine)):
                log.warning("ejcache: this rank was restarted and meets the old topic %s, so it compiles", topic)
                return None
            return self._follow(topic, lowest, about)
        except Exception as exc:
            # The service is gone, and the job with it.
            log.warning("ejcache: the ranks reached no agreement on %s, so this rank compiles: %s", topic, exc)
            return None

    def _publish(self, topic: str, decision: Any) -> Any:
        if self._coordination.set_once(f"{topic}/decision", _encode(decision)):
            return decision
        # Another rank timed out and published "no decision". Tell it that this rank was late and takes part.
        self._coordination.set_once(f"{topic}/{self._rank}", b"{}")
        log.warning("ejcache: another rank timed out before this one had decided on %s, so it compiles", topic)
        return None

    def _follow(self, topic: str, lowest: int, about: str) -> Any:
        is_news = lowest not in self._silent
        # Longer than the lowest rank waits, so that it has decided by then.
        decision = self._coordination.get(
            f"{topic}/decision",
            timeout=2 * self._patience if is_news else self._impatience,
            what=f"rank {lowest}, which decides whether the ranks load or compile {about}",
        )
        if decision is not None:
            self._silent.pop(lowest, None)
            return json.loads(decision)
        (log.warning if is_news else log.debug)(
            "ejcache: rank %d has published no decision on %s in time, so all ranks compile", lowest, topic
        )
        self._silent[lowest] = topic
        if self._coordination.set_once(f"{topic}/decision", _encode(None)):
            return None
        # Another rank has already published a decision. Read it: otherwise this rank would act differently.
        decision = self._coordination.get(f"{topic}/decision", timeout=self._patience)
        return json.loads(decision) if decision is not None else None

    def _collect(self, topic: str, ranks: tuple[int, ...], about: str) -> dict[int, Any]:
        """What `ranks` publish: the silent ones together within the impatience, the others within the patience."""
        start = time.monotonic()
        said: dict[int, Any] = {}
        for silent, patience in ((False, self._patience), (True, self._impatience)):
            group = [rank for rank in ranks if (rank in self._silent) is silent]
            for rank in group:
                value = self._coordination.get(
                    f"{topic}/{rank}",
                    timeout=start + patience - time.monotonic(),
                    what=f"rank {rank}, which has not come to {about} yet",
                )
                if value is None:
                    # This rank has used up its group's time. Take at once what the rest of the group has published.
                    said |= {other: view for other, view in self._published(topic).items() if other in group}
                    break
                said[rank] = json.loads(value)
        for rank in ranks:
            if rank in said:
                self._silent.pop(rank, None)
            else:
                self._silent[rank] = topic
        return said

    def _forgive(self) -> None:
        """Stop counting a rank as silent if it has come to its earlier topic after all: it was only late."""
        silent = dict(self._silent)
        for topic in set(silent.values()):
            for rank in self._published(topic):
                if silent.get(rank) == topic:
                    self._silent.pop(rank, None)

    def _published(self, topic: str) -> dict[int, Any]:
        """What ranks have published on `topic` so far."""
        values = self._coordination.list(topic)
        return {int(name): json.loads(value) for name, value in values.items() if name.isdecimal()}


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()
