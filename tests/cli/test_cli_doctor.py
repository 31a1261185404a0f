"""`ejcache doctor`: it finds and names faults of a location, advises on them, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import sys

import pytest
from answering import answer, serving
from buckets import S3Server
from cli_helpers import be_patient, ejcache, files, fill
from forking import forked_python
from mounts import mount_nfs
from soak_turns import some

from ejcache.errors import StorageCause
from ejcache.maintenance import doctor as doctor_module
from ejcache.maintenance.doctor import remedy
from ejcache.stores import sharing_detection

URL = "gs://bucket/a"
STALL = {"action": "stall"}
REMOTE = ["read", "create once", "clock", "latency", "write"]


PYTHON = sys.executable


@pytest.fixture(autouse=True)
def _patient(monkeypatch, doctor_is_told):
    """A doctor to whom a busy machine is no finding, and who is told about JAX without importing it."""
    be_patient(monkeypatch)


@pytest.fixture
def impatient(monkeypatch):
    """Makes the doctor end each operation soon: at once where none is to succeed."""
    return lambda seconds=0.1: monkeypatch.setattr(doctor_module, "OPERATION_SECONDS", seconds)


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


def test_a_healthy_bucket(bucket, monkeypatch):
    """Everything is tried, nothing is left behind, and each object is written rarely enough for the real service."""
    monkeypatch.setattr(sys, "executable", forked_python())
    bucket.api.buckets["bucket"].write_interval = 1.0
    checks = doctor(URL)
    assert list(checks) == [*REMOTE, "JAX"]
    assert verdicts(checks) == {}
    assert bucket.objects() == {}


@pytest.mark.parametrize("url", ["gs://elsewhere/a", "s3://bucket/a"])
def test_a_wrong_place(bucket, monkeypatch, url):
    """A bucket that is not there, and credentials that are not, are one failure, and the rest is not tried."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert verdicts(doctor(url, status=1)) == {"read": "failed"}


def test_no_network(monkeypatch, impatient):
    """Nobody there to ask: it says whom it asked, and what to look at."""
    impatient()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
    said = ejcache("doctor", URL)
    assert said.status == 1
    assert "127.0.0.1:1" in said.out
    assert "read:  check the bucket's name, the network" in said.out


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("what", "fault"),
    some([("GET", STALL), ("POST", {"action": "status", "status": 503}), ("DELETE", STALL)], every=3),
)
def test_trouble_is_not_waited_for(bucket, impatient, what, fault):
    """A bucket that stalls or refuses for ever, in any kind of request, is a failure, soon."""
    impatient(0.1 if what == "GET" else 1.0)
    bucket.add_fault(method=what, **fault)
    checks = doctor(URL, status=1)
    failed = {name for name, verdict in verdicts(checks).items() if verdict == "failed"}
    assert {"GET": "read", "POST": "create once", "DELETE": "write"}[what] in failed


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("what", "fault", "check", "verdict"),
    [
        ("GET", STALL, "read", "failed"),
        ("DELETE", STALL, "write", "warning"),
        ("DELETE", {"action": "status", "status": 503}, "write", "failed"),
    ],
)
def test_a_busy_host_is_not_taken_for_silent_storage(bucket, impatient, monkeypatch, what, fault, check, verdict):
    """Storage that has answered before and is now silent is not blamed; one that never has, or that refuses, is."""
    impatient(0.1 if what == "GET" else 1.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (4096.0, 0.0, 0.0))
    bucket.add_fault(method=what, **fault)
    found = doctor(URL, status=int(verdict == "failed"))[check]
    assert found["verdict"] == verdict
    assert ("a load of 4096 on" in found["detail"], "less busy" in found["advice"]) == (verdict == "warning",) * 2


def test_latency_on_a_busy_host(bucket, monkeypatch):
    """Slow reads where programs wait for the processors are no reason to move the bucket."""
    monkeypatch.setattr(doctor_module, "FAR_SECONDS", 0.01)
    monkeypatch.setattr(os, "getloadavg", lambda: (4096.0, 0.0, 0.0))
    bucket.add_fault("latency", method="GET", path="/download/", seconds=0.02)
    check = doctor(URL)["latency"]
    assert "a load of 4096 on" in check["detail"]
    assert "region" not in check["advice"]


def test_missing_permissions(bucket):
    """Each permission that is missing is named by what needs it."""
    bucket.add_fault("status", method="POST", path="/upload/", status=403)
    checks = doctor(URL)
    assert (verdicts(checks), "only reading works" in checks["create once"]["detail"]) == (
        {"create once": "warning"},
        True,
    )
    assert "storage.objects.create" in checks["create once"]["advice"]
    bucket.clear_faults()
    bucket.add_fault("status", method="DELETE", status=403)
    checks = doctor(URL, status=1)
    assert verdicts(checks) == {"write": "failed"}
    assert "v1/doctor/" in checks["write"]["advice"]


