"""What a bucket makes of a network: requests, retries, lost answers, deadlines, refusals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from answering import answer, serving
from buckets import GcsServer, gcs_bucket, s3_bucket
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from gcs_server.api import Reply, error_body
from memory_bucket import MemoryBucket

from ejcache.bucket.retry import RetryPolicy, TransientError
from ejcache.errors import StoreBusyError, StoreReadOnlyError, StoreUnavailableError
from ejcache.stores.shared.store import SharedStore

each_client = pytest.mark.usefixtures("gcs_client")
"""Our own client, and gcsfs in its place."""


@pytest.fixture
def server():
    with GcsServer() as server:
        yield server


@pytest.fixture
def bucket(server):
    bucket = gcs_bucket(server)
    yield bucket
    bucket.close()


@pytest.fixture
def unbroken(bucket):
    """A bucket that is asked again however often it failed."""
    bucket.breaker = None
    return bucket


class FirstTryIsShort(RetryPolicy):
    """Gives the first try of each operation little time, and the others what is theirs."""

    def run(self, what, attempt, **limits):
        short = iter([0.3])
        return super().run(what, lambda seconds: attempt(next(short, seconds)), **limits)


def said(server):
    """Method and status of every request since the last time."""
    lines = [(r.method, r.status) for r in server.requests]
    server.clear_requests()
    return lines


@each_client
class TestRequests:
    def test_hot_path(self, server, bucket):
        """A hit, a miss and a publication are one request each, and nothing lists."""
        store = SharedStore(bucket)
        assert store.get("k") is None
        assert said(server) == [("GET", 404)]
        assert store.put("k", b"value" * 1000) is True
        assert said(server) == [("POST", 200)]
        assert store.get("k") == b"value" * 1000
        assert said(server) == [("GET", 206)]
        assert store.put("k", b"other") is False
        assert said(server) == [("POST", 412)]
        assert store.contains("k") is True
        assert store.peek("k", length=4) == b"valu"
        assert [(r.method, r.bytes_out) for r in server.requests][1] == ("GET", 4)

    def test_large_objects_come_in_parts(self, server, bucket):
        """An object larger than a part is read in parts, and is whole."""
        bucket.part_size = 1000
        data = bytes(range(256)) * 10
        bucket.create("large", data)
        server.clear_requests()
        assert bucket.read("large").data == data
        assert [r.bytes_out for r in server.requests] == [1000, 1000, 560]
        assert bucket.read("large", length=1500).data == data[:1500]
        assert bucket.read("large", length=1000).size == 2560

    def test_replaced_between_parts(self, server, bucket, monkeypatch):
        """An object that is replaced while it is read in parts is read again, never a mixture."""
        bucket.part_size = 1000
        bucket.create("k", b"a" * 2500)
        handle, once = server.api.handle, iter([True])

        def answer_and_replace(call):
            reply = handle(call)
            if call.path.startswith("/download/") and next(once, False):
                server.api.buckets["bucket"].insert("prefix/k", b"b" * 2500, {}, {})
            return reply

        monkeypatch.setattr(server.api, "handle", answer_and_replace)
        assert bucket.read("k").data == b"b" * 2500
        assert [r.status for r in server.requests if r.method == "GET"] == [206, 412, 206, 206, 206]

    def test_pages(self, server, bucket):
        """A listing goes through all pages and names what is below the prefix only."""
        server.api.page_size = 7
        names = {f"v1/entries/{n:02}" for n in range(30)}
        for name in names | {"v1/other"}:
            bucket.create(name, b"x")
        server.clear_requests()
        assert {info.name for info in bucket.walk("v1/entries/")} == names
        assert len(server.requests) == 5
        assert all("fields" in r.query for r in server.requests)

    def test_deletion_in_batches(self, server, bucket):
        """Deletions go a hundred to a request, and those whose condition fails are left."""
        objects = server.api.buckets["bucket"]
        versions = [str(objects.insert(f"prefix/o/{n}", b"x", {}, {}).generation) for n in range(250)]
        wanted = [(f"o/{n}", version if n % 10 else "1") for n, version in enumerate(versions)]
        server.clear_requests()
        deleted = list(bucket.delete_many(iter([*wanted, ("o/none", None)])))
        assert sorted(deleted) == sorted(f"o/{n}" for n in range(250) if n % 10)
        assert len(server.requests) == 3
        assert len(server.objects()) == 25

    def test_payloads_that_look_like_the_protocol(self, bucket):
        """A payload with delimiters of gcsfs, of MIME and of HTTP in it comes back as it was."""
        data = b"\r\n--==0==--\r\n\r\nHTTP/1.1 200 OK\r\n\r\n--" + bytes(range(256)) + b"\n--==0==\n"
        bucket.create("k", data)
        assert bucket.read("k").data == data

    def test_odd_names_and_no_prefix(self, server):
        """Names are escaped in addresses, and a bucket needs no prefix."""
        bucket = gcs_bucket(server, "")
        for name in ("a/b c", "a/%2F+&?#=", "a/{0}", "a/é"):
            assert bucket.create(name, name.encode())
            assert bucket.read(name).data == name.encode()
        assert {info.name for info in bucket.walk("a/")} == set(server.objects())
        bucket.close()

    def test_an_endpoint_without_a_scheme(self, server):
        """An emulator may be named by its host and port alone."""
        bucket = gcs_bucket(server.url.removeprefix("http://"))
        assert bucket.create("k", b"x") is True
        bucket.close()

    def test_versions(self, bucket):
        """A write or a deletion under a version happens if it still is that, and not otherwise."""
        first = bucket.write("k", b"1")
        second = bucket.write("k", b"2", version=first)
        assert second != first
        assert bucket.write("k", b"3", version=first) is None
        assert bucket.delete("k", version=first) is False
        assert bucket.read("k").version == bucket.stat("k").version == second
        assert bucket.delete("k", version=second) is True
        assert bucket.write("k", b"4", version=second) is None


@each_client
class TestLostAnswers:
    @pytest.mark.usefixtures("retry_time")
    def test_own_creation_is_recognised(self, server, bucket):
        """A creation that happened although its answer was lost is our own, by its bytes."""
        server.add_fault("drop_after", method="POST", count=1)
        assert bucket.create("k", b"mine") is True
        assert said(server) == [("POST", 0), ("POST", 412), ("GET", 206)]

    @pytest.mark.usefixtures("retry_time")
    def test_another_ones_creation_is_recognised(self, server, bucket):
        """A creation that was cut off, while another one's stood, is not ours."""
        gcs_bucket(server).create("k", b"theirs")
        server.add_fault("reset", method="POST", count=1)
        assert bucket.create("k", b"mine") is False

    @pytest.mark.usefixtures("retry_time")
    def test_own_deletion_is_recognised(self, server, bucket):
        """A deletion that happened although its answer was lost is our own."""
        bucket.create("k", b"x")
        server.add_fault("drop_after", method="DELETE", count=1)
        assert bucket.delete("k") is True
        assert bucket.delete("k") is False

    @pytest.mark.usefixtures("retry_time")
    def test_own_swap_is_recognised(self, server, bucket):
        """A conditional overwrite that happened although its answer was lost is our own, and gives its version."""
        first = bucket.write("k", b"1")
        server.add_fault("drop_after", method="POST", count=1)
        assert bucket.write("k", b"2", version=first) == bucket.stat("k").version

    @pytest.mark.usefixtures("retry_time")
    def test_lost_batch(self, server, bucket):
        """What a batch has deleted counts although its answer was lost; what another process has replaced does not."""
        versions = {f"o/{n}": bucket.write(f"o/{n}", b"x") for n in range(5)}
        bucket.write("o/0", b"another process's")
        server.add_fault("drop_after", path="/batch", count=1)
        assert sorted(bucket.delete_many(versions.items())) == [f"o/{n}" for n in range(1, 5)]
        assert server.objects() == {"prefix/o/0": b"another process's"}

    @pytest.mark.parametrize(
        ("reason", "error"), [("forbidden", StoreReadOnlyError), ("rateLimitExceeded", StoreBusyError)]
    )
    def test_a_batch_whose_parts_are_refused(self, server, unbroken, monkeypatch, retry_time, reason, error):
        """Deletions that are not permitted say so at once; those that come too fast are tried again until the end."""
        unbroken.create("k", b"x")
        handle, refusal = server.api.handle, Reply(403, error_body(403, reason, "storage.objects.delete is needed"))
        monkeypatch.setattr(server.api, "handle", lambda call: refusal if call.method == "DELETE" else handle(call))
        server.clear_requests()
        with pytest.raises(error, match="delet"):
            list(unbroken.delete_many([("k", None)]))
        assert (len(server.requests) == 1) == (reason == "forbidden")

    @pytest.mark.parametrize("action", ["reset", "drop_after"])
    def test_one_winner_in_a_storm(self, server, action):
        """Eight that create the same objects through a breaking network have one winner each, whose bytes stand."""
        server.add_fault(action, method="POST", probability=0.15, seconds=0.1)
        buckets = [gcs_bucket(server) for _ in range(8)]

        def create(me):
            return {n for n in range(12) if buckets[me].create(f"o/{n}", b"%d" % me)}

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(create, range(8)))
        for n in range(12):
            (winner,) = [me for me in range(8) if n in won[me]]
            assert server.objects()[f"prefix/o/{n}"] == b"%d" % winner
        for bucket in buckets:
            bucket.close()


