"""Tuned configurations as commands list them, and which of them a person means."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Any

from ejcache.cli import output
from ejcache.cli.listing import Identifiers, choose
from ejcache.cli.target import named_layer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ejcache.autotune.records.record import Candidate
    from ejcache.autotune.records.store import AutotuneStore, Found

__all__ = ["choose_records", "find_record", "record_fields", "strongest"]


def strongest(found: Iterable[Found], *, name: str | None = None, device: str | None = None) -> list[Found]:
    """For each key the record that programs use, ordered by operation and key.

    Args:
        found: records of all layers.
        name: a shell pattern that operations must match.
        device: a shell pattern that kinds of devices must match.
    """
    best: dict[str, Found] = {}
    for item in found:
        key = item.record.key
        if not all(
            pattern is None or fnmatch.fnmatchcase(text, pattern)
            for text, pattern in ((key.operation, name), (key.device, device))
        ):
            continue
        held = best.get(key.digest)
        if held is None or item.source.rank < held.source.rank:
            best[key.digest] = item
    return sorted(best.values(), key=lambda item: (item.record.key.operation, item.record.key.text))


def find_record(store: AutotuneStore, wanted: str) -> Found:
    """The one record that `wanted` names: its key, the beginning of its key, or its operation.

    Raises:
        NotFoundError: there is none, or there are several.
    """
    return choose_records(store, wanted)[0]


def choose_records(store: AutotuneStore, wanted: str, *, all_of_a_name: bool = False) -> list[Found]:
    """The record that `wanted` names; with `all_of_a_name`, all records of an operation. Raises as `find_record`."""
    url = named_layer(store).documents.url
    found = strongest(store.records())
    return choose(found, wanted, _identify, where=url, all_of_a_name=all_of_a_name)


def record_fields(item: Found, *, full: bool = False) -> dict[str, Any]:
    """A record's stable fields for JSON; with `full`, all candidates and all of the measurement."""
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
        "candidates": len(record.candidates),
    }
    if full:
        fields |= {
            "call": dict(record.key.call),
            "default": record.default,
            "measurement": dict(record.measurement),
            "provenance": dict(record.provenance),
            "candidates": [_candidate_fields(candidate) for candidate in record.candidates],
        }
    return fields


def _candidate_fields(candidate: Candidate) -> dict[str, Any]:
    seconds = candidate.seconds
    return {
        **output.fields_of(candidate, "configuration", "status", "error", "compile_seconds", "memory_bytes"),
        "seconds": None if seconds is None else output.fields_of(seconds, "p20", "p50", "p80"),
        "samples": 0 if seconds is None else seconds.samples,
    }


def _identify(item: Found) -> Identifiers:
    key = item.record.key
    return Identifiers(key.digest, frozenset({key.operation, key.text}))
