"""Answers that are lost, that no storage has written, or that come before the client is ready; S3's and Google's."""

from __future__ import annotations

import math
import threading

import pytest
from buckets import DEADLINE, GcsServer, S3Server, gcs_bucket, s3_bucket
from dead_ends import TO_GCSFS
from lossy_proxy import LossyProxy
from memory_bucket import MemoryBucket
from soak_turns import some

from ejcache.bucket.client_bucket import ClientBucket
from ejcache.bucket.retry import RetryPolicy
from ejcache.errors import NoPermissionError, StoreNotAskedError, StoreUnavailableError
from ejcache.stores.opening import kind_of_gcs
from ejcache.stores.shared.store import SharedStore
from ejcache.util.time_budget import Budget, in_background


@pytest.fixture(scope="module")
def moto():
    with S3Server() as server:
        yield server


@pytest.fixture
def proxy(moto):
    with LossyProxy(moto.url) as proxy:
        yield proxy


@pytest.fixture
def s3(proxy, tmp_path):
    bucket = s3_bucket(proxy.url, tmp_path.name)
    yield bucket
    bucket.close()


@pytest.fixture
def gcs():
    with GcsServer() as server:
        yield server


OPERATIONS = (
    lambda bucket: bucket.read("k"),
    lambda bucket: bucket.stat("k"),
    lambda bucket: bucket.write("k", b"x"),
    lambda bucket: bucket.delete("k"),
    lambda bucket: list(bucket.walk("")),
    lambda bucket: list(bucket.delete_many([("k", None)])),
)


@pytest.mark.usefixtures("retry_time")
class TestLostAnswersOfS3:
    @pytest.mark.parametrize("how", ["reset", "close"])
    def test_own_creation_is_recognised(self, proxy, s3, how):
        """A creation that was carried out although the connection broke before its answer is our own."""
        assert s3.read("warm") is None  # on a connection that is kept open
        proxy.lose, proxy.how, proxy.times = "PUT", how, 1
        assert s3.create("k", b"mine") is True
        assert s3.read("k").data == b"mine"

    def test_another_ones_creation_is_recognised(self, moto, proxy, s3, tmp_path):
        """A creation whose answers were lost is not ours if another process made the object."""
        s3_bucket(moto.url, tmp_path.name).create("k", b"theirs")
        proxy.lose, proxy.times = "PUT", 1
        assert s3.create("k", b"mine") is False

    def test_own_swap_and_deletion_are_recognised(self, proxy, s3):
        """A conditional overwrite and a deletion that were carried out although their answers were lost are our own."""
        first = s3.write("k", b"1")
        proxy.lose, proxy.times = "PUT", 1
        assert s3.write("k", b"2", version=first) == s3.stat("k").version
        proxy.lose, proxy.times = "DELETE", 1
        assert s3.delete("k") is True

    def test_no_request_is_repeated_unseen(self, proxy, s3):
        """Each try is one request: neither aiohttp nor botocore sends one again by itself."""
        s3.read("warm")
        proxy.seen.clear()
        proxy.lose, proxy.how, proxy.times = "PUT", "close", 1
        s3.write("k", b"x")
        assert [method for method, _, _ in proxy.seen] == ["PUT", "PUT"]


@pytest.mark.usefixtures("retry_time")
class TestUploads:
    @pytest.mark.usefixtures("gcs_client")
    def test_damage_on_the_way_to_google_is_found(self, gcs):
        """An upload whose bytes are changed on their way is refused by the server, and made again."""
        bucket = gcs_bucket(gcs)
        gcs.add_fault("corrupt_upload", method="POST", count=1)
        data = bytes(100_000)
        assert bucket.create("k", data) is True
        assert gcs.objects()["prefix/k"] == data
        assert [r.status for r in gcs.requests] == [400, 200]
        bucket.close()

    def test_damage_on_the_way_to_s3_is_found(self, proxy, s3):
        """An upload whose bytes are changed on their way is refused by its digest, as S3 does, and made again."""
        proxy.damage = 2
        data = bytes(100_000)
        assert s3.create("k", data) is True
        assert s3.read("k").data == data
        assert [method for method, _, _ in proxy.seen].count("PUT") == 3

    def test_damage_on_the_way_from_s3_deletes_nothing(self, proxy, s3):
        """An entry whose bytes are changed on their way to each reader stays; one that is damaged there goes."""
        store = SharedStore(s3)
        store.put("k", b"EJC1 as it was made")
        proxy.flips = True
        damaged = store.get("k")
        assert damaged != b"EJC1 as it was made"
        assert store.quarantine("k", damaged) is False
        proxy.flips = False
        assert store.get("k") == b"EJC1 as it was made"
        assert store.quarantine("k", b"EJC1 as it was made") is True
        assert store.get("k") is None


