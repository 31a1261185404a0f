"""`ejcache show`: one entry, the components of its key, and whether it is intact."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from ejcache import entry
from ejcache.cli import output
from ejcache.cli.inspect import profile_text
from ejcache.cli.listing import (
    by_program,
    check_wanted,
    choose,
    header_facts,
    identify_entry,
    list_entries,
    profile_fields,
    read_header,
)
from ejcache.cli.options import Dir, Json, Key  # noqa: TC001 (typer reads the annotations)
from ejcache.cli.target import NotFoundError, open_target
from ejcache.errors import EntryError
from ejcache.keys.key import parse_any_key
from ejcache.stores.base import pinned_keys
from ejcache.util.units import format_size

if TYPE_CHECKING:
    from ejcache.cli.listing import ListedEntry
    from ejcache.cli.target import Target

__all__ = ["show"]


def show(key: Key, directory: Dir = None, as_json: Json = False) -> None:
    """Show one entry: its header, the components of its key, and whether it is intact.

    Of a program with several variants, the one compiled with a PGLE profile is shown and the others are listed. Exits
    with 1 if the entry is damaged, if there is none, or if KEY matches several programs.
    """
    check_wanted(key)
    with open_target(directory) as target:
        found = _variants(target, key)
        row = next((row for row in found if row.info.key == key), found[0])
        fields = row.fields() | {"url": target.url, "problem": "", "pinned": row.info.key in pinned_keys(target.store)}
        fields |= _jax_fields(target, row) if row.is_jax else _stored_fields(target, row, fields)
        fields["variants"] = [
            other.fields() | {"profile": header_facts(other, target)["profile"]}
            for other in found
            if row.program is not None
        ]
    if as_json:
        output.print_json(fields)
    else:
        _print_entry(fields)
    if fields["problem"]:
        raise typer.Exit(1)


def _variants(target: Target, key: str) -> list[ListedEntry]:
    """The variants of the program that `key` names, found in one listing."""
    parts = parse_any_key(key)
    wanted = f"{parts.logical}-{parts.environment}" if parts.logical else key
    found = by_program(choose(list_entries(target), wanted, identify_entry, where=target.url))
    if parts.logical and all(row.info.key != key for row in found):
        raise NotFoundError(f"nothing in {target.url} has the key {key!r}")
    return found


def _jax_fields(target: Target, row: ListedEntry) -> dict[str, Any]:
    try:
        return {"compile_seconds": target.jax.compile_seconds(row.info.key) if target.jax is not None else None}
    except EntryError as exc:
        return {"problem": str(exc)}


def _stored_fields(target: Target, row: ListedEntry, listed: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if target.store is None:
        return fields
    try:
        entry.decode(target.store.peek(row.info.key) or b"", key=row.info.key)
    except EntryError as exc:
        fields["problem"] = str(exc)
    header = read_header(target.store, row.info.key)
    if header is not None:
        said = output.fields_of(header, "codec", "raw_size", "compile_seconds", "jax", "jaxlib", "profile_digest")
        named = output.fields_of(header, "name", "platform", "logical_key")
        fields |= said | {name: value or listed[name] for name, value in named.items()}
        fields |= {
            "created": header.created or row.info.created,
            "payload": header.kind,
            "profile": profile_fields(header),
            "components": dict(header.components),
            "metadata": dict(header.extra),
        }
    return fields


def _print_entry(fields: dict[str, Any]) -> None:
    """What a person reads comes first, digests last."""
    sections = (
        [["Name", fields["name"] or "-"], *_state_lines(fields)],
        _metadata_lines(fields.get("metadata") or {}),
        _digest_lines(fields),
    )
    lines: list[list[str]] = []
    for section in filter(None, sections):
        lines += [[""], *section] if lines else section
    output.print_pairs(lines)


def _state_lines(fields: dict[str, Any]) -> list[list[str]]:
    now = time.time()
    size = format_size(fields["size"])
    if fields.get("raw_size"):
        size += f" ({format_size(fields['raw_size'])} uncompressed)"
    lines = [[name.capitalize(), fields[name] or "-"] for name in ("platform", "variant", "kind")]
    lines.append(["Size", size])
    if fields.get("compile_seconds") is not None:
        lines.append(["Compile time", f"{fields['compile_seconds']:.2f} s"])
    for label, name in (("Created", "created"), ("Last used", "last_used")):
        lines.append([label, f"{output.moment(fields[name])} ({output.ago(fields[name], now=now)})"])
    lines += [[label, str(fields[name])] for label, name in (("JAX", "jax"), ("jaxlib", "jaxlib")) if fields.get(name)]
    if fields.get("profile"):
        lines.append(["Measured with", profile_text(fields["profile"]).partition(", ")[2] or "-"])
    if fields["pinned"]:
        lines.append(["Pinned", "yes"])
    lines.append(["Intact", f"no: {fields['problem']}" if fields["problem"] else "yes"])
    for other in fields["variants"]:
        if other["key"] != fields["key"]:
            made = f"{format_size(other['size'])}, created {output.ago(other['created'], now=now)}"
            lines.append([f"Also {other['variant']}", f"{made}: {other['key']}"])
    return lines


def _metadata_lines(metadata: dict[str, Any]) -> list[list[str]]:
    """What the writer noted. An object has a line for each of its values."""
    lines = []
    for name, value in sorted(metadata.items()):
        if isinstance(value, dict):
            lines += [[f"  {name}.{inner}", str(each) or "-"] for inner, each in sorted(value.items())]
        else:
            lines.append([f"  {name}", str(value)])
    return [["Metadata"], *lines] if lines else []


def _digest_lines(fields: dict[str, Any]) -> list[list[str]]:
    named = (("Program", "logical_key"), ("Environment", "environment"), ("Profile", "profile_digest"))
    lines = [["Key", fields["key"]], *([label, str(fields[name])] for label, name in named if fields.get(name))]
    components = fields.get("components") or {}
    if components:
        lines += [["Components"], *([f"  {name}", str(value) or "-"] for name, value in sorted(components.items()))]
    return lines
