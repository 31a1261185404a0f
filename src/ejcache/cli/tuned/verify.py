"""Checks tuned records, and where asked quarantines damaged ones: `ejcache tuned verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ejcache.autotune.records.record import MAX_RECORD_BYTES, decode_record
from ejcache.autotune.records.record_key import ROOT
from ejcache.cli import output
from ejcache.cli.options import Json, TunedDir, flag
from ejcache.cli.tuned.records import named_layer, open_autotune, own_layers
from ejcache.errors import EntryError, EntryVersionError
from ejcache.util.units import plural

if TYPE_CHECKING:
    from ejcache.autotune.records.store import RecordLayer


def verify(
    directory: TunedDir = None,
    fix: Annotated[bool, flag("--fix", "Quarantine damaged records.")] = False,
    as_json: Json = False,
) -> int:
    """Read and decode every record, but not those of installed packages. Exits with 1 if a damaged record stays."""
    findings: list[dict[str, Any]] = []
    total = unknown = 0
    with open_autotune(directory, write=fix, must_exist=True) as store:
        for layer in own_layers(store):
            for path in [each for each in layer.documents.list(f"{ROOT}/") if each.endswith(".json")]:
                total += 1
                try:
                    decode_record(layer.documents.read(path, max_size=MAX_RECORD_BYTES) or b"", path=path)
                except EntryVersionError:
                    unknown += 1
                except EntryError as exc:
                    findings.append(
                        {
                            "path": path,
                            "url": layer.documents.url,
                            "problem": str(exc),
                            "repaired": fix and _moved(layer, path),
                        }
                    )
        url = named_layer(store).documents.url
    if as_json:
        output.print_json({"url": url, "total_records": total, "unknown_versions": unknown, "findings": findings})
    else:
        for each in findings:
            output.say(f"{each['path']}: {each['problem']}{' (quarantined)' if each['repaired'] else ''}")
        if unknown:
            output.say(f"left {plural(unknown, 'record')} of another format version alone")
        result = plural(len(findings), "problem") if findings else "all intact"
        output.say(f"verified {plural(total, 'record')} in {url}: {result}")
    return int(not all(each["repaired"] for each in findings))


def _moved(layer: RecordLayer, path: str) -> bool:
    """Read a damaged record as programs do, which puts it into quarantine; True if it is gone from its place."""
    for _ in layer.records(path):
        pass
    return layer.documents.stamp(path) is None
