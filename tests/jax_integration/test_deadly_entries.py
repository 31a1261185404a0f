"""Entries that end the process which loads them: after two deaths in a row they are compiled anew and replaced."""

from __future__ import annotations

import json
import signal
import struct

import pytest
from jobs import run_job

import ejcache
from ejcache import entry
from ejcache.jax_integration.load_journal import LoadJournal
from ejcache.keys.key import is_side_key
from ejcache.settings.directories import state_directory

PROGRAM = """
    import json, signal, sys
    import jax, numpy as np
    from pathlib import Path
    from ejcache.jax_integration.seam import backends, patch

    deadly, how = Path("deadly"), int(sys.argv[2])

    def hooked(module, name, place):
        load = getattr(module, name)

        def loading(*arguments):
            # As XLA does with a forged executable; or the process is killed from outside meanwhile.
            if deadly.exists() and arguments[place] == deadly.read_bytes():
                signal.raise_signal(how)  # at this thread: after os.kill() it may go on until the main thread dies
            return load(*arguments)

        setattr(module, name, loading)

    hooked(patch, "load_executable", 0)
    hooked(backends, "load_ahead", 1)
    import ejcache
    with ejcache.enable(sys.argv[1], min_compile_seconds=0) as cache:
        assert float(jax.jit(lambda x: x * 3)(np.float32(14))) == 42
        stats = cache.stats()
        print(json.dumps([stats.hits, stats.misses_by_reason]))
"""


def executable_of(directory):
    with ejcache.open_store(str(directory)) as store:
        (key,) = [info.key for info in store.entries() if info.key.startswith("jit_") and not is_side_key(info.key)]
        return entry.decode(store.peek(key))


def test_a_trace_that_cannot_be_read(tmp_path, monkeypatch):
    """What is no journal, or was removed by another process meanwhile, costs neither the other traces nor the own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loading = state_directory() / "loading"
    loading.mkdir(parents=True, mode=0o700)
    (loading / "1-000000000000").mkdir()
    (loading / "2-000000000000").write_bytes(b"0 1.5 jit_f\0")
    (loading / "3-000000000000").write_bytes(b"1 1.5 jit_f\0")
    journal = LoadJournal()
    header = entry.Header(key="jit_f", created=1.5)
    place = journal.begin(header)
    try:
        assert place == 0
        assert journal.is_suspected(header)
    finally:
        journal.end(place, header, is_loaded=True)
        journal.close()
    assert [path.name for path in loading.iterdir()] == ["1-000000000000"]


@pytest.fixture(params=["0", "1"], ids=["asked for", "preloaded"])
def start(request, run_forked, tmp_path):
    """A start of one program whose executable was stored before; with a signal, loading that one ends the process."""
    variables = {"EJCACHE_PRELOAD": request.param, "XDG_CACHE_HOME": str(tmp_path / "home")}

    def run(how=0):
        return run_forked(PROGRAM, str(tmp_path / "cache"), str(how), env=variables, check=False)

    assert run().returncode == 0
    (tmp_path / "deadly").write_bytes(executable_of(tmp_path / "cache").raw)
    return run


def outcome(finished):
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def test_it_dies_dies_and_compiles(start, tmp_path):
    """One death proves nothing; of two in a row, the next start compiles, says so once, and stores what hits again."""
    assert start(signal.SIGKILL).returncode == -signal.SIGKILL  # from outside
    loaded = start()
    assert (outcome(loaded)[0], "in a row" in loaded.stderr) == (1, False)
    for _ in range(2):
        assert start(signal.SIGILL).returncode == -signal.SIGILL
    third = start(signal.SIGILL)
    assert outcome(third) == [0, {"suspected": 1}]
    assert third.stderr.count("two starts in a row have ended while they loaded") == 1
    (tmp_path / "deadly").unlink()  # what was compiled anew has the same bytes here
    fourth = start()
    assert (outcome(fourth)[0], fourth.stderr) == (1, "")


def forged(raw):
    """An executable whose object code has relocations of a kind that there is none of: XLA aborts when it loads it."""
    changed, at = bytearray(raw), 0
    while (at := raw.find(b"\x7fELF", at)) >= 0:
        (sections,) = struct.unpack_from("<Q", raw, at + 0x28)
        size, count = struct.unpack_from("<HH", raw, at + 0x3A)
        for number in range(count):
            _, kind, _, _, offset, length = struct.unpack_from("<IIQQQQ", raw, at + sections + number * size)
            for place in range(offset, offset + length, 24) if kind == SHT_RELA else ():
                struct.pack_into("<I", changed, at + place + 8, 0xEE)
        at += 4
    assert changed != raw
    return bytes(changed)


SHT_RELA = 4
FORGED = """
    import json, sys
    import jax, numpy as np
    import ejcache
    with ejcache.enable(sys.argv[1], min_compile_seconds=0) as cache:
        x = np.ones((64, 64), np.float32)
        assert np.allclose(jax.jit(lambda x: jax.numpy.sin(x) @ x)(x), np.sin(x) @ x)
        stats = cache.stats()
        print(json.dumps([stats.hits, stats.misses_by_reason]))
