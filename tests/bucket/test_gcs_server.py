"""The loopback GCS server, through the real gcsfs and on the wire."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import socket
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import aiohttp
import gcsfs.core
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

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

    def test_swaps_never_lose_an_update(self, server, fs):
        """Eight threads that increment a counter under a generation condition count every increment."""
        fs.pipe_file("bucket/n", b"0")

        def increment(_):
            while True:
                headers, body = fs.call("GET", fs.url("bucket/n"))
                try:
                    fs.call(
                        "POST",
                        f"{server.url}/upload/storage/v1/b/bucket/o",
                        uploadType="media",
                        name="n",
                        ifGenerationMatch=headers["X-Goog-Generation"],
                        data=b"%d" % (int(body) + 1),
                    )
                except FileExistsError:
                    continue
                return

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(increment, range(80)))
        assert server.objects()["n"] == b"80"

    def test_one_write_a_second(self, server, fs):
        """With the quota on, a second change of the same object is refused, of another one is not."""
        server.api.write_interval = 60.0
        upload = "/upload/storage/v1/b/bucket/o?uploadType=media&name="
        assert send(server, "POST", upload + "q", b"1")[0] == 200
        assert send(server, "POST", upload + "q", b"2")[0] == 429
        assert send(server, "DELETE", "/storage/v1/b/bucket/o/q")[0] == 429
        assert send(server, "POST", upload + "r", b"1")[0] == 200
        assert server.objects() == {"q": b"1", "r": b"1"}


class TestFaults:
    def test_status_then_success(self, server, fs):
        """A counted status fault is retried by gcsfs, and the log tells it."""
        fs.pipe_file("bucket/f", b"f")
        server.clear_requests()
        server.add_fault("status", status=503, method="GET", path="/o/f$", count=1)
        assert fs.cat_file("bucket/f") == b"f"
        assert [(r.status, r.fault) for r in server.requests] == [(503, "status"), (200, "")]
        server.add_fault("status", status=403, count=1)
        with pytest.raises(OSError, match="Forbidden"):
            fs.cat_file("bucket/f")

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

    def test_stalls_end_with_the_client(self, server, fs):
        """A client with a read timeout leaves a stalled request, before or in the middle of the body."""
        fs.pipe_file("bucket/s", b"s" * 1000)
        with open_fs(server, requests_timeout=aiohttp.ClientTimeout(total=0.2)) as impatient:
            for action in ("stall", "stall_after", "stall_body"):
                server.clear_faults()
                server.add_fault(action, method="GET")
                with pytest.raises(TimeoutError):
                    impatient.cat_file("bucket/s")

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

    def test_latency(self, server):
        """Every answer waits at least the latency, a rule's and the server's together."""
        server.latency = 0.05
        server.add_fault("latency", seconds=0.05, path="/b/bucket")
        send(server, "GET", "/storage/v1/b/bucket")
        assert server.requests[-1].seconds >= 0.1


class TestServer:
    def test_stop_and_start_again(self, server):
        """A stopped server refuses; started again on its port it has its objects."""
        upload = "/upload/storage/v1/b/bucket/o?uploadType=media&name=x"
        assert send(server, "POST", upload, b"x")[0] == 200
        url = server.url
        server.stop()
        with pytest.raises(OSError, match="refused"):
            send(server, "GET", "/storage/v1/b/bucket")
        server.start()
        assert server.url == url
        assert server.objects() == {"x": b"x"}

    def test_stopping_closes_every_connection(self, monkeypatch):
        """Also those that were accepted a moment ago, and those whose client does not read its answer."""
        download = b"GET /download/storage/v1/b/bucket/o/large?alt=media HTTP/1.1\r\nHost: x\r\n\r\n"
        left = []
        monkeypatch.setattr(sys, "unraisablehook", lambda problem: left.append(str(problem.exc_value)))
        gc.collect()
        left.clear()
        for _ in range(20):
            with GcsServer() as server, contextlib.ExitStack() as clients:
                server.api.buckets["bucket"].insert("large", bytes(20_000_000), {}, {})
                for request in (b"", download) * 4:
                    client = clients.enter_context(socket.create_connection((server.host, server.port)))
                    client.sendall(request)
                server.stop()
        gc.collect()
        assert left == []

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
