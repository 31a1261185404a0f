"""`ejcache config set --dir CACHE enabled=false`: it is stored with the cache, and every command that looks says so."""

from __future__ import annotations

import json

import pytest
from cli_helpers import ejcache, fill

URL = "gs://bucket/a"
pytestmark = pytest.mark.usefixtures("doctor_is_told")


@pytest.fixture(params=["directory", "bucket"])
def cache(request, tmp_path, bucket):
    """A cache with an entry."""
    place = tmp_path / "cache" if request.param == "directory" else URL
    if request.param == "directory":
        fill(place, "jit_f")
    else:
        fill(tmp_path / "local", "jit_f")
        assert ejcache("push", URL, "--dir", tmp_path / "local").status == 0
    return place


def stored(cache, bucket) -> dict:
    data = bucket.objects()["a/v1/policy.json"] if cache == URL else (cache / "v1" / "policy.json").read_bytes()
    return json.loads(data)


def test_off_and_on(cache, bucket):
    """Who turned it off, and when, is shown by stats, config and doctor; then that it is on is written out."""
    said = ejcache("config", "set", "--dir", cache, "enabled=false")
    assert (said.status, "turned off by " in said.out) == (0, True)
    assert stored(cache, bucket)["enabled"] is False
    by = ejcache("stats", "--dir", cache, "--json").json["turned_off"]
    assert by.startswith("by ")
    assert by.endswith(" UTC")
    assert ["Turned", "off", *by.split()] in [line.split() for line in ejcache("stats", "--dir", cache).lines]
    assert ejcache("config", "--dir", cache, "--json").json["turned_off"] == by
    assert f"turned off {by}" in ejcache("config", "--dir", cache, columns=300).out
    checks = {check["name"]: check for check in ejcache("doctor", cache, "--json").json["checks"]}
    assert (checks["switch"]["verdict"], by in checks["switch"]["detail"]) == ("warning", True)
    assert "enabled=true" in checks["switch"]["advice"]
    assert ejcache("config", "set", "--dir", cache, "enabled=true").status == 0
    assert stored(cache, bucket) == {"enabled": True, "format": "ejcache-policy", "version": 1}
    assert ejcache("stats", "--dir", cache, "--json").json["turned_off"] is None


def test_limits_stay(bucket, tmp_path):
    """The limits of a bucket lie beside the switch."""
    assert ejcache("config", "set", "--dir", URL, "max_size=5GB", "enabled=false").status == 0
    assert ejcache("config", "set", "--dir", URL, "enabled=true").status == 0
    assert stored(URL, bucket)["max_size"] == 5_000_000_000


def test_what_is_refused(tmp_path):
    """Another value, and a directory that does not exist."""
    fill(tmp_path / "cache", "jit_f")
    said = ejcache("config", "set", "--dir", tmp_path / "cache", "enabled=perhaps")
    assert (said.status, "true or false" in said.err) == (2, True)
    said = ejcache("config", "set", "--dir", tmp_path / "none", "enabled=false")
    assert (said.status, "does not exist" in said.err) == (1, True)
    assert not (tmp_path / "none").exists()
