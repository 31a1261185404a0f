"""`ejcache doctor`: what is wrong with a place is found, named, and advised on; nothing is left behind."""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

import pytest
from buckets import S3Server
from cli_helpers import ejcache, files, fill

URL = "gs://bucket/a"
REMOTE = [
    "credentials", "reach", "list", "create", "create once", "read", "compare and swap", "clock", "latency", "delete",
    "local tier",
]  # fmt: skip


@pytest.fixture
def impatient(monkeypatch):
    """A doctor that gives up soon."""
    monkeypatch.setattr("ejcache.upkeep.checkup_shared._ONE", 0.6)


class Usage(NamedTuple):
    """What `shutil.disk_usage` gives."""

    total: int
    used: int
    free: int


def doctor(url, *, status=0) -> dict[str, dict]:
    """The checks by name."""
    said = ejcache("doctor", url, "--json")
    assert said.status == status, said
    assert said.json["healthy"] is (status == 0)
    assert all(check["advice"] for check in said.json["checks"] if check["verdict"] in ("failed", "warning"))
    return {check["name"]: check for check in said.json["checks"]}


def verdicts(checks) -> dict[str, str]:
    """What is not simply fine."""
    return {name: check["verdict"] for name, check in checks.items() if check["verdict"] != "ok"}


def test_a_healthy_bucket(bucket):
    """Everything is tried, nothing is left behind, and each object is written rarely enough for the real service."""
    bucket.api.buckets["bucket"].write_interval = 1.0
    checks = doctor(URL)
    assert list(checks) == REMOTE
    assert verdicts(checks) == {}
    assert bucket.objects() == {}


def test_for_a_person(bucket):
    """A table with a line for each check, and nothing to do."""
    said = ejcache("doctor", "--dir", URL)
    assert said.status == 0
    assert [line for line in said.lines if line.startswith("compare and swap")]
    assert "What to do" not in said.out
    assert said.lines[-1] == f"{URL} can hold a cache as it is"


@pytest.mark.parametrize("url", ["gs://elsewhere/a", "s3://bucket/a"])
def test_a_wrong_place(bucket, monkeypatch, url):
    """A bucket that is not there, and credentials that are not, are one failure, and the rest is not tried."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    checks = doctor(url, status=1)
    assert checks["reach"]["verdict"] == "failed"
    assert {check["verdict"] for name, check in checks.items() if name in REMOTE[2:-1]} == {"skipped"}


def test_no_network(monkeypatch, impatient):
    """Nobody there to ask: it says whom it asked, and what to look at."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
    said = ejcache("doctor", URL)
    assert said.status == 1
    assert "127.0.0.1:1" in said.out
    assert "reach: check the bucket's name, the network" in said.out


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", [{"action": "stall"}, {"action": "status", "status": 503}])
@pytest.mark.parametrize("what", ["GET", "POST", "DELETE"])
def test_trouble_is_not_waited_for(bucket, impatient, fault, what):
    """A bucket that stalls or refuses for ever, in any kind of request, is a failure, soon."""
    bucket.add_fault(method=what, **fault)
    checks = doctor(URL, status=1)
    failed = {name for name, verdict in verdicts(checks).items() if verdict == "failed"}
    assert {"GET": "reach", "POST": "create", "DELETE": "delete"}[what] in failed


def test_missing_permissions(bucket):
    """Each permission that is missing is named by what needs it."""
    bucket.add_fault("status", method="POST", path="/upload/", status=403)
    checks = doctor(URL, status=1)
    assert verdicts(checks)["create"] == "failed"
    assert "storage.objects.create" in checks["create"]["advice"]
    bucket.clear_faults()
    bucket.add_fault("status", method="DELETE", status=403)
    bucket.add_fault("status", method="GET", path="/o$", status=403)
    checks = doctor(URL, status=1)
    assert verdicts(checks) == {"list": "failed", "delete": "failed"}
    assert "v1/doctor/" in checks["delete"]["advice"]


def test_read_only(bucket, monkeypatch):
    """A job that only reads is only asked whether it can."""
    monkeypatch.setenv("EJCACHE_READ_ONLY", "1")
    bucket.add_fault("status", method="POST", status=403)
    assert set(verdicts(doctor(URL)).values()) == {"skipped"}


def test_conditions_that_are_ignored(bucket, monkeypatch):
    """Storage that ignores conditions, as some emulators do, is no place for a shared cache."""
    monkeypatch.setattr("gcs_server.objects.check_conditions", lambda *_, **__: None)
    checks = doctor(URL, status=1)
    assert verdicts(checks)["create once"] == "failed"
    assert verdicts(checks)["compare and swap"] == "failed"


