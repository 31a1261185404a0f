"""Every fault of a cache, for each kind of store, and for who asks: a caller of the store, a program, a command.

The rows are in faults.toml. A fault costs an entry at most: a program computes the right thing and says why it has
missed, the compilation that follows stores a good entry, a command ends with rows or a sentence, and nothing outside
of the cache is read, changed or waited for.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import re
import shutil
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
from archives import flipped, framed, gigabyte, of_a_later_version
from cli_helpers import ejcache as command
from cli_helpers import fill

import ejcache
from ejcache import entry
from ejcache.bucket.breaker import forget_breakers
from ejcache.cache.opening import open_cache_store
from ejcache.coordination.leases import end_leases
from ejcache.journal.recorder import recorder
from ejcache.settings.resolve import resolve

ROWS = tomllib.loads(Path(__file__).with_name("faults.toml").read_text())
SECRET = b"-----BEGIN OPENSSH PRIVATE KEY----- nobody else's business"
ARGUMENT = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
LARGE = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float32)
"""Part of a program, so that its entry is large enough to be a file of its own in every kind of store."""


def rows(kind):
    return pytest.mark.parametrize("row", [pytest.param(row, id=row["name"]) for row in ROWS[kind]])


# -- the bytes of an entry ---------------------------------------------------------------------------------------------


def header_and_payload(data):
    length = int.from_bytes(data[4:8], "big")
    return entry.read_fields(data)[0], data[8 + length : -32]


def changed_header(data, **fields):
    header, payload = header_and_payload(data)
    return framed(header | fields, payload)


def becomes_a_gigabyte(data):
    header, _ = header_and_payload(data)
    return framed(header | {"payload_size": len(gigabyte()), "raw_size": 1 << 30, "codec": "zstd"}, gigabyte())


class Trap:
    def __reduce__(self):
        return os.mkdir, ("unpickled",)


BYTES = {
    "bit_of_the_header": lambda data, _: flipped(data, 500),
    "bit_of_the_executable": lambda data, _: flipped(data, -5_000),
    "bit_of_the_checksum": lambda data, _: flipped(data, -8),
    "half": lambda data, _: data[: len(data) // 2],
    "a_byte_less": lambda data, _: data[:-1],
    "a_byte_more": lambda data, _: data + b"x",
    "nothing": lambda data, _: b"",
    "zeros": lambda data, _: bytes(len(data)),
    "a_pickle": lambda data, _: pickle.dumps(Trap()),
    "deep_header": lambda data, _: framed(b'{"a":' * 100_000),
    "not_a_number": lambda data, _: changed_header(data, compile_seconds=float("nan")),
    "huge_number": lambda data, _: framed(b'{"created":' + b"9" * 4000 + b"}"),
    "wrong_length": lambda data, _: b"EJC1" + b"\xff" * 100,
    "no_date": lambda data, _: changed_header(data, created=1e300),
    "claims_gigabytes": lambda data, _: changed_header(data, payload_size=1 << 31, raw_size=1 << 31),
    "bomb": lambda data, _: becomes_a_gigabyte(data),
    "of_another_program": lambda data, other: other,
    "of_a_later_version": lambda data, _: of_a_later_version(data),
    "refused_by_xla": lambda data, _: entry.encode(entry.decode(data).header, os.urandom(50_000)),
}
"""Makes the bytes that lie under the key of a program from its own entry, and that of another program."""


# -- caches ------------------------------------------------------------------------------------------------------------


def program(x):
    return x * 2 + (x[0, 0] * LARGE).sum()


def other(x):
    return x * 5 + (x[0, 0] * LARGE).sum()


COMPILED = {}
"""What the first cache has compiled, and what the program has computed: the others begin with it."""


class Cache:
    """A cache of one kind, in which two programs are.

    Attributes:
        url: what programs and commands name.
        key: of `program`.
        right: what it computes.
    """

    def __init__(self, kind, place):
        self.kind, self.host = kind, place / "host"
        self.url = {"local": str(place / "cache"), "shared": str(place / "shared")}.get(kind, "gs://bucket/a")
        if kind == "shared":
            (place / "shared" / "v1" / "entries").mkdir(parents=True)
        self.right = COMPILED.get("right")
        if self.right is None:
            with self.program() as cache:
                jax.jit(other)(ARGUMENT)
                COMPILED["right"] = self.right = self.run()
                assert cache.flush(60)
        else:
            with open_cache_store(self.url, resolve()) as store:
                for key, data in COMPILED["entries"].items():
                    assert store.put(key, data)
        if kind in ("shared", "bucket"):
            self.forget_copies()
        with ejcache.open_store(self.asked) as store:
            self.key, self.other = (
                next(info.key for info in store.entries() if info.key.startswith(f"jit_{name}-"))
                for name in ("program", "other")
            )
            self.good = store.peek(self.key)
            COMPILED.setdefault("entries", {key: store.peek(key) for key in (self.key, self.other)})

    @property
    def asked(self):
        """Where the entries lie that are damaged."""
        if self.kind != "copies":
            return self.url
        (found,) = {path.parents[1] for path in self.host.rglob("v1/local")}
        return str(found)

    def program(self):
        """Enable the cache, as a new process does."""
        ejcache.disable()
        recorder.after_fork_in_child()
        cache = ejcache.enable(self.url, min_compile_seconds=0)
        return Enabled(cache)

    def run(self):
        jax.clear_caches()
        result = np.asarray(jax.jit(program)(ARGUMENT)).tobytes()
        assert self.right in (None, result)
        return result

    def forget_copies(self):
        """Be another host."""
        shutil.rmtree(self.host, ignore_errors=True)

    @functools.cached_property
    def path(self):
        """The file of the entry of `program`."""
        return self.file_of(self.good)

    def file_of(self, data):
        """The file with this content."""
        (found,) = [path for path in Path(self.url).rglob("*") if path.is_file() and path.read_bytes() == data]
        return found


class Enabled:
    """The cache in use, until the end of a block."""

    def __init__(self, cache):
        self.cache = cache

    def __enter__(self):
        return self.cache

    def __exit__(self, *_exception):
        self.cache.flush(60)
        ejcache.disable()
        end_leases(released_only=True)  # the end of the process does, for which the next one would have to wait


@pytest.fixture
def make(tmp_path, bucket, monkeypatch):
    """Make a cache of this kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EJCACHE_LOCAL_DIR", str(tmp_path / "host"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "id_rsa").write_bytes(SECRET)
    yield lambda kind: Cache(kind, tmp_path)
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"id_rsa": SECRET}
    assert not (tmp_path / "unpickled").exists()