class HeadersMayBeLate(RetryPolicy):
    """Gives each try longer than the budget: a busy machine may need a second for a header."""

    def run(self, what, attempt, **options):
        return super().run(what, lambda _: attempt(1.5), **options)


@each_client
class TestTrouble:
    @pytest.mark.usefixtures("retry_time")
    @pytest.mark.parametrize(
        "fault",
        [
            {"action": "status", "status": 503},
            {"action": "status", "status": 429},
            {"action": "status", "status": 408},
            {"action": "reset"},
            {"action": "truncate"},
            {"action": "drop_after"},
        ],
        ids=lambda fault: f"{fault['action']}-{fault.get('status', '')}-{len(fault)}",
    )
    def test_passing_trouble_is_retried(self, server, bucket, fault):
        """Two failures of each kind cost a get and a put nothing but time."""
        bucket.create("k", b"value")
        server.add_fault(**fault, count=2, method="GET")
        assert bucket.read("k").data == b"value"
        server.clear_faults()
        server.add_fault(**fault, count=2, method="POST")
        assert bucket.create("l", b"more") is True
        server.clear_faults()
        assert bucket.read("l").data == b"more"

    @pytest.mark.usefixtures("retry_time")
    def test_a_shortened_body_is_noticed(self, server, bucket):
        """A body that is shorter than its range is read again."""
        bucket.create("k", b"value" * 10)
        server.add_fault("shorten", method="GET", count=1)
        assert bucket.read("k").data == b"value" * 10

    @pytest.mark.parametrize("action", ["stall", "stall_body", "stall_after"])
    def test_stalling_forever(self, server, unbroken, action):
        """A storage that says nothing, or not everything, is busy at the deadline."""
        unbroken.create("k", b"value")
        unbroken.policy = RetryPolicy(deadline=0.2)
        server.add_fault(action)
        for call in (
            lambda: unbroken.read("k"),
            lambda: unbroken.create("l", b"x"),
            lambda: list(unbroken.walk("")),
            lambda: unbroken.stat("k"),
        ):
            with pytest.raises(StoreBusyError, match=r"no (full )?answer"):
                call()

    def test_a_byte_at_a_time(self):
        """A server whose answers never end, and never pause for long, is busy at the deadline, too."""
        ended = threading.Event()

        def drip(handler):
            handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
            handler.send_response(200)
            handler.send_header("X-Goog-Generation", "1")
            handler.send_header("Content-Length", "100000")
            handler.end_headers()
            while not ended.wait(0.02):
                handler.wfile.write(b"x")

        with serving(drip) as server, gcs_bucket(f"http://127.0.0.1:{server.server_port}") as bucket:
            bucket.breaker, bucket.policy = None, HeadersMayBeLate(deadline=0.6)
            calls = (
                lambda: bucket.read("k"),
                lambda: bucket.create("k", b"x"),
                lambda: list(bucket.walk("")),
                lambda: bucket.delete("k"),
                lambda: bucket.stat("k"),
            )
            with ThreadPoolExecutor(len(calls)) as pool:
                for made in [pool.submit(call) for call in calls]:
                    with pytest.raises(StoreBusyError, match="no full answer"):
                        made.result()
            ended.set()

    def test_one_stall_leaves_time_for_another_try(self, server, bucket):
        """A connection that went silent is closed in time for a second one."""
        bucket.create("k", b"value")
        bucket.policy = FirstTryIsShort(deadline=60)
        server.add_fault("stall", count=1)
        assert bucket.read("k").data == b"value"

    @pytest.mark.usefixtures("retry_time")
    def test_gone(self, server, bucket):
        """A storage that is not there is unavailable after a few tries, and back when it is back."""
        bucket.create("k", b"value")
        server.stop()
        with pytest.raises(StoreUnavailableError, match="3 tries"):
            bucket.read("k")
        server.start()
        assert bucket.read("k").data == b"value"

    def test_forbidden(self, server, bucket):
        """A refusal is said at once: of a read as unavailable, of a write as read-only."""
        server.add_fault("status", status=403, message="does not have storage.objects access")
        with pytest.raises(StoreUnavailableError, match=r"may not read gs://bucket/prefix.*storage\.objects access"):
            bucket.read("k")
        with pytest.raises(StoreReadOnlyError, match="may not write"):
            bucket.create("k", b"x")
        with pytest.raises(StoreReadOnlyError):
            bucket.delete("k")
        assert len(server.requests) == 3

    def test_one_write_a_second(self, server, bucket, retry_time, monkeypatch):
        """Two overwrites of one object within a second succeed, because the second is tried again."""
        server.api.write_interval = 3600.0
        # Between two tries the second is over.
        monkeypatch.setattr(retry_time, "sleep", lambda _: setattr(server.api, "write_interval", 0.0))
        bucket.write("k", b"1")
        bucket.write("k", b"2")
        assert server.objects()["prefix/k"] == b"2"
        assert 429 in [r.status for r in server.requests]


