"""The contract of a store, on everything that hosts share."""

from __future__ import annotations

import pytest
from buckets import ENDPOINT, GcsServerProcess, S3Server, endpoint_at, gcs_bucket, prefix_of, s3_bucket
from ssh_server import SshServer, sftp_bucket, why_no_ssh
from store_sharing import ProcessTests

from ejcache.bucket.files import FileBucket
from ejcache.bucket.fsspec_bucket import FsspecBucket
from ejcache.stores.shared.store import SharedStore


class TestFiles(ProcessTests):
    """A directory of a network file system."""

    bounded = False
    recency = False

    def open(self, path, *, max_size=-1, read_only=False):
        return SharedStore(FileBucket(path), max_size=max_size, read_only=read_only, counts_at_once=True)


@pytest.fixture(scope="module")
def gcs():
    with GcsServerProcess() as server:
        yield server


class TestGcs(ProcessTests):
    """A bucket of Google Cloud Storage."""

    bounded = False
    recency = False
    largest = 70_000_000

    @pytest.fixture(autouse=True)
    def endpoint(self, gcs, tmp_path):
        (tmp_path / ENDPOINT).write_text(gcs.url)

    def open(self, path, *, max_size=-1, read_only=False):
        bucket = gcs_bucket(endpoint_at(path), prefix_of(path))
        return SharedStore(bucket, max_size=max_size, read_only=read_only, counts_at_once=True)


@pytest.fixture(scope="module")
def s3():
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with S3Server() as server:
        yield server


class TestS3(ProcessTests):
    """A bucket of S3."""

    bounded = False
    recency = False
    largest = 20_000_000

    @pytest.fixture(autouse=True)
    def endpoint(self, s3, tmp_path):
        (tmp_path / ENDPOINT).write_text(s3.url)

    def open(self, path, *, max_size=-1, read_only=False):
        bucket = s3_bucket(endpoint_at(path), prefix_of(path))
        return SharedStore(bucket, max_size=max_size, read_only=read_only, counts_at_once=True)


@pytest.fixture(scope="module")
def ssh():
    if why_no_ssh():
        pytest.skip(why_no_ssh())
    with SshServer() as server:
        yield server


class TestSftp(ProcessTests):
    """A directory of an SSH server."""

    bounded = False
    recency = False
    largest = 20_000_000

    @pytest.fixture(autouse=True)
    def endpoint(self, ssh, tmp_path):
        (tmp_path / ENDPOINT).write_text(ssh.url)

    def open(self, path, *, max_size=-1, read_only=False):
        bucket = sftp_bucket(endpoint_at(path), prefix_of(path))
        return SharedStore(bucket, max_size=max_size, read_only=read_only, counts_at_once=True)


class TestFsspec(ProcessTests):
    """Any other file system of fsspec, here its own memory."""

    bounded = False
    recency = False
    multiprocess = False

    def open(self, path, *, max_size=-1, read_only=False):
        bucket = FsspecBucket(f"memory://{path}")
        return SharedStore(bucket, max_size=max_size, read_only=read_only, counts_at_once=True)
