"""The loopback GCS server on the wire; what real clients make of it is in the tests of buckets."""

from __future__ import annotations

from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from gcs_server import GcsServer


@pytest.fixture
def server():
    with GcsServer() as server:
        yield server


def send(server, method, path, body=None, **headers):
    """Status, headers and body of one raw request."""
    request = Request(server.url + path, body, headers, method=method)
    try:
        with urlopen(request, timeout=60) as response:
            return response.status, response.headers, response.read()
    except HTTPError as exc:
        with exc:
            return exc.code, exc.headers, exc.read()


def test_status_codes(server):
    """Conditions that do not hold are answered 412 on writes, deletes and reads, and 304 for a needless read."""
    generation = server.api.buckets["bucket"].insert("c", b"1", {}, {}).generation
    upload = "/upload/storage/v1/b/bucket/o?uploadType=media&name=c"
    media, meta = "/download/storage/v1/b/bucket/o/c?alt=media", "/storage/v1/b/bucket/o/c?"
    stale = generation - 1
    patch = b'{"metadata": {"a": "1"}}'
    for method, path, body, status in [
        ("POST", f"{upload}&ifGenerationMatch=0", b"2", 412),
        ("POST", f"{upload}&ifGenerationMatch={stale}", b"2", 412),
        ("GET", f"{media}&ifGenerationMatch={stale}", None, 412),
        ("GET", f"{media}&ifGenerationNotMatch={generation}", None, 304),
        ("GET", f"{media}&ifGenerationNotMatch={stale}", None, 200),
        ("GET", f"{meta}ifMetagenerationMatch=2", None, 412),
        ("GET", f"{meta}generation={stale}", None, 404),
        ("PATCH", f"{meta}ifMetagenerationMatch=2", patch, 412),
        ("PATCH", f"{meta}ifMetagenerationMatch=1", patch, 200),
        ("DELETE", f"{meta}ifGenerationMatch={stale}", None, 412),
        ("DELETE", f"{meta}generation={stale}", None, 404),
        ("POST", f"{upload}&ifGenerationMatch={generation}", b"3", 200),
        ("DELETE", f"{meta}ifGenerationMatch={generation}", None, 412),
        ("DELETE", meta, None, 204),
        ("DELETE", meta, None, 404),
        ("POST", f"{upload}&ifGenerationMatch=0", b"4", 200),
    ]:
        assert send(server, method, path, body)[0] == status, (method, path)
    assert server.objects() == {"c": b"4"}