@pytest.fixture
def account(tmp_path):
    """A service account's file, for a token server."""

    def write(token_url):
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        content = {
            "type": "service_account",
            "project_id": "p",
            "private_key_id": "1",
            "private_key": pem.decode(),
            "client_email": "someone@p.iam.gserviceaccount.com",
            "token_uri": token_url,
        }
        path = tmp_path / "account.json"
        path.write_text(json.dumps(content))
        return str(path)

    return write


@each_client
class TestCredentials:
    def test_a_credentials_file(self, account):
        """A service account's file gets a token, and every request carries it."""
        with GcsServer(token="secret") as server:
            bucket = gcs_bucket(server, credentials=account(server.token_url))
            assert bucket.create("k", b"x") is True
            assert bucket.read("k").data == b"x"
            bucket.close()
            nobody = gcs_bucket(server)
            with pytest.raises(StoreUnavailableError, match="refuses the credentials"):
                nobody.read("k")
            nobody.close()

    def test_a_token_that_cannot_be_had(self, account, server):
        """Credentials that cannot be renewed make the storage unavailable, not an error of Google's."""
        bucket = gcs_bucket(server, credentials=account(f"{server.url}/nowhere"))
        with pytest.raises(StoreUnavailableError, match="credentials cannot be renewed") as raised:
            bucket.read("k")
        assert "Invalid Credentials" not in str(raised.value)  # Google's own reason is shown
        bucket.close()


