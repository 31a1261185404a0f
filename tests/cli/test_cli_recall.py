"""`ejcache recall`: what it takes, what it says, and what other commands say of it."""

from __future__ import annotations

import pytest
from cli_helpers import ejcache, fill, key_text

from ejcache.maintenance.stored_policy import POLICY, encode_policy
from ejcache.stores.opening import open_bucket
from ejcache.util.writer import user_and_host

URL = "gs://bucket/a"
pytestmark = pytest.mark.usefixtures("doctor_is_told")


@pytest.fixture(params=["directory", "bucket"])
def cache(request, tmp_path, bucket):
    """A cache with two entries, which were copied from another one."""
    fill(tmp_path / "source", "jit_f", "jit_g")
    target = tmp_path / "cache" if request.param == "directory" else URL
    assert ejcache("push", target, "--dir", tmp_path / "source").status == 0
    return target


def write_policy(cache, data):
    if cache == URL:
        with open_bucket(URL) as objects:
            objects.write(POLICY, data)
    else:
        (cache / POLICY).write_bytes(data)


def names(cache):
    return sorted(each["name"] for each in ejcache("ls", "--dir", cache, "--json").json["entries"])


def test_a_key(cache, tmp_path):
    """By its name; then it is gone, three commands say so, and a copy of the cache brings it not back."""
    said = ejcache("recall", "jit_f", "--dir", cache)
    assert (said.status, "1 entry removed" in said.out) == (0, True)
    assert names(cache) == ["jit_g"]
    assert ejcache("stats", "--dir", cache, "--json").json["recalled"] == "1 entry"
    assert "1 entry" in ejcache("stats", "--dir", cache).out
    checks = {check["name"]: check for check in ejcache("doctor", cache, "--json").json["checks"]}
    assert (checks["recalls"]["verdict"], checks["recalls"]["detail"]) == ("ok", "recalled: 1 entry")
    said = ejcache("recall", "jit_f", "--dir", cache)
    assert (said.status, "nothing in" in said.err) == (1, True)
    done = ejcache("push", cache, "--dir", tmp_path / "source", "--json").json
    assert (done["copied_entries"], done["recalled"], done["complete"]) == (0, 1, True)
    assert names(cache) == ["jit_g"]
    if cache == URL:
        assert "recalled: 1 entry" in ejcache("config", "--dir", cache, columns=300).out


def test_rules(cache, tmp_path):
    """Entries without a writer are recalled by time or all together; who has recalled them is said."""
    assert ejcache("recall", "--by", "node-3", "--dir", cache, "--json").json["removed"] == []
    assert names(cache) == ["jit_f", "jit_g"]
    assert ejcache("recall", "--before", "1970-01-01T00:00", "--dir", cache, "--json").json["removed"] == []
    done = ejcache("recall", "--all", "--yes", "--dir", cache, "--json").json
    assert sorted(done["removed"]) == sorted([key_text("jit_f"), key_text("jit_g")])
    recalled = ejcache("stats", "--dir", cache, "--json").json["recalled"]
    assert recalled.startswith(f"everything, by {user_and_host()}, 20")
    done = ejcache("push", cache, "--dir", tmp_path / "source", "--json").json
    assert (done["copied_entries"], done["recalled"]) == (0, 2)


def test_a_time(cache):
    """An age, a moment in UTC, or one with its zone."""
    for text in ("0s", "2100-01-01", "2100-01-01T10:30+02:00"):
        assert ejcache("recall", "--before", text, "--dir", cache).status == 0
    assert names(cache) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give keys, --before, --by or --all"),
        (["jit_f", "--all", "--yes"], "only one of them"),
        (["--all"], "give --yes"),
        (["--by", " "], "--by cannot be"),
        (["--by", "x" * 999], "--by cannot be"),
        (["--before", "yesterday"], "--before cannot be 'yesterday'"),
        (["--before", "1900-01-01"], "--before cannot be"),
    ],
)
def test_what_is_refused(tmp_path, arguments, said):
    """Nothing is removed, and the message says what is accepted."""
    fill(tmp_path / "cache", "jit_f")
    refused = ejcache("recall", *arguments, "--dir", tmp_path / "cache")
    assert (refused.status, said in refused.err) == (2, True), refused.err
    assert names(tmp_path / "cache") == ["jit_f"]


def test_a_document_that_cannot_be_read(cache):
    """Doctor refuses it; one of a later version stays, a damaged one is replaced on purpose only."""
    write_policy(cache, encode_policy({"recalled": {"version": 9}}))
    checks = {check["name"]: check for check in ejcache("doctor", cache, "--json").json["checks"]}
    assert (checks["policy"]["verdict"], "version 9" in checks["policy"]["detail"]) == ("failed", True)
    said = ejcache("recall", "--all", "--yes", "--dir", cache)
    assert (said.status, "version 9" in said.err) == (1, True)
    assert names(cache) == ["jit_f", "jit_g"]
    write_policy(cache, b"{")
    for command in (["recall", "--all", "--yes"], ["config", "set", "enabled=true"]):
        said = ejcache(*command, "--dir", cache)
        assert (said.status, "--replace" in said.err) == (1, True)
    assert ejcache("recall", "--all", "--yes", "--replace", "--dir", cache).status == 0
    assert names(cache) == []