def test_what_is_absent_is_refused(bucket):
    """Credentials that may read and not list get 403 for each absent entry: the missing permission is named."""
    bucket.add_fault("status", method="GET", path="/download/", status=403, count=1)
    checks = doctor(URL)
    assert verdicts(checks) == {"read": "warning"}
    assert "s3:ListBucket" in checks["read"]["advice"]


@pytest.fixture
def portal(monkeypatch):
    """A network that answers every request with its login page stands in the place of the storage."""
    page = b"<!DOCTYPE html><html><body>Please log in</body></html>"
    with serving(lambda request: answer(request, page, {})) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        yield


@pytest.mark.soak
def test_each_cause_is_named(bucket, monkeypatch, portal, impatient):
    """Too many requests, no permission, a name that DNS does not know, and a login page are four sentences."""
    impatient(2.5)
    found = {}
    found["login page"] = doctor(URL, status=1)["read"]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://no-such-host.invalid:1")
    found["DNS"] = doctor(URL, status=1)["read"]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.url)
    bucket.add_fault("status", status=403)
    found["may not read"] = doctor(URL, status=1)["read"]
    bucket.clear_faults()
    bucket.add_fault("status", status=429, headers={"Retry-After": "3600"})
    found["429"] = doctor(URL, status=1)["read"]
    assert [cause for cause, check in found.items() if cause not in check["detail"] + check["advice"]] == []
    assert len({check["advice"] for check in found.values()}) == 4


@pytest.mark.timeout(300)
def test_it_answers_in_ten_seconds(bucket, tmp_path, monkeypatch):
    """Storage that never answers, and a JAX that is never imported, are given up, and each says so."""
    monkeypatch.undo()
    assert (doctor_module.SECONDS, doctor_module.JAX_SECONDS) == (10.0, 1.0)
    monkeypatch.setattr(doctor_module, "SECONDS", 2.0)
    monkeypatch.setattr(doctor_module, "JAX_SECONDS", 0.1)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.url)
    (tmp_path / "jax.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bucket.add_fault("stall")
    checks = doctor(URL, status=1)
    # It is over long before the ten minutes that the module would take, and the hour of the storage.
    assert {name: check["verdict"] for name, check in checks.items()} == {"read": "failed", "JAX": "skipped"}


@pytest.mark.parametrize("content", [None, "{}"])
def test_files_of_credentials(tmp_path, monkeypatch, content):
    """A credentials file that cannot be used is named, with what to do."""
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("EASYDEL_GCS_CLIENT", str(file))
    check = doctor(URL, status=1)["read"]
    assert check["verdict"] == "failed"
    assert "file" in check["advice"]


def test_each_cause_has_its_remedy():
    """An expired token, an unknown bucket and a wrong region are not answered with the same sentence."""
    advice = [remedy(cause, "s3://b", otherwise="other") for cause in (*StorageCause, None)]
    assert len(set(advice)) == len(advice)
    assert advice[-1] == "other"


@pytest.mark.parametrize(
    ("url", "named", "foreign"),
    [
        ("gs://b/p", ["EASYDEL_GCS_CLIENT", "STORAGE_EMULATOR_HOST"], "AWS|AZURE"),
        ("s3://b/p", ["AWS_PROFILE", "AWS_ENDPOINT_URL"], "GCS|EMULATOR|AZURE"),
        ("abfs://b/p", ["AZURE_STORAGE_CONNECTION_STRING"], "AWS|GCS|EMULATOR"),
        ("file:///mnt/p", ["mount"], "AWS|GCS|EMULATOR|AZURE|credentials"),
    ],
)
def test_the_remedy_names_the_variables_of_that_storage(url, named, foreign):
    """Advice for one kind of storage names none of the variables that another kind reads."""
    advice = remedy(None, url)
    assert [name for name in named if name not in advice] == []
    assert re.search(foreign, advice) is None
    if not url.startswith("file"):
        assert re.search(foreign, remedy(StorageCause.CREDENTIALS, url)) is None


def test_conditions_that_are_ignored(bucket, monkeypatch):
    """Storage that ignores conditions, as some emulators do, cannot hold a shared cache."""
    monkeypatch.setattr("gcs_server.objects.check_conditions", lambda *_, **__: None)
    checks = doctor(URL, status=1)
    assert verdicts(checks) == {"create once": "failed"}


def test_bytes_that_are_damaged(bucket, impatient):
    """Storage that gives other bytes than it was given is found out."""
    impatient(1.0)
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
    monkeypatch.setattr(doctor_module, "FAR_SECONDS", 0.01)
    bucket.add_fault("latency", method="GET", path="/download/", seconds=0.02)
    assert verdicts(doctor(URL)) == {"latency": "warning"}


def test_s3(monkeypatch, answering_python):
    """The same is tried on S3."""
    monkeypatch.setattr(sys, "executable", PYTHON)  # which the server needs
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with S3Server() as server:
        monkeypatch.setattr(sys, "executable", answering_python)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        assert verdicts(doctor("s3://bucket/a")) == {}
        assert verdicts(doctor("s3://elsewhere/a", status=1)) == {"read": "failed"}


def test_network_file_system(tmp_path, monkeypatch):
    """A directory between hosts is tried as one: its file system is named, and conditions are the writer's own."""
    mount_nfs(tmp_path / "nfs", monkeypatch)
    monkeypatch.setattr("ejcache.maintenance.doctor.mounts", sharing_detection.mounts)
    (tmp_path / "nfs").mkdir()
    checks = doctor(tmp_path / "nfs" / "cache")
    assert verdicts(checks) == {}
    assert "two hosts compile one program" in checks["create once"]["detail"]
    (tmp_path / "nfs" / "cache").mkdir(exist_ok=True)
    assert "on nfs4" in doctor(tmp_path / "nfs" / "cache")["directory"]["detail"]


def test_local_directory(tmp_path):
    """A cache of this host: everything is tried beside it, and the entries are left as they are."""
    fill(tmp_path / "cache", "jit_train")
    before = files(tmp_path / "cache")
    checks = doctor(tmp_path / "cache")
    assert list(checks) == ["directory", "trust", "write", "JAX"]
    assert verdicts(checks) == {}
    assert files(tmp_path / "cache").keys() == before.keys()


def test_a_directory_that_is_not_there(tmp_path):
    """Where a cache could be made, it is not made."""
    assert verdicts(doctor(tmp_path / "a" / "b")) == {}
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]


