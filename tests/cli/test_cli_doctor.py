"""`ejcache doctor`: it finds and names faults of a location, advises on them, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import resource
import shutil
import sqlite3
import sys
from typing import NamedTuple

import pytest
from buckets import S3Server
from cli_helpers import ejcache, files, fill

from ejcache.maintenance import doctor as doctor_module
from ejcache.maintenance.doctor import remedy

URL = "gs://bucket/a"
HERE = ["JAX", "plug-in", "settings", "open files"]
REMOTE = [
    "credentials", "reach", "list", "create", "create once", "read", "compare and swap", "clock", "latency", "delete",
    "local tier",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A doctor to whom neither a busy machine nor its full disk is a finding."""
    for limit in ("_BUDGET", "_ONE", "_SLOW", "_SLOW_SECONDS"):
        monkeypatch.setattr(doctor_module, limit, 60.0)
    monkeypatch.setattr(doctor_module, "_JAX_SECONDS", 240.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 1 << 39, 1 << 39))


@pytest.fixture
def impatient(monkeypatch):
    """Makes the doctor end each operation soon."""
    return lambda: monkeypatch.setattr(doctor_module, "_ONE", 2.5)


class Usage(NamedTuple):
    """The result of `shutil.disk_usage`."""

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
    """The verdicts other than ok."""
    return {name: check["verdict"] for name, check in checks.items() if check["verdict"] != "ok"}


def test_a_healthy_bucket(bucket):
    """Everything is tried, nothing is left behind, and each object is written rarely enough for the real service."""
    bucket.api.buckets["bucket"].write_interval = 1.0
    checks = doctor(URL)
    assert list(checks) == [*HERE, *REMOTE]
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
    impatient()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
    said = ejcache("doctor", URL)
    assert said.status == 1
    assert "127.0.0.1:1" in said.out
    assert "reach:  check the bucket's name, the network" in said.out


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("what", "fault"),
    [("GET", {"action": "stall"}), ("POST", {"action": "status", "status": 503}), ("DELETE", {"action": "stall"})],
)
def test_trouble_is_not_waited_for(bucket, impatient, what, fault):
    """A bucket that stalls or refuses for ever, in any kind of request, is a failure, soon."""
    impatient()
    bucket.add_fault(method=what, **fault)
    checks = doctor(URL, status=1)
    failed = {name for name, verdict in verdicts(checks).items() if verdict == "failed"}
    assert {"GET": "reach", "POST": "create", "DELETE": "delete"}[what] in failed


def test_missing_permissions(bucket):
    """Each permission that is missing is named by what needs it."""
    bucket.add_fault("status", method="POST", path="/upload/", status=403)
    checks = doctor(URL)
    assert (verdicts(checks)["create"], "only reading works" in checks["create"]["detail"]) == ("warning", True)
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


