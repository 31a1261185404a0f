"""Buckets and network file systems are opened as shared stores, and for compilations behind a node-local tier."""

from __future__ import annotations

import hashlib
import os

import pytest
from capabilities import require
from mounts import mount_nfs

from ejcache import entry
from ejcache.bucket.breaker import breaker_for
from ejcache.bucket.files import FileBucket
from ejcache.bucket.fsspec_bucket import FsspecBucket
from ejcache.bucket.retry import RetryPolicy
from ejcache.cache.opening import open_cache_store
from ejcache.errors import StoreNotAskedError, StoreUnavailableError, UsageError
from ejcache.jax_integration.xla_caches import open_xla_documents
from ejcache.jax_integration.xla_directories import find_xla_caches
from ejcache.settings.resolve import resolve
from ejcache.stores.local.store import LocalStore
from ejcache.stores.location import Location
from ejcache.stores.memory import MemoryStore
from ejcache.stores.opening import open_bucket, open_store
from ejcache.stores.shared.store import SharedStore
from ejcache.stores.sharing_detection import detect_shared_storage
from ejcache.stores.tier_directory import find_local_tier
from ejcache.stores.tiered.store import TieredStore
from ejcache.util.log import forget_warnings


@pytest.fixture
def network(monkeypatch, tmp_path):
    """Everything below tmp_path/nfs is on a network file system."""
    (tmp_path / "nfs").mkdir()
    mount_nfs(tmp_path / "nfs", monkeypatch)
    return tmp_path / "nfs"


def entry_of(key: str) -> bytes:
    return entry.encode(entry.Header(key=key, name="jit_f"), b"executable")


def test_what_is_shared(tmp_path, network):
    """Buckets and network file systems are shared, local directories and memory are not."""
    for url in ("gs://bucket", "s3://bucket/prefix", network / "cache"):
        assert detect_shared_storage(Location.parse(url))
    for url in (tmp_path / "cache", "memory://x", (tmp_path / "cache").as_uri()):
        assert not detect_shared_storage(Location.parse(url))


def test_bucket_by_the_environment(bucket):
    """STORAGE_EMULATOR_HOST says who is asked, with or without a scheme; nobody is asked before the first use."""
    with open_store("gs://bucket/a", max_size="1MB") as store:
        assert isinstance(store, SharedStore)
        assert (store.url, store.max_size) == ("gs://bucket/a", 1_000_000)
        assert bucket.requests == []
        assert store.put("key", b"value")
    assert [name for name in bucket.objects() if "entries" in name and name.startswith("a/v1/")]
    bare = resolve(environ={"STORAGE_EMULATOR_HOST": bucket.url.removeprefix("http://")})
    with open_store("gcs://bucket/a/", settings=bare, read_only=True) as store:
        assert store.get("key") == b"value"


def test_credentials_by_the_environment(bucket, monkeypatch, tmp_path):
    """EASYDEL_GCS_CLIENT names the credentials; a file that is not there is said, not sent."""
    monkeypatch.setenv("EASYDEL_GCS_CLIENT", str(tmp_path / "none.json"))
    with open_store("gs://bucket/a") as store, pytest.raises(StoreUnavailableError, match="does not exist"):
        store.get("key")
    assert bucket.requests == []


def shallow(bucket) -> list[str]:
    """What a listing finds that does not look into folders."""
    for name in ("jit_f-cache", "jit_g-cache", "v1/entries/aa/jit_f", "jit_h/x"):
        bucket.write(name, b"x")
    return sorted(info.name for info in bucket.walk("jit_", deep=False))


def test_listing_without_folders(bucket, tmp_path):
    """On every kind of storage, a listing can leave out what is in folders, whatever it would cost to list that."""
    with open_store("gs://bucket/a") as store:
        assert shallow(store.bucket) == ["jit_f-cache", "jit_g-cache"]
    assert shallow(FileBucket(tmp_path / "files")) == ["jit_f-cache", "jit_g-cache"]
    assert shallow(FsspecBucket(f"local://{tmp_path}/fsspec")) == ["jit_f-cache", "jit_g-cache"]


