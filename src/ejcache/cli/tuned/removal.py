"""Removes tuned records: `ejcache tuned prune` and `rm`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

from ejcache.autotune.recording import RECORDED
from ejcache.autotune.records.record import Source
from ejcache.autotune.records.store import QUARANTINE, Found
from ejcache.cli import output
from ejcache.cli.fields import print_rows
from ejcache.cli.options import (
    DryRun,
    Json,
    Kernel,
    OlderThan,
    RecordKeys,
    TunedDir,
    Yes,
    age,
    confirm,
    flag,
    option,
)
from ejcache.cli.selection import check_wanted
from ejcache.cli.tuned.listing import RECORD
from ejcache.cli.tuned.records import (
    choose_records,
    named_layer,
    open_autotune,
    own_layers,
    record_fields,
    strongest,
)
from ejcache.errors import UsageError
from ejcache.util.patterns import fits
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.autotune.records.store import AutotuneStore


OldVersions = Annotated[
    bool, flag("--old-versions", "Of records that differ only in versions, remove all but the latest.")
]
Keep = Annotated[
    list[str] | None, option("--keep", "GLOB", "Keep records of kernels whose name matches; may be repeated.")
]
Recorded = Annotated[bool, flag("--recorded", "Remove recorded calls, which `tuned tune` would measure.")]
Quarantined = Annotated[bool, flag("--quarantine", "Delete what was quarantined.")]
_PLANNED: Final = ("key", "operation", "device", "configuration", "source", "call")
"""Columns of the records that are pruned."""


def prune(
    directory: TunedDir = None,
    older_than: OlderThan = None,
    name: Kernel = None,
    old_versions: OldVersions = False,
    keep: Keep = None,
    recorded: Recorded = False,
    quarantine: Quarantined = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Remove the records that a rule selects, and files that interrupted writers left. Pinned records stay.

    --name restricts --older-than and --old-versions to kernels whose name matches; alone, it removes their records. If
    the settings name a bucket, the user's own directory of records is pruned as well.
    """
    seconds = age(older_than, option="--older-than")
    if not (seconds is not None or old_versions or name is not None or recorded or quarantine):
        raise UsageError(
            "prune needs a rule that says what to remove: give --older-than, --old-versions, --name, "
            "--recorded or --quarantine"
        )
    with open_autotune(directory, write=not dry_run, must_exist=True) as store:
        layers = {layer.name: layer.documents for layer in own_layers(store)}
        by_name = name is not None and not (seconds is not None or old_versions or recorded or quarantine)
        found = _to_remove(store, name, seconds=seconds, old_versions=old_versions, by_name=by_name)
        records = [item for item in found if not _is_kept(item, keep or ())]
        documents = [(item.layer, item.record.key.path) for item in records]
        prefixes = [prefix for prefix, wanted in ((RECORDED, recorded), (QUARANTINE, quarantine)) if wanted]
        documents += [(place, path) for prefix in prefixes for place in layers for path in layers[place].list(prefix)]
        removed = swept = 0
        if not dry_run:
            removed = sum(layers[layer].delete(path) for layer, path in documents)
            swept = sum(place.sweep() for place in layers.values())
        url = named_layer(store).documents.url
    texts = {item.record.key.path: item.record.key.text for item in records}
    rows = [record_fields(item) for item in {item.record.key.path: item for item in records}.values()]
    paths = list(dict.fromkeys(path for _, path in documents))
    if as_json:
        planned = [{"path": path, "text": texts.get(path, "")} for path in paths]
        fields = {"url": url, "dry_run": dry_run, "planned_documents": len(documents), "removed_documents": removed}
        output.print_json(fields | {"swept_files": swept, "planned": planned})
        return 0
    print_rows(RECORD, _PLANNED, rows, least=("device", "call"))
    for path in paths:
        if path not in texts:
            output.say(path)
    number = plural(len(documents) if dry_run else removed, "document")
    output.say(f"{'would remove' if dry_run else 'removed'} {number} from {url}")
    return 0


def rm(
    keys: RecordKeys = None,
    everything: Annotated[bool, flag("--all", "Remove all records.")] = False,
    directory: TunedDir = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Remove the records that KEY names, or all records with --all; their calls can be measured again.

    Pinned records are removed, too. `rm --all` asks before it removes the records, unless --yes is given. Exits with 1
    if a record stays.
    """
    if bool(keys) is everything:
        raise UsageError("rm removes what is named: give the KEY of each record, or --all")
    for wanted in keys or ():
        check_wanted(wanted)
    with open_autotune(directory, write=True, must_exist=True) as store:
        url = named_layer(store).documents.url
        if keys:
            items = [item for text in keys for item in choose_records(store, text, all_of_a_name=True)]
        else:
            own = {layer.name for layer in own_layers(store)}
            items = strongest(item for item in store.records() if item.layer in own)
            if items:
                confirm(f"Remove {plural(len(items), 'record')} from {url}?", yes=yes, as_json=as_json)
        removed = [item.record.key for item in items if store.delete(item.record.key)]
        failed = any(layer.counters["errors"] for layer in own_layers(store))
    if as_json:
        fields = {"url": url, "dry_run": False, "removed_records": len(removed)}
        output.print_json(fields | {"removed": [key.digest for key in removed]})
    else:
        for key in removed:
            output.say(f"removed {key.text}")
        output.say(f"removed {plural(len(removed), 'record')} from {url}")
    stays = failed or len(removed) < len(items)
    if stays:
        output.warn("some records stay: they are in layers that cannot be written, or the storage failed")
    return int(stays)


def _is_kept(item: Found, keep: Sequence[str]) -> bool:
    return any(fits(item.record.key.operation, pattern) for pattern in keep)


def _to_remove(
    store: AutotuneStore, name: str | None, *, seconds: float | None, old_versions: bool, by_name: bool
) -> Iterator[Found]:
    own = {layer.name for layer in own_layers(store)}
    found = [item for item in store.records() if item.layer in own and item.source is not Source.PINNED]
    newest: dict[str, float] = {}
    for item in found:
        key = item.record.key.versionless_digest
        newest[key] = max(newest.get(key, item.record.created), item.record.created)
    now = time.time()
    for item in found:
        record = item.record
        too_old = seconds is not None and now - record.created > seconds
        old_version = old_versions and record.created < newest[record.key.versionless_digest]
        if fits(record.key.operation, name) and (by_name or too_old or old_version):
            yield item
