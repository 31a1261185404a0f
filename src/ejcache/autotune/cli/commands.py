"""The table of the commands of `ejcache autotune`."""

from __future__ import annotations

import typer

from ejcache.autotune.cli import records, transfer, tune
from ejcache.cli.options import examples

app = typer.Typer(
    help="List, explain, measure, prune and copy tuned configurations.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for _function, _short, *_lines in (
    (records.ls, "List the records.", "autotune ls --name 'block*'"),
    (records.show, "Show one record, with every candidate's timing.", "autotune show block_matmul"),
    (records.why, "Say why a call runs with its configuration.", "autotune why block_matmul"),
    (records.diff, "Compare two records, or two stores.", "autotune diff 13fa4371 gs://my-bucket/tuned"),
    (records.stats, "Count what the store holds.", "autotune stats"),
    (
        tune.run,
        "Measure the calls that a program recorded.",
        "autotune run --module train.py",
        "autotune run gs://my-bucket/recorded",
        "autotune run --spread --program train.py",
    ),
    (
        records.pin,
        "Fix a call's configuration.",
        "autotune pin 13fa4371",
        "autotune pin 13fa4371 '{\"block\": 64}'",
    ),
    (records.unpin, "Let measurements decide again.", "autotune unpin 13fa4371"),
    (records.prune, "Remove records by age or version.", "autotune prune --old-versions --dry-run"),
    (records.clear, "Remove all records, or those that are named.", "autotune clear block_matmul"),
    (transfer.push, "Copy records to another store.", "autotune push gs://my-bucket/tuned"),
    (transfer.pull, "Copy records from another store.", "autotune pull gs://my-bucket/tuned"),
    (
        transfer.export,
        "Write the records into a JSON file, or ejkernel's files.",
        "autotune export tuned.json",
        "autotune export ejkernel_files",
    ),
    (
        transfer.import_files,
        "Take in the tables of ejkernel or tokamax.",
        "autotune import ejkernel_files",
        "autotune import --format tokamax results.json",
    ),
):
    app.command(
        "import" if _function is transfer.import_files else None,
        short_help=_short,
        epilog=examples(*_lines),
        cls=tune.ProgramCommand if _function is tune.run else None,
    )(_function)