def test_s3_without_s3fs(run_forked):
    """Where s3fs is not installed, one sentence says what to install."""
    said = run_forked(
        """
        import sys
        sys.modules["s3fs"] = None
        from ejcache.stores.opening import open_store
        try:
            open_store("s3://bucket/x").get("key")
        except OSError as exc:
            print(exc)
        """
    )
    assert said.stdout.strip() == "s3:// needs s3fs: pip install 'ejcache[s3]'"


def test_other_file_systems():
    """What else fsspec can write to is opened through it, and says itself what it lacks."""
    require("adlfs")
    with open_store("abfs://container@account/x") as store, pytest.raises(StoreUnavailableError, match="credentials"):
        store.get("key")
    with pytest.raises(UsageError, match="names no host"):
        open_store("abfs://")


@pytest.mark.parametrize("scheme", ["hdfs", "oci", "webdav"])
def test_schemes_without_a_test(scheme, caplog, monkeypatch):
    """They are refused in one sentence that names the setting and what is supported; with it, that is said once."""
    url = f"{scheme}://host/x"
    with pytest.raises(
        UsageError, match=rf"tested with {scheme}://; EJCACHE_UNTESTED_SCHEMES=1 .*gs://.*s3://.*abfs://"
    ):
        open_store(url)
    monkeypatch.setenv("EJCACHE_UNTESTED_SCHEMES", "1")
    for _ in range(2):
        open_bucket(url, prepare=False).close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"ejcache: EJCACHE_UNTESTED_SCHEMES is set: ejcache is not tested with {scheme}://"
    ]


OWN = """
from fsspec.implementations.local import LocalFileSystem

class Own(LocalFileSystem):
    protocol = "own"

    @classmethod
    def _strip_protocol(cls, path, **_):
        return {directory!r} + str(path).removeprefix("own://").removeprefix({directory!r})
"""


def test_a_file_system_of_ones_own(run_python, tmp_path):
    """The scheme of an installed file system is opened, with the setting, and a program hits what it has stored."""
    metadata = tmp_path / "site" / "own-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[fsspec.specs]\nown = own:Own\n")
    (metadata.parent / "own.py").write_text(OWN.format(directory=f"{tmp_path}/there/"))
    code = """
        from ejcache import open_store
        with open_store("own://host/prefix") as store:
            print(store.put("key", b"value"), store.get("key"), [entry.key for entry in store.entries()])
        """
    place = {"PYTHONPATH": str(metadata.parent)}
    refused = run_python(code, env=place, check=False)
    assert "EJCACHE_UNTESTED_SCHEMES=1" in refused.stderr
    done = [run_python(code, env=place | {"EJCACHE_UNTESTED_SCHEMES": "1"}).stdout for _ in range(2)]
    assert done == ["True b'value' ['key']\n", "False b'value' ['key']\n"]
    assert list((tmp_path / "there").rglob("*key*"))


def test_a_namespace_is_no_credential():
    """Oracle's URLs name a bucket and its namespace."""
    assert Location.parse("oci://bucket@namespace/x").bucket == "bucket@namespace"


def test_a_program_goes_on_without_a_cache_of_a_scheme_without_a_test(run_forked, tmp_path):
    """A job that names such storage compiles, and says why it does without, once."""
    said = run_forked(
        """
        import jax, ejcache
        ejcache.enable()
        assert [float(jax.jit(lambda x: x + n)(1.0)) for n in range(3)] == [1.0, 2.0, 3.0]
        """,
        env={"JAX_COMPILATION_CACHE_DIR": "hdfs://host/x", "EJCACHE_LOCAL_DIR": str(tmp_path)},
    )
    assert said.stderr.count("EJCACHE_UNTESTED_SCHEMES=1") == 1, said.stderr


