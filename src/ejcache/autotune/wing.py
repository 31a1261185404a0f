"""What autotuning adds to the core: see `ejcache.wings`."""

from __future__ import annotations

from typing import Final

from ejcache.wings import Command, Wing

WING: Final = Wing(
    name="autotune",
    settings="ejcache.autotune.settings:AutotuneSettings",
    names={
        "AutotuneStore": "ejcache.autotune.records.store",
        "autotuned": "ejcache.autotune.operation",
    },
    hooks={"report": "ejcache.autotune.cli.records:report_rows"},
    commands={
        "autotune": Command(
            "ejcache.autotune.cli.commands:app",
            "List, explain, measure and copy tuned configurations.",
            ("autotune ls", "autotune show block_matmul", "autotune run"),
        ),
    },
)