@each_client
class TestEnd:
    def test_a_program_that_ends(self, server, run_client_to_the_end, request):
        """A program that is ending writes with the client that it has, by the host's name, and makes no other one."""
        program = """
            import atexit, sys
            from ejcache.errors import StoreNotAskedError
            from ejcache.stores.opening import open_store

            large = bytes(2 << 20)

            def end():
                print(store.put("late", large))
                try:
                    closed.put("k", b"x")
                except StoreNotAskedError as exc:
                    print(exc)

            store, closed = open_store("gs://bucket/p"), open_store("gs://bucket/closed")
            store.put("early", large)
            store.add_counters({"hits": 2})
            atexit.register(end)  # before what closes the clients
            client = store.bucket.root
            if "gcsfs" in sys.argv:  # the next request looks the name up
                client._run_on_loop(client._finish, 60)
                client._made.future.result().system._session = None
            else:
                client._prepare().https.close()
            closed.get("k")
            closed.bucket.close()
        """
        variables = {"STORAGE_EMULATOR_HOST": server.url.replace("127.0.0.1", "localhost")}
        finished = run_client_to_the_end(program, request.getfixturevalue("gcs_client"), env=variables)
        written, refused = finished.stdout.splitlines()
        assert written == "True"
        assert refused == "gs://bucket/closed was not asked: the program is ending, and has made no client"
        assert finished.stderr == ""
        names = [name.split("/")[2] for name in server.objects()]
        assert sorted(names) == ["entries", "entries", "journal"]


