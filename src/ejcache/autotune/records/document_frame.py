"""Writes and checks what all JSON documents of autotune have: kind, schema and checksum.

    {"ejcache": kind, "schema": number, …, "checksum": "sha256:…"}

The checksum covers the canonical JSON of all other fields. A document without one is read, because people write some by
hand. A document of a later schema is not used, and is no damage.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from ejcache.autotune.records.json_values import canonical_json, parse_json
from ejcache.errors import EntryCorruptError, EntryVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping


def encode_document(fields: Mapping[str, Any], *, kind: str, schema: int, checksum: bool = True) -> bytes:
    """Return the document, ready to be written. Raises ValueError if a field is not JSON."""
    body = {"ejcache": kind, "schema": schema, **fields}
    if checksum:
        body["checksum"] = _checksum_of(body)
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def decode_document(data: bytes, *, kind: str, schema: int, max_size: int) -> dict[str, Any]:
    """Return the fields of a document.

    Args:
        data: the document.
        kind: of documents that are accepted.
        schema: that is accepted.
        max_size: bytes; a longer document is refused.

    Raises:
        EntryCorruptError: it is truncated, changed, or of another kind.
        EntryVersionError: it is of a later schema.
    """
    try:
        body = parse_json(data, max_size=max_size)
    except ValueError as exc:
        raise EntryCorruptError(f"the {kind} is not JSON: {exc}") from exc
    if not isinstance(body, dict) or body.get("ejcache") != kind:
        raise EntryCorruptError(f"the document is JSON, but of another kind than {kind}")
    found = body.get("schema")
    if isinstance(found, int) and found > schema:
        raise EntryVersionError(f"the {kind} is of schema {found}, and this version reads {schema}")
    if found != schema:
        raise EntryCorruptError(f"the {kind} cannot be of schema {found!r}")
    if "checksum" in body and body["checksum"] != _checksum_of(body):
        raise EntryCorruptError(f"the {kind} does not match its checksum")
    return body


def _checksum_of(body: Mapping[str, Any]) -> str:
    covered = {name: value for name, value in body.items() if name != "checksum"}
    try:
        text = canonical_json(covered)
    except (ValueError, RecursionError) as exc:
        raise EntryCorruptError(f"it holds a value that JSON does not have: {exc}") from exc
    return "sha256:" + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