def said_well(said):
    """True if a command ended with rows or a sentence."""
    text = said.out + said.err
    return said.status in (0, 1) and "Traceback" not in text and "unexpected" not in text


# -- damage ------------------------------------------------------------------------------------------------------------


def damaged(cache, row):
    with ejcache.open_store(cache.asked) as store:
        data = BYTES[row["bytes"]](cache.good, store.peek(cache.other))
        store.replace(cache.key, data)
    return data


def damages(kind):
    """Every row in a local cache; elsewhere, where the same bytes are decoded by the same code, one for each end."""
    return [row for row in ROWS["damage"] if kind == "local" or row.get("everywhere")]


@pytest.mark.parametrize("kind", ["local", "shared", "bucket", "copies"])
def test_a_program_meets_damage(make, kind):
    """It computes the right thing and says why it has missed; what it compiles takes the place, or goes beside it."""
    cache = make(kind)
    for row in damages(kind):
        if kind in ("shared", "bucket"):
            cache.forget_copies()
        data = damaged(cache, row)
        with cache.program() as enabled:
            cache.run()
            stats = enabled.stats()
            if kind == "copies" and row["miss"] not in ("version", "rejected"):
                # The bucket has a good one, from which the copy is made anew.
                assert (stats.hits, stats.misses, stats.corrupt) == (1, 0, 1), row
                assert stats.tiers["local"]["corrupt"] == 1, row
            else:
                assert stats.misses_by_reason == {row["miss"]: 1}, row
                assert kind != "local" or ROWS["why"][row["miss"]] in ejcache.why()[0].sentence, row
        with ejcache.open_store(cache.asked) as store:
            if row.get("stays"):
                assert store.peek(cache.key) == data, row
            else:
                assert entry.decode(store.peek(cache.key), key=cache.key).header.name == "jit_program", row
        if row.get("everywhere"):  # the others have ended in the same way: with a good entry under the key
            with cache.program() as enabled:
                cache.run()
                # What a later version stored stays, so that this host can keep its own only beside it, in its copies.
                assert enabled.stats().hits == (row["miss"] != "version" or kind in ("shared", "bucket")), row


LOOKING = (["stats"], ["ls", "--json"], ["ls", "jit_program"], ["why"], ["prune", "-n", "--max-size", "0"])


@pytest.mark.parametrize("kind", ["local", "shared", "bucket"])
def test_a_store_and_commands_meet_damage(make, kind):
    """A store gives the bytes as they are, for which a checksum is, and every other call works beside them.

    `ls` lists the other program, `push` copies it alone, and `verify` finds the damage, which --fix takes out.
    """
    cache = make(kind)
    at = ("--dir", cache.url)
    for row in damages(kind):
        data = damaged(cache, row)
        with ejcache.open_store(cache.url) as store:
            assert store.get(cache.key) == store.peek(cache.key) == data, row
            assert store.contains(cache.other), row
            assert store.put(cache.key, cache.good) is False, row
            assert store.delete(cache.key), row
            assert store.put(cache.key, cache.good), row
            assert store.get(cache.key) == cache.good, row
            store.replace(cache.key, data)
        is_found = row["miss"] in ("corrupt", "foreign")
        assert "jit_other" in command("ls", *at).out, row
        for asked in LOOKING[: None if kind == "local" else 0]:  # they see the same bytes, wherever those are
            assert said_well(command(*asked, *at)), (row, asked)
        pushed = command("push", "copy.tar", *at, "--json")
        is_copied = row.get("copied", False)
        assert [each["key"] for each in pushed.json["damaged"]] == [cache.key] * (is_found and not is_copied), row
        assert pushed.json["unknown_versions"] == int(row["miss"] == "version"), row
        assert pushed.json["copied_entries"] == 1 + is_copied, row
        said = command("verify", *at)
        assert (said_well(said), said.status) == (True, int(is_found)), (row, said)
        assert said_well(command("verify", "--fix", *at)), row
        assert command("verify", *at).status == 0, row
        with ejcache.open_store(cache.url) as store:
            assert store.peek(cache.key) == (None if is_found else data), row
            assert store.peek(cache.other) is not None, row


