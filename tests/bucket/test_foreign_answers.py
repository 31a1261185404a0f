"""Answers that no storage gives: without an end, compressed, nested, redirected, or with characters for a terminal."""

from __future__ import annotations

import gzip
import json
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from answering import VERSION, answer, serving
from buckets import gcs_bucket
from capabilities import require
from dead_ends import URLS, Trouble, any_request, leads_to
from soak_turns import some

from ejcache.bucket.retry import RetryPolicy
from ejcache.errors import StorageCause, StoreError, StoreUnavailableError
from ejcache.stores.opening import open_bucket

MEGABYTE = 1 << 20
FOLLOWED = []
"""Paths of requests that followed a redirect."""


def endless(handler):
    """A body in chunks that never ends."""
    handler.send_response(206)
    handler.send_header("Content-Range", "bytes 0-99/100")
    handler.send_header("X-Goog-Generation", "1")
    handler.send_header("ETag", '"x"')
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    chunk = b"%x\r\n%s\r\n" % (MEGABYTE, bytes(MEGABYTE))
    while True:
        handler.wfile.write(chunk)


def bomb(handler):
    """3 MB that are 3 GB to a client that decompresses them."""
    answer(handler, gzip.compress(bytes(64 * MEGABYTE)) * 48, VERSION | {"Content-Encoding": "gzip"})


def redirect(handler):
    """Another place, which is asked for on no account."""
    where = "/elsewhere"
    if handler.path.startswith(where):
        FOLLOWED.append(handler.path)
    answer(handler, b"", VERSION | {"Location": where}, status=302)


def nested(handler):
    """JSON, or XML, that is deeper than Python's stack."""
    if is_google(handler):
        answer(handler, b"[" * 200_000 + b"]" * 200_000, VERSION | {"Content-Type": "application/json"})
    else:
        answer(handler, b'<?xml version="1.0"?>' + b"<a>" * 500_000, VERSION | {"Content-Type": "application/xml"})


def repeating(handler):
    """A page of a listing that names itself as the next one."""
    when = "2026-01-01T00:00:00+00:00"
    item = {"name": "cache/v1/entries/aa/k", "size": "1", "timeCreated": when, "generation": "1"}
    amazon = (
        "<ListBucketResult><Name>bucket</Name><KeyCount>1</KeyCount><IsTruncated>true</IsTruncated>"
        f"<Contents><Key>cache/v1/k</Key><Size>1</Size><LastModified>{when}</LastModified><ETag>x</ETag></Contents>"
        "<NextContinuationToken>again</NextContinuationToken></ListBucketResult>"
    )
    microsoft = (
        '<EnumerationResults ContainerName="bucket"><Blobs><Blob><Name>cache/v1/k</Name><Properties>'
        "<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Etag>x</Etag><Content-Length>1</Content-Length>"
        "<BlobType>BlockBlob</BlobType></Properties></Blob></Blobs><NextMarker>again</NextMarker></EnumerationResults>"
    )
    if is_google(handler):
        answer(handler, json.dumps({"items": [item], "nextPageToken": "again"}).encode())
    else:
        body = '<?xml version="1.0" encoding="utf-8"?>' + (amazon if "list-type=2" in handler.path else microsoft)
        answer(handler, body.encode(), VERSION | {"Content-Type": "application/xml"})


def is_google(handler):
    return "/storage/v1/" in handler.path


def rude(handler):
    """An error whose words would clear the screen and forge a line of a log."""
    words = "\x1b[2J\x1b]0;owned\x07no\nINFO all is well"
    error = {"error": {"code": 400, "message": words, "errors": [{"reason": words, "message": words}]}}
    answer(handler, json.dumps(error).encode(), status=400)


PROGRAM = """
import resource, sys
from ejcache.errors import StoreError
from ejcache.stores.opening import open_bucket

bucket = open_bucket(sys.argv[1])
bucket.breaker = None
bucket.prepare(wait=60)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print(bucket.read("v1/entries/aa/k") if sys.argv[2] == "read" else len(list(bucket.walk("v1/"))))
except StoreError as exc:
    print(exc)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
KINDS = ("gs", "gcsfs", "s3", "az")


@pytest.fixture(params=KINDS)
def kind(request):
    if request.param == "az":
        require("adlfs")
    return request.param


LARGE = ((endless, "read"), (endless, "walk"), (bomb, "read"), (nested, "walk"), (repeating, "walk"))


@pytest.mark.parametrize(
    ("kind", "reply", "operation"),
    some([(kind, *each) for kind in KINDS for each in LARGE], every=4),
    indirect=["kind"],
)
def test_a_large_answer_is_not_taken(kind, reply, operation, run_client):
    """No more is read than may be there, nothing is decompressed, and one sentence says so."""
    with serving(reply) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        finished = run_client(PROGRAM, URLS[kind], operation, env=leads_to(kind, url))
    said, kilobytes = finished.stdout.splitlines()
    assert "cache" in said or "127.0.0.1" in said
    assert "None" not in said
    assert int(kilobytes) < 100_000


@pytest.fixture
def asked(monkeypatch):
    """Asks a bucket on a server that gives one reply, and returns what its error says."""

    def ask(reply, call, kind="gs"):
        with serving(reply) as server:
            for name, value in leads_to(kind, f"http://127.0.0.1:{server.server_port}").items():
                monkeypatch.setenv(name, value)
            bucket = open_bucket(URLS[kind])
            bucket.breaker, bucket.policy = None, RetryPolicy(deadline=20)
            try:
                with pytest.raises(StoreError) as caught:
                    call(bucket)
            finally:
                bucket.close()
            assert FOLLOWED == []
        assert str(caught.value).isprintable()
        return str(caught.value)

    return ask


@pytest.mark.parametrize("call", [lambda bucket: bucket.read("k"), lambda bucket: list(bucket.walk(""))])
def test_a_redirect_is_not_followed(asked, call, kind):
    """A login page's redirect is an error that names its place."""
    assert "a redirect to /elsewhere" in asked(redirect, call, kind)