def test_bytes_that_are_damaged(bucket):
    """Storage that gives other bytes than it was given is found out."""
    bucket.add_fault("corrupt", method="GET", path="/download/")
    assert verdicts(doctor(URL, status=1)) == {"read": "failed"}


def test_a_clock_that_is_off(bucket, monkeypatch):
    """A host whose clock is wrong is told by how much."""
    monkeypatch.setattr("gcs_server.objects.timestamp", lambda: "2031-01-01T00:00:00.000Z")
    checks = doctor(URL)
    assert verdicts(checks) == {"clock": "warning"}
    assert "NTP" in checks["clock"]["advice"]


def test_a_bucket_that_is_far_away(bucket, monkeypatch):
    """Latency is measured, and a bucket in another region is noticed."""
    monkeypatch.setattr("ejcache.upkeep.checkup_shared._SLOW", 0.01)
    bucket.add_fault("latency", method="GET", path="/download/", seconds=0.02)
    assert verdicts(doctor(URL)) == {"latency": "warning"}


def test_s3(monkeypatch):
    """The same is tried on S3."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with S3Server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        assert verdicts(doctor("s3://bucket/a")) == {}
        assert verdicts(doctor("s3://elsewhere/a", status=1))["reach"] == "failed"


def test_network_file_system(tmp_path, monkeypatch):
    """A directory between hosts is tried as one: hard links, and that conditions are the writer's own."""
    real = "ejcache.stores.filesystems.filesystem_of"
    monkeypatch.setattr(real, lambda path, **_: ("nfs4" if "nfs" in str(path) else "ext4", frozenset()))
    monkeypatch.setattr("ejcache.upkeep.checkup_directory.filesystem_of", lambda path: ("nfs4", frozenset()))
    (tmp_path / "nfs").mkdir()
    checks = doctor(tmp_path / "nfs" / "cache")
    assert verdicts(checks) == {"compare and swap": "warning"}
    assert "nfs4" in checks["file system"]["detail"]
    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(PermissionError(1, "not permitted")))
    assert verdicts(doctor(tmp_path / "nfs" / "cache"))["hard links"] == "warning"


def test_local_directory(tmp_path):
    """A cache of this host: everything is tried beside it, and the entries are left as they are."""
    fill(tmp_path / "cache", "jit_train")
    before = files(tmp_path / "cache")
    checks = doctor(tmp_path / "cache")
    assert list(checks) == ["file system", "directory", "free space", "structures", "locks", "store"]
    assert verdicts(checks) == {}
    assert files(tmp_path / "cache").keys() == before.keys()


def test_a_directory_that_is_not_there(tmp_path):
    """Where a cache could be made, it is not made."""
    assert verdicts(doctor(tmp_path / "a" / "b")) == {}
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]


def test_a_place_that_is_no_directory(tmp_path):
    """A file, and a directory below a file, hold no cache."""
    (tmp_path / "file").write_text("")
    assert verdicts(doctor(tmp_path / "file", status=1))["directory"] == "failed"
    assert verdicts(doctor(tmp_path / "file" / "x", status=1))["directory"] == "failed"


def test_a_directory_for_everybody(tmp_path):
    """Whoever can write entries has them run by others: that is said."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert verdicts(doctor(tmp_path / "cache")) == {"directory": "warning"}


def test_little_room(tmp_path, bucket, monkeypatch):
    """Room that does not suffice for the limit is said, of a local cache and of a bucket's local tier."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10 << 30, 7 << 30, 3 << 30))
    assert verdicts(doctor(tmp_path / "cache")) == {}
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", str(4 << 30))
    assert verdicts(doctor(tmp_path / "cache")) == {"free space": "warning"}
    assert verdicts(doctor(URL)) == {"local tier": "warning"}
    monkeypatch.setenv("EJCACHE_LOCAL_MAX_SIZE", "0")
    assert verdicts(doctor(URL)) == {}


def test_damaged_structures(tmp_path):
    """An index that is damaged is found, and what repairs it is said."""
    fill(tmp_path / "cache", "jit_train")
    (index,) = (tmp_path / "cache").rglob("cache.db")
    index.write_bytes(b"garbage" * 1000)
    assert ejcache("verify", "--dir", tmp_path / "cache").status == 1
    checks = doctor(tmp_path / "cache")
    assert verdicts(checks)["structures"] == "warning"
    assert "verify --fix" in checks["structures"]["advice"]


def test_memory_and_bad_usage(tmp_path):
    """memory:// needs nothing; a URL that is none, or given twice, is bad usage."""
    assert verdicts(doctor("memory://x")) == {}
    assert ejcache("doctor", "nonsense://x").status == 2
    assert ejcache("doctor", tmp_path, "--dir", tmp_path).status == 2