def test_a_large_entry_over_a_slow_link():
    """What does not arrive in time at once is asked for in smaller parts; where nothing arrives the deadline holds."""
    bucket, asked = MemoryBucket(policy=RetryPolicy(deadline=120)), []
    value = os.urandom(20 << 20)
    bucket.create("k", value)

    def too_much(kind, name, start, length):
        asked.append(length)
        if length > 8 << 20:
            raise TransientError("no answer", busy=True)

    bucket.before = too_much
    assert bucket.read("k").data == value
    assert asked == [32 << 20, 8 << 20, 8 << 20, 8 << 20]
    assert bucket.read("k", length=3).data == value[:3]


REFUSED = [
    ("AccessDenied", 0, StoreReadOnlyError),
    ("InvalidRequest", 0, StoreUnavailableError),
    ("NoSuchKey", 0, []),
    ("NoSuchKey", 1, ["k"]),
    ("PreconditionFailed", 1, []),
]
"""The code with which S3 refuses a part of a batch, how many of its answers are lost, and what comes of it."""


@pytest.mark.usefixtures("retry_time")
def test_deletions_that_s3_refuses():
    """S3 refuses the parts of a batch within an answer that says 200; only what is gone already is no failure.

    After an answer was lost, what is gone was deleted by this process, and what was replaced was not.
    """
    codes, answers_lost = [], []

    def refuse(handler):
        sent = handler.rfile.read(int(handler.headers.get("Content-Length") or 0)).decode()
        body = ""
        if handler.command == "POST":
            (key,) = re.findall("<Key>(.*)</Key>", sent)
            if key == "prefix/k" and answers_lost and answers_lost.pop():
                handler.close_connection = True
                return
            # Another object than ours is the one by which the bucket finds out whether versions are compared.
            why = codes[-1] if key == "prefix/k" else "PreconditionFailed"
            refused = f"<Error><Key>{key}</Key><Code>{why}</Code><Message>so it is</Message></Error>"
            body = f'<?xml version="1.0"?><DeleteResult>{refused}</DeleteResult>'
        answer(handler, body.encode(), status=404 if handler.command == "HEAD" else 200)

    with serving(refuse) as server, s3_bucket(f"http://127.0.0.1:{server.server_port}") as bucket:
        bucket.breaker = None
        for code, lost, said in REFUSED:
            codes.append(code)
            answers_lost.extend([True] * lost)
            with contextlib.nullcontext() if isinstance(said, list) else pytest.raises(said, match="so it is"):
                assert list(bucket.delete_many([("k", None)])) == said, (code, lost)
            assert not answers_lost