def test_network_file_system(network):
    """A directory on a network file system has the shared layout, and is recognised by it on the server itself."""
    with open_store(network / "cache") as store:
        assert isinstance(store, SharedStore)
        assert isinstance(store.root, FileBucket)
        store.put("key", b"value")
    moved = network.rename(network.parent / "exported")
    with open_store(moved / "cache") as store:
        assert isinstance(store, SharedStore)
        assert store.get("key") == b"value"


def test_local_cache_has_no_tier(tmp_path):
    """A cache on a local disk is opened as it is."""
    with open_cache_store(str(tmp_path / "cache"), resolve()) as store:
        assert isinstance(store, LocalStore)
    with open_cache_store("memory://opening-shared", resolve()) as store:
        assert isinstance(store, MemoryStore)


def test_bucket_has_a_tier(bucket, clean_environment):
    """A bucket is opened behind a local store below the user's cache folder, whose limit is a setting."""
    with open_cache_store("gs://bucket/a", resolve()) as store:
        assert isinstance(store, TieredStore)
        assert isinstance(store.local, LocalStore)
        assert store.local.path.parent == clean_environment / ".cache" / "ejcache" / "tiers"
        assert store.local.path.name == hashlib.sha256(b"gs://bucket/a").hexdigest()[:16]
        assert store.local.max_size == 10 << 30
        assert store.put("key", entry_of("key"))
        assert store.flush(60)
        assert store.local.contains("key")
        assert store.shared.contains("key")


def test_each_bucket_has_its_own_tier(tmp_path):
    """Two URLs share EJCACHE_LOCAL_DIR, and nothing in it; two spellings of one URL share all."""
    settings = resolve(environ={"EJCACHE_LOCAL_DIR": str(tmp_path / "disk")})
    one, same, two = (
        find_local_tier(Location.parse(url), settings) for url in ("gs://bucket/a", "gcs://bucket/a/", "gs://bucket/b")
    )
    assert one == same != two
    assert {one.parent, two.parent} == {tmp_path / "disk"}


def test_tier_keeps_what_is_intact_only(bucket, tmp_path):
    """A damaged entry of the bucket does not get into the local tier."""
    settings = resolve(environ={"EJCACHE_LOCAL_DIR": str(tmp_path), "STORAGE_EMULATOR_HOST": bucket.url})
    with open_store("gs://bucket/a") as plain:
        plain.put("good", entry_of("good"))
        plain.put("bad", entry_of("bad")[:-1] + b"x")
        plain.put("foreign", entry_of("other"))
    with open_cache_store("gs://bucket/a", settings) as store:
        for key in ("good", "bad", "foreign"):
            store.get(key)
        assert [info.key for info in store.local.entries()] == ["good"]


@pytest.mark.parametrize("prepared", ["world-writable", "link", "scratch"])
def test_a_tier_that_others_prepared(tmp_path, clean_environment, caplog, prepared):
    """Where another user could have put code, a private directory is used, and one warning says so."""
    forget_warnings()
    disk, location = tmp_path / "disk", Location.parse("gs://bucket/a")
    disk.mkdir()
    variables = {"EJCACHE_LOCAL_DIR": str(disk), "HOME": str(clean_environment)}
    usual = find_local_tier(location, resolve(environ=variables))
    if prepared == "link":
        (tmp_path / "theirs").mkdir()
        usual.symlink_to(tmp_path / "theirs")
    else:
        (usual / "scratch").mkdir(parents=True)
        (usual if prepared == "world-writable" else usual / "scratch").chmod(0o777)
    for _ in range(2):
        found = find_local_tier(location, resolve(environ=variables))
        assert found.is_relative_to(clean_environment / ".cache" / "ejcache" / "tiers")
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    if prepared == "link":
        assert "EJCACHE_LOCAL_DIR" in warnings[0]
        return
    assert "EJCACHE_TRUST_DIR=1" in warnings[0]
    trusting = resolve(environ={**variables, "EJCACHE_TRUST_DIR": "1"})
    assert find_local_tier(location, trusting) == usual


