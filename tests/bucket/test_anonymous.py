"""Public buckets: `?anonymous` behind a URL, no credentials asked for or sent, nothing written."""

from __future__ import annotations

import pytest
from answering import answer, serving
from cli_helpers import ejcache, key_text, put

from ejcache.errors import StoreError, StoreReadOnlyError, UsageError
from ejcache.stores.location import Location, display_url
from ejcache.stores.opening import open_store


def test_the_url():
    """It is a place of its own, is shown as it is, and exists for buckets only."""
    public = Location.parse("gs://bucket/a?anonymous")
    assert (public.url, public.bucket, public.prefix, public.anonymous) == (
        "gs://bucket/a?anonymous",
        "bucket",
        "a",
        True,
    )
    assert Location.parse(public.url) == public != Location.parse("gs://bucket/a")
    assert display_url("s3://bucket/a?anonymous") == "s3://bucket/a?anonymous"
    for url in ("webdav://host/a?anonymous", "gs://bucket/a?anonymous=1", "gs://bucket/a?token=x&anonymous"):
        with pytest.raises(UsageError):
            Location.parse(url)


def test_a_public_bucket_of_google(bucket, monkeypatch):
    """Credentials that are wrong are not looked at; entries are read, and cannot be written."""
    with open_store("gs://bucket/a") as store:
        data = put(store, key_text("jit_f"))
    monkeypatch.setenv("EASYDEL_GCS_CLIENT", "/nonexistent.json")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    with open_store("gs://bucket/a") as store, pytest.raises(StoreError):
        store.get(key_text("jit_f"))
    with open_store("gs://bucket/a?anonymous") as store:
        assert store.get(key_text("jit_f")) == data
        with pytest.raises(StoreReadOnlyError):
            store.put(key_text("jit_g"), data)
    assert "jit_f" in ejcache("ls", "--dir", "gs://bucket/a?anonymous").out


@pytest.mark.usefixtures("doctor_is_told")
def test_doctor_does_not_write_to_a_public_bucket(bucket):
    """It is read only because its URL says so: nothing is created there, and no right to write is asked for."""
    said = ejcache("doctor", "gs://bucket/a?anonymous", "--json").json
    assert [check["name"] for check in said["checks"] if check["name"] != "JAX"] == ["read"]
    assert (said["healthy"], {request.method for request in bucket.requests}) == (True, {"GET"})


@pytest.mark.parametrize("anonymous", [False, True])
def test_a_public_bucket_of_s3(monkeypatch, anonymous):
    """No request is signed, though there are credentials."""
    signed = []

    def refuse(request):
        signed.append("Authorization" in request.headers)
        answer(request, b"", {}, status=404)

    with serving(refuse) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        with open_store(f"s3://bucket/a{'?anonymous' if anonymous else ''}") as store:
            assert store.get("k") is None
    assert signed
    assert set(signed) == {not anonymous}
