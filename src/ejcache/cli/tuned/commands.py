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
    OlderThan,
    RecordKey,
    RecordKeys,
    TunedDir,
    Url,
    Yes,
    argument,
    examples,
    flag,
    option,
)
from ejcache.cli.selection import check_wanted
from ejcache.cli.tuned.listing import count_records, explain_record, list_records, show_record
from ejcache.cli.tuned.removal_and_pins import pin_record, prune_records, remove_records, unpin_record, verify_records
from ejcache.cli.tuned.transfer import pull_records, push_records
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
OldVersions = Annotated[
    bool, flag("--old-versions", "Remove what another JAX, jaxlib or host measured than the newest one.")
]
Keep = Annotated[list[str] | None, option("--keep", "GLOB", "Keep operations of such a name; may be repeated.")]
Recorded = Annotated[bool, flag("--recorded", "Remove recorded calls, which `tuned tune` would measure.")]
Quarantined = Annotated[bool, flag("--quarantine", "Delete quarantined documents.")]


@app.command("ls", short_help="List the records.", epilog=examples("tuned ls", "tuned ls --name 'block*'"))
def list_tuned(
    directory: TunedDir = None,
    name: Name = None,
    device: Device = None,
    limit: Limit = None,
    as_json: Json = False,
) -> int:
    """List the records: the call, its configuration, how that was found, and how fast it is.

    A source with a question mark is unsure, and `tuned tune --unsure` measures the call again.
    """
    return list_records(directory, name=name, device=device, limit=limit, as_json=as_json)


@app.command(short_help="Show one record.", epilog=examples("tuned show block_matmul", "tuned show 13fa43 --json"))
def show(key: RecordKey, directory: TunedDir = None, as_json: Json = False) -> int:
    """Show one record, or those of an operation: configuration, candidates with their timings, where it was measured.

    The configuration that programs use is marked with *, the default one with =.
    """
    return show_record(key, directory, as_json=as_json)


@app.command(short_help="Say why a call runs as it does.", epilog=examples("tuned why block_matmul"))
def why(key: RecordKey, directory: TunedDir = None, as_json: Json = False) -> int:
    """Print which record a call uses, and why not the others.

    KEY names a record, an operation, or a call that was recorded with EJCACHE_AUTOTUNE_RECORD=1. Of a call without a
    record, the records of the most similar calls are shown, and the exit status is 1.
    """
    check_wanted(key)
    return explain_record(key, directory, as_json=as_json)


@app.command(short_help="Count the records.", epilog=examples("tuned stats", "tuned stats --json"))
def stats(directory: TunedDir = None, as_json: Json = False) -> int:
    """Count the records by layer, operation, device and source, and the documents that could not be read."""
    return count_records(directory, as_json=as_json)


@app.command(
    short_help="Fix the configuration of a call.",
    epilog=examples("tuned pin 13fa4371", "tuned pin 13fa4371 '{\"block\": 64}'"),
)
def pin(
    key: RecordKey,
    configuration: Annotated[
        str | None, argument("[JSON]", "The configuration. Default: the one that the record has.")
    ] = None,
    directory: TunedDir = None,
    as_json: Json = False,
) -> None:
    """Fix the configuration of a tuned call: measurements no longer change it.

    It is fixed in the store that --dir or the settings name. A configuration needs the names of those that the record
    knows, and values of their types; one that was not measured is fixed with a warning.
    """
    pin_record(key, configuration, directory, as_json=as_json)


@app.command(short_help="Let measurements decide again.", epilog=examples("tuned unpin 13fa4371"))
def unpin(key: RecordKey, directory: TunedDir = None, as_json: Json = False) -> None:
    """Let measurements decide again: the call has the configuration again that it had before the pin."""
    unpin_record(key, directory, as_json=as_json)


@app.command(
    short_help="Remove records by name, or all.", epilog=examples("tuned rm block_matmul 13fa4371", "tuned rm --all")
)
def rm(
    keys: RecordKeys = None,
    everything: Annotated[bool, flag("--all", "Remove all records.")] = False,
    directory: TunedDir = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Remove the records that are named, or with --all every one, pinned ones too; their calls are measured again.

    Asks before it removes all, unless --yes is given. Exits with 1 if a record stays.
    """
    if bool(keys) is everything:
        raise UsageError("rm removes what is named: give the KEY of each record, or --all")
    return remove_records(keys, directory, yes=yes, as_json=as_json)


@app.command(
    short_help="Remove records by age, name or version.",
    epilog=examples("tuned prune --old-versions", "tuned prune --name 'block*' --dry-run"),
)
def prune(
    directory: TunedDir = None,
    older_than: OlderThan = None,
    name: Name = None,
    old_versions: OldVersions = False,
    keep: Keep = None,
    recorded: Recorded = False,
    quarantine: Quarantined = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Remove the records that a rule names, and files that interrupted writers left. Pinned records stay.

    Each rule removes records independently of the others. --name restricts --older-than and --old-versions to matching
    operations; alone, it removes the matching records. If the settings name a bucket, the user's own directory is
    pruned as well.
    """
    return prune_records(
        directory, older_than=older_than, name=name, old_versions=old_versions, keep=keep or (),
        recorded=recorded, quarantine=quarantine, dry_run=dry_run, as_json=as_json,
    )  # fmt: skip


@app.command(short_help="Check every record.", epilog=examples("tuned verify", "tuned verify --fix"))
def verify(
    directory: TunedDir = None,
    fix: Annotated[bool, flag("--fix", "Quarantine damaged records.")] = False,
    as_json: Json = False,
) -> int:
    """Read and decode every record of the layers that can be written. Exits with 1 if one is damaged and stays."""
    return verify_records(directory, fix=fix, as_json=as_json)


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
