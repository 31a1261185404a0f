"""The contract of a store, on everything that hosts share."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from azurite import AzureServer, azure_bucket
from buckets import DEADLINE, ENDPOINT, GcsServerProcess, S3Server, endpoint_at, gcs_bucket, prefix_of, s3_bucket
from capabilities import require
from eviction_traces import encoded
from store_sharing import ProcessTests, PromptStore
from store_suite import ODD_KEYS, briefly

from ejcache.bucket.files import FileBucket
from ejcache.bucket.fsspec_bucket import FsspecBucket
from ejcache.bucket.gcsfs_bucket import GcsfsBucket
from ejcache.bucket.retry import RetryPolicy
from ejcache.maintenance.eviction import ScannedStore, run_pass
from ejcache.maintenance.eviction_plan import EvictionPolicy


@pytest.fixture(scope="module")
def gcs():
    with GcsServerProcess() as server:
        yield server


@pytest.fixture(scope="module")
def s3():
    with S3Server() as server:
        yield server


@pytest.fixture(scope="module")
def azure():
    require("azure")
    with AzureServer() as server:
        yield server


class _SharedStoreTests(ProcessTests):
    """A shared store over a bucket, whose limit and order of uses maintenance keeps."""

    def bucket(self, path):
        return FileBucket(path, policy=RetryPolicy(DEADLINE))

    def open(self, path, *, max_size=-1, read_only=False):
        return PromptStore(self.bucket(path), max_size=max_size, read_only=read_only)

    def test_a_pass_by_cost(self, path):
        """Journals carry what entries are worth and how often they were used, and a pass orders them by that."""
        with self.open(path) as store:
            for key, seconds in (("used", 0.6), ("slow", 10.0), ("quick", 1.0)):
                store.put(key, encoded(key, seconds=seconds, size=1000))
            for _ in range(5):
                store.note_used("used")
        policy = EvictionPolicy(max_size=2500, by_cost=True)
        with self.open(path) as store:
            assert {info.key: info.worth for info in ScannedStore(store).entries()} == {
                "used": 0.6, "slow": 10.0, "quick": 1.0
            }  # fmt: skip
            for left in ({"used", "slow"}, {"slow"}):
                run_pass(store, policy, now=lambda: time.time() + 3600)
                assert {info.key for info in store.entries()} == left
                policy = replace(policy, max_size=1500)


class TestFiles(_SharedStoreTests):
    """A directory of a network file system."""


class _ServedTests(_SharedStoreTests):
    """A bucket on a server, whose address other processes find in a file."""

    @pytest.fixture(autouse=True)
    def endpoint(self, request, tmp_path):
        (tmp_path / ENDPOINT).write_text(request.getfixturevalue(self.server).url)


class TestGcs(_ServedTests):
    """A bucket of Google Cloud Storage."""

    server = "gcs"

    def bucket(self, path):
        return gcs_bucket(endpoint_at(path), prefix_of(path))


_of_the_protocol = briefly(
    *("test_absence", "test_put_creates_only", "test_replace", "test_peek_length", "test_value_sizes"),
    *("test_odd_keys", "test_quarantine_compares", "test_read_only"),
)
"""What a request and its answer can be wrong about; rounds and processes are in the tests of GCS and of files."""


class _ProtocolTests(_ServedTests):
    """A bucket whose requests are its own, below the store of the other tests."""

    odd_keys = ODD_KEYS[::20]
    test_put_then_get = test_delete = None  # odd keys are put, found and deleted, too


@_of_the_protocol
class TestGcsfs(_ProtocolTests):
    """The same where gcsfs sends the requests."""

    server = "gcs"

    def bucket(self, path):
        return GcsfsBucket("bucket", prefix_of(path), endpoint_url=endpoint_at(path), policy=RetryPolicy(DEADLINE))


@_of_the_protocol
class TestS3(_ProtocolTests):
    """A bucket of S3."""

    server = "s3"

    def bucket(self, path):
        return s3_bucket(endpoint_at(path), prefix_of(path))


@_of_the_protocol
class TestAzure(_ProtocolTests):
    """A container of Azure's blob storage."""

    server = "azure"
    largest = 1_000_000  # aiohttp warns of larger bodies, and a warning is an error here

    def bucket(self, path):
        return azure_bucket(endpoint_at(path), prefix_of(path))


class TestFsspec(_SharedStoreTests):
    """Any other file system of fsspec, here its own memory."""

    multiprocess = False

    def bucket(self, path):
        return FsspecBucket(f"memory://{path}")
