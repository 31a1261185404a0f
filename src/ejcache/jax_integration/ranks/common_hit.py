"""Lets the ranks of a program agree on which candidate they load, or that all of them compile.

A first exchange tells what each rank has: its key, where its entries are, whether it forbids compilations, and the
number of the first candidate that it has loaded (`candidates.candidates`). If that is one number everywhere, each rank
uses what it has. If the numbers differ, each rank tries the last one of them, which is the best one that all may have,
and a second exchange tells whether all have it. Otherwise all compile: if a rank has none or does not answer, or if the
keys differ.
"""

from __future__ import annotations

import itertools
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.reasons import Miss
from ejcache.jax_integration.candidates import OWN, candidates
from ejcache.jax_integration.compilation import LoadedExecutable
from ejcache.jax_integration.lowering.key import short_digest
from ejcache.jax_integration.no_compile_blocks import is_forbidden
from ejcache.jax_integration.ranks.agreement import agreement_of_job
from ejcache.jax_integration.ranks.different_programs import log_difference
from ejcache.jax_integration.seam.job import processes_of_job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ejcache.jax_integration.compilation import Compilation
    from ejcache.jax_integration.ranks.agreement import RankAgreement

_CONFIRMED: Final = "confirmed"


def agree_in_job(
    compilation: Compilation,
    found: LoadedExecutable | None,
    *,
    load: Callable[[Compilation, str], LoadedExecutable | Miss],
) -> LoadedExecutable | None:
    """Agree with the other ranks: return the executable only if every one of them can load it, else None.

    Args:
        compilation: of this rank.
        found: what this rank has loaded.
        load: loads the executable under a key.
    """
    agreement = agreement_of_job() if processes_of_job() > 1 else None
    if agreement is None:
        return found

    def load_candidate(number: int) -> LoadedExecutable | None:
        for text in itertools.islice(candidates(compilation), number, number + 1):
            loaded = load(compilation, text)
            if isinstance(loaded, LoadedExecutable):
                return loaded._replace(candidate=number)
        return None

    return agree(compilation, agreement, found, load=load_candidate)


def agree(
    compilation: Compilation,
    agreement: RankAgreement,
    found: LoadedExecutable | None,
    *,
    load: Callable[[int], LoadedExecutable | None],
) -> LoadedExecutable | None:
    """Agree on the candidate that all ranks have loaded, and return this rank's; None if all of them compile.

    The compilation gets what the ranks have told each other: who stores the result, who forbids to compile, and whether
    they compile different programs.

    Args:
        compilation: of this rank.
        agreement: of the ranks.
        found: the first candidate that this rank has loaded.
        load: loads the candidate of a number, or returns None.
    """
    ranks, url = compilation.ranks, compilation.cache.url
    # Processes with equal domains see the same entries.
    domain = url if "://" in url else f"{socket.gethostname()}:{url}"
    # Ranks 0 and 1 may do what ranks 2 and 3 do at the same time: one program, two decisions.
    topic = agreement.topic(f"{compilation.key.name}/{short_digest(repr(compilation.device_ids))}")
    began = time.monotonic()
    decision = agreement.decide(
        topic,
        participants=ranks,
        mine={
            "key": compilation.text,
            "domain": domain,
            "forbids": is_forbidden(),
            "candidate": None if found is None else found.candidate,
            "suspects": compilation.is_suspected,
        },
        decide=lambda said: _decision(said, everybody=len(said) == len(ranks)),
        about=compilation.key.name,
    )
    compilation.spent("waited", began)
    common: LoadedExecutable | None = None
    if decision is not None:
        use = decision["candidate"]
        order = decision["domains"].get(domain, [])
        compilation.publisher = order.index(agreement.rank) if agreement.rank in order else 0
        compilation.forbidden_on = tuple(decision["forbidden_on"])
        compilation.is_suspected = decision["is_suspected"]
        if decision["differ"]:
            compilation.is_drifted = True
            _log_drift(compilation, agreement, topic, decision)
        elif use is not None and found is not None:
            common = found if found.candidate == use else load(use)
            if not (decision["is_common"] or _is_confirmed(compilation, agreement, topic, common)):
                common = None
    if common is None and (compilation.is_drifted or (found is not None and found.candidate == OWN)):
        compilation.miss = Miss.DISAGREED
    return common


def _decision(said: Mapping[int, Any], *, everybody: bool) -> dict[str, Any]:
    """Decide, as the lowest rank, from what the ranks have said."""
    keys = {rank: each["key"] for rank, each in said.items()}
    numbers = {each["candidate"] for each in said.values()}
    differ = ranks_that_differ(keys)
    return {
        "candidate": max(numbers) if everybody and not differ and None not in numbers else None,
        "is_common": len(numbers) == 1,
        "domains": publisher_order(said),
        "forbidden_on": sorted(rank for rank, each in said.items() if each["forbids"]),
        "is_suspected": any(each["suspects"] for each in said.values()),
        "differ": differ,
        "key": keys[min(keys)],
    }


def _is_confirmed(
    compilation: Compilation, agreement: RankAgreement, topic: str, found: LoadedExecutable | None
) -> bool:
    began = time.monotonic()
    decision = agreement.decide(
        f"{topic}/{_CONFIRMED}",
        participants=compilation.ranks,
        mine={"loaded": found is not None},
        decide=lambda said: len(said) == len(compilation.ranks) and all(each["loaded"] for each in said.values()),
        about=compilation.key.name,
    )
    compilation.spent("waited", began)
    return decision is True


def publisher_order(said: Mapping[int, Any]) -> dict[str, list[int]]:
    """Return for each storage domain the ranks that see it, in the order in which they store an entry."""
    domains: dict[str, list[int]] = {}
    for rank in sorted(said):
        domains.setdefault(said[rank]["domain"], []).append(rank)
    return domains


def ranks_that_differ(keys: Mapping[int, str]) -> list[int]:
    """Return the lowest rank and the first one whose key is another; empty if all keys are the same."""
    lowest = min(keys)
    return next(([lowest, rank] for rank in sorted(keys) if keys[rank] != keys[lowest]), [])


def _log_drift(compilation: Compilation, agreement: RankAgreement, topic: str, decision: Mapping[str, Any]) -> None:
    try:
        pair = decision["differ"][0], decision["differ"][1]
        log_difference(compilation, agreement, topic, pair=pair, lowest_key=decision["key"])
    except Exception as exc:
        compilation.report_failure("compare the programs of the ranks", exc)
