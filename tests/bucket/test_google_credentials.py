"""The credentials for Google's storage: those that gcsfs would find, without gcsfs; and what is left to gcsfs."""

from __future__ import annotations

import json
import threading

import fsspec.config
import pytest
from buckets import GcsServer

from ejcache.bucket.base import ABSENT
from ejcache.bucket.gcs import GcsBucket
from ejcache.bucket.gcsfs_bucket import GcsfsBucket
from ejcache.bucket.google_credentials import Token, credentials_of, is_left_to_gcsfs
from ejcache.bucket.retry import RetryPolicy
from ejcache.errors import StorageCause, StoreError, StoreRefusedError, StoreUnavailableError
from ejcache.stores.opening import open_bucket

PROGRAM = """
import atexit, os, sys
atexit.register(lambda: print(sorted({"gcsfs", "aiohttp"} & set(sys.modules))))
from ejcache import entry
from ejcache.cache.opening import open_cache_store
from ejcache.settings.resolve import resolve

store = open_cache_store(sys.argv[1], resolve())
for n in range(3 if "large" in sys.argv else 20):
    key = f"jit_f{n}-cpu-plain-{n:064x}"
    if store.get(key) is None:
        store.put(key, entry.encode(entry.Header(key=key), os.urandom(2_000_000 if n < 3 else 100)))
    else:
        store.note_used(key)
store.add_counters({"hits": 1})
if "flush" in sys.argv:
    assert store.flush(60)
"""


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch, tmp_path):
    """No configuration of fsspec's and of Google's, whatever this user has."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FSSPEC_CONFIG_DIR", str(tmp_path / "fsspec"))
    monkeypatch.setattr(fsspec.config, "conf", {})


def test_a_start_is_without_gcsfs(bucket, run_python, tmp_path):
    """Uploads of any size, hits, their journal and the end import neither gcsfs nor aiohttp."""
    url = f"gs://bucket/{tmp_path.name}"
    first = run_python(PROGRAM, url, "flush", env={"EJCACHE_LOCAL_DIR": str(tmp_path / "one")})
    assert (first.stdout, first.stderr) == ("[]\n", "")
    before = set(bucket.objects())
    assert sum("/entries/" in name for name in before) == 20
    hits = run_python(PROGRAM, url, env={"EJCACHE_LOCAL_DIR": str(tmp_path / "two")})
    assert (hits.stdout, hits.stderr) == ("[]\n", "")
    (journal,) = set(bucket.objects()) - before
    assert "/entries/" not in journal


def test_what_a_program_has_yet_to_upload_when_it_ends(bucket, run_python, tmp_path):
    """It goes over the connections that there are, and over some that are opened then."""
    done = run_python(PROGRAM, "gs://bucket/end", "large", env={"EJCACHE_LOCAL_DIR": str(tmp_path / "copies")})
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert sum(name.startswith("end") and "/entries/" in name for name in bucket.objects()) == 3


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
    with open_bucket("gs://b/p", prepare=False) as ours:
        assert type(ours) is GcsBucket
    monkeypatch.setenv(name, value)
    with open_bucket("gs://b/p", prepare=False) as theirs:
        assert type(theirs) is GcsfsBucket


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


def test_credentials_that_gcsfs_has_kept(tmp_path, monkeypatch):
    """Those of a browser are left to gcsfs, unless Google's own libraries find others."""
    (tmp_path / ".gcs_tokens").write_bytes(b"pickled")
    assert is_left_to_gcsfs() is True
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "key.json")
    assert is_left_to_gcsfs() is False
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    (tmp_path / ".config/gcloud").mkdir(parents=True)
    (tmp_path / ".config/gcloud/application_default_credentials.json").write_text("{}")
    assert is_left_to_gcsfs() is False


def test_gcsfs_looks_for_no_credentials_of_a_public_bucket(monkeypatch):
    """It is told so: without a word it would show those of this host, which may be refused where nobody's are not."""
    asked = []

    def system(**options):
        asked.append(options.get("token"))
        raise PermissionError("this is all that is asked")

    monkeypatch.setattr("gcsfs.core.GCSFileSystem", system)
    with GcsfsBucket("bucket", anonymous=True) as bucket, pytest.raises(StoreError):
        bucket.read("k")
    assert set(asked) == {"anon"}


def test_who_pays_is_said_by_gcsfs():
    """Every request carries what gcsfs adds, also those that our own client would frame in another way."""
    with (
        GcsServer() as server,
        GcsfsBucket("bucket", endpoint_url=server.url, options={"requester_pays": "project"}) as bucket,
    ):
        version = bucket.write("k", bytes(2 << 20), version=ABSENT)
        assert bucket.read("k").version == bucket.stat("k").version == version
        assert [info.name for info in bucket.walk("")] == ["k"]
        assert bucket.write("k", b"more", version="1") is None
        assert bucket.delete("k", version=version) is True
        assert {r.query.get("userProject") for r in server.requests} == {"project"}


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (
            {"type": "authorized_user", "refresh_token": "r", "client_secret": "s", "client_id": "i"},
            "oauth2.credentials",
        ),
        ({"refresh_token": "r", "client_secret": "s", "client_id": "i"}, "oauth2.credentials"),
        ({"type": "gdch_service_account"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("client", [GcsBucket, GcsfsBucket])
def test_credentials_of_a_file(found, kind, client, tmp_path):
    """Those of a user are made as gcsfs makes them; what is not known is one sentence, and asks nobody."""
    if kind is not None:
        made = credentials_of(found)
        assert type(made).__module__ == f"google.{kind}"
        assert Token(made).is_stale is True
        return
    path = tmp_path / "key.json"
    path.write_text(json.dumps(found))
    with client("b", credentials=str(path)) as bucket, pytest.raises(StoreUnavailableError) as caught:
        bucket.read("k")
    assert caught.value.cause is StorageCause.BAD_KEY_FILE


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

    token, headers = Token(Credentials()), {}
    threads = [threading.Thread(target=token.renew) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(renewed) == 1
    token.apply(headers)
    assert headers["x-goog-user-project"] == "quota"


@pytest.mark.parametrize("client", [GcsBucket, GcsfsBucket])
def test_a_token_that_cannot_be_had_is_no_hang(tmp_path, client):
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
    bucket = client(
        "b", credentials=str(tmp_path / "identity.json"), endpoint_url="http://127.0.0.1:1", policy=RetryPolicy(5.0)
    )
    bucket.breaker = None
    with pytest.raises(StoreRefusedError, match="credentials cannot be renewed"):
        bucket.read("k")
    bucket.close()
