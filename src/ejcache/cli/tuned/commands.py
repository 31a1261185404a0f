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
    Kernel,
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


Kind = Annotated[Format | None, typer.Option("--format", help="Use ejkernel's files.", show_default=False)]
app.command("ls", short_help="List the records.", epilog=examples("tuned ls", "tuned ls --name 'block*'"))(ls)
app.command(short_help="Show one record.", epilog=examples("tuned show block_matmul", "tuned show 13fa43 --json"))(show)
app.command(short_help="Print why a call runs with its configuration.", epilog=examples("tuned why block_matmul"))(why)
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
    short_help="Measure the calls that a program makes, or has recorded.",
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
        str | None, option("--calls", "URL", "Where the calls were recorded. Default: where the records are.")
    ] = None,
    directory: TunedDir = None,
    name: Kernel = None,
    force: Annotated[bool, flag("--force", "Measure again what was measured before.")] = False,
    unsure: Annotated[bool, flag("--unsure", "Measure again the calls whose configuration is unsure.")] = False,
    limit: Annotated[str | None, option("--limit", "N", "Measure at most N calls.")] = None,
    module: Annotated[
        list[str] | None, option("--module", "NAME", "A module or .py file that you trust, with kernels; repeatable.")
    ] = None,
    seconds: Annotated[str | None, option("--seconds", "N", "End PROGRAM after N seconds.")] = None,
    as_json: Json = False,
) -> int:
    """Measure calls of kernels that a program makes, or has recorded, and store the fastest configurations.

    PROGRAM first runs without measuring. Then the command measures the calls that PROGRAM made. If a script itself
    defines kernels, the script is imported, so that they can be called. What the import must not run belongs under
    `if __name__ == "__main__"`.

    Without PROGRAM, the command measures calls that were recorded with EJCACHE_AUTOTUNE_RECORD=1 or
    ejcache.autotune.record(). It measures only kernels in modules that --module names or that such a module imports.

    Calls that were measured before are skipped, so the same command continues after an interruption. A configuration is
    unsure if its measurement was too short to be certain. With PROGRAM or --unsure, calls with an unsure configuration
    are measured again. Exits with 1 if a call or the program failed.
    """
    from ejcache.cli.tuned.tune import tune_calls  # JAX itself

    return tune_calls(
        program, recorded, directory, name=name, force=force, unsure=unsure, limit=limit, module=module,
        seconds=seconds, as_json=as_json,
    )  # fmt: skip


@app.command(
    short_help="Copy records to another place, or into a file.",
    epilog=examples(
        "tuned push gs://my-bucket/tuned", "tuned push my_kernels/tuned", "tuned push --format ejkernel ejkernel_files"
    ),
)
def push(
    url: Url,
    directory: TunedDir = None,
    name: Kernel = None,
    device: Device = None,
    unsure: Annotated[bool, flag("--unsure", "Also copy records whose configuration is unsure.")] = False,
    kind: Kind = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Copy records to another place, which is created if it does not exist.

    If the other place has a record of the same call, the two records are merged. A pinned configuration counts before a
    measured one, and a measured one before an imported one. The measurements of both are kept. Records with an unsure
    configuration are not copied without --unsure, because the programs that get a record do not measure the call again.
    A package can ship a directory with such records. FILE.tar gets only the records.

    With --format ejkernel, the records are written into ejkernel's files in the directory URL. Records without a key of
    ejkernel are left out. `push` then refuses --dry-run.
    """
    if kind is not None:
        if dry_run:
            raise UsageError("--format ejkernel takes no --dry-run")
        from ejcache.cli.tuned.ejkernel_files import push_to_ejkernel  # JAX itself

        return push_to_ejkernel(url, directory, name=name, device=device, unsure=unsure, as_json=as_json)
    if is_archive(url):
        return push_archive(
            url, directory, Selection(name_glob=name), tuned=True, unsure=unsure, device=device,
            max_size=None, if_changed=False, dry_run=dry_run, as_json=as_json,
        )  # fmt: skip

    return push_records(url, directory, name=name, device=device, unsure=unsure, dry_run=dry_run, as_json=as_json)


@app.command(
    short_help="Copy records from another place, or from a file.",
    epilog=examples("tuned pull gs://my-bucket/tuned", "tuned pull --format ejkernel ejkernel_files"),
)
def pull(
    url: Url,
    directory: TunedDir = None,
    name: Kernel = None,
    device: Device = None,
    kind: Kind = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Copy the records of another place, or those of FILE.tar, and merge them as `push` does.

    With --format ejkernel, URL is a file of ejkernel or a directory of such files. Their configurations count less than
    configurations that were measured here, because ejkernel does not say how they were found. `pull` then refuses
    --name, --device and --dry-run. With FILE.tar, it refuses --dry-run.
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
