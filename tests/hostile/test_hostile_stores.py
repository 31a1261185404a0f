"""Caches that somebody prepared to do harm: nothing outside is touched or copied, nothing runs, nothing hangs.

What lies in the place of an entry is in test_fault_matrix.py; here is all else, and what takes memory or time.

Each hostile object is used by a program and by the command line in a process of its own, with a deadline and limits of
memory; the good entries beside it have to work.
"""

from __future__ import annotations

import functools
import json
import math
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from archives import archive, framed, gigabyte, member
from autotune_helpers import key as tuned_key
from autotune_helpers import record
from buckets import GcsServer
from cli_helpers import key_text, put
from helpers import SUPPORT
from soak_turns import some

from ejcache import entry
from ejcache.autotune.records.record import encode_record
from ejcache.autotune.records.store import AutotuneStore
from ejcache.bucket.object_names import entry_name
from ejcache.journal.format import encode_journal
from ejcache.journal.line import EntryUse
from ejcache.keys.key import module_text_key
from ejcache.stores.local.store import LocalStore
from ejcache.stores.opening import open_store

SECRET = b"-----BEGIN OPENSSH PRIVATE KEY----- nobody else's business"
KEY = key_text("jit_train")
SECONDS = 240
"""For everything that is done with one hostile cache, on a loaded machine."""
MEMORY = 300 << 20
PROCESS = "host-1-" + "0" * 32


class Link:
    """A symbolic link to something outside of the cache."""

    def __init__(self, target: str) -> None:
        self.target = target


class Sparse:
    """A file of so many bytes that takes no room."""

    def __init__(self, size: int) -> None:
        self.size = size


PIPE = "pipe"
PRIVATE, ZERO, OUTSIDE = Link("id_rsa"), Link("/dev/zero"), Link("")
HUGE = b"9" * 4000
DEEP = b"[" * 200_000


def with_header(payload: bytes | None = None, **fields) -> bytes:
    """An entry, intact, whose header has these fields besides."""
    data = entry.encode(entry.Header(key=KEY, name="jit_train"), b"x" * 100)
    (length,) = struct.unpack(">I", data[4:8])
    return framed(json.loads(data[8 : 8 + length]) | fields, data[8 + length : -32] if payload is None else payload)


def bomb() -> bytes:
    """An entry of some 64 kB that says honestly that it becomes 1 GB."""
    return with_header(gigabyte(), payload_size=len(gigabyte()), raw_size=1 << 30, codec="zstd")


