"""`ejcache tuned`: the commands for tuned configurations, the records that hold them, and the calls that were recorded.

`tuned.tune` imports JAX, and is imported when it is called.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ejcache.cli.archives import is_archive, pull_archive, push_archive
from ejcache.cli.commands.run import RunCommand
from ejcache.cli.options import (
    Device,
    DryRun,
    Json,
    Limit,
    Name,
    TunedDir,
    Url,
    argument,
    examples,
    flag,
    option,
)
from ejcache.cli.tuned.listing import ls, show, stats, why
from ejcache.cli.tuned.pins import pin, unpin
from ejcache.cli.tuned.removal import prune, rm
from ejcache.cli.tuned.transfer import pull_records, push_records
from ejcache.cli.tuned.verify import verify
from ejcache.errors import UsageError
from ejcache.maintenance.transfer import Selection

app = typer.Typer(
    help="Look at, change and copy tuned configurations, and measure them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Format(StrEnum):
    """The forms of another library in which tuned records are kept."""

    ejkernel = "ejkernel"


Kind = Annotated[
    Format | None, typer.Option("--format", help="Records in the files of this library.", show_default=False)
]
app.command("ls", short_help="List the records.", epilog=examples("tuned ls", "tuned ls --name 'block*'"))(ls)
app.command(short_help="Show one record.", epilog=examples("tuned show block_matmul", "tuned show 13fa43 --json"))(show)
app.command(short_help="Say why a call runs as it does.", epilog=examples("tuned why block_matmul"))(why)
app.command(short_help="Count the records.", epilog=examples("tuned stats", "tuned stats --json"))(stats)
app.command(
    short_help="Fix the configuration of a call.",
    epilog=examples("tuned pin 13fa4371", "tuned pin 13fa4371 '{\"block\": 64}'"),
)(pin)
app.command(short_help="Let measurements decide again.", epilog=examples("tuned unpin 13fa4371"))(unpin)
app.command(
    short_help="Remove records by name, or all.", epilog=examples("tuned rm block_matmul 13fa4371", "tuned rm --all")
)(rm)
app.command(
    short_help="Remove records by age, name or version.",
    epilog=examples("tuned prune --old-versions", "tuned prune --name 'block*' --dry-run"),
)(prune)
app.command(short_help="Check every record.", epilog=examples("tuned verify", "tuned verify --fix"))(verify)


@app.command(
    short_help="Measure the calls that a program makes, or recorded.",
    epilog=examples(
        "tuned tune train.py --steps 1",
        "tuned tune --module train.py",
        "tuned tune --calls gs://my-bucket/recorded",
    ),
    cls=RunCommand,
    context_settings={"allow_interspersed_args": False},
)
def tune(
    program: Annotated[
        list[str] | None,
        argument("[PROGRAM ARGS]", "A script, -m MODULE or -c CODE, as after `python`; or a command."),
    ] = None,
    recorded: Annotated[
        str | None, option("--calls", "URL", "Where the calls were recorded. Default: the store itself.")
    ] = None,
    directory: TunedDir = None,
    name: Name = None,
    force: Annotated[bool, flag("--force", "Measure again what was measured before.")] = False,
    unsure: Annotated[bool, flag("--unsure", "Measure again the calls whose configuration is unsure.")] = False,
    limit: Limit = None,
    module: Annotated[
        list[str] | None, option("--module", "NAME", "A module or .py file that has operations and that you trust.")
    ] = None,
    seconds: Annotated[str | None, option("--seconds", "N", "End PROGRAM after so many seconds.")] = None,
    as_json: Json = False,
) -> int:
    """Measure the calls that a program makes, or that it recorded, and keep the fastest configurations.

    PROGRAM runs first, without measuring. Operations that a script itself defines need its part for
    `if __name__ == "__main__"`, because the script is imported for them.

    Without PROGRAM, calls are measured that were recorded with EJCACHE_AUTOTUNE_RECORD=1 or ejcache.autotune.record().
    Only operations are called, and only those in modules that --module names or that such a module imports. Calls that
    were measured before are skipped: the same command continues an interrupted one. A configuration is unsure if the
    budget or the rounds of its measurement were too few; with PROGRAM, those are measured again. Exits with 1 if a call
    or the program failed.
    """
    from ejcache.cli.tuned.tune import tune_calls  # JAX itself

    return tune_calls(
        program, recorded, directory, name=name, force=force, unsure=unsure, limit=limit, module=module,
        seconds=seconds, as_json=as_json,
    )  # fmt: skip


@app.command(
    short_help="Copy records to another store, or a file.",
    epilog=examples(
        "tuned push gs://my-bucket/tuned", "tuned push my_kernels/tuned", "tuned push --format ejkernel ejkernel_files"
    ),
)
def push(
    url: Url,
    directory: TunedDir = None,
    name: Name = None,
    device: Device = None,
    unsure: Annotated[bool, flag("--unsure", "Also the records whose configuration is unsure.")] = False,
    kind: Kind = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Copy records to another store, which is created if it does not exist.

    Each is merged with one that is there: the choice of the stronger source counts, and the measurements of both are
    kept. Records that are unsure are left out, unless --unsure asks for them: who gets them never measures again. A
    package can ship the directory of such a store. FILE.tar gets the records alone.

    With --format ejkernel, they are written into ejkernel's files in the directory URL, and those without a key of
    ejkernel's are left out.
    """
    if kind is not None:
        if dry_run:
            raise UsageError("--format ejkernel takes no --dry-run")
        from ejcache.cli.tuned.ejkernel_files import push_to_ejkernel  # JAX itself

        return push_to_ejkernel(url, directory, name=name, device=device, as_json=as_json)
    if is_archive(url):
        return push_archive(
            url, directory, Selection(name_glob=name), tuned=True, unsure=unsure, device=device,
            max_size=None, if_changed=False, dry_run=dry_run, as_json=as_json,
        )  # fmt: skip

    return push_records(url, directory, name=name, device=device, unsure=unsure, dry_run=dry_run, as_json=as_json)


@app.command(
    short_help="Copy records from another store, or a file.",
    epilog=examples("tuned pull gs://my-bucket/tuned", "tuned pull --format ejkernel ejkernel_files"),
)
def pull(
    url: Url,
    directory: TunedDir = None,
    name: Name = None,
    device: Device = None,
    kind: Kind = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Copy the records of another store, or those of FILE.tar, into this one, as `push` does in the other direction.

    With --format ejkernel, URL is a file of ejkernel's or a directory of them; its entries rank below configurations
    that were measured here, because it is not known how they were found.
    """
    if kind is not None:
        if dry_run or name or device:
            raise UsageError("--format ejkernel takes neither --dry-run nor, with pull, --name and --device")
        from ejcache.cli.tuned.ejkernel_files import pull_from_ejkernel  # JAX itself

        return pull_from_ejkernel(url, directory, as_json=as_json)
    if is_archive(url):
        if dry_run:
            raise UsageError("a file does not say what is in it before it is read: leave out --dry-run")
        return pull_archive(url, directory, name=name, tuned=True, device=device, as_json=as_json)

    return pull_records(url, directory, name=name, device=device, dry_run=dry_run, as_json=as_json)