@pytest.mark.usefixtures("retry_time")
class TestDeletions:
    @pytest.mark.usefixtures("gcs_client")
    @pytest.mark.parametrize("status", [404, 405, 501])
    def test_without_batches(self, gcs, status):
        """A server without the request for many deletions gets one request for each object, under its condition."""
        bucket = gcs_bucket(gcs)
        versions = {f"o/{n}": bucket.write(f"o/{n}", b"x") for n in range(6)}
        bucket.write("o/0", b"replaced")
        gcs.add_fault("status", path="/batch", status=status)
        gcs.clear_requests()
        assert sorted(bucket.delete_many(versions.items())) == [f"o/{n}" for n in range(1, 6)]
        assert sorted(gcs.objects()) == ["prefix/o/0"]
        assert list(bucket.delete_many([("o/0", None)])) == ["o/0"]
        assert sum("/batch" in r.path for r in gcs.requests) == 1
        bucket.close()

    @pytest.mark.parametrize(
        "answer",
        [
            pytest.param((404, b""), id="404"),
            pytest.param((405, b""), id="405", marks=pytest.mark.soak),
            pytest.param((501, b""), id="501", marks=pytest.mark.soak),
            pytest.param((200, b"<DeleteResult></DeleteResult>"), id="no parts", marks=pytest.mark.soak),
            pytest.param((200, b"<html>no</html>"), id="a page"),
        ],
    )
    def test_without_batches_of_s3(self, proxy, s3, answer):
        """The same for a server with S3's protocol: it is asked once, and then gets one request for each object."""
        proxy.answers["POST", "delete"] = answer
        versions = {f"o/{n}": s3.write(f"o/{n}", b"%d" % n) for n in range(6)}
        s3.write("o/0", b"replaced")
        assert sorted(s3.delete_many(versions.items())) == [f"o/{n}" for n in range(1, 6)]
        assert [info.name for info in s3.walk("")] == ["o/0"]
        assert list(s3.delete_many([("o/0", None)])) == ["o/0"]
        assert sum(method == "POST" for method, _, _ in proxy.seen) == 1

    def test_a_replaced_object_is_spared(self, s3):
        """An object that was replaced since it was listed is not deleted, even by a server that ignores versions."""
        s3.write("a", b"1")
        s3.write("b", b"1")
        listed = [(info.name, info.version) for info in s3.walk("")]
        s3.write("a", b"another process's")
        assert list(s3.delete_many(listed)) == ["b"]
        assert s3.read("a").data == b"another process's"
        assert [info.name for info in s3.walk("")] == ["a"]


class TestStrangeAnswers:
    """Asked in the background: a program waits 2.5 s for a first answer, which a busy machine may give later."""

    @pytest.mark.usefixtures("gcs_client")
    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_a_login_page_instead_of_google(self, gcs, operation):
        """A proxy's page with status 200 is a storage that cannot be used, and no KeyError."""
        bucket = gcs_bucket(gcs)
        gcs.add_fault("status", status=200, message="<html>Please log in</html>")
        said = "not one of Google Cloud Storage, perhaps of a proxy"
        with in_background(), pytest.raises(StoreUnavailableError, match=said):
            operation(bucket)
        bucket.close()

    @pytest.mark.parametrize("operation", some(OPERATIONS, every=3))
    def test_a_login_page_instead_of_s3(self, proxy, s3, operation):
        """The same in place of a server with S3's protocol, and no write counts as done."""
        for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
            proxy.answers[method, ""] = (200, b"<html>Please log in</html>")
        with in_background(), pytest.raises(StoreUnavailableError, match="not one of S3, perhaps of a proxy"):
            operation(s3)


