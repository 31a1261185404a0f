"""How long it takes to load ahead what a program used, on a host that has none of it."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from bench.buckets import URL, BucketServer
from bench.measure import summarize
from bench.outcome import at_most
from bench.registry import case

if TYPE_CHECKING:
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Outcome

LATENCY, SLOWER = 0.03, 0.53
FETCHED, FAR, ALONE = "from the bucket", "from a bucket at 530 ms", "from this host's copies"


@case(
    "ahead-bucket",
    title="200 tiny programs loaded ahead on a new host, from a bucket at 30 ms, beside loading alone",
    order=92,
    when_named=True,
)
def loaded_ahead(context: Context, outcome: Outcome) -> None:
    """A new host in each round, and then the same host again; each time until all of them are loaded."""
    size = context.pick(200, 20)
    taken: dict[str, list[float]] = {FETCHED: [], FAR: [], ALONE: []}
    requests = []
    with context.directory() as home, BucketServer(latency=LATENCY) as near, BucketServer(latency=SLOWER) as far:
        for name, server in (("near", near), ("far", far)):
            for attempt in ("first", "second"):
                context.say(f"the {attempt} start on the {name} bucket, which is not counted")
                _run(context, size, "use", home / f"first-{name}", server)
        for number in range(context.pick(7, 1)):
            host = home / f"host-{number}"
            for name, directory, server in (
                (FETCHED, host / "near", near),
                (ALONE, host / "near", near),
                (FAR, host / "far", far),
            ):
                context.say(f"round {number + 1}: {name}")
                server.take_requests()
                taken[name].append(_run(context, size, "ahead", directory, server))
                if name == FETCHED:
                    requests.append(server.take_requests())
    found = {name: summarize(seconds) for name, seconds in taken.items()}
    outcome.line(f"from the backend until {size} programs are loaded", found)
    over = statistics.median(fetched - alone for fetched, alone in zip(taken[FETCHED], taken[ALONE], strict=True))
    outcome.ratio("from the bucket, over loading alone", over, at_most(1.0), unit="s")
    # What a slower answer adds, divided by how much slower it is, is how often loading waited for one.
    waits = statistics.median(far - near for far, near in zip(taken[FAR], taken[FETCHED], strict=True))
    outcome.ratio("round trips one after the other", waits / (SLOWER - LATENCY), at_most(12), unit="")
    outcome.note(f"Requests of a new host: {dict(requests[-1])}. The bucket's client was made before.")


def _run(context: Context, size: int, what: str, host: Path, server: BucketServer) -> float:
    host.mkdir(parents=True, exist_ok=True)
    env = server.variables | {"EJCACHE_LOCAL_DIR": str(host / "tier"), "EJCACHE_PRELOAD": "1"}
    answer = context.run("bench.programs.ahead", size, URL, what, home=host, env=env)
    stats = answer["stats"]
    if what == "ahead" and stats["preload"]["hits"] != size:
        raise AssertionError(f"of {size} programs {stats['preload']['hits']} were loaded ahead")
    return float(answer["seconds"])
