"""What hosts lose that start together on a bucket which serves a limited number of requests a second."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from bench.context import ROOT, child_environment, support
from bench.outcome import at_most
from bench.registry import case

if TYPE_CHECKING:
    from bench.context import Context
    from bench.outcome import Outcome

RATE = 160


@case("throttled", title="64 hosts start together on a bucket of 160 requests a second", order=91, when_named=True)
def throttled(context: Context, outcome: Outcome) -> None:
    """All programs are stored. The hosts are forks, each with a local tier and a client of its own."""
    from gcs_server import GcsServerProcess

    hosts, programs = context.pick((64, 30), (8, 5))
    rate = context.pick(RATE, 20)
    layout, ends, children = support("buckets"), support("dead_ends"), support("throttled_hosts")
    from ejcache.bucket.object_names import entry_name

    with context.directory() as home, GcsServerProcess("--rate", str(rate)) as server:
        context.say(f"{hosts} hosts")
        bucket = layout.gcs_bucket(server.url, "cache")
        for number in range(programs):
            bucket.create(entry_name(children.key_of(number)), children.data_of(number))
        before = len(server.requests)
        done = subprocess.run(
            [
                sys.executable,
                ROOT / "tests/support/throttled_hosts.py",
                "gs://bucket/cache",
                str(hosts),
                str(programs),
                home,
            ],
            env=child_environment(home) | ends.leads_to("gs", server.url),
            capture_output=True,
            text=True,
            check=True,
            timeout=500,
        )
        served = sum(request.status != 429 for request in server.requests[before:])
        refused = len(server.requests) - before - served
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    ideal = max(0.0, hosts * programs - rate) / rate
    last = max(answer["seconds"] for answer in answers)
    outcome.ratio("programs compiled again", sum(answer["again"] for answer in answers), at_most(0), unit="")
    outcome.ratio("circuit breakers opened", sum(answer["opened"] for answer in answers), at_most(0), unit="")
    outcome.ratio("uploads", sum(answer["uploads"] for answer in answers), at_most(0), unit="")
    outcome.ratio("the last host ÷ what the limit imposes", last / ideal, at_most(1.5))
    outcome.note(
        f"{served} requests served, {refused} refused; the last host ended after {last:.1f} s, ideal {ideal:.1f} s."
    )
