"""The loopback GCS server, through the real gcsfs and on the wire."""

from __future__ import annotations

import contextlib
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import gcsfs.core
import pytest
from gcs_server import GcsServer, GcsServerProcess


@contextlib.contextmanager
def open_fs(server, **options):
    fs = gcsfs.core.GCSFileSystem(
        endpoint_url=server.url,
        token="anon",
        project="p",
        use_listings_cache=False,
        skip_instance_cache=True,
        **options,
    )
    try:
        yield fs
    finally:
        # gcsfs closes its session when it is collected, with a task that nobody waits for.
        if fs.session is not None:
            gcsfs.core.asyn.sync(fs.loop, fs.session.close)


@pytest.fixture
def server():
    with GcsServer() as server:
        yield server


@pytest.fixture
def fs(server):
    with open_fs(server) as fs:
        yield fs


def send(server, method, path, body=None, **headers):
    """Status, headers and body of one raw request."""
    request = Request(server.url + path, body, headers, method=method)
    try:
        with urlopen(request, timeout=60) as response:
            return response.status, response.headers, response.read()
    except HTTPError as exc:
        with exc:
            return exc.code, exc.headers, exc.read()


class TestConditions:
    def test_status_codes(self, server, fs):
        """Conditions that do not hold are answered 412 on writes, deletes and reads, and 304 for a needless read."""
        fs.pipe_file("bucket/c", b"1")
        generation = int(fs.info("bucket/c")["generation"])
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


class TestFaults:
    def test_reset_and_drop_after(self, server, fs):
        """A reset changes nothing; a drop after the commit leaves the object there, and the retry says it exists."""
        server.add_fault("reset", method="POST", count=1)
        with pytest.raises((ConnectionError, OSError)):
            send(server, "POST", "/upload/storage/v1/b/bucket/o?uploadType=media&name=x", b"x")
        assert server.objects() == {}
        server.add_fault("drop_after", method="POST", count=1)
        with pytest.raises(FileExistsError):
            fs.pipe_file("bucket/x", b"x", mode="create")
        assert server.objects() == {"x": b"x"}
        assert [r.status for r in server.requests] == [0, 0, 412]

    def test_bodies_are_cut_and_flipped(self, server, fs):
        """A truncated body is noticed by the client; a shortened or corrupted one is not."""
        data = bytes(1000)
        fs.pipe_file("bucket/b", data)
        server.add_fault("truncate", method="GET", count=1)
        assert fs.cat_file("bucket/b") == data
        assert sum(r.method == "GET" for r in server.requests) == 2
        server.add_fault("shorten", method="GET", count=1)
        assert fs.cat_file("bucket/b") == data[:500]
        server.add_fault("corrupt", method="GET", count=1)
        assert sum(byte.bit_count() for byte in fs.cat_file("bucket/b")) == 1


class TestServer:
    def test_process_and_its_controls(self):
        """The process serves gcsfs, and is controlled and read over HTTP."""
        with GcsServerProcess("--bucket", "other", "--page-size", "10") as server, open_fs(server) as fs:
            fs.pipe_file("other/x", b"x")
            server.add_fault("status", status=403, method="GET", count=1)
            with pytest.raises(OSError, match="Forbidden"):
                fs.cat_file("other/x")
            assert [(r.method, r.status) for r in server.requests] == [("POST", 200), ("GET", 403)]
            state = server.control(latency=0.001, write_interval=2)
            assert (state["page_size"], state["latency"], state["write_interval"]) == (10, 0.001, 2.0)
            assert state["buckets"] == {"other": 1}
            server.reset()
            assert server.requests == []
            assert send(server, "POST", "/__ctl", b'{"nonsense": 1}')[0] == 400
