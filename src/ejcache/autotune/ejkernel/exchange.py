"""Copies records between stores, and to and from ejkernel's files."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.ejkernel.files import MAX_FILE_BYTES, OperationFile, file_key, key_of_file, parsed_file
from ejcache.autotune.records.record import Record, Source, dated_after
from ejcache.errors import StoreError, StoreReadOnlyError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ejcache.autotune.records.key import RecordKey
    from ejcache.autotune.records.layer import RecordLayer
    from ejcache.autotune.records.store import Found
    from ejcache.stores.documents import Documents

__all__ = ["EJKERNEL_FILE", "EJKERNEL_KEY", "export_to_ejkernel", "import_from_ejkernel", "legacy_key", "merge"]

EJKERNEL_KEY: Final = "ejkernel_key"
EJKERNEL_FILE: Final = "ejkernel_file"
"""In a record's provenance: the key and the file in which ejkernel looks for it, if that key is unambiguous."""


def merge(records: Iterable[Record], target: RecordLayer, *, imported: bool = False) -> Counter[str]:
    """Publish records in a layer, each merged with an existing one of its key.

    Args:
        records: what to publish.
        target: the layer.
        imported: a person takes the records from files now, so they replace what was imported earlier.

    Returns:
        How many records were `new`, `changed`, `same`, and `failed`.

    Raises:
        StoreReadOnlyError: the layer cannot be written.
    """
    if not target.writable:
        raise StoreReadOnlyError(f"{target.documents.url} cannot be written")
    outcome: Counter[str] = Counter()
    for record in records:
        if imported and (held := target.read(record.key)) is not None:
            if record.repeats(held):
                outcome["same"] += 1
                continue
            record = dated_after(record, [held])  # noqa: PLW2901
        before = target.documents.read(record.key.path)
        if not target.publish(record):
            outcome["failed"] += 1
        elif before is None:
            outcome["new"] += 1
        else:
            outcome["same" if target.documents.read(record.key.path) == before else "changed"] += 1
    return outcome


def import_from_ejkernel(documents: Documents, names: Iterable[str]) -> tuple[list[Record], list[str]]:
    """The records in ejkernel's files.

    Their source is IMPORTED, because a file does not say whether an entry was measured, guessed or given.

    Args:
        documents: the directory of the files.
        names: of the files in it.

    Returns:
        The records, and a line for each entry or file that cannot be read.
    """
    records, problems = [], []
    for name in names:
        try:
            data = documents.read(name, max_size=MAX_FILE_BYTES)
        except StoreError as exc:
            problems.append(str(exc))
            continue
        entries = None if data is None else parsed_file(data)
        if entries is None:
            problems.append(f"{name} is not a JSON object")
            continue
        for text, plain in entries.items():
            key = key_of_file(text)
            if key is None:
                # Other programs may have put entries of their own into the file.
                problems.append(f"{name}: {text!r} is not a key of ejkernel's")
                continue
            provenance = {EJKERNEL_KEY: text, EJKERNEL_FILE: name.rpartition("/")[2]}
            records.append(Record(key, plain, Source.IMPORTED, provenance=provenance, created=time.time()))
    return records, problems


def legacy_key(record: Record) -> tuple[str, str] | None:
    """(file name, key) of the entry in which ejkernel looks for the record; None if its key would be ambiguous."""
    text, name = record.provenance.get(EJKERNEL_KEY), record.provenance.get(EJKERNEL_FILE)
    if isinstance(text, str) and isinstance(name, str):
        return name, text
    call = record.key.call
    if set(call) == {"ejkernel"}:
        return f"{record.key.operation}.json", _text_of(record.key, str(call["ejkernel"]))
    return None


def _text_of(key: RecordKey, call_key: str) -> str:
    device = f"{key.device}|{key.environment.get('platform_version', '')}"
    return file_key(device, f"{key.operation}@v{key.version}", call_key)


def export_to_ejkernel(found: Iterable[Found], documents: Documents) -> tuple[Counter[str], int, int]:
    """Write records into ejkernel's files, and keep the other entries of these files.

    Returns:
        The number of entries written to each file, of records without a key of ejkernel's, and of failed writes.
    """
    written: Counter[str] = Counter()
    left_out = failed = 0
    strongest: dict[tuple[str, str], tuple[int, Any]] = {}
    for item in found:
        place = legacy_key(item.record)
        if place is None:
            left_out += 1
            continue
        held = strongest.get(place)
        if held is None or item.source.rank < held[0]:
            strongest[place] = (item.source.rank, item.record.configuration)
    for (name, text), (_, configuration) in sorted(strongest.items()):
        if OperationFile(documents, name).put(text, configuration):
            written[name] += 1
        else:
            failed += 1
    return written, left_out, failed
