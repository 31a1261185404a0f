"""One decision for all processes that take part in a program, over JAX's coordination service.

Ranks see different things: a warm directory and a cold one, a damaged entry, storage that only some can reach. If each
went by what it sees, some would load while others compile, and where compiling is itself collective (sharded
autotuning on GPU) those would wait for the others for ever. So every rank says what it sees, the lowest decides over
what all said, and all do that.

Nothing here raises or waits without a deadline; without a decision a rank compiles, as it would without a cache.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Agreement"]

log = logging.getLogger("ejcache")

_PATIENCE: Final = 60.0
"""Seconds that the lowest rank waits for what the others say. They must meet in the program anyway."""
_IMPATIENCE: Final = 1.0
"""Seconds for ranks that once did not answer: they have no cache, or are gone."""


class Agreement:
    """Decisions among the ranks of a pod.

    Args:
        client: JAX's client of the coordination service (`key_value_set`, `blocking_key_value_get`).
        rank: this process.
        patience: seconds until a silent rank is given up.
    """

    def __init__(self, client: Any, *, rank: int, patience: float = _PATIENCE) -> None:
        self._client = client
        self._rank = rank
        self._patience = patience
        self._silent: set[int] = set()
        self._occurrences: dict[str, int] = {}

    def occurrence(self, name: str) -> str:
        """A topic for this occasion: `name`, numbered by how often this process has come to it."""
        number = self._occurrences[name] = self._occurrences.get(name, 0) + 1
        return f"ejcache/{name}/{number}"

    def decide(
        self,
        topic: str,
        *,
        participants: tuple[int, ...],
        mine: Mapping[str, Any],
        decide: Callable[[dict[int, Any]], Any],
    ) -> Any:
        """What the lowest of `participants` decided, or None if that could not be learnt in time.

        Args:
            topic: as `occurrence` makes it, the same on every rank.
            participants: the ranks that take part, ascending; this one among them.
            mine: what this rank says, as JSON.
            decide: over what was said by rank; a rank that said nothing lacks. Called on the lowest rank only; its
                result is what all get.
        """
        try:
            if self._rank != participants[0]:
                self._client.key_value_set(f"{topic}/{self._rank}", json.dumps(mine))
                # Longer than the lowest rank waits, so that it has decided by then.
                answer = self._client.blocking_key_value_get(f"{topic}/decision", _milliseconds(2 * self._patience))
                return json.loads(answer)
            said: dict[int, Any] = {self._rank: dict(mine)}
            deadline = time.monotonic() + self._patience
            for rank in participants[1:]:
                heard = self._hear(topic, rank, deadline)
                if heard is not None:
                    said[rank] = heard
            decision = decide(said)
            self._client.key_value_set(f"{topic}/decision", json.dumps(decision))
        except Exception as exc:
            # The service is gone, or answered late: each rank compiles, which is what all do without a decision.
            log.warning("ejcache: no agreement on %s, so it is compiled: %s", topic, exc)
            return None
        return decision

    def _hear(self, topic: str, rank: int, deadline: float) -> Any:
        patience = _IMPATIENCE if rank in self._silent else max(_IMPATIENCE, deadline - time.monotonic())
        try:
            heard = json.loads(self._client.blocking_key_value_get(f"{topic}/{rank}", _milliseconds(patience)))
        except Exception as exc:
            log.debug("ejcache: rank %d said nothing of %s: %s", rank, topic, exc)
            self._silent.add(rank)
            return None
        self._silent.discard(rank)
        return heard


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))
