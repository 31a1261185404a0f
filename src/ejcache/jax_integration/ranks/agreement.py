"""Makes one decision for all processes that take part in a program.

The ranks of a program may see different things: one has a warm directory, another an empty one, a damaged entry, or
storage that it cannot reach. If each rank followed what it sees, some would load the executable while others compile
it. Where compiling is a collective operation (sharded autotuning on GPU), those that compile would then wait for ever.
So every rank publishes what it sees, the lowest rank decides from all of that, and all ranks do what it decided.

Nothing here raises, and every wait has a deadline. No rank waits for one that has not enabled ejcache, or whose version
of ejcache tells the others something else: all compile. If a rank times out waiting for the lowest rank, it publishes
"no decision" itself, and every rank compiles, as it would without a cache. The coordination service keeps the first
value of a name. A rank that comes later follows that decision; the lowest rank, if it comes later with another
decision, has none.

`common_hit.py` decides so whether the ranks load a program, `pgle.py` which variant of it they use, and
`reuse/votes.py` whether they trace it; `devices/targets.py` gathers the topology of a job. Each of these says what no
decision means: to compile, to trace, or an error.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from ejcache._version import __version__
from ejcache.errors import MALFORMED, StoreUnavailableError
from ejcache.jax_integration.seam.coordination_service import coordination_client
from ejcache.util.locks import ForkLock
from ejcache.util.log import log, warn_once
from ejcache.util.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ejcache.jax_integration.seam.coordination_service import CoordinationClient


_PATIENCE: Final = 15.0
"""Seconds that a rank waits for the others. A collective of XLA's on CPU fails after 30 s in a rank that has compiled,
while another one has not."""
_LEAD: Final = 2.0
"""So many seconds sooner the lowest rank decides without those that are missing: the others wait for its decision."""
_SILENT_TIMEOUT: Final = 0.1
"""Seconds that a rank waits for all ranks together that did not answer last time: they are gone, or late.

