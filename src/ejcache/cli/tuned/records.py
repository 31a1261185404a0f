"""Opens the autotune store that a command works on, and finds the records that a person means."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ejcache.autotune.recording import recorded_calls
from ejcache.autotune.records.record_key import RecordKey
from ejcache.autotune.records.store import AutotuneStore
from ejcache.cli import output
from ejcache.cli.chosen_cache import check_directory, check_given
from ejcache.cli.selection import Identifiers, choose
from ejcache.util.patterns import fits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ejcache.autotune.records.record import Candidate
    from ejcache.autotune.records.store import Found, RecordLayer


@contextlib.contextmanager
def open_autotune(
    directory: str | None, *, write: bool = False, must_exist: bool | None = None
) -> Iterator[AutotuneStore]:
    """Open the autotune store that `--dir`, or else the settings, name. A message on stderr counts failed operations.

    Args:
        directory: the value of `--dir`.
        write: whether the command changes the store.
        must_exist: whether the directory of `--dir` must exist; by default, if the command does not write.

    Raises:
        UsageError: the URL is not one of a store.
        NotFoundError: the directory does not exist.
    """
    check_given(directory)
    if directory is not None and (not write if must_exist is None else must_exist):
        check_directory(directory, "there is no autotune store at")
    store = AutotuneStore(directory, seeds=() if directory is not None else None, read_only=not write)
    try:
        yield store
    finally:
        store.close()
        if (errors := store.stats()["errors"]) > 0:
            output.warn(f"{errors} operations on the store failed")


def named_layer(store: AutotuneStore) -> RecordLayer:
    """Return the layer that `--dir` or the settings name, which is the one that commands change.

    Where the settings name a bucket, the first layer is a directory that only this user's programs read.
    """
    return next((layer for layer in store.layers if layer.name == "shared"), store.layers[0])


def own_layers(store: AutotuneStore) -> list[RecordLayer]:
    """Return the layers that can be written: the named one, and the user's own directory."""
    return [layer for layer in store.layers if not layer.seeds]


def strongest(found: Iterable[Found], *, name: str | None = None, device: str | None = None) -> list[Found]:
    """Return for each key the record that programs use, ordered by operation and key.

    Args:
        found: records of all layers.
        name: a shell pattern that operations must match.
        device: a shell pattern that kinds of devices must match.
    """
    best: dict[str, Found] = {}
    for item in found:
        key = item.record.key
        if fits(key.operation, name) and fits(key.device, device):
            held = best.setdefault(key.digest, item)
            best[key.digest] = min(held, item, key=lambda each: each.source.rank)
    return sorted(best.values(), key=lambda item: (item.record.key.operation, item.record.key.text))


def find_record(store: AutotuneStore, wanted: str) -> Found:
    """Return the one record that `wanted` names: its key, the beginning of its key, or its operation.

    Raises:
        NotFoundError: there is none, or there are several.
    """
    return choose_records(store, wanted)[0]


def choose_records(store: AutotuneStore, wanted: str, *, all_of_a_name: bool = False) -> list[Found]:
    """Choose the record that `wanted` names; with `all_of_a_name`, all of an operation. Raises as `find_record`."""
    url = named_layer(store).documents.url
    found = strongest(store.records())
    return choose(found, wanted, _identify, where=url, all_of_a_name=all_of_a_name)


def record_fields(item: Found, *, full: bool = False) -> dict[str, Any]:
    """Return a record's stable fields for JSON; with `full`, all candidates and all of the measurement."""
    record = item.record
    candidate = record.candidate(record.configuration)
    fields: dict[str, Any] = {
        "key": record.key.digest,
        **output.fields_of(record.key, "text", "operation", "version", "device"),
        "environment": dict(record.key.environment),
        "configuration": record.configuration,
        "source": item.source.value,
        "layer": item.layer,
        "created": record.created,
        "seconds": None if candidate is None or candidate.seconds is None else candidate.seconds.p50,
        "gain": record.measurement.get("gain"),
        "works": record.works,
        "unsure": record.unsure,
        "total_candidates": len(record.candidates),
    }
    if full:
        fields |= {
            "call": dict(record.key.call),
            "default_configuration": record.default,
            "measurement": dict(record.measurement),
            "provenance": dict(record.provenance),
            "candidates": [_candidate_fields(candidate) for candidate in record.candidates],
        }
    return fields


def _candidate_fields(candidate: Candidate) -> dict[str, Any]:
    seconds = candidate.seconds
    return {
        **output.fields_of(
            candidate, "configuration", "origin", "status", "error", "reason", "compile_seconds", "memory_bytes"
        ),
        "timing": None if seconds is None else output.fields_of(seconds, "p20", "p50", "p80"),
        "samples": 0 if seconds is None else seconds.samples,
    }


def _identify(item: Found) -> Identifiers:
    key = item.record.key
    return Identifiers(key.digest, frozenset({key.operation, key.text}))


def names_of_records(directory: str | None) -> set[str]:
    """Return the texts by which a person may name a record, for completion."""
    with open_autotune(directory) as store:
        keys = [item.record.key for item in strongest(store.records())]
    return {text for key in keys for text in (key.operation, key.digest[:12])}


def recorded_key(store: AutotuneStore, wanted: str) -> RecordKey | None:
    """Find the key of the recorded call whose digest begins with `wanted`, or whose operation it is; else None."""
    for layer in store.layers:
        for _, call in recorded_calls(layer.documents):
            if isinstance(call, dict) and (
                str(call.get("digest", "")).startswith(wanted) or call["operation"] == wanted
            ):
                return RecordKey(
                    call["operation"],
                    str(call.get("version", "")),
                    str(call.get("device", "")),
                    call.get("environment", {}),
                    call.get("call", {}),
                )
    return None