class TestForbidden:
    @pytest.fixture(params=["https", "gcsfs", "s3"])
    def unlistable(self, request, gcs, proxy, s3, monkeypatch):
        """A bucket that these credentials may not list: it answers 403 for what is absent."""
        if request.param == "gcsfs":
            for variable, value in TO_GCSFS.items():
                monkeypatch.setenv(variable, value)
        bucket = s3 if request.param == "s3" else gcs_bucket(gcs)
        bucket.write("there", b"value")
        gcs.add_fault("status", method="GET", path="hidden", status=403)
        proxy.answers["GET", "hidden"] = (403, b"<Error><Code>AccessDenied</Code><Message>No</Message></Error>")
        yield bucket
        bucket.close()

    def test_what_may_not_be_listed_is_absent_once_something_was_read(self, unlistable):
        """Credentials that could read one object may read; what they may not see is absent."""
        for n in range(2):
            with pytest.raises(NoPermissionError, match=r"may not read.*ListBucket"):
                unlistable.read(f"hidden/{n}")
        assert unlistable.read("there").data == b"value"
        for n in range(5):
            assert unlistable.read(f"hidden/{n}") is None
        assert unlistable.read("there").data == b"value"


class TestCredentials:
    @pytest.mark.parametrize(
        ("content", "said"), [(None, "does not exist"), ("{", "is not JSON"), ("[]", "does not hold credentials")]
    )
    @pytest.mark.usefixtures("gcs_client")
    def test_a_file_that_cannot_be_used_is_named(self, tmp_path, monkeypatch, content, said):
        """The file, the variable that names it, the cause and a remedy are in one sentence."""
        path = tmp_path / "key.json"
        if content is not None:
            path.write_text(content)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        bucket = kind_of_gcs()("bucket")
        with pytest.raises(StoreUnavailableError, match=f"GOOGLE_APPLICATION_CREDENTIALS, {path}, {said}: correct"):
            bucket.read("k")
        bucket.close()


class SlowClient(MemoryBucket, ClientBucket):
    """Objects in memory that are asked for once a client is there.

    Args:
        load: imports the client's library.
        make: makes the client.
    """

    def __init__(self, *, load=lambda: None, make=lambda: None):
        super().__init__(policy=RetryPolicy(DEADLINE))
        self.load, self.make = load, make

    def _load(self):
        return self.load()

    def _make(self):
        return self.make()

    @classmethod
    def _release(cls, client):
        """Nothing is to be closed."""


class TestClient:
    def test_a_slow_import_is_waited_for(self, retry_time):
        """An operation waits for its library beyond its own deadline, and then has all of that for the storage."""
        loaded, found = threading.Event(), []
        # An import that uses no processor time: its files come from a slow disk. Nothing else takes any time.
        bucket = SlowClient(load=loaded.wait)
        bucket.make_seconds = 0.5
        reader = threading.Thread(target=lambda: found.append(bucket.create("k", b"value")))
        reader.start()
        reader.join(1.0)
        assert reader.is_alive()
        retry_time.now += 600
        loaded.set()
        reader.join(60)
        assert found == [True]
        assert bucket.breaker.is_open is False
        bucket.close()

    @pytest.mark.parametrize("step", ["load", "make"])
    def test_an_endless_step_says_nothing_of_the_storage(self, step):
        """An import, or a search for credentials, that never ends is waited for once, and opens no breaker."""
        forever = threading.Event()
        bucket = SlowClient(**{step: forever.wait})
        bucket.make_seconds = bucket.most_seconds = 0.1
        for _ in range(5):
            with pytest.raises(StoreNotAskedError, match="its library is still loading, or its credentials"):
                bucket.read("k")
        assert bucket.breaker.is_open is False
        forever.set()
        bucket.close()

    def test_what_cannot_be_made_is_tried_again(self):
        """An import that fails says why, and the next operation tries it again."""
        failures = iter([ImportError("no module named gcsfs"), None])

        def load():
            failure = next(failures)
            if failure is not None:
                raise failure

        bucket = SlowClient(load=load)
        with pytest.raises(StoreUnavailableError, match="cannot be opened: no module named gcsfs"):
            bucket.create("k", b"value")
        assert bucket.create("k", b"value") is True
        bucket.close()


