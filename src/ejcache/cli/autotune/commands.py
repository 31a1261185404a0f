"""`ejcache autotune`: the group of its commands, and those that compare records: `why` and `diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ejcache.cli import output
from ejcache.cli.autotune import inspect, maintain, transfer, tune
from ejcache.cli.autotune.listing import find_record, record_fields
from ejcache.cli.autotune.program import ProgramCommand
from ejcache.cli.options import AutotuneDir, Json, Key, examples
from ejcache.cli.target import NotFoundError, open_autotune

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.autotune.records.key import RecordKey
    from ejcache.autotune.records.store import AutotuneStore, Found

__all__ = ["app"]

app = typer.Typer(
    help="List, explain, measure, prune and copy tuned configurations.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(short_help="Say why a call runs with its configuration.", epilog=examples("autotune why block_matmul"))
def why(key: Key, directory: AutotuneDir = None, as_json: Json = False) -> None:
    """Say which record a call uses, and why it does not use the others.

    KEY names a record, or a call that was recorded with EJCACHE_AUTOTUNE_RECORD=1. For a call without a record, the
    records of the most similar calls are shown, and the exit status is 1.
    """
    from ejcache.autotune.chooser import nearest
    from ejcache.autotune.records.key import differences

    def compared(items: Sequence[Found]) -> list[dict[str, Any]]:
        return [record_fields(item) | {"differences": _pairs(differences(wanted, item.record.key))} for item in items]

    with open_autotune(directory) as store:
        wanted = _key_of(store, key)
        found = store.find_all(wanted)
        fields: dict[str, Any] = {
            "key": wanted.digest,
            "text": wanted.text,
            "records": [record_fields(item) for item in found],
            "elsewhere": compared(store.other_environments(wanted)),
            "nearest": compared([] if found else nearest(store, wanted, same_environment=False)[:3]),
        }
    if as_json:
        output.print_json(fields)
    else:
        _print_why(fields)
    if not found:
        raise typer.Exit(1)


@app.command(
    short_help="Compare two records, or two stores.", epilog=examples("autotune diff 13fa4371 gs://my-bucket/tuned")
)
def diff(
    one: Annotated[str, typer.Argument(metavar="KEY|URL", help="A record's key, or a store.")],
    other: Annotated[str, typer.Argument(metavar="KEY|URL", help="The key or store to compare it with.")],
    directory: AutotuneDir = None,
    as_json: Json = False,
) -> None:
    """Compare two records name by name, or two stores record by record. Exits with 1 if they differ."""
    if transfer.is_location(one) and transfer.is_location(other):
        fields = transfer.compare_stores(one, other)
    else:
        from ejcache.autotune.records.key import differences

        with open_autotune(directory) as store:
            left, right = find_record(store, one).record, find_record(store, other).record
        same = left.configuration == right.configuration
        fields = {
            "key": _pairs(differences(left.key, right.key)),
            "configuration": {} if same else {"": [left.configuration, right.configuration]},
        }
    if as_json:
        output.print_json(fields)
    else:
        for name, changed in fields.items():
            for key, (here, there) in changed.items():
                output.say(f"{name} {key}: {here} -> {there}" if key else f"{name}: {here} -> {there}")
    if any(fields.values()):
        raise typer.Exit(1)


app.command(short_help="List the records.", epilog=examples("autotune ls --name 'block*'"))(inspect.ls)
app.command(
    short_help="Show one record, with every candidate's timing.", epilog=examples("autotune show block_matmul")
)(inspect.show)
app.command(short_help="Count what the store holds.", epilog=examples("autotune stats"))(inspect.stats)
app.command(
    short_help="Measure the calls that a program recorded.",
    epilog=examples(
        "autotune run --module train.py",
        "autotune run gs://my-bucket/recorded",
        "autotune run --spread --program train.py",
    ),
    cls=ProgramCommand,
)(tune.run)
app.command(
    short_help="Fix a call's configuration.",
    epilog=examples("autotune pin 13fa4371", "autotune pin 13fa4371 '{\"block\": 64}'"),
)(maintain.pin)
app.command(short_help="Let measurements decide again.", epilog=examples("autotune unpin 13fa4371"))(maintain.unpin)
app.command(short_help="Remove records by age or version.", epilog=examples("autotune prune --old-versions --dry-run"))(
    maintain.prune
)
app.command(short_help="Remove all records, or those that are named.", epilog=examples("autotune clear block_matmul"))(
    maintain.clear
)
app.command(short_help="Copy records to another store.", epilog=examples("autotune push gs://my-bucket/tuned"))(
    transfer.push
)
app.command(short_help="Copy records from another store.", epilog=examples("autotune pull gs://my-bucket/tuned"))(
    transfer.pull
)
app.command(
    short_help="Write tables that other libraries read.",
    epilog=examples(
        "autotune export ejkernel_files",
        "autotune export --format tokamax tokamax/data",
        "autotune export t.py --format python --table T \\\n      --key x.shape --value config.block",
    ),
)(transfer.export)
app.command(
    "import",
    short_help="Take in the tables of ejkernel or tokamax.",
    epilog=examples("autotune import ejkernel_files", "autotune import --format tokamax results.json"),
)(transfer.import_files)


def _key_of(store: AutotuneStore, key: str) -> RecordKey:
    try:
        return find_record(store, key).record.key
    except NotFoundError:
        recorded = tune.recorded_key(store, key)
        if recorded is None:
            raise
        return recorded


def _pairs(changed: dict[str, tuple[Any, Any]]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in changed.items()}


def _print_why(fields: dict[str, Any]) -> None:
    output.say(fields["text"])
    for index, item in enumerate(fields["records"]):
        verdict = "runs with" if index == 0 else "not used, because its source or its layer comes after the one above:"
        output.say(f"  {verdict} {item['configuration']} ({item['source']}, {item['layer']})")
    if not fields["records"]:
        output.say("  has no record")
    for title, name in (("in another environment", "elsewhere"), ("similar", "nearest")):
        for item in fields[name]:
            output.say(f"  {title}: {item['configuration']} ({item['source']}, {item['layer']})")
            for key, (here, there) in item["differences"].items():
                output.say(f"    {key}: {here} here, {there} there")