Short, because every program pays it again. A rank that was only late is noticed by `_readmit_late_ranks`.
"""
_GRACE: Final = 1.0
"""Seconds that a rank waits once for the others to say that they use ejcache. They say so when they have a backend, and
all ranks of a job make their backends together."""
_PRESENT: Final = "ejcache/present"
LANGUAGE: Final = 2
"""A number for what ranks tell each other. Raise it when a field of that changes its name or its meaning."""


class RankAgreement:
    """Decisions among the processes of a job. Safe to use from several threads.

    Making it tells the other ranks that this one uses ejcache. A rank that has not is not waited for.

    Args:
        coordination: the job's coordination service.
        patience: seconds until a rank that does not answer is counted as silent.
        silent_timeout: seconds for all silent ranks together, from then on.
        grace: seconds until a rank that has not said that it uses ejcache is taken for one that does not.
    """

    def __init__(
        self,
        coordination: CoordinationClient,
        *,
        patience: float = _PATIENCE,
        silent_timeout: float = _SILENT_TIMEOUT,
        grace: float = _GRACE,
    ) -> None:
        self._coordination = coordination
        self.rank = coordination.process
        self._patience = patience
        self._silent_timeout = silent_timeout
        self._grace = grace
        self._present: dict[int, Any] = {self.rank: _here()}
        self._silent: dict[int, str] = {}  # the ranks that did not answer, and the topic on which they did not
        # One number for each program that spans processes. None is ever dropped: a rank that had dropped one would
        # count from 1 again, and follow a decision that was made for an earlier compilation.
        self._topics: dict[str, int] = {}
        try:
            coordination.set_once(f"{_PRESENT}/{self.rank}", _encode(_here()))
        except StoreUnavailableError as exc:
            log.warning("ejcache: the other ranks do not learn that this rank uses ejcache: %s", exc)

    def belongs_to(self, coordination: CoordinationClient) -> bool:
        """True if this is the agreement of that job: JAX may begin another one."""
        return self._coordination.is_of_job(coordination)

    def topic(self, name: str) -> str:
        """Return a new topic: `name`, numbered by how often this process has had it.

        Every rank compiles the same programs in the same order, so that all ranks get the same number. The name holds
        no key: ranks whose keys differ must meet, to find that out.
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
        """Return the decision of the lowest of `participants`, or None if there is none.

        None is also what a rank returns that alone cannot reach the service. The others do not learn of that: they may
        follow a decision which this rank never reads. JAX ends a job when a process of it has lost the service.

        Args:
            topic: from `topic`, the same on every rank.
            participants: the ranks that take part, ascending, this one included.
            mine: what this rank publishes, as JSON.
            decide: makes the decision from what each rank published. Called on the lowest rank only. A rank that did
                not answer in time is missing from its argument, so it has to check that all are there.
            about: the program, for the line about a long wait.
        """
        lowest = participants[0]
        try:
            self._readmit_late_ranks()
            # The lowest rank decides for all, so that it alone needs to know of all.
            asked = participants if self.rank == lowest else (lowest,)
            self._await_presence(asked)
            if self._is_foreign_to(asked):
                self.settle(topic, None)
                return None
            if self.rank == lowest:
                said = self._collect(topic, participants[1:], about)
                return self._publish(topic, self._decided(topic, decide, {lowest: dict(mine), **said}))
            if not self._coordination.set_once(f"{topic}/{self.rank}", _encode(mine)):
                log.warning("ejcache: this rank was restarted and meets the old topic %s, so it compiles", topic)
                return None
            return self._follow(topic, lowest, about)
        except Exception as exc:
            # Usually the service is gone for all ranks, and the job with it.
            log.warning("ejcache: the ranks reached no agreement on %s, so this rank compiles: %s", topic, exc)
            return None

    def settle(self, topic: str, decision: Any) -> None:
        """Publish a decision that does not depend on the other ranks. No rank waits for another one then.

        Args:
            topic: from `topic`, the same on every rank.
            decision: as the `decide` of the lowest rank would return it where it knew of this one.
        """
        try:
            self._coordination.set_once(f"{topic}/{self.rank}", b"{}")
            self._coordination.set_once(f"{topic}/decision", _encode(decision))
        except StoreUnavailableError as exc:
            log.warning("ejcache: the other ranks do not learn what this rank decided on %s: %s", topic, exc)

    def _is_foreign_to(self, ranks: tuple[int, ...]) -> bool:
        """True if the ejcache of another one of these ranks does not speak this one's language."""
        here = _here()
        others = {rank: self._present[rank] for rank in ranks if rank in self._present}
        foreign = {rank: said for rank, said in others.items() if _language(said) != here["language"]}
        if foreign:
            rank = min(foreign)
            said = foreign[rank]
            warn_once(
                ("foreign ranks", tuple(foreign)),
                "ejcache: rank %d has another version of ejcache (%s) than rank %d (%s), so every rank compiles the "
                "programs that span both; install one version on all hosts",
                rank,
                printable(str(said.get("version", "") if isinstance(said, dict) else said))[:40],
                self.rank,
                here["version"],
            )
        return bool(foreign)

    def _decided(self, topic: str, decide: Callable[[dict[int, Any]], Any], said: dict[int, Any]) -> Any:
        """Return what `decide` makes of what the ranks have said; None if one has said what it cannot have said."""
        try:
            return decide(said)
        except MALFORMED as exc:
            why = f"{type(exc).__name__}: {exc}"
            log.warning(
                "ejcache: what the ranks have said on %s is not understood here, so all of them compile (%s)",
                topic,
                why,
            )
            return None

    def _publish(self, topic: str, decision: Any) -> Any:
        """Publish the decision of this rank, the lowest; None if another rank has published "no decision" before."""
        text = _encode(decision)
        if self._coordination.set_once(f"{topic}/decision", text):
            return decision
        if self._coordination.get(f"{topic}/decision", timeout=self._patience) == text:
            return decision
        # Another rank timed out and published "no decision". Tell it that this rank was late and takes part.
        self._coordination.set_once(f"{topic}/{self.rank}", b"{}")
        log.warning("ejcache: another rank timed out before this rank had decided on %s, so this rank compiles", topic)
        return None

    def _follow(self, topic: str, lowest: int, about: str) -> Any:
        """Wait for the decision of the lowest rank; None if all ranks compile.

        If it does not come in time, this rank publishes "no decision" itself, so that every rank finds the same.
        """
        is_news = lowest not in self._silent
        patience = self._patience if is_news else self._silent_timeout
        decision = self._coordination.get(
            f"{topic}/decision",
            timeout=patience if lowest in self._present else 0.0,
            what=f"rank {lowest}, which decides whether the ranks load or compile {about}",
        )
        if decision is not None:
            self._silent.pop(lowest, None)
            return json.loads(decision)
        (log.warning if is_news and lowest in self._present else log.debug)(
            "ejcache: rank %d has published no decision on %s in time, so all ranks compile", lowest, topic
        )
        if lowest in self._present:  # one that is absent was not asked, so it has its full patience when it comes
            self._silent[lowest] = topic
        if self._coordination.set_once(f"{topic}/decision", _encode(None)):
            return None
        # Another rank has already published a decision. Read it: otherwise this rank would act differently.
        decision = self._coordination.get(f"{topic}/decision", timeout=self._patience)
        return json.loads(decision) if decision is not None else None

    def _collect(self, topic: str, ranks: tuple[int, ...], about: str) -> dict[int, Any]:
        """Wait for what `ranks` publish on `topic`, and return it by rank.

        Ranks that were silent before have `silent_timeout` seconds together, the others `patience` seconds. One that
        does not come in time is not in the result, and is silent from now on.
        """
        start = time.monotonic()
        said: dict[int, Any] = {}
        for silent, patience in (
            (False, max(self._patience - _LEAD, self._patience / 2)),
            (True, self._silent_timeout),
        ):
            group = [rank for rank in ranks if rank in self._present and (rank in self._silent) is silent]
            for rank in group:
                value = self._coordination.get(
                    f"{topic}/{rank}",
                    timeout=start + patience - time.monotonic(),
                    what=f"rank {rank}, which has not come to {about} yet",
                )
                if value is None:
                    # This rank has used up its group's time. Take at once what the rest of the group has published.
                    said |= self._read_published(topic, [each for each in group if each not in said])
                    break
                said[rank] = json.loads(value)
        for rank in self._present.keys() & set(ranks):
            if rank in said:
                self._silent.pop(rank, None)
            else:
                self._silent[rank] = topic
        return said

    def publish(self, topic: str, name: str, value: Any) -> None:
        """Let the other ranks of a topic read a JSON value under a name."""
        self._coordination.set_once(f"{topic}/{name}/{self.rank}", _encode(value))

    def published_by(self, rank: int, topic: str, name: str, *, timeout: float) -> Any:
        """Wait for what a rank publishes under a name; None if it does not within `timeout` seconds."""
        value = self._coordination.get(f"{topic}/{name}/{rank}", timeout=timeout)
        return None if value is None else json.loads(value)

    def _await_presence(self, ranks: tuple[int, ...]) -> None:
        """Learn which of these ranks use ejcache; those that have not said so within the grace, which is given once."""
        deadline, self._grace = time.monotonic() + self._grace, 0.0
        for rank in ranks:
            if rank in self._present:
                continue
            said, left = self._coordination.peek(f"{_PRESENT}/{rank}"), deadline - time.monotonic()
            if said is None and left > 0:
                said = self._coordination.get(f"{_PRESENT}/{rank}", timeout=left)
            if said is not None:
                self._present[rank] = json.loads(said)
        missing = ", ".join(str(rank) for rank in ranks if rank not in self._present)
        if missing:
            warn_once(
                ("absent ranks", missing),
                "ejcache: rank %s has not enabled ejcache, so a program that spans it is compiled by every rank",
                missing,
            )

    def _readmit_late_ranks(self) -> None:
        """Stop counting a rank as silent if it has come to its earlier topic after all: it was only late."""
        for rank, topic in list(self._silent.items()):
            if self._read_published(topic, [rank]):
                self._silent.pop(rank, None)

    def _read_published(self, topic: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Read what these ranks have published on `topic` so far."""
        values = {rank: self._coordination.peek(f"{topic}/{rank}") for rank in ranks}
        return {rank: json.loads(value) for rank, value in values.items() if value is not None}


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def _here() -> dict[str, Any]:
    return {"version": __version__, "language": LANGUAGE}


def _language(said: Any) -> Any:
    return said.get("language") if isinstance(said, dict) else None


_meeting: Final = ForkLock()
_met: RankAgreement | None = None


def agreement_of_job() -> RankAgreement | None:
    """Return the agreement of this job; None in a program of one process. A process has one: it numbers its topics."""
    global _met
    coordination = coordination_client()
    if coordination is None:
        return None
    with _meeting:
        if _met is None or not _met.belongs_to(coordination):
            _met = RankAgreement(coordination)
        return _met
