"""`ejcache autotune merge`, `import` and `export`, and the comparison of two stores."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ejcache.cli import output
from ejcache.cli.autotune_place import AutotuneDir, named_layer, opened_store, strongest
from ejcache.cli.options import Json  # noqa: TC001 (typer reads the annotations)
from ejcache.errors import SettingError, StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.autotune.records import Record

__all__ = ["compare_stores", "export", "import_", "is_place", "merge"]


class Format(StrEnum):
    """What `import` reads and `export` writes."""

    ejcache = "ejcache"
    ejkernel = "ejkernel"


_Sources = Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Directories or URLs.")]


def merge(sources: _Sources, directory: AutotuneDir = None, as_json: Json = False) -> None:
    """Merge the records of other stores into this one: the stronger choice stands, all evidence is kept."""
    _take_in([record for source in sources for record in _records_of(source)], directory, [], as_json=as_json)


def import_(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="ejkernel's files, directories of them, or stores.")
    ],
    directory: AutotuneDir = None,
    format: Annotated[  # noqa: A002  # the option's name
        Format | None, typer.Option("--format", help="Of the sources; by default what they look like.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Take in records of a store, or the entries of ejkernel's `<operation>.json` files.

    The latter rank below what was measured here, because the files do not say how an entry was found.
    """
    records: list[Record] = []
    problems: list[str] = []
    for source in sources:
        kinds = (format,) if format is not None else _kinds_of(source)
        if Format.ejcache in kinds:
            records += _records_of(source)
        if Format.ejkernel in kinds:
            found, said = _from_ejkernel(source)
            records += found
            problems += said
    _take_in(records, directory, problems, as_json=as_json)


def export(
    directory: AutotuneDir = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="Write there, merged with what is there.")
    ] = None,
    format: Annotated[  # noqa: A002  # the option's name
        Format, typer.Option("--format", help="Records, or ejkernel's `<operation>.json` files.")
    ] = Format.ejcache,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a page with charts.")] = None,
    operation: Annotated[str | None, typer.Option("--operation", metavar="NAME", help="Only this operation.")] = None,
    as_json: Json = False,
) -> None:
    """Write the records to another store, to ejkernel's files, or as a page.

    A directory of records is what EJCACHE_AUTOTUNE_SEEDS takes. ejkernel's files get only what ejkernel has a key of
    its own for.
    """
    from ejcache.autotune.exchange import export_to_ejkernel
    from ejcache.autotune.exchange import merge as merge_records
    from ejcache.autotune.layer import Layer
    from ejcache.autotune.page import page
    from ejcache.stores.documents import open_documents

    if to is None and html is None:
        raise UsageError("export needs --to or --html")
    with opened_store(directory) as store:
        found = strongest(store.records(operation=operation))
    fields: dict[str, Any] = {"records": len(found)}
    if to is not None and format is Format.ejkernel:
        documents = open_documents(to)
        if documents.remote and "://" in documents.url:
            raise SettingError("--to", to, "a directory, because ejkernel reads its files from nowhere else")
        written, left_out, failed = export_to_ejkernel(found, documents)
        fields |= {"url": to, "files": dict(written), "left_out": left_out, "failed": failed}
    elif to is not None:
        outcome = merge_records((item.record for item in found), Layer("export", open_documents(to)))
        fields |= {"url": to, **_counted(outcome)}
    if html is not None:
        try:
            Path(html).write_text(page(found), encoding="utf-8")
        except OSError as exc:
            raise StoreError(f"{html} cannot be written: {exc}") from exc
        fields["html"] = html
    _report(fields, as_json=as_json)
    if fields.get("failed"):
        raise typer.Exit(1)


def is_place(text: str) -> bool:
    """Whether an argument names a store and no record."""
    return "://" in text or "/" in text or Path(text).is_dir()


def compare_stores(one: str, other: str) -> dict[str, dict[str, list[Any]]]:
    """Key by key, where two stores differ: a configuration, or None for no record."""
    left = {record.key.text: record.configuration for record in _records_of(one)}
    right = {record.key.text: record.configuration for record in _records_of(other)}
    return {
        "record": {
            key: [left.get(key), right.get(key)]
            for key in sorted(left.keys() | right.keys())
            if left.get(key) != right.get(key)
        }
    }


def _records_of(source: str) -> list[Record]:
    path = _local(source)
    if path is not None and not path.is_dir():
        raise UsageError(f"{source} is no directory, and so no store of tuned configurations")
    with opened_store(source) as store:
        records = [item.record for item in strongest(store.records(layer=store.layers[0].name))]
        failed = store.stats()["errors"] > 0
    if failed:
        raise StoreError(f"{source} cannot be read")
    if path is None and not records:
        # A prefix in a bucket is there only if something is below it.
        raise UsageError(f"there are no tuned configurations in {source}")
    return records


def _local(source: str) -> Path | None:
    """Where a source is on this machine, None if it is elsewhere; raises `UsageError` if it is not there."""
    from ejcache.stores.opening import local_path

    text = local_path(source)
    if text is None:
        return None
    path = Path(text)
    if not path.exists():
        raise UsageError(f"there is no {source}")
    return path


def _kinds_of(source: str) -> Sequence[Format]:
    """What a source may hold: ejkernel's files may lie beside a store's records."""
    path = _local(source)
    if path is None:
        return (Format.ejcache,)
    return (Format.ejcache, Format.ejkernel) if path.is_dir() else (Format.ejkernel,)


def _from_ejkernel(source: str) -> tuple[list[Record], list[str]]:
    from ejcache.autotune.exchange import import_from_ejkernel
    from ejcache.stores.documents import open_documents

    path = _local(source)
    if source.endswith(".json") if path is None else not path.is_dir():
        root, _, name = source.rpartition("/") if path is None else (str(path.parent), "/", path.name)
        return import_from_ejkernel(open_documents(root, read_only=True), [name])
    documents = open_documents(source, read_only=True)
    names = [name for name in documents.list("") if name.endswith(".json") and "/" not in name]
    return import_from_ejkernel(documents, names)


def _take_in(records: list[Record], directory: str | None, problems: list[str], *, as_json: bool) -> None:
    from ejcache.autotune.exchange import merge as merge_records

    with opened_store(directory, write=True) as store:
        target = named_layer(store)
        outcome = merge_records(records, target)
    for problem in problems:
        output.warn(problem)
    _report({"url": target.documents.url, **_counted(outcome), "problems": problems}, as_json=as_json)
    if problems or outcome["failed"]:
        raise typer.Exit(1)


def _counted(outcome: Any) -> dict[str, int]:
    return {name: outcome[name] for name in ("new", "changed", "same", "failed")}


def _report(fields: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.print_json(fields)
    else:
        output.print_pairs([(name, str(value)) for name, value in fields.items() if name != "problems"])