def test_a_program_that_ends_at_once_writes_its_counters(moto, run_forked):
    """A program that asked S3 nothing while it ran writes its counters while it ends, and ends without delay."""
    program = """
        import sys, time, atexit
        started = time.monotonic()
        from ejcache.bucket.s3 import S3Bucket
        from ejcache.stores.shared.store import SharedStore
        options = {"key": "a", "secret": "b", "client_kwargs": {"region_name": "us-east-1"}}
        store = SharedStore(S3Bucket("bucket", "ends", options={**options, "endpoint_url": sys.argv[1]}))
        store.add_counters({"hits": 2})
    """
    assert run_forked(program, moto.url).stderr == ""
    bucket = s3_bucket(moto.url, "ends")
    assert len(list(bucket.walk("v1/journal/"))) == 1
    bucket.close()


def test_retries_end_when_the_deadline_does(retry_time):
    """No try is given more than half of the deadline, so that a silent connection leaves time for another one."""
    seen = []
    RetryPolicy(deadline=4).run("trying", seen.append)
    assert seen == [2]


@pytest.mark.parametrize(("most", "given"), [(1, [1 + 5]), (math.inf, [30 + 5])])
def test_the_first_answer_to_a_large_upload_may_take_longer(retry_time, most, given):
    """An upload of 20 MB is no sign of dead storage when it takes longer than a first answer may."""
    seen = []
    RetryPolicy(deadline=60).run("writing", seen.append, size=20_000_000, budget=Budget(most))
    assert seen == given


def test_storage_that_is_known_to_be_dead_is_not_tried(retry_time):
    """Not even by an upload that would have more time."""
    with pytest.raises(StoreNotAskedError):
        RetryPolicy(deadline=60).run("writing", pytest.fail, size=20_000_000, budget=Budget(0))


def test_a_program_that_ends_waits_for_an_import(run_forked):
    """It goes on in a thread that Python would end; JAX's back end may be collected there, which aborts the process."""
    program = """
        import os, sys, threading
        from ejcache.bucket import client_bucket
        def load():
            threading.main_thread().join()
            for _ in range(10_000_000):
                pass
            print("loaded")
        startup = client_bucket.ClientStartup(load, lambda: None)
        child = os.fork()
        assert not child or not os.waitpid(child, 0)[1]
    """
    assert run_forked(program).stdout == "loaded\n"


def test_an_error_that_nobody_awaits_is_not_printed(moto, run_client_to_the_end):
    """A client may read in several tasks, and raise what the first one says: the others' errors are nobody's."""
    program = """
        import asyncio, gc, sys
        from ejcache.bucket.s3 import S3Bucket

        async def fail():
            raise ConnectionError("lost")

        async def forget(_):
            asyncio.ensure_future(fail())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gc.collect()

        options = {"key": "a", "secret": "b", "client_kwargs": {"region_name": "us-east-1"}}
        bucket = S3Bucket("bucket", "nobody", options={**options, "endpoint_url": sys.argv[1]})
        bucket._run_on_loop(forget, 60)
        print(bucket.create("k", b"x"))
    """
    finished = run_client_to_the_end(program, moto.url)
    assert (finished.stdout, finished.stderr) == ("True\n", "")


@pytest.mark.parametrize("threads", [0, 1])
def test_a_program_that_begins_to_end_leaves_no_loop(threads, run_forked):
    """Python starts no thread any more: the loop that cannot run is closed, or asyncio prints a traceback of it."""
    program = """
        import asyncio, sys
        from ejcache.bucket import loop_bucket
        from ejcache.util import scheduler, threads
        start, left = threads.start_daemon, [None] * int(sys.argv[1])
        def start_while_any_is_left(*task, **named):
            return bool(left) and left.pop() is None and start(*task, **named)
        threads.start_daemon = scheduler.start_daemon = start_while_any_is_left
        loops, make = [], asyncio.new_event_loop
        asyncio.new_event_loop = lambda: loops.append(make()) or loops[-1]
        assert loop_bucket._loop.get() is None
        assert [loop.is_closed() for loop in loops] == [True]
    """
    assert run_forked(program, str(threads)).stderr == ""
