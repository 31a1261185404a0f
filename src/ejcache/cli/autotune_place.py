"""The autotune store that a command works on, and how its records are found and shown."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ejcache.cli.output import warn
from ejcache.errors import SettingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ejcache.autotune.layer import Layer
    from ejcache.autotune.store import AutotuneStore, Found

__all__ = ["AutotuneDir", "find_record", "kept_layers", "named_layer", "opened_store", "record_fields", "strongest"]

AutotuneDir = Annotated[
    str | None,
    typer.Option(
        "--dir",
        metavar="URL",
        help="The autotune store: a directory or a URL. Default: EJKERNEL_PERSISTENT_CACHE_DIR, else the cache.",
        show_default=False,
    ),
]


@contextlib.contextmanager
def opened_store(directory: str | None, *, write: bool = False) -> Iterator[AutotuneStore]:
    """The store that `--dir`, or else the environment, names; trouble with its layers is said on stderr.

    Raises:
        UsageError: the URL is none.
    """
    from ejcache.autotune.store import AutotuneStore

    if directory is not None and not directory.strip():
        # A shell variable that was not set must not turn `rm --dir "$STORE"` on the default store.
        raise SettingError("--dir", directory, "a directory or a URL")
    store = AutotuneStore(directory, seeds=() if directory is not None else None, read_only=not write)
    try:
        yield store
    finally:
        store.close()
        if (errors := store.stats()["errors"]) > 0:
            warn(f"{errors} operations on the store failed")


def named_layer(store: AutotuneStore) -> Layer:
    """The place that `--dir` or the settings name, which is what commands change.

    Where the settings name a bucket, a directory of the user's comes before it, which only the user's programs read.
    """
    return next((layer for layer in store.layers if layer.name == "shared"), store.layers[0])


def kept_layers(store: AutotuneStore) -> list[Layer]:
    """The named place and the user's own directory, without what was shipped."""
    return [layer for layer in store.layers if not layer.seeds]


def strongest(found: Iterable[Found]) -> list[Found]:
    """Of the records of each key the one that counts, ordered by operation and key."""
    best: dict[str, Found] = {}
    for item in found:
        held = best.get(item.record.key.digest)
        if held is None or item.source.rank < held.source.rank:
            best[item.record.key.digest] = item
    return sorted(best.values(), key=lambda item: (item.record.key.operation, item.record.key.text))


def find_record(store: AutotuneStore, key: str) -> Found:
    """The one record whose key begins with `key`, or whose operation it is.

    Raises:
        UsageError: there is none, or several; the message names some.
    """
    found = [
        item
        for item in strongest(store.records())
        if item.record.key.digest.startswith(key) or key in {item.record.key.operation, item.record.key.text}
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"{named_layer(store).documents.url} has no record {key!r}; `ejcache autotune ls` lists them")
    some = ", ".join(item.record.key.digest[:12] for item in found[:5])
    url = named_layer(store).documents.url
    raise UsageError(f"{len(found)} records in {url} are meant by {key!r}: {some}{', ...' * (len(found) > 5)}")


def record_fields(item: Found, *, full: bool = False) -> dict[str, Any]:
    """A record for a machine.

    Args:
        item: the record.
        full: with all candidates and everything that is known of the measurement.
    """
    record = item.record
    candidate = record.candidate(record.configuration)
    fields: dict[str, Any] = {
        "key": record.key.digest,
        "text": record.key.text,
        "operation": record.key.operation,
        "version": record.key.version,
        "device": record.key.device,
        "environment": dict(record.key.environment),
        "configuration": record.configuration,
        "source": item.source.value,
        "layer": item.layer,
        "created": record.created,
        "seconds": None if candidate is None or candidate.seconds is None else candidate.seconds.p50,
        "gain": record.measurement.get("gain"),
        "candidates": len(record.candidates),
    }
    if full:
        fields |= {
            "call": dict(record.key.call),
            "default": record.default,
            "measurement": dict(record.measurement),
            "provenance": dict(record.provenance),
            "candidates": [
                {
                    "configuration": c.configuration,
                    "status": c.status.value,
                    "error": c.error,
                    "seconds": None
                    if c.seconds is None
                    else {"p20": c.seconds.p20, "p50": c.seconds.p50, "p80": c.seconds.p80},
                    "samples": 0 if c.seconds is None else c.seconds.samples,
                    "compile_seconds": c.compile_seconds,
                    "memory_bytes": c.memory_bytes,
                }
                for c in record.candidates
            ],
        }
    return fields
