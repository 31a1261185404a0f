"""One decision for all processes that take part in a program, over JAX's coordination service.

Ranks see different things: a warm directory and a cold one, a damaged entry, storage that only some can reach. If each
went by what it sees, some would load while others compile, and where compiling is itself collective (sharded
autotuning on GPU) those would wait for the others for ever. So every rank says what it sees, the lowest decides over
what all said, and all do that.

Nothing here raises or waits without a deadline. A rank that gives the lowest up puts up the decision itself: that there
is none, so that all compile, as they would without a cache. The service takes one note of a name, so whoever comes
later, the lowest too, goes by the decision that stands.
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
_IMPATIENCE: Final = 0.1
"""Seconds for all ranks together that lately did not answer: they have no cache, or are gone.

Little, because each program costs it again: a rank that was late, and comes to that occasion after all, is noticed.
"""
_NO_DECISION: Final = None


class Agreement:
    """Decisions among the ranks of a pod.

    Args:
        client: JAX's client of the coordination service (`key_value_set`, `blocking_key_value_get`,
            `key_value_dir_get`).
        rank: this process.
        patience: seconds until a silent rank is given up.
    """

    def __init__(self, client: Any, *, rank: int, patience: float = _PATIENCE) -> None:
        self._client = client
        self._rank = rank
        self._patience = patience
        # Who did not answer lately, and on what topic.
        self._silent: dict[int, str] = {}
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
        """What the lowest of `participants` decided, or None if there is no decision.

        Args:
            topic: as `occurrence` makes it, the same on every rank.
            participants: the ranks that take part, ascending; this one among them.
            mine: what this rank says, as JSON.
            decide: over what was said by rank; a rank that said nothing lacks. Called on the lowest rank only; its
                result is what all get.
        """
        lowest = participants[0]
        try:
            self._forgive()
            if self._rank == lowest:
                said = self._listen(topic, participants[1:])
                return self._announce(topic, decide({lowest: dict(mine), **said}))
            self._client.key_value_set(f"{topic}/{self._rank}", json.dumps(mine))
            return self._learn(topic, lowest)
        except Exception as exc:
            # The service itself is gone, and with it the job; or a rank that was started anew comes to an old topic.
            log.warning("ejcache: no agreement on %s, so it is compiled: %s", topic, exc)
            return _NO_DECISION

    def _announce(self, topic: str, decision: Any) -> Any:
        try:
            self._client.key_value_set(f"{topic}/decision", json.dumps(decision))
        except Exception:
            # Another rank has given this one up. Its note tells them that it takes part, and was late.
            self._client.key_value_set(f"{topic}/{self._rank}", "{}")
            raise
        return decision

    def _learn(self, topic: str, lowest: int) -> Any:
        # Longer than the lowest rank waits, so that it has decided by then.
        is_news = lowest not in self._silent
        try:
            decision = self._decision(topic, 2 * self._patience if is_news else _IMPATIENCE)
        except Exception as exc:
            level = logging.WARNING if is_news else logging.DEBUG
            log.log(level, "ejcache: rank %d has decided nothing on %s, so all compile: %s", lowest, topic, exc)
            self._silent[lowest] = topic
            try:
                self._client.key_value_set(f"{topic}/decision", json.dumps(_NO_DECISION))
            except Exception:
                # It stands, so this takes as long as the service does. Not to learn it would be to differ.
                return self._decision(topic, self._patience)
            return _NO_DECISION
        self._silent.pop(lowest, None)
        return decision

    def _decision(self, topic: str, seconds: float) -> Any:
        return json.loads(self._client.blocking_key_value_get(f"{topic}/decision", _milliseconds(seconds)))

    def _listen(self, topic: str, ranks: tuple[int, ...]) -> dict[int, Any]:
        """What `ranks` say: of the silent ones together within `_IMPATIENCE`, of the others within the patience."""
        start = time.monotonic()
        said: dict[int, Any] = {}
        for group, patience in (
            ([rank for rank in ranks if rank not in self._silent], self._patience),
            ([rank for rank in ranks if rank in self._silent], _IMPATIENCE),
        ):
            try:
                for rank in group:
                    remaining = _milliseconds(start + patience - time.monotonic())
                    said[rank] = json.loads(self._client.blocking_key_value_get(f"{topic}/{rank}", remaining))
            except Exception as exc:
                log.debug("ejcache: not all of the ranks %s spoke of %s: %s", group, topic, exc)
                # One rank has used up the time of its group; what the others have said by now is asked for at once.
                said |= {rank: note for rank, note in self._notes(topic).items() if rank in group}
        for rank in ranks:
            if rank in said:
                self._silent.pop(rank, None)
            else:
                self._silent[rank] = topic
        return said

    def _forgive(self) -> None:
        """Whoever came to an earlier occasion after all was late, and takes part."""
        silent = dict(self._silent)
        for topic in set(silent.values()):
            for rank in self._notes(topic):
                if silent.get(rank) == topic:
                    self._silent.pop(rank, None)

    def _notes(self, topic: str) -> dict[int, Any]:
        """What ranks have said of `topic` by now."""
        names = {name.rpartition("/")[2]: text for name, text in self._client.key_value_dir_get(topic)}
        return {int(name): json.loads(text) for name, text in names.items() if name.isdecimal()}


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))
