"""The formats of `ejcache autotune export` and `import` other than ejkernel's: tables in Python, and tokamax's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ejcache.cli import output
from ejcache.cli.target import NotFoundError
from ejcache.errors import StoreError, UsageError
from ejcache.util.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.autotune.records.record import Record
    from ejcache.autotune.records.store import Found

__all__ = ["check_template", "export_python", "export_tokamax", "read_tokamax"]

_TOKAMAX: str = "0.0.0"
"""The version that a JSON of tokamax names where a record does not say one."""
_SHOWN: int = 5


def check_template(kind: str, table: str | None, keys: Sequence[str], value: str | None) -> None:
    """Raise `UsageError` if the options of a template do not fit the format."""
    if kind == "ejkernel" and (table or keys or value):
        raise UsageError("ejkernel's files take no template: --table, --key and --value are for the other formats")
    if kind == "python" and not (table and keys and value):
        raise UsageError("a table in Python needs --table NAME, --key for each level, and --value")
    if kind == "tokamax" and len(keys) > 1:
        raise UsageError("a table of tokamax has one --key: the arguments, an object")


def export_python(
    found: Sequence[Found], to: str, *, table: str, keys: Sequence[str], value: str, as_json: bool
) -> None:
    """Write a module with one table. Exits with 1 if the template does not fit a record."""
    from ejcache.autotune.tables.expressions import Expression
    from ejcache.autotune.tables.python import Template, entries_of, python_source

    template = Template([Expression(key) for key in keys], Expression(value))
    entries, problems = entries_of(found, template)
    _write(Path(to), python_source(table, entries).encode())
    _report(to, {Path(to).name: len(entries)}, problems, as_json=as_json)


def export_tokamax(
    found: Sequence[Found], to: str, *, table: str | None, keys: Sequence[str], value: str | None, as_json: bool
) -> None:
    """Write tokamax's files, merged with those in the directory, or its JSON if `to` ends with .json."""
    from ejcache.autotune.tables.expressions import Expression
    from ejcache.autotune.tables.tokamax import changed_table, result_of, table_entries

    if to.endswith(".json"):
        if keys or value or table:
            raise UsageError("tokamax's JSON of an autotuning takes no template: name a directory for tokamax's files")
        data, problems = result_of(found, _TOKAMAX)
        _write(Path(to), data)
        _report(to, {Path(to).name: len(found) - len(problems)}, problems, as_json=as_json)
        return
    key = Expression(keys[0]) if keys else None
    files, problems = table_entries(found, name=table, key=key, value=None if value is None else Expression(value))
    written = {}
    for (device, operation), entries in sorted(files.items()):
        name = f"{device}/{operation}.json"
        if not {device, operation}.isdisjoint({"", ".", ".."}) or "/" in device + operation:
            problems.append(f"{name}: this is not the name of a file")
            continue
        path = Path(to, device, f"{operation}.json")
        try:
            data = changed_table(path.read_bytes() if path.exists() else None, entries)
        except UsageError as exc:
            problems.append(f"{name}: {exc}")
            continue
        _write(path, data)
        written[name] = len(entries)
    _report(to, written, problems, as_json=as_json)


def read_tokamax(files: Sequence[str]) -> tuple[list[Record], list[str]]:
    """The records in tokamax's files, in directories with them, and in its JSONs; a line for each that is not read."""
    from ejcache.autotune.tables.tokamax import MAX_TABLE_BYTES, read_table

    records: list[Record] = []
    problems: list[str] = []
    for name in files:
        source = Path(name)
        if not source.exists():
            raise NotFoundError(f"{name} does not exist")
        for path in sorted(source.rglob("*.json")) if source.is_dir() else [source]:
            try:
                with path.open("rb") as file:
                    data = file.read(MAX_TABLE_BYTES + 1)
                found, failures = read_table(data, device=path.resolve().parent.name, operation=path.stem)
            except (OSError, UsageError) as exc:
                problems.append(f"{path}: {exc}")
                continue
            records += found
            problems += [f"{path}: {failure}" for failure in failures]
    return records, problems


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data, mode=0o644)
    except OSError as exc:
        raise StoreError(f"{path} cannot be written: {exc}") from exc


def _report(to: str, files: dict[str, int], problems: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        output.print_json(
            {"to": to, "files": files, "left_out": len(problems), "failed": 0, "problems": list(problems)}
        )
    else:
        written = output.plural(sum(files.values()), "record")
        output.say(f"wrote {written} to {output.plural(len(files), 'file')} in {to}")
        for problem in problems[:_SHOWN]:
            output.warn(f"left out: {problem}")
        if len(problems) > _SHOWN:
            output.warn(f"and {len(problems) - _SHOWN} more were left out")
    if problems or not sum(files.values()):
        raise typer.Exit(1)
