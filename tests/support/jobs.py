"""Jobs of several ranks, whose processes are forked from one that has imported what they import."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from forking import Forked
from pod import Rank, run_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["run_job"]


def run_job(
    program: str | Path,
    *arguments: str,
    places: Path | None = None,
    sharing: bool = False,
    env: Callable[[int], Mapping[str, str]] = lambda _: {},
    **options: Any,
) -> tuple[list[Rank], list[Any]]:
    """The ranks of a job, all of which ended well, and the JSON that is the last line of each.

    `places` is a directory in which each rank has a cache of its own; with `sharing`, the first one gives the others
    what it compiles. The `options` are those of `run_pod`.
    """
    if places is not None:
        options["cache"] = lambda rank: str(places / str(rank))
    shared = {"JAX_SHARE_BINARY_BETWEEN_HOSTS": "1" if sharing else "0"}
    ranks = run_pod(program, *arguments, env=lambda rank: {**shared, **env(rank)}, start=Forked, **options)
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(rank.stderr for rank in ranks)
    return ranks, [json.loads(rank.stdout.splitlines()[-1]) for rank in ranks]
