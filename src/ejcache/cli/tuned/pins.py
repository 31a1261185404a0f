"""Pins tuned configurations, and unpins them: `ejcache tuned pin` and `unpin`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

from ejcache.autotune.records.json_values import canonical_json, parse_json
from ejcache.autotune.records.record import (
    MAX_RECORD_BYTES,
    Source,
    Status,
    encode_record,
    pinned,
    unpinned,
)
from ejcache.autotune.records.store import Found
from ejcache.cli import output
from ejcache.cli.options import (
    Json,
    RecordKey,
    TunedDir,
    argument,
)
from ejcache.cli.tuned.records import (
    find_record,
    named_layer,
    open_autotune,
    own_layers,
    record_fields,
)
from ejcache.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.autotune.records.record import Record
    from ejcache.autotune.records.store import AutotuneStore


def pin(
    key: RecordKey,
    configuration: Annotated[
        str | None, argument("[JSON]", "The configuration, as JSON. Default: the one that the record has.")
    ] = None,
    directory: TunedDir = None,
    as_json: Json = False,
) -> None:
    """Fix the configuration of a tuned call, so that measurements no longer change it.

    A configuration must have the same parameters as those in the record, with values of the same types. It may be one
    that was not measured.
    """
    with open_autotune(directory, write=True, must_exist=True) as store:
        record = find_record(store, key).record
        plain = record.configuration if configuration is None else _parse(configuration)
        _check_form(plain, record)
        if doubt := _doubt(plain, record):
            output.warn(f"{doubt}; the program may fail or compute other results with this configuration")
        _report_pin(store, _pin_record(store, record, plain), as_json=as_json)


def unpin(key: RecordKey, directory: TunedDir = None, as_json: Json = False) -> None:
    """Undo `pin`: the call has its earlier configuration again, and measurements can change it."""
    with open_autotune(directory, write=True, must_exist=True) as store:
        record = find_record(store, key).record
        _report_pin(store, _unpin_record(store, record) or record, as_json=as_json)


def _report_pin(store: AutotuneStore, record: Record, *, as_json: bool) -> None:
    if as_json:
        output.print_json(record_fields(Found(record, named_layer(store).name, record.source)))
    else:
        output.say(f"{record.key.text} runs with {json.dumps(record.configuration)} ({record.source.value})")


def _parse(text: str) -> Any:
    try:
        return parse_json(text.encode(), max_size=MAX_RECORD_BYTES)
    except ValueError as exc:
        raise UsageError(f"the configuration {text!r} is not JSON: {exc}") from exc


def _check_form(plain: Any, record: Record) -> None:
    """Refuse a configuration without the names, or with values of other types, than those that the record knows.

    Raises:
        UsageError: the kernel could not be called with it.
    """
    known = [record.configuration, record.default, *(candidate.configuration for candidate in record.candidates)]
    known = [each for each in known if each is not None]
    if known and not _has_form(plain, known):
        raise UsageError(
            f"the configuration {canonical_json(plain)} cannot be that of {record.key.operation}: accepted is one with "
            f"the names and the types of {canonical_json(known[0])}"
        )


def _has_form(value: Any, known: Sequence[Any]) -> bool:
    """True if a value of JSON has the names and the types of one that is known; a whole number counts as a float."""
    if isinstance(value, dict):
        alike = [each for each in known if isinstance(each, dict) and each.keys() == value.keys()]
        return bool(alike) and all(_has_form(value[name], [each[name] for each in alike]) for name in value)
    if isinstance(value, list):
        lists = [each for each in known if isinstance(each, list)]
        items = [item for each in lists for item in each]
        return bool(lists) and (not items or all(_has_form(item, items) for item in value))
    kinds = {type(each) for each in known}
    return type(value) in kinds or (type(value) is int and float in kinds)


def _pin_record(store: AutotuneStore, record: Record, plain: Any) -> Record:
    changed = pinned(record, plain, now=time.time())
    named = named_layer(store)
    # Not merged: a person's choice replaces the stored record, even one of a stronger source.
    named.documents.replace(record.key.path, encode_record(changed))
    for layer in own_layers(store):
        held = None if layer is named else layer.read(record.key)
        if held is not None and held.source is Source.PINNED:
            # An older pin in the user's directory, which would be found first.
            layer.documents.delete(record.key.path)
    return changed


def _unpin_record(store: AutotuneStore, record: Record) -> Record | None:
    """Return the record without its pin; None if it is not pinned."""
    held = [(layer, found) for layer in own_layers(store) if (found := layer.read(record.key)) is not None]
    fixed = [(layer, found) for layer, found in held if found.source is Source.PINNED]
    if not fixed:
        return None
    for layer, found in fixed:
        if (changed := unpinned(found, now=time.time())) is None:
            raise NotFoundError(f"{record.key.digest} has no measurement to return to; `tuned rm` removes the record")
        layer.documents.replace(record.key.path, encode_record(changed))
    return changed


def _doubt(plain: Any, record: Record) -> str:
    """Return the reason why a configuration may not work, or an empty text."""
    tried = record.candidate(plain)
    if tried is not None:
        return "" if tried.status is Status.OK else f"this candidate {tried.status.value}: {tried.error}"
    if not record.candidates or plain in (record.configuration, record.default):
        return ""
    return f"{canonical_json(plain)} is not among the candidates that were measured"