def test_home_on_a_network_file_system(network, monkeypatch, tmp_path):
    """Where the user's cache folder is no local disk, this host's temporary files hold the tier, in private."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(network / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = find_local_tier(Location.parse("gs://bucket/a"), resolve())
    mine = tmp_path / f"ejcache-{os.getuid()}"
    assert place.parent == mine / "tiers"
    assert mine.stat().st_mode & 0o777 == 0o700
    mine.chmod(0o777)
    assert find_local_tier(Location.parse("gs://bucket/a"), resolve()) is None


@pytest.mark.parametrize("why", ["no room", "network", "unusable", "not a path"])
def test_without_a_local_disk(bucket, network, tmp_path, why):
    """Without a directory to keep copies in, this process's memory is the local tier, and everything else works."""
    (tmp_path / "file").write_text("")
    variables = {
        "no room": {"EJCACHE_LOCAL_MAX_SIZE": "0"},
        "network": {"EJCACHE_LOCAL_DIR": str(network / "tier")},
        "unusable": {"EJCACHE_LOCAL_DIR": str(tmp_path / "file")},
        "not a path": {"EJCACHE_LOCAL_DIR": "gs://bucket/tier"},
    }[why]
    settings = resolve(environ={"STORAGE_EMULATOR_HOST": bucket.url, "HOME": str(tmp_path), **variables})
    with open_cache_store("gs://bucket/a", settings) as store:
        assert isinstance(store.local, MemoryStore)
        assert store.put("key", entry_of("key"))
        assert store.flush(60)
    with open_store("gs://bucket/a") as plain:
        assert plain.get("key") == entry_of("key")
    assert not (network / "tier").exists()


def test_read_only(bucket, tmp_path):
    """With EJCACHE_READ_ONLY the bucket is left as it is, and what is read is still kept nearby."""
    with open_store("gs://bucket/a") as plain:
        plain.put("key", entry_of("key"))
    before = bucket.objects()
    settings = resolve(
        environ={"STORAGE_EMULATOR_HOST": bucket.url, "EJCACHE_LOCAL_DIR": str(tmp_path), "EJCACHE_READ_ONLY": "1"}
    )
    with open_cache_store("gs://bucket/a", settings) as store:
        assert store.get("key") == entry_of("key")
        assert store.local.contains("key")
        store.add_counters({"hits": 1})
    assert bucket.objects() == before


def test_xla_places(tmp_path):
    """XLA's own caches of a remote cache have a place on a local disk of this host; without one there are none."""
    settings = resolve(environ={"EJCACHE_LOCAL_DIR": str(tmp_path / "disk")})
    places = find_xla_caches("gs://bucket/a", settings)
    assert (places.root / places.below).is_relative_to(tmp_path / "disk")
    with pytest.raises(StoreNotAskedError):  # nobody has read yet where the entries of the cache are
        open_xla_documents(places, settings)
    documents = open_xla_documents(places._replace(epoch=""), settings)
    assert (documents.url, documents.remote) == ("gs://bucket/a", True)
    assert find_xla_caches("memory://x", resolve(environ={})) is None


def test_the_end_of_a_program_meets_trouble_once(bucket, monkeypatch, tmp_path):
    """If maintenance at the end finds that the storage fails, nothing after it is waited for."""
    monkeypatch.setenv("EJCACHE_LOCAL_DIR", str(tmp_path / "local"))
    store = open_cache_store("gs://bucket/end", resolve())
    store.put("k", entry_of("k"))
    assert store.flush(60) is True
    store.note_used("k")  # the end of the program writes that down
    store.shared.bucket.policy = RetryPolicy(deadline=2.5)
    bucket.add_fault("stall")
    store.close()
    assert breaker_for(store.shared.url).is_open