def test_an_error_is_raised_only_where_it_is_asked_for(make):
    """`jax_raise_persistent_cache_errors` lets damage out; without it the program never sees it."""
    cache = make("local")
    damaged(cache, ROWS["damage"][0])
    jax.config.update("jax_raise_persistent_cache_errors", True)
    with cache.program(), pytest.raises(ejcache.EjcacheError):
        cache.run()


# -- what lies in the place of a file ----------------------------------------------------------------------------------


def plant(cache, what):
    """Put something else in the place of a file, unless it is there."""
    file, outside = cache.path, Path("outside").absolute()
    if what == "link above":
        if not file.parent.is_symlink():
            file.parent.rename(file.parent.with_name("before"))
            file.parent.symlink_to(outside)
        return
    if os.path.lexists(file):
        if file.is_dir() and not file.is_symlink():
            return
        file.unlink()
    file.parent.mkdir(parents=True, exist_ok=True)
    if what == "pipe":
        os.mkfifo(file)
    elif what == "directory":
        file.mkdir()
    elif what == "giant":
        file.touch()
        os.truncate(file, 6 << 30)
    else:
        file.symlink_to({"link": outside / "id_rsa", "device": Path("/dev/zero")}.get(what, outside / "none"))


@pytest.mark.parametrize("kind", ["local", "shared"])
@rows("planted")
def test_what_others_have_planted(make, kind, row):
    """It is no entry: nobody follows it, waits for it or reads it whole; what is not below it is there.

    The program compiles, and finds what it has stored at the next start if that can be stored.
    """
    cache = make(kind)
    what = row["what"]
    with ejcache.open_store(cache.url) as store:
        beside = cache.file_of(store.peek(cache.other))
    is_beside = what != "link above" or (kind == "shared" and beside.parent != cache.path.parent)
    plant(cache, what)
    for number in range(2):
        with cache.program() as enabled:
            cache.run()
            stats = enabled.stats()
            assert stats.hits + stats.misses == 1
            assert what == "link above" or "error" not in stats.misses_by_reason
            assert number == 0 or what in ("directory", "link above") or stats.hits == 1
    plant(cache, what)
    try:
        with ejcache.open_store(cache.url) as store:
            with contextlib.suppress(*[ejcache.StoreError] * (what == "link above")):
                found = store.peek(cache.key, length=64)
                assert found == (bytes(64) if (what, kind) == ("giant", "shared") else None)
            with contextlib.suppress(ejcache.StoreError):
                store.delete(cache.key)
            assert not is_beside or store.get(cache.other) is not None
    except ejcache.StoreError:
        assert not is_beside  # a local store is not opened where a link leads out of it
    plant(cache, what)
    for asked in (["ls", "--json"], ["stats"], ["verify"], ["verify", "--fix"], ["prune", "--max-size", "1GB"]):
        said = command(*asked, "--dir", cache.url)
        assert said_well(said), said


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("retry_time")
@rows("refusal")
def test_storage_that_refuses(make, bucket, row, caplog):
    """A program goes on without it and says so in one line; a caller of the store and a command get one sentence."""
    cache = make("bucket")
    fill(Path("mine"), "jit_f")
    bucket.add_fault("status", status=row["status"], message=row.get("message", "no"))
    with cache.program() as enabled:
        cache.run()
        assert enabled.stats().hits == 0
        assert ROWS["why"]["error"] in ejcache.why()[0].sentence
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    lines = [line for line in said if "waiting for the storage" not in line]
    assert len(lines) == 1, said
    assert re.search(row["said"], lines[0])
    forget_breakers()  # what follows are other processes
    with pytest.raises(ejcache.StoreError) as caught, ejcache.open_store(cache.url) as store:
        store.get(cache.key)
    assert re.search(row["said"], str(caught.value)), caught.value
    for asked in (("ls", "--dir", cache.url), ("push", cache.url, "--dir", "mine")):
        forget_breakers()
        said = command(*asked)
        assert (said.status, said_well(said)) == (1, True), said
        assert re.search(row["said"], said.err), said
    bucket.clear_faults()