@pytest.mark.parametrize(
    ("content", "cause", "variable"),
    [
        (None, "No such file", "EASYDEL_GCS_CLIENT"),
        ("[" * 100_000, "not JSON", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("{}", '"type"', "EASYDEL_GCS_CLIENT"),
        ("dir", "directory", "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_files_of_credentials(tmp_path, monkeypatch, variable, content, cause):
    """A credentials file that cannot be used is named, with the cause and the remedy, before anything is asked."""
    file = tmp_path / "key.json"
    if content == "dir":
        file.mkdir()
    elif content is not None:
        file.write_text(content)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv(variable, str(file))
    checks = doctor(URL, status=1)
    assert checks["credentials"]["verdict"] == "failed"
    assert all(said in checks["credentials"]["detail"] for said in (str(file), variable, cause))
    assert {check["verdict"] for name, check in checks.items() if name in REMOTE[1:-1]} == {"skipped"}


def test_credentials_are_good_only_if_they_were_tried(bucket, impatient):
    """Credentials are not called good by a doctor that did not reach the storage."""
    assert "none, at" in doctor(URL)["credentials"]["detail"]
    impatient()
    bucket.add_fault("status", status=503)
    assert doctor(URL, status=1)["credentials"]["verdict"] == "skipped"
    bucket.clear_faults()
    bucket.add_fault("status", status=401)
    checks = doctor(URL, status=1)
    assert checks["credentials"]["verdict"] == "failed"
    assert "gcloud auth" in checks["credentials"]["advice"]


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("gs://b: the credentials cannot be renewed: invalid_grant: Token has been revoked", "log in again"),
        ("An error occurred (ExpiredToken) when calling GetObject", "renew"),
        ("An error occurred (InvalidAccessKeyId)", "AWS_ACCESS_KEY_ID"),
        ("The config profile (x) could not be found", "AWS_PROFILE"),
        ("PermanentRedirect 301", "AWS_DEFAULT_REGION"),
        ("there is no bucket gs://b, or these credentials may not see it", "bucket's name"),
        ("something else", "other"),
    ],
)
def test_each_cause_has_its_remedy(problem, advice):
    """An expired token, an unknown bucket and a wrong region are not answered with the same sentence."""
    assert advice in remedy(problem, otherwise="other")


def test_conditions_that_are_ignored(bucket, monkeypatch):
    """Storage that ignores conditions, as some emulators do, cannot hold a shared cache."""
    monkeypatch.setattr("gcs_server.objects.check_conditions", lambda *_, **__: None)
    checks = doctor(URL, status=1)
    assert verdicts(checks)["create once"] == "failed"
    assert verdicts(checks)["compare and swap"] == "failed"


def test_bytes_that_are_damaged(bucket):
    """Storage that gives other bytes than it was given is found out."""
    bucket.add_fault("corrupt", method="GET", path="/download/")
    assert verdicts(doctor(URL, status=1)) == {"read": "failed"}


def test_a_clock_that_is_off(bucket, monkeypatch):
    """If the clock of the host is wrong, the difference is shown."""
    monkeypatch.setattr("gcs_server.objects.timestamp", lambda: "2031-01-01T00:00:00.000Z")
    checks = doctor(URL)
    assert verdicts(checks) == {"clock": "warning"}
    assert "NTP" in checks["clock"]["advice"]


def test_a_bucket_that_is_far_away(bucket, monkeypatch):
    """Latency is measured, and a bucket in another region is noticed."""
    monkeypatch.setattr(doctor_module, "_SLOW", 0.01)
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
    """A directory between hosts is tried as one: its file system is named, and conditions are the writer's own."""
    real = "ejcache.stores.location.detect_filesystem"
    monkeypatch.setattr(real, lambda path, **_: ("nfs4" if "nfs" in str(path) else "ext4", frozenset()))
    monkeypatch.setattr("ejcache.maintenance.doctor.detect_filesystem", lambda path: ("nfs4", frozenset()))
    (tmp_path / "nfs").mkdir()
    checks = doctor(tmp_path / "nfs" / "cache")
    assert verdicts(checks) == {}
    assert "two hosts compile one program" in checks["compare and swap"]["detail"]
    (tmp_path / "nfs" / "cache").mkdir(exist_ok=True)
    assert "nfs4 on a network" in doctor(tmp_path / "nfs" / "cache")["directory"]["detail"]


def test_local_directory(tmp_path):
    """A cache of this host: everything is tried beside it, and the entries are left as they are."""
    fill(tmp_path / "cache", "jit_train")
    before = files(tmp_path / "cache")
    checks = doctor(tmp_path / "cache")
    assert list(checks) == [
        *HERE,
        "directory",
        "trust",
        "free space",
        "structures",
        "clock",
        "locks",
        "store",
    ]
    assert verdicts(checks) == {}
    assert files(tmp_path / "cache").keys() == before.keys()


def test_a_local_cache_from_the_future(tmp_path):
    """Entries that were used while the clock was ahead show that this host's clock is or was wrong."""
    fill(tmp_path, "jit_train")
    (path,) = tmp_path.glob("v1/local/g-*/cache.db")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as index:
        index.execute("UPDATE Cache SET access_time = access_time + 86400")
    checks = doctor(tmp_path)
    assert verdicts(checks) == {"clock": "warning"}
    assert "24h from now" in checks["clock"]["detail"]


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
    """A directory that others can write to is reported, because its entries are code that is run."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert verdicts(doctor(tmp_path / "cache")) == {"directory": "warning"}


def test_little_room(tmp_path, bucket, monkeypatch):
    """Too little free space for the limit is reported, for a local cache and for a bucket's local tier."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10 << 30, 7 << 30, 3 << 30))
    assert verdicts(doctor(tmp_path / "cache")) == {}
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", str(4 << 30))
    assert verdicts(doctor(tmp_path / "cache")) == {"free space": "warning"}
    assert verdicts(doctor(URL)) == {"local tier": "warning"}
    monkeypatch.setenv("EJCACHE_LOCAL_MAX_SIZE", "0")
    assert verdicts(doctor(URL)) == {}


def test_damaged_structures(tmp_path):
    """A damaged index is found, and the advice names the command that repairs it."""
    fill(tmp_path / "cache", "jit_train")
    (index,) = (tmp_path / "cache").rglob("cache.db")
    index.write_bytes(b"garbage" * 1000)
    assert ejcache("verify", "--dir", tmp_path / "cache").status == 1
    checks = doctor(tmp_path / "cache")
    assert verdicts(checks)["structures"] == "warning"
    assert "verify --fix" in checks["structures"]["advice"]


def test_memory_and_bad_usage(tmp_path):
    """memory:// needs nothing; an invalid URL, or two URLs, are bad usage."""
    assert verdicts(doctor("memory://x")) == {}
    assert ejcache("doctor", "nonsense://x").status == 2
    assert ejcache("doctor", tmp_path, "--dir", tmp_path).status == 2


def test_a_directory_of_others(tmp_path):
    """Doctor and config say that programs do not load code from a directory that any user can write to, and why."""
    fill(tmp_path / "cache", "jit_f")
    assert doctor(tmp_path / "cache")["trust"]["verdict"] == "ok"
    assert ejcache("config", "--dir", tmp_path / "cache", "--json").json["untrusted_directory"] is None
    (tmp_path / "cache" / "v1" / "local").chmod(0o777)
    trust = doctor(tmp_path / "cache")["trust"]
    assert trust["verdict"] == "warning"
    assert "any user can write to" in trust["detail"]
    assert "EJCACHE_TRUST_DIR=1" in trust["advice"]
    said = ejcache("config", "--dir", tmp_path / "cache")
    assert "programs use a directory of their own: any user can write to" in said.out


def test_a_trusted_directory_of_others(tmp_path, monkeypatch):
    """With EJCACHE_TRUST_DIR=1 they say that code is loaded all the same."""
    fill(tmp_path / "cache", "jit_f")
    (tmp_path / "cache" / "v1" / "local").chmod(0o777)
    monkeypatch.setenv("EJCACHE_TRUST_DIR", "1")
    trust = doctor(tmp_path / "cache")["trust"]
    assert trust["verdict"] == "ok"
    assert "everybody who can write there is trusted" in trust["detail"]
    assert "directory of their own" not in ejcache("config", "--dir", tmp_path / "cache").out


def test_what_is_wrong_with_the_installation(tmp_path, monkeypatch):
    """A misspelt variable, few open files and a JAX of another build are warnings with advice, and no failures."""
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 9.9.9\necho jax._src.compiler.compile_or_get_cached is gone\n")
    other.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(other))
    monkeypatch.setenv("EJCACHE_READONLY", "1")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        checks = doctor(tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert verdicts({name: checks[name] for name in HERE}) == dict.fromkeys(
        ("JAX", "settings", "open files"), "warning"
    )
    assert "JAX 9.9.9 is not built as expected" in checks["JAX"]["detail"]
    assert "did you mean EJCACHE_READ_ONLY?" in checks["settings"]["detail"]
    assert "256 files" in checks["open files"]["detail"]


def test_the_plug_in(tmp_path, monkeypatch):
    """Doctor says whether JAX finds ejcache, and whether `EJCACHE` is set."""
    assert "EJCACHE is not set" in doctor(tmp_path / "cache")["plug-in"]["detail"]
    monkeypatch.setenv("EJCACHE", "1")
    assert "EJCACHE is 1" in doctor(tmp_path / "cache")["plug-in"]["detail"]


def test_a_machine_that_is_too_busy_to_import_jax(monkeypatch):
    """The check says how long it waited, and prints no command."""
    monkeypatch.setattr(doctor_module, "_JAX_SECONDS", 0.5)
    check = doctor_module._jax((sys.executable, "-c", "import time; time.sleep(60)"))
    assert (check.verdict, check.advice) == ("skipped", "")
    assert check.detail == "importing JAX took longer than 0 s, so its version is not known"


@pytest.mark.parametrize("host", ["user:hunter2@127.0.0.1:1", "http://user:hunter2@127.0.0.1:1"])
def test_the_password_of_an_emulator_is_not_printed(monkeypatch, impatient, host):
    """An address that holds a password is shown without it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", host)
    impatient()
    said = ejcache("doctor", URL)
    assert "127.0.0.1:1 (STORAGE_EMULATOR_HOST)" in said.out
    assert "hunter2" not in said.out + said.err