def squeezed(text: bytes) -> bytes:
    """256 MiB of this text over and over, as zlib shortens it: the piece of 4 MiB is shortened once."""
    piece = text * ((4 << 20) // len(text))
    shortener = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    short = shortener.compress(piece) + shortener.flush(zlib.Z_FULL_FLUSH)
    checksum = functools.reduce(lambda known, _: zlib.adler32(piece, known), range(64), 1)
    return b"\x78\x01" + short * 64 + b"\x03\x00" + checksum.to_bytes(4, "big")


def journal(body: bytes, **fields) -> bytes:
    header = {"codec": "plain", "count": 1, "crc32": zlib.crc32(body), "format": "ejcache-journal", "version": 1}
    return json.dumps(header | fields, sort_keys=True, separators=(",", ":")).encode() + b"\n" + body


ENTRY = entry_name(KEY)
JOURNAL = f"v1/journal/2026-01-01/{PROCESS}-0"
SNAPSHOT = "v1/journal/snapshot"
POLICY = "v1/policy.json"
LEASE = f"v1/leases/{KEY}"
TEXT = entry_name(module_text_key("0" * 64))

BYTES = {
    "entry: zstd bomb": (ENTRY, bomb),
    "entry: control characters": (ENTRY, lambda: with_header(name="jit_\x1b]0;x\x07", platform="\x9b2J")),
    "entry: surrogates": (ENTRY, lambda: with_header(name="jit_\ud800", extra={"\udfff": "\ud800"})),
    "entry: of another kind": (ENTRY, lambda: with_header(kind="module_text")),
    "entry: nothing of ours": (ENTRY, lambda: SECRET * 10),
    "name: control characters": ("v1/entries/aa/evil%1B]0;x", lambda: b"x"),
    "name: percent": ("v1/entries/aa/%zz%", lambda: b"x"),
    "name: too long a key": ("v1/entries/aa/" + "a" * 200, lambda: b"x"),
    "journal: one endless line": (JOURNAL, lambda: journal(squeezed(b"1"), codec="zlib")),
    "journal: bomb of lines": (JOURNAL, lambda: journal(squeezed(b"1\tk\n"), codec="zlib")),
    "journal: honest bomb of lines": (
        JOURNAL,
        lambda: journal(squeezed(b"1\tk\n"), codec="zlib", count=64 << 20),
    ),
    "journal: huge integer": (JOURNAL, lambda: journal(HUGE + b"\tk\n")),
    "journal: deep header": (JOURNAL, lambda: b'{"codec":"plain","count":' + b"[" * 4000 + b"\n"),
    "journal: bad key": (JOURNAL, lambda: journal(b"1\tevil\x1b\n")),
    "journal: in the future": (JOURNAL, lambda: encode_journal({KEY: EntryUse(10**15)})),
    "journal: nothing of ours": (JOURNAL, lambda: SECRET),
    "snapshot: endless line": (SNAPSHOT, lambda: journal(squeezed(b"1"), codec="zlib")),
    "snapshot: nothing of ours": (SNAPSHOT, lambda: DEEP),
    "policy: deep": (POLICY, lambda: DEEP),
    "policy: huge integer": (POLICY, lambda: b'{"format":"ejcache-policy","version":1,"max_size":' + HUGE + b"}"),
    "policy: NaN": (POLICY, lambda: b'{"format":"ejcache-policy","version":1,"max_size":NaN}'),
    "policy: infinity": (POLICY, lambda: b'{"format":"ejcache-policy","version":1,"max_size":1e400}'),
    "snapshot: huge integer": (SNAPSHOT, lambda: journal(b"1\t1\t\tk\n", sums={"hits": 10**4200})),
    "snapshot: infinity": (SNAPSHOT, lambda: journal(b"1\t1\t\tk\n", sums={"hits": math.inf, "misses": math.nan})),
    "snapshot: names of others": (
        SNAPSHOT,
        lambda: journal(b"1\t1\t\tk\n", folded=["../entries/x", "../../../id_rsa", 5, [["x"]]]),
    ),
    "snapshot: deep names": (SNAPSHOT, lambda: b'{"format":"ejcache-journal","version":1,"folded":' + DEEP + b"\n"),
    "lease: deep": (LEASE, lambda: DEEP),
    "lease: infinity": (LEASE, lambda: b'{"holder":"x","beat":1e999,"interval":NaN}'),
    "text: not the one of its key": (
        TEXT,
        lambda: entry.encode(entry.Header(key=module_text_key("0" * 64), kind="module_text"), b"\x1b]0;x\x07"),
    ),
}
"""What anybody who may write to a shared cache can put into it, a bucket as well as a directory."""

PLAUSIBLE = {"entry: control characters", "entry: of another kind"}
"""Those that are whole, and lie under their key: what their payload is, XLA says."""

NO_FILES = {"link to a private file": PRIVATE, "pipe": PIPE, "device": ZERO, "giant": Sparse(6 << 30)}
PLACES = {"journal": JOURNAL, "snapshot": SNAPSHOT, "policy": POLICY, "lease": LEASE}
FILES = {
    **{f"{what}: {how}": (place, thing) for how, thing in NO_FILES.items() for what, place in PLACES.items()},
    "entry: giant": (ENTRY, NO_FILES["giant"]),
    "text: link to a private file": (TEXT, PRIVATE),
    "v1/quarantine: link": ("v1/quarantine", OUTSIDE),
    "v1/journal: link": ("v1/journal", OUTSIDE),
    "v1/tmp: link": ("v1/tmp", OUTSIDE),
    "v1/leases: link": ("v1/leases", OUTSIDE),
    "v1/entries/aa: link": ("v1/entries/aa", OUTSIDE),
    "v1: link": ("v1", OUTSIDE),
    "name: surrogates": (b"v1/entries/aa/\xff\xfe", lambda: b"x"),
}  # fmt: skip
"""What only a file system can hold."""

LOCAL = {
    "value: giant": (KEY, NO_FILES["giant"]),
    "index: pipe": ("cache.db", PIPE),
    "index: link to a private file": ("cache.db", PRIVATE),
    "index: garbage": ("cache.db", lambda: b"SQLite format 3\x00" + b"\xff" * 5000),
    "format: pipe": ("v1/local/format", PIPE),
    "format: giant": ("v1/local/format", Sparse(3 << 30)),
    "tmp: link": ("v1/local/tmp", OUTSIDE),
    "counters: giant": ("v1/local/counters", Sparse(3 << 30)),
    "changes: giant": ("v1/local/changes", Sparse(3 << 30)),
    "entries: link": (f"v1/local/{ENTRY.split('/')[2]}", OUTSIDE),
    "v1/quarantine: link": ("v1/quarantine", OUTSIDE),
    "v1/leases: link": ("v1/leases", OUTSIDE),
    "v1/local: link": ("v1/local", OUTSIDE),
}

ARCHIVES = {
    "archive: promises 2 GiB": lambda: member(entry_name(KEY), promised=2 << 30),
    "archive: bad key": lambda: archive(("evil\x1b]0;x", b"x"), (KEY, with_header())),
    "archive: zstd bomb": lambda: archive((KEY, bomb())),
    "archive: deep header": lambda: archive((KEY, framed(b'{"a":' * 100_000))),
    "archive: deep record": lambda: member("autotune/op/cpu/1.json", b"[" * 200_000) + bytes(1024),
    "archive: pipe": PIPE,
    "archive: device": ZERO,
    "archive: giant": Sparse(6 << 30),
}

CALL = {
    "ejcache": "autotune call",
    "schema": 1,
    "operation": "x",
    "how": {"kind": "autotuned", "object": "json:loads"},
    "kwargs": {},
    "args": [{"object": "os:system", "fields": {"command": "touch PWNED"}}],
}

TUNED = {
    **{f"record: {how}": thing for how, thing in NO_FILES.items()},
    "record: deep": lambda: DEEP,
    "record: deep, with its kind": lambda: b'{"ejcache":"autotune record","schema":1,"call":' + b'{"a":' * 50_000,
    "record: huge integer": lambda: encode_record(record()).replace(b'"block": 16', b'"block": ' + HUGE),
    "record: NaN": lambda: encode_record(record()).replace(b'"block": 16', b'"block": NaN'),
    "record: control characters": lambda: encode_record(record()).replace(b"tuner", b"\\u001b]0;x"),
    "record: surrogates": lambda: encode_record(record()).replace(b"tuner", b"\\ud800"),
    "record: runs a command": lambda: json.dumps(CALL).encode(),
}  # fmt: skip


class Worker:
    """The process that uses hostile caches."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(SUPPORT), "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("hostile_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def use(self, **task) -> dict:
        print(json.dumps(task), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def worker():
    started = Worker()
    yield started
    with started.process:
        started.process.stdin.close()


@pytest.fixture
def outside(tmp_path):
    """Private files of the user who reads a hostile cache, with names that ejcache might take for its own."""
    place = tmp_path / "outside"
    (place / "aa").mkdir(parents=True)
    (place / "projects").mkdir()
    names = ["id_rsa", "aa/key", "projects/thesis.tex", "0123456789abcdef", PROCESS, f"{PROCESS}-0", "123-0123456789ab"]
    for name in (*names, "snapshot", "format"):
        (place / name).write_bytes(SECRET)
        (place / name).chmod(0o600)
        os.utime(place / name, (1e9, 1e9))
    return place


def plant(path: Path, what, outside: Path) -> None:
    """Put a hostile object at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.before"))
    path.unlink(missing_ok=True)
    if isinstance(what, Link):
        path.symlink_to(outside / what.target if not what.target.startswith("/") else what.target)
    elif isinstance(what, Sparse):
        path.touch()
        os.truncate(path, what.size)
    elif what is PIPE:
        os.mkfifo(path)
    else:
        path.write_bytes(what())


@pytest.fixture
def use(worker, outside, tmp_path):
    """Have a hostile cache used, and see that nothing outside was touched or copied, ran, hung or failed."""

    def use(cache: object, kind: str = "cache", *, listed: str = "", **variables: str) -> dict:
        task = {"cache": str(cache), "home": str(tmp_path / "home"), "kind": kind, "listed": listed}
        answer = worker.use(**task, key=KEY, seconds=SECONDS, variables=variables)
        assert answer["problems"] == []
        assert answer["grown"] < MEMORY
        left = sorted(path.relative_to(outside).as_posix() for path in outside.rglob("*") if path.is_file())
        assert len(left) == 9, left
        assert all((outside / name).read_bytes() == SECRET for name in left)
        assert not list(tmp_path.rglob("*PWNED*"))
        for path in {*tmp_path.rglob("*")} - {*outside.rglob("*")}:
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 26:
                assert path.name.startswith("hostile") or SECRET not in path.read_bytes(), path
        return answer

    return use


@pytest.fixture
def shared(tmp_path):
    """A directory that hosts share, with an entry."""
    (tmp_path / "shared" / "v1" / "entries").mkdir(parents=True)
    with open_store(tmp_path / "shared") as store:
        put(store, key_text("jit_eval"))
    return tmp_path / "shared"


pytestmark = pytest.mark.timeout(SECONDS + 60)


@pytest.mark.parametrize("name", some([*BYTES, *FILES], every=4))
def test_shared_directory(name, use, shared, outside):
    """A directory that hosts share."""
    where, what = {**BYTES, **FILES}[name]
    if name.endswith("nothing of ours"):
        what = lambda: b"nothing of ours"  # noqa: E731  # the secret itself may stay where somebody has put it
    plant(shared / os.fsdecode(where), what, outside)
    # A policy that is no JSON may have named another place of the entries, so that none is listed.
    answer = use(shared, listed="jit_eval" * ((name in BYTES and name != "policy: deep") or what is PIPE))
    if name in BYTES and where == ENTRY:
        assert answer["miss"] in ({""} if name in PLAUSIBLE else {"corrupt", "foreign", "version"})


@pytest.mark.parametrize("name", some(BYTES, every=6))
def test_bucket(name, use):
    """An emulated bucket; its objects are read by the code that reads those of a directory."""
    where, what = BYTES[name]
    with GcsServer() as server:
        bucket = server.api.buckets["bucket"]
        bucket.insert(f"a/{where}", what(), {}, {}, throttle=False)
        good = key_text("jit_eval")
        data = entry.encode(entry.Header(key=good, name="jit_eval"), b"x")
        bucket.insert(f"a/{entry_name(good)}", data, {}, {}, throttle=False)
        use("gs://bucket/a", STORAGE_EMULATOR_HOST=server.url)


@pytest.mark.parametrize("name", some(LOCAL, every=4))
def test_local_store(name, use, outside, tmp_path):
    """A cache of one host."""
    where, what = LOCAL[name]
    cache = tmp_path / "cache"
    with LocalStore(cache) as store:
        put(store, KEY, os.urandom(100_000))
        put(store, key_text("jit_eval"))
    (path,) = [cache / where] if where.startswith("v1/") else list(cache.rglob(where))
    plant(path, what, outside)
    use(cache)


@pytest.mark.parametrize("name", some(ARCHIVES, every=4))
def test_archive(name, use, outside, tmp_path):
    """A file that somebody gave."""
    file = tmp_path / "hostile.tar"
    plant(file, ARCHIVES[name], outside)
    use(file, "archive")


@pytest.mark.parametrize("name", some(TUNED, every=4))
def test_tuned_records(name, use, outside, tmp_path):
    """Tuned records that others share."""
    store = AutotuneStore(str(tmp_path / "tuned"))
    store.publish(record(tuned_key()))
    (path,) = (tmp_path / "tuned").glob("autotune/*/*/*.json")
    plant(path, TUNED[name], outside)
    use(tmp_path / "tuned", "tuned")
