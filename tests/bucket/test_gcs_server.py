"""The loopback GCS server, through the real gcsfs and on the wire."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import json
import os
import socket
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import aiohttp
import gcsfs.core
import pytest
from gcsfs.retry import HttpError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from gcs_server import GcsServer, GcsServerProcess
from gcs_server.objects import ApiError
from gcs_server.wire import byte_range, parse_fields, select_fields, split_multipart


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


class TestGcsfs:
    def test_bytes_round_trip(self, fs):
        """Every byte, also the delimiters of lines and parts, comes back as it was sent."""
        for data in (b"", b"x", bytes(range(256)) * 40, b"\r\n\x00\n\r" * 100, os.urandom(300_000)):
            fs.pipe_file("bucket/a/name with space+%?#.bin", data)
            assert fs.cat_file("bucket/a/name with space+%?#.bin") == data

    def test_ranges(self, fs):
        """First, last and middle bytes are what a slice would give, and a range past the end is empty or refused."""
        data = bytes(range(200))
        fs.pipe_file("bucket/r", data)
        assert fs.cat_file("bucket/r", start=10, end=20) == data[10:20]
        assert fs.cat_file("bucket/r", start=-5) == data[-5:]
        assert fs.cat_file("bucket/r", start=190) == data[190:]
        assert fs.cat_file("bucket/r", start=150, end=999) == data[150:]
        with pytest.raises(HttpError):
            fs.cat_file("bucket/r", start=500)

    def test_create_once(self, server, fs):
        """Of 16 threads that create one object, one wins, and its bytes stand."""
        with concurrent.futures.ThreadPoolExecutor(16) as pool:

            def create(number):
                try:
                    fs.pipe_file("bucket/once", b"%d" % number, mode="create")
                except FileExistsError:
                    return None
                return b"%d" % number

            winners = [w for w in pool.map(create, range(16)) if w is not None]
        assert len(winners) == 1
        assert server.objects()["once"] == winners[0]

    @pytest.mark.filterwarnings("ignore:Sending a large body directly")
    def test_resumable_upload(self, server, fs, tmp_path):
        """Files written in parts, and small ones through `open`, arrive whole, also create-only."""
        data = os.urandom(1_500_000)
        fs.pipe_file("bucket/parts", data, chunksize=512 * 1024)
        assert server.objects()["parts"] == data
        with fs.open("bucket/opened", "wb", block_size=2**18) as file:
            file.write(data[:700_000])
            file.write(data[700_000:])
        assert server.objects()["opened"] == data
        (tmp_path / "big").write_bytes(data * 4)
        fs.put_file(str(tmp_path / "big"), "bucket/put", chunksize=2**21)
        assert server.objects()["put"] == data * 4
        # Not with `open("xb")`: its failure crashes CPython 3.12.1 (a BytesIO collected while its buffer is exported).
        with pytest.raises(FileExistsError):
            fs.pipe_file("bucket/opened", data[::-1], chunksize=512 * 1024, mode="create")
        assert server.objects()["opened"] == data

    def test_resumable_upload_survives_lost_answers(self, server, fs):
        """The last part, whose answer was lost, is sent again and counts once."""
        data = os.urandom(1_500_000)
        server.add_fault("drop_after", query="upload_id", count=1, skip=2)
        fs.pipe_file("bucket/parts", data, chunksize=512 * 1024)
        assert server.objects()["parts"] == data

    def test_listing_pages_and_prefixes(self, fs, server):
        """Listings come in pages of at most 1000, in order, with prefixes for directories."""
        for number in range(2500):
            server.api.buckets["bucket"].insert(f"d{number % 3}/{number:05}", b"x", {}, {})
        server.clear_requests()
        assert len(fs.find("bucket")) == 2500
        assert [r.status for r in server.requests] == [200, 200, 200]
        assert fs.ls("bucket", detail=False) == ["bucket/d0", "bucket/d1", "bucket/d2"]
        assert len(fs.ls("bucket/d1")) == 833
        assert fs.glob("bucket/d2/0000*") == ["bucket/d2/00002", "bucket/d2/00005", "bucket/d2/00008"]
        assert sorted(fs.find("bucket", prefix="d1/0001")) == [f"bucket/d1/{n:05}" for n in (10, 13, 16, 19)]

    def test_information(self, fs):
        """The resource names size, checksums, times and generation, and generations grow."""
        fs.pipe_file("bucket/i", b"12345", metadata={"who": "me"})
        first = fs.info("bucket/i")
        assert (first["size"], first["type"], first["metadata"]) == (5, "file", {"who": "me"})
        assert first["md5Hash"] == "gnzLDuqKcGxMNKFokfhOew=="
        assert fs.created("bucket/i").timestamp() == pytest.approx(time.time(), abs=60)
        fs.pipe_file("bucket/i", b"12345")
        assert int(fs.info("bucket/i")["generation"]) > int(first["generation"])
        assert fs.exists("bucket/i")
        assert not fs.exists("bucket/j")
        with pytest.raises(FileNotFoundError):
            fs.cat_file("bucket/j")
        with pytest.raises(FileNotFoundError):
            fs.cat_file("elsewhere/j")

    def test_metadata_is_patched(self, fs):
        """Setting attributes changes those alone, counts a metageneration, and keeps the generation."""
        fs.pipe_file("bucket/m", b"m", metadata={"a": "1", "b": "2"})
        before = fs.info("bucket/m")
        fs.setxattrs("bucket/m", a="3", b=None, fixed_key_metadata={"custom_time": "2026-01-01T00:00:00Z"})
        after = fs.info("bucket/m")
        assert after["metadata"] == {"a": "3"}
        assert after["customTime"] == "2026-01-01T00:00:00Z"
        assert after["generation"] == before["generation"]
        assert after["metageneration"] == "2"

    def test_copy_move_merge(self, fs, server):
        """Copies, moves and compositions hold the bytes of their sources."""
        fs.pipe_file("bucket/one", b"1", metadata={"k": "v"})
        fs.cp_file("bucket/one", "bucket/two")
        fs.mv("bucket/two", "bucket/three")
        fs.merge("bucket/all", ["bucket/one", "bucket/three"])
        assert server.objects() == {"one": b"1", "three": b"1", "all": b"11"}
        assert fs.info("bucket/three")["metadata"] == {"k": "v"}

    def test_removal_one_by_one_and_in_batches(self, fs, server):
        """Removed objects are gone; a batch answers for each of its parts."""
        for number in range(5):
            fs.pipe_file(f"bucket/x/{number}", b"x")
        fs.rm_file("bucket/x/0")
        fs.rm(["bucket/x/1", "bucket/x/2"])
        out = gcsfs.core.asyn.sync(fs.loop, fs._rm_files, ["bucket/x/3", "bucket/x/9", "bucket/x/4"])
        assert out[0] == "bucket/x/3"
        assert isinstance(out[1], OSError)
        assert out[2] == "bucket/x/4"
        assert server.objects() == {}
        assert sum(r.path == "/batch/storage/v1" for r in server.requests) == 1

    def test_buckets(self, fs, server):
        """Buckets are made, listed, refused a second time, and removed when empty."""
        fs.mkdir("another")
        assert sorted(fs.ls("", detail=False)) == ["another/", "bucket/"]
        assert send(server, "POST", "/storage/v1/b?project=p", b'{"name": "another"}')[0] == 409
        assert send(server, "GET", "/storage/v1/b/another")[0] == 200
        fs.rmdir("another")
        assert send(server, "GET", "/storage/v1/b/another")[0] == 404


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

    def test_fields(self, server, fs):
        """A partial response holds what was asked for and nothing else."""
        for name in "abc":
            fs.pipe_file(f"bucket/{name}", b"x")
        path = f"/storage/v1/b/bucket/o?maxResults=2&fields={quote('items(name,size),nextPageToken')}"
        listing = json.loads(send(server, "GET", path)[2])
        assert listing["items"] == [{"name": "a", "size": "1"}, {"name": "b", "size": "1"}]
        assert set(listing) == {"items", "nextPageToken"}
        listing = json.loads(send(server, "GET", f"{path}&pageToken={listing['nextPageToken']}")[2])
        assert listing == {"items": [{"name": "c", "size": "1"}]}


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

    def test_probability_is_seeded(self):
        """The same seed befalls the same requests."""

        def statuses():
            with GcsServer(seed=7) as server:
                server.add_fault("status", status=429, probability=0.5)
                return [send(server, "GET", "/storage/v1/b/bucket")[0] for _ in range(20)]

        first = statuses()
        assert set(first) == {200, 429}
        assert statuses() == first

    def test_latency(self, server):
        """Every answer waits at least the latency, a rule's and the server's together."""
        server.latency = 0.05
        server.add_fault("latency", seconds=0.05, path="/b/bucket")
        send(server, "GET", "/storage/v1/b/bucket")
        assert server.requests[-1].seconds >= 0.1

    def test_unknown_action(self, server):
        """A fault that does not exist is refused by name."""
        with pytest.raises(ValueError, match="no fault 'explode'"):
            server.add_fault("explode")


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

    def test_the_log_is_bounded(self):
        """The log keeps the last requests only."""
        with GcsServer(log_limit=3) as server:
            for number in range(5):
                send(server, "GET", f"/storage/v1/b/b{number}")
            assert [r.path[-2:] for r in server.requests] == ["b2", "b3", "b4"]


class TestWire:
    def test_multipart_in_both_framings(self):
        """LF and CRLF framing give the same parts; a body without its end is refused."""
        for newline in (b"\n", b"\r\n"):
            body = newline.join(
                [b"--b", b"Content-Type: x/y", b"", b"{}", b"--b", b"A: 1", b"", b"pay\r\nload", b"--b--"]
            )
            assert split_multipart(body, b"b") == [({"content-type": "x/y"}, b"{}"), ({"a": "1"}, b"pay\r\nload")]
            with pytest.raises(ApiError):
                split_multipart(body[:-5], b"b")

    def test_byte_ranges(self):
        """Ranges are half open inside, and nonsense is the whole."""
        assert byte_range("bytes=2-4", 10) == (2, 5)
        assert byte_range("bytes=2-", 10) == (2, 10)
        assert byte_range("bytes=-4", 10) == (6, 10)
        assert byte_range("bytes=-40", 10) == (0, 10)
        assert byte_range(None, 10) is None
        assert byte_range("lines=1-2", 10) is None
        for header in ("bytes=10-", "bytes=-0", "bytes=0-"):
            with pytest.raises(ApiError):
                byte_range(header, 10 if header != "bytes=0-" else 0)

    def test_field_trees(self):
        """Nested selections, paths and stars select what the API's grammar says."""
        value = {"a": 1, "b": [{"c": 2, "d": {"e": 3, "f": 4}}], "g": 5}
        assert select_fields(value, parse_fields("a,b(c,d/e)")) == {"a": 1, "b": [{"c": 2, "d": {"e": 3}}]}
        assert select_fields(value, parse_fields("b/d/f,g")) == {"b": [{"d": {"f": 4}}], "g": 5}
        assert select_fields(value, parse_fields("*")) == value