def test_a_directory_for_everybody(tmp_path):
    """A directory that others can write to is reported, because its entries are code that is run."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert verdicts(doctor(tmp_path / "cache")) == {"directory": "warning"}


def test_one_advice_is_printed_once(tmp_path, monkeypatch):
    """What mends what two checks have found is one line, with the names of both."""

    def found(*_, **__):
        yield doctor_module.failed("directory", "it is closed", "open it")
        yield doctor_module.warning("trust", "programs use another one", "open it")

    monkeypatch.setattr(doctor_module, "check_directory", found)
    said = ejcache("doctor", tmp_path)
    assert "  directory, trust:  open it\n" in said.out
    assert said.out.count("open it") == 1


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
    refused = ejcache("ls", "--dir", tmp_path / "cache")
    assert (refused.status, refused.out, "any user can write to" in refused.err) == (1, "", True)


def test_a_trusted_directory_of_others(tmp_path, monkeypatch):
    """With EJCACHE_TRUST_DIR=1 they say that code is loaded all the same."""
    fill(tmp_path / "cache", "jit_f")
    (tmp_path / "cache" / "v1" / "local").chmod(0o777)
    monkeypatch.setenv("EJCACHE_TRUST_DIR", "1")
    trust = doctor(tmp_path / "cache")["trust"]
    assert trust["verdict"] == "ok"
    assert "everybody who can write there is trusted" in trust["detail"]
    assert "directory of their own" not in ejcache("config", "--dir", tmp_path / "cache").out


@pytest.mark.parametrize(
    ("script", "verdict", "status", "words"),
    [
        ("echo 9.9.9\necho none\necho it keeps its own\n", "warning", 0, "it keeps its own"),
        ("echo 9.9.9\necho thin\necho it gets the thin form\n", "warning", 0, "it gets the thin form"),
        ("echo 9.9.9\nexit 1\n", "failed", 1, "JAX 9.9.9 cannot be looked at"),
        ("echo 'ImportError: libcuda.so.1' >&2\nexit 1\n", "failed", 1, "JAX cannot be imported, ImportError: libcuda"),
        ("echo \"ModuleNotFoundError: No module named 'jax'\" >&2\nexit 1\n", "failed", 1, "JAX cannot be imported"),
    ],
)
def test_what_is_wrong_with_jax(tmp_path, monkeypatch, script, verdict, status, words):
    """A JAX of another build is a warning; one that cannot be imported is a failure, and says why."""
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\n{script}")
    other.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(other))
    check = doctor(tmp_path / "cache", status=status)["JAX"]
    assert (check["verdict"], words in check["detail"]) == (verdict, True)


@pytest.mark.parametrize("host", ["user:hunter2@127.0.0.1:1", "http://user:hunter2@127.0.0.1:1"])
def test_the_password_of_an_emulator_is_not_printed(monkeypatch, impatient, host):
    """An address that holds a password is shown without it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", host)
    impatient()
    said = ejcache("doctor", URL)
    assert "127.0.0.1:1" in said.out
    assert "hunter2" not in said.out + said.err