CAUSES = {
    "dead DNS, answers at once": StorageCause.NO_ADDRESS,
    "403": None,  # the class says it
    "portal, a page": StorageCause.PORTAL,
    "portal, a redirect": StorageCause.PORTAL,
    "429": StorageCause.THROTTLED,
    "401": StorageCause.CREDENTIALS,
    "no network, silent": None,
}


@pytest.mark.parametrize(
    ("kind", "what", "cause"),
    some([(kind, *each) for kind in KINDS for each in CAUSES.items()], every=4),
    indirect=["kind"],
)
def test_causes_have_names(what, cause, kind, tmp_path, run_client):
    """What a user can do something about is told apart, whatever the library of a storage calls it."""
    program = """
        import sys
        from ejcache.bucket.retry import RetryPolicy
        from ejcache.errors import StoreError
        from ejcache.stores.opening import open_bucket
        bucket = open_bucket(sys.argv[1])
        bucket.breaker, bucket.policy = None, RetryPolicy(deadline=1.0)
        bucket.make_seconds = 60.0  # a busy machine makes its client slowly
        try:
            bucket.read("k")
        except StoreError as exc:
            print(repr(exc.cause))
    """
    with ExitStack() as stack:
        if what in {"429", "401"}:
            variables = leads_to(kind, stack.enter_context(any_request(int(what), "{}")))
        else:
            variables = stack.enter_context(Trouble(what, kind, tmp_path)).variables
        finished = run_client(program, URLS[kind], env=variables)
    assert finished.stdout == f"{cause!r}\n"


@pytest.mark.parametrize(
    ("status", "code", "cause"),
    [
        (403, "ExpiredToken", StorageCause.CREDENTIALS),
        (403, "InvalidAccessKeyId", StorageCause.BAD_KEYS),
        (403, "AccessDenied", None),
        (301, "PermanentRedirect", StorageCause.REGION),
        (404, "NoSuchBucket", StorageCause.NO_BUCKET),
    ],
)
def test_what_s3_refuses_has_a_cause(status, code, cause):
    """S3 says in a code what its status does not tell apart."""
    from ejcache.bucket.s3 import S3Bucket

    bucket = S3Bucket("bucket")
    response = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert bucket._error(SimpleNamespace(response=response), writing=False).cause is cause
    bucket.close()


@pytest.mark.parametrize(
    ("name", "variables", "cause"),
    [
        ("s3", {"AWS_PROFILE": "nobody"}, StorageCause.BAD_PROFILE),
        ("s3", {"AWS_EC2_METADATA_DISABLED": "true"}, StorageCause.CREDENTIALS),
        ("gs", {"EASYDEL_GCS_CLIENT": "/nowhere.json"}, StorageCause.NO_KEY_FILE),
        ("gs", {"EASYDEL_GCS_CLIENT": "{here}"}, StorageCause.BAD_KEY_FILE),
    ],
)
def test_what_is_wrong_with_credentials(name, variables, cause, tmp_path, monkeypatch):
    """The client knows what it did not find; nobody is asked for an object."""
    (tmp_path / "key.json").write_text('{"type": "service_account"}')
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value.format(here=tmp_path / "key.json"))
    with open_bucket(f"{name}://bucket/a") as bucket:
        bucket.breaker, bucket.policy = None, RetryPolicy(deadline=1.0)
        with pytest.raises(StoreError) as caught:
            bucket.read("k")
    assert caught.value.cause is cause


def test_words_for_a_terminal(asked):
    """What a server says is shown in one line, without characters that a terminal or a log would interpret."""
    said = asked(rude, lambda bucket: bucket.stat("k"))
    assert "INFO all is well" in said


def test_an_answer_that_was_damaged_on_its_way(server):
    """An object whose answers are damaged is not to blame: it is read again, and stays where it is."""
    from ejcache import entry
    from ejcache.bucket.object_names import entry_name
    from ejcache.stores.shared.store import SharedStore

    key = "jit_f-cpu-plain-" + "0" * 64
    data = entry.encode(entry.Header(key=key), b"value" * 100)
    bucket = gcs_bucket(server)
    bucket.breaker = None
    bucket.create(entry_name(key), data)
    store = SharedStore(bucket)
    server.add_fault("corrupt", method="GET", path="/download/", count=1)
    assert store.get(key) == data
    bucket.policy = RetryPolicy(deadline=0.5)
    server.add_fault("corrupt", method="GET", path="/download/")
    with pytest.raises(StoreUnavailableError, match="damaged on its way"):
        store.get(key)
    server.clear_faults()
    assert store.get(key) == data
    bucket.close()
