"""What a start asks Google's storage for by plain HTTPS: without gcsfs, with the same credentials, within bounds."""

from __future__ import annotations

import json
import socket
import threading

import fsspec.config
import pytest
from answering import VERSION, answer, serving
from buckets import GcsServer, gcs_bucket

from ejcache.bucket.breaker import CircuitBreaker
from ejcache.bucket.gcs import GcsBucket
from ejcache.bucket.gcs_https import GoogleHttps, is_left_to_gcsfs, open_google
from ejcache.bucket.https_client import HttpsClient
from ejcache.bucket.retry import RetryPolicy, TransientError
from ejcache.errors import StoreRefusedError, StoreUnavailableError

PROGRAM = """
import atexit, os, sys
atexit.register(lambda: print(sorted({"gcsfs", "aiohttp"} & set(sys.modules))))
from ejcache import entry
from ejcache.cache.opening import open_cache_store
from ejcache.settings.resolve import resolve

store = open_cache_store(sys.argv[1], resolve())
size = 2_000_000 if "large" in sys.argv else 100
for n in range(3 if "large" in sys.argv else 100):
    key = f"jit_f{n}-cpu-plain-{n:064x}"
    if store.get(key) is None:
        store.put(key, entry.encode(entry.Header(key=key), os.urandom(size)))
    else:
        store.note_used(key)
store.add_counters({"hits": 1})
if "flush" in sys.argv:
    assert store.flush(60)
"""


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch, tmp_path):
    """No configuration of fsspec's, whatever this user has; conftest's own variables are not of that kind."""
    monkeypatch.setenv("FSSPEC_CONFIG_DIR", str(tmp_path / "fsspec"))
    monkeypatch.setattr(fsspec.config, "conf", {})


def test_a_new_host_hits_without_gcsfs(bucket, run_python, tmp_path):
    """A hundred small uploads, a hundred hits, their journal and the end import neither gcsfs nor aiohttp."""
    url = f"gs://bucket/{tmp_path.name}"
    first = run_python(PROGRAM, url, "flush", env={"EJCACHE_LOCAL_DIR": str(tmp_path / "one")})
    assert (first.stdout, first.stderr) == ("[]\n", "")
    before = set(bucket.objects())
    assert sum("/entries/" in name for name in before) == 100
    hits = run_python(PROGRAM, url, env={"EJCACHE_LOCAL_DIR": str(tmp_path / "two")})
    assert (hits.stdout, hits.stderr) == ("[]\n", "")
    (journal,) = set(bucket.objects()) - before
    assert "/entries/" not in journal


def test_large_entries_are_uploaded_by_gcsfs(bucket, run_python, tmp_path):
    """Also those that a program had yet to upload when it ended, which cannot make another client then."""
    for when in ("flush", "at the end"):
        place = f"{tmp_path.name}-{when[0]}"
        env = {"EJCACHE_LOCAL_DIR": str(tmp_path / place)}
        done = run_python(PROGRAM, f"gs://bucket/{place}", "large", when, env=env)
        assert (done.stdout, done.stderr) == ("['aiohttp', 'gcsfs']\n", "")
        assert sum(name.startswith(place) and "/entries/" in name for name in bucket.objects()) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FSSPEC_GCS_REQUESTER_PAYS", "true"),
        ("FSSPEC_GS", '{"token": "anon"}'),
        ("GOOGLE_API_USE_CLIENT_CERTIFICATE", "true"),
        ("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "example.com"),
    ],
)
def test_what_gcsfs_is_told_is_left_to_it(monkeypatch, name, value):
    """Who pays, certificates of clients, another universe: gcsfs knows what to do."""
    assert is_left_to_gcsfs() is False
    monkeypatch.setenv(name, value)
    assert is_left_to_gcsfs() is True


def test_a_file_of_fsspec_is_left_to_gcsfs(tmp_path):
    """A file that may say something of Google's storage, and what a program has told fsspec."""
    (tmp_path / "fsspec").mkdir()
    (tmp_path / "fsspec" / "conf.json").write_text('{"s3": {}}')
    assert is_left_to_gcsfs() is False
    (tmp_path / "fsspec" / "conf.ini").write_text("[gcs]\nrequester_pays = true\n")
    assert is_left_to_gcsfs() is True
    (tmp_path / "fsspec" / "conf.ini").unlink()
    fsspec.config.conf["gcs"] = {"project": "p"}
    assert is_left_to_gcsfs() is True


def test_who_pays_is_asked_through_gcsfs(monkeypatch):
    """Where fsspec's configuration has something about gcs, reads carry what gcsfs adds."""
    monkeypatch.setenv("FSSPEC_GCS_REQUESTER_PAYS", "project")
    with GcsServer() as server, gcs_bucket(server) as bucket:
        bucket._options["requester_pays"] = "project"
        assert bucket.read("k") is None
        assert [r.query.get("userProject") for r in server.requests] == ["project"]


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (
            {"type": "authorized_user", "refresh_token": "r", "client_secret": "s", "client_id": "i"},
            "oauth2.credentials",
        ),
        ({"type": "gdch_service_account"}, None),
        ({}, None),
    ],
)
def test_credentials_of_a_file(found, kind):
    """Those of a user are made as gcsfs makes them; what is not known here is left to gcsfs."""
    google = open_google("http://127.0.0.1:1", token="file", found=found)
    assert (google is None) == (kind is None)
    if google is not None:
        assert type(google._credentials).__module__ == f"google.{kind}"
        assert google.is_stale is True


