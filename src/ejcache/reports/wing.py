"""What reports add to the core: see `ejcache.wings`."""

from __future__ import annotations

from typing import Final

from ejcache.wings import Command, Wing

WING: Final = Wing(
    name="reports",
    commands={
        "report": Command(
            "ejcache.reports.commands:report",
            "Show where the time of the starts went, what still compiles, and why.",
            (
                "report --since 7d",
                "report --html report.html --open",
                "report --compare jax=0.10.2 jax=0.12.0",
                "report --compare 2d..1d 1d..0s",
            ),
        ),
    },
)
