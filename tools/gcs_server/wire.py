"""The formats on the wire: multipart bodies, byte ranges, and the `fields` of a partial response."""

from __future__ import annotations

import re
from typing import Any

from gcs_server.objects import ApiError

__all__ = ["Fields", "boundary_of", "byte_range", "parse_fields", "select_fields", "split_multipart"]

Fields = dict[str, "Fields"]

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def boundary_of(content_type: str) -> bytes:
    match = re.search(r'boundary="([^"]+)"|boundary=([^;\s]+)', content_type)
    if match is None:
        raise ApiError(400, "badRequest", "Multipart content type has no boundary.")
    return (match[1] or match[2]).encode()


def split_multipart(body: bytes, boundary: bytes) -> list[tuple[dict[str, str], bytes]]:
    """Headers and content of each part; lines may end in CRLF or, as gcsfs writes them, in LF.

    A part ends at the first delimiter, as MIME says, also where a payload contains it by accident.
    """
    delimiter = b"--" + boundary
    start = 0 if body.startswith(delimiter) else body.find(b"\n" + delimiter) + 1
    if not body.startswith(delimiter, start):
        raise ApiError(400, "badRequest", "Multipart body is malformed.")
    parts: list[tuple[dict[str, str], bytes]] = []
    while True:
        start += len(delimiter)
        if body.startswith(b"--", start):
            return parts
        crlf = body.startswith(b"\r\n", start)
        newline = b"\r\n" if crlf else b"\n"
        end = body.find(newline + delimiter, start)
        if end < 0 or not body.startswith(newline, start):
            raise ApiError(400, "badRequest", "Multipart body is malformed.")
        start += len(newline)
        head, _, content = body[start:end].partition(newline * 2)
        headers = {}
        for line in head.decode("latin-1").splitlines():
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        parts.append((headers, content))
        start = end + len(newline)


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last-but-one byte of a `Range` header, or None for the whole object."""
    match = _RANGE.fullmatch(header or "")
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        first, last = max(0, size - int(match[2])), size
        if int(match[2]) == 0:
            raise ApiError(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
    else:
        first, last = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
    if first >= size:
        raise ApiError(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
    return first, last


def parse_fields(text: str) -> Fields:
    """The tree that a `fields` parameter selects: `a,b(c,d),e/f`."""
    return _parse_fields(re.findall(r"[^,()/]+|[,()/]", text)[::-1])


def _parse_fields(tokens: list[str]) -> Fields:
    out: Fields = {}
    while tokens and tokens[-1] != ")":
        token = tokens.pop()
        if token == ",":
            continue
        node = out.setdefault(token.strip(), {})
        while tokens and tokens[-1] == "/":
            tokens.pop()
            node = node.setdefault(tokens.pop().strip() if tokens else "*", {})
        if tokens and tokens[-1] == "(":
            tokens.pop()
            node.update(_parse_fields(tokens))
            if tokens:
                tokens.pop()
    return out


def select_fields(value: Any, fields: Fields) -> Any:
    """What of a JSON value the tree selects."""
    if not fields or "*" in fields:
        return value
    if isinstance(value, list):
        return [select_fields(item, fields) for item in value]
    if isinstance(value, dict):
        return {key: select_fields(value[key], inner) for key, inner in fields.items() if key in value}
    return value
