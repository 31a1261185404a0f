"""`ejcache ls KEY`: one entry with its header, and whether it is intact."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ejcache import entry
from ejcache.cli import output
from ejcache.cli.chosen_cache import open_cache
from ejcache.cli.fields import ENTRY, print_rows, profile_text
from ejcache.cli.listing import by_program, header_facts, list_entries, profile_fields, read_header
from ejcache.cli.selection import check_wanted, choose, identify_entry
from ejcache.errors import EntryError, NotFoundError
from ejcache.history.text import spell_types
from ejcache.keys.parsing import parse_any_key
from ejcache.util.units import format_size, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.cli.chosen_cache import OpenCache
    from ejcache.cli.listing import ListedEntry


def show_entry(key: str, directory: str | None, *, as_json: bool) -> int:
    """Print the entry that `key` names, or a line for each of several programs of that name; 1 if it is damaged.

    Raises:
        NotFoundError: there is none, or `key` is the beginning of the keys of several programs.
    """
    check_wanted(key)
    with open_cache(directory) as cache:
        found = _variants(cache, key)
        if len({row.program or row.info.key for row in found}) > 1:
            return _show_programs(cache, found, as_json=as_json)
        row = next((row for row in found if row.info.key == key), found[0])
        fields = row.fields() | {"url": cache.url, "problem": ""}
        fields |= _entry_fields(cache, row, fields)
        fields["variants"] = [
            other.fields() | {"profile": header_facts(other, cache)["profile"]}
            for other in found
            if row.program is not None
        ]
    if as_json:
        output.print_json(fields)
    else:
        _print_entry(fields)
    return int(bool(fields["problem"]))


def _show_programs(cache: OpenCache, found: Sequence[ListedEntry], *, as_json: bool) -> int:
    """Print a line for each program of one name: what tells them apart are their arguments and results."""
    headers = [read_header(cache.store, row.info.key) if cache.store is not None else None for row in found]
    signatures = [
        spell_types(str(header.extra.get("signature", ""))) if header is not None else "" for header in headers
    ]
    fields = [row.fields() | {"signature": each} for row, each in zip(found, signatures, strict=True)]
    if as_json:
        output.print_json({"url": cache.url, "entries": fields})
        return 0
    print_rows(ENTRY, ("key", "size", "last used", "arguments and results"), fields, least=("last used", "size"))
    output.say(f"{plural(len(found), 'entry', 'entries')} of {found[0].parts.name}; ejcache ls KEY shows one of them")
    return 0


def _variants(cache: OpenCache, key: str) -> list[ListedEntry]:
    """Return the variants of the program that `key` names, found in one listing."""
    parts = parse_any_key(key)
    wanted = f"{parts.logical}-{parts.environment}" if parts.logical else key
    found = by_program(choose(list_entries(cache), wanted, identify_entry, where=cache.url, all_of_a_name=True))
    if parts.logical and all(row.info.key != key for row in found):
        raise NotFoundError(f"nothing in {cache.url} has the key {key!r}")
    return found


def _entry_fields(cache: OpenCache, row: ListedEntry, listed: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    try:
        if cache.store is not None:
            entry.decode(cache.store.peek(row.info.key) or b"", key=row.info.key)
    except EntryError as exc:
        fields["problem"] = str(exc)
    header = None if cache.store is None else read_header(cache.store, row.info.key)
    if header is not None:
        noted = output.fields_of(header, "codec", "raw_size", "compile_seconds", "jax", "jaxlib", "profile_digest")
        noted |= {"writer": header.writer}
        named = output.fields_of(header, "name", "platform", "logical_key")
        fields |= noted | {name: value or listed[name] for name, value in named.items()}
        fields |= {
            "created": header.created or row.info.created,
            "payload": header.kind,
            "profile": profile_fields(header),
            "components": dict(header.components),
            "metadata": dict(header.extra),
        }
    return fields


def _print_entry(fields: dict[str, Any]) -> None:
    """Print what a person reads first, and digests last."""
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
    lines = [[name.capitalize(), fields[name] or "-"] for name in ("platform", "variant")]
    lines.append(["Size", size])
    if fields.get("compile_seconds") is not None:
        lines.append(["Compile time", f"{fields['compile_seconds']:.2f} s"])
    for label, name in (("Created", "created"), ("Last used", "last_used")):
        lines.append([label, f"{output.moment(fields[name])} ({output.ago(fields[name], now=now)})"])
    lines += [
        [label, str(fields[name])]
        for label, name in (("JAX", "jax"), ("jaxlib", "jaxlib"), ("Writer", "writer"))
        if fields.get(name)
    ]
    if fields.get("profile"):
        lines.append(["Measured with", profile_text(fields["profile"]).partition(", ")[2] or "-"])
    lines.append(["Intact", f"no: {fields['problem']}" if fields["problem"] else "yes"])
    for other in fields["variants"]:
        if other["key"] != fields["key"]:
            made = f"{format_size(other['size'])}, created {output.ago(other['created'], now=now)}"
            lines.append([f"Also {other['variant']}", f"{made}: {other['key']}"])
    return lines


def _metadata_lines(metadata: dict[str, Any]) -> list[list[str]]:
    """List the metadata that the writer of the entry noted; an object has a line for each of its values."""
    lines = []
    for name, value in sorted(metadata.items()):
        if isinstance(value, dict):
            lines += [[f"  {name}.{inner}", str(each) or "-"] for inner, each in sorted(value.items())]
        else:
            lines.append([f"  {name}", str(value)])
    return [["Metadata"], *lines] if lines else []


def _digest_lines(fields: dict[str, Any]) -> list[list[str]]:
    named = (("Program", "logical_key"), ("Environment", "environment_digest"), ("Profile", "profile_digest"))
    lines = [["Key", fields["key"]], *([label, str(fields[name])] for label, name in named if fields.get(name))]
    components = fields.get("components") or {}
    if components:
        lines += [["Components"], *([f"  {name}", str(value) or "-"] for name, value in sorted(components.items()))]
    return lines
