"""Objects that somebody prepared in a shared directory: each is a counted miss, soon, and within little memory."""

from __future__ import annotations

import hashlib
import json
import struct
import tracemalloc

import pytest
import zstandard

from ejcache.bucket.object_names import entry_name
from ejcache.cache.opening import open_cache_store
from ejcache.cache.policy import CachePolicy
from ejcache.settings.resolve import resolve

SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----"
KEY = "jit_f-cpu-plain-" + "0" * 64


def framed(fields: bytes, payload: bytes = b"") -> bytes:
    body = b"EJC1" + struct.pack(">I", len(fields)) + fields + payload
    return body + hashlib.sha256(body).digest()


def header(**fields: object) -> bytes:
    fields = {"codec": "none", "key": KEY, "payload_size": 0, "raw_size": 0, **fields}
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def bomb() -> bytes:
    """Some kilobytes that become a gigabyte: made where they are used, for that takes as much memory."""
    data = zstandard.ZstdCompressor().compress(bytes(1 << 30))
    return framed(header(codec="zstd", payload_size=len(data), raw_size=1 << 30), data)


HOSTILE = {
    "empty": b"",
    "garbage": b"garbage" * 1000,
    "header only": b"EJC1" + struct.pack(">I", 1 << 31),
    "deep json": framed(b"[" * 200_000),
    "huge integer": framed(header()[:-1] + b',"z":' + b"9" * 100_000 + b"}"),
    "nan": framed(header()[:-1] + b',"z":NaN}'),
    "another key": framed(header(key="other")),
    "another kind": framed(header(kind="module_text")),
    "control characters": framed(header(name="\x1b]0;owned\x07", payload_size=-1)),
    "surrogate": framed(header(name="\ud800")),
    "bomb": bomb,
    "claims gigabytes": framed(header(payload_size=1 << 31, raw_size=1 << 31)),
}


@pytest.fixture
def shared(tmp_path):
    (tmp_path / "shared" / "v1" / "entries").mkdir(parents=True)
    (tmp_path / "id_rsa").write_bytes(SECRET)
    return tmp_path / "shared"


def look_up(shared):
    settings = resolve(environ={"EJCACHE_LOCAL_DIR": str(shared.parent / "disk"), "HOME": str(shared.parent)})
    policy = CachePolicy(str(shared), open_store=lambda: open_cache_store(str(shared), settings))
    tracemalloc.start()
    try:
        looked = policy.read(KEY, settings)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    policy.flush()
    policy.close()
    assert looked.entry is None
    assert peak < 300 << 20
    assert (shared.parent / "id_rsa").read_bytes() == SECRET
    copies = [path for path in shared.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in copies if path.stat().st_size < 1 << 20 and SECRET in path.read_bytes()]
    return looked


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes(shared, name):
    """What is not a plausible entry of this key is a miss with a reason."""
    path = shared / entry_name(KEY)
    path.parent.mkdir(parents=True)
    data = HOSTILE[name]
    path.write_bytes(data() if callable(data) else data)
    assert look_up(shared).miss in {"corrupt", "foreign", "version"}