"""


@pytest.mark.parametrize("preload", ["0", pytest.param("1", marks=pytest.mark.soak)])
def test_a_forged_executable(run_forked, tmp_path, preload):
    """Its checksum is valid, and XLA ends the process that loads it: two starts die, the third compiles."""
    variables = {"EJCACHE_PRELOAD": preload, "XDG_CACHE_HOME": str(tmp_path / "home")}

    def run():
        return run_forked(FORGED, str(tmp_path / "cache"), env=variables, check=False)

    assert outcome(run()) == [0, {"absent": 1}]
    with ejcache.open_store(str(tmp_path / "cache")) as store:
        (key,) = [info.key for info in store.entries() if info.key.startswith("jit_") and not is_side_key(info.key)]
        found = entry.decode(store.peek(key))
        assert store.replace(key, entry.encode(found.header, forged(found.raw))) is None
    for _ in range(2):
        dead = run()
        assert dead.returncode == -signal.SIGABRT
        assert "Relocation type" in dead.stderr
    third = run()
    assert outcome(third) == [0, {"suspected": 1}]
    assert third.stderr.count("two starts in a row have ended while they loaded") == 1


POD = """
import json
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import ejcache

mesh = Mesh(np.array(jax.devices()), ("a",))
x = jax.make_array_from_callback((2,), NamedSharding(mesh, P("a")), lambda i: np.arange(2, dtype=np.float32)[i])
total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, P()))(x)
assert float(total.addressable_data(0)) == 1
stats = ejcache.active().stats()
print(json.dumps([stats.hits, stats.stores]))
"""


def test_all_ranks_compile_and_replace_it(tmp_path):
    """If one rank suspects its copy, each rank compiles and replaces its own."""

    def run():
        _, said = run_job(
            POD,
            cache=lambda rank: str(tmp_path / f"cache-{rank}"),
            env=lambda rank: {"XDG_CACHE_HOME": str(tmp_path / str(rank))},
        )
        return said

    assert run() == [[0, 1]] * 2
    before = [executable_of(tmp_path / f"cache-{rank}").header for rank in range(2)]
    traces = tmp_path / "1" / "ejcache" / "state" / "loading"
    traces.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(2):
        # What two starts in a row leave that die.
        (traces / f"{number}-00000000000{number}").write_text(f"{number} {before[1].created!r} {before[1].key}")
    assert run() == [[0, 1]] * 2
    after = [executable_of(tmp_path / f"cache-{rank}").header for rank in range(2)]
    assert all(new.created > old.created for old, new in zip(before, after, strict=True))
    assert run() == [[1, 0]] * 2