def test_a_token_is_renewed_once(monkeypatch):
    """Many threads that need a token ask for one."""
    renewed = []

    class Credentials:
        valid, expiry, token = False, None, None

        def refresh(self, request):
            renewed.append(threading.get_ident())
            self.valid = True

        def apply(self, headers):
            headers["authorization"] = "Bearer t"
            headers["x-goog-user-project"] = "quota"

    google = GoogleHttps("http://127.0.0.1:1", Credentials())
    threads = [threading.Thread(target=google.renew) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(renewed) == 1
    assert google.headers()["x-goog-user-project"] == "quota"


class SlowToken:
    """Credentials whose first token comes when `gate` is opened."""

    valid, expiry = False, None

    def __init__(self):
        self.asked, self.gate, self.times = threading.Event(), threading.Event(), 0

    def refresh(self, request):
        self.times += 1
        self.asked.set()
        assert self.gate.wait(60)
        self.valid = True

    def apply(self, headers):
        headers["authorization"] = "Bearer t"


def test_the_first_token_does_not_take_the_time_of_the_first_answer(monkeypatch):
    """It is asked for with the client: a server of tokens that is slow does not turn the cache off."""
    token = SlowToken()

    def reply(handler):
        answer(handler, b"data", {**VERSION, "Content-Range": "bytes 0-3/4"}, status=206)

    with serving(reply) as server:
        location = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("ejcache.bucket.gcs.open_google", lambda *args, **named: GoogleHttps(location, token))
        bucket = GcsBucket("b", endpoint_url=location)
        bucket.breaker = CircuitBreaker()
        read = []
        reader = threading.Thread(target=lambda: read.append(bucket.read("k")))
        before = bucket.breaker.patience
        reader.start()
        assert token.asked.wait(60)
        assert bucket.breaker.patience == before  # nothing of it is spent while the token is waited for
        token.gate.set()
        reader.join()
        assert read[0].data == b"data"
        assert token.times == 1
        bucket.close()


def test_a_token_that_cannot_be_had_is_no_hang(tmp_path):
    """Workload identity whose source of tokens is not there refuses, in a sentence with Google's reason."""
    source = {"url": "http://127.0.0.1:1/none"}
    found = {
        "type": "external_account",
        "audience": "a",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "http://127.0.0.1:1/token",
        "credential_source": source,
    }
    (tmp_path / "identity.json").write_text(json.dumps(found))
    bucket = GcsBucket(
        "b", credentials=str(tmp_path / "identity.json"), endpoint_url="http://127.0.0.1:1", policy=RetryPolicy(5.0)
    )
    bucket.breaker = None
    with pytest.raises(StoreRefusedError, match="credentials cannot be renewed"):
        bucket.read("k")
    bucket.close()


def send(location, **more):
    options = {"headers": {}, "body": b"", "seconds": 60.0, "body_seconds": 60.0, "most": 100}
    client = HttpsClient(location)
    try:
        return client.send("GET", "o/a%2Fb", {"alt": "media"}, **options | more)
    finally:
        client.close()


def test_a_request_is_what_it_says():
    """Path, query, method and headers arrive; a path of the location comes first, and connections are kept."""
    seen = []

    def reply(request):
        seen.append((request.path, request.headers["Accept-Encoding"], request.client_address))
        answer(request, b"body", {})

    with serving(reply) as server:
        client = HttpsClient(f"http://127.0.0.1:{server.server_port}/behind/")
        for _ in range(2):
            found = client.send(
                "GET",
                "o/a%2Fb",
                {"alt": "media"},
                headers={"Accept-Encoding": "identity"},
                body=b"",
                seconds=60.0,
                body_seconds=60.0,
                most=100,
            )
            assert (found.status, found.body) == (200, b"body")
        client.close()
    assert [path for path, _, _ in seen] == ["/behind/o/a%2Fb?alt=media"] * 2
    assert {encoding for _, encoding, _ in seen} == {"identity"}
    assert len({address for _, _, address in seen}) == 1


def test_a_header_that_comes_a_byte_at_a_time_is_given_up():
    """The request ends at its deadline, and so does the thread that waits for the rest: its connection is shut."""
    shut = threading.Event()

    def drip(listening):
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            connection.settimeout(60)
            while connection.recv(1000):
                connection.sendall(b"x")
            shut.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=drip, args=(listening,), daemon=True).start()
        with pytest.raises(TransientError, match="no answer for"):
            send(f"http://127.0.0.1:{listening.getsockname()[1]}", seconds=0.2, body_seconds=0.2)
        assert shut.wait(60)


def test_nobody_there():
    """A refused connection, and a name without an address, are known as what is not waited for, with the address."""
    for location, asked in (
        ("http://127.0.0.1:1", "127.0.0.1:1: "),
        ("http://no-such-host.invalid", "no-such-host.invalid:80: "),
    ):
        with pytest.raises(TransientError) as caught:
            send(location)
        assert caught.value.unreachable is True
        assert str(caught.value).startswith(asked)


def test_an_untrusted_server(tmp_path):
    """A server without TLS behind https:// is one error, not a connection that breaks again and again."""
    with (
        serving(lambda request: answer(request, b"x", {})) as server,
        pytest.raises((StoreUnavailableError, TransientError)),
    ):
        send(f"https://127.0.0.1:{server.server_port}")
