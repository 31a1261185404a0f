"""Damaged entries met by real programs: never loaded, never a crash, and healed by the compile that follows."""

from __future__ import annotations

import json
import random

import jax
import numpy as np
import pytest
from archives import flipped

import ejcache
from ejcache import entry, entry_encoding
from ejcache.keys.side_keys import is_side_key


@pytest.fixture
def cache(tmp_path):
    return ejcache.enable(str(tmp_path / "cache"), min_compile_seconds=0)


def program(x):
    return jax.numpy.tanh(x) @ x.T + 1


ARGUMENT = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


def programs_in(store):
    """The entries of programs, without the texts kept beside them."""
    return [info for info in store.entries() if not is_side_key(info.key)]


def run():
    jax.clear_caches()
    return np.asarray(jax.jit(program)(ARGUMENT))


def damages(data: bytes, count: int) -> list[bytes]:
    """Four flips, spread over the whole entry, for each truncation."""
    rng = random.Random(7)
    flips = [flipped(data, rng.randrange(len(data) * 8)) for _ in range(count * 4 // 5)]
    return [*flips, *(data[: rng.randrange(len(data))] for _ in range(count // 5))]


@pytest.mark.parametrize("count", [5, pytest.param(50, marks=pytest.mark.soak)])
def test_damages_of_a_programs_entry_are_each_met_and_healed(count, cache, tmp_path, monkeypatch):
    """Each, and another program's entry, is a counted miss before XLA sees it; the result is right, the next a hit."""
    jax.jit(lambda x: x * 5)(ARGUMENT)
    with ejcache.open_store(str(tmp_path / "cache")) as store:
        other = store.peek(programs_in(store)[0].key)
        expected = run()
        (key,) = [info.key for info in programs_in(store) if "program" in info.key]
        loaded = []
        from ejcache.jax_integration.seam import patch as seam

        original = seam.load_executable
        monkeypatch.setattr(seam, "load_executable", lambda raw, target: loaded.append(raw) or original(raw, target))
        for number, damaged in enumerate([*damages(store.peek(key), count), other], start=1):
            store.replace(key, damaged)
            assert run().tobytes() == expected.tobytes()
            assert cache.stats().misses == 2 + number
            assert entry.decode(store.peek(key), key=key).header.name == "jit_program"
    assert loaded == []
    assert run().tobytes() == expected.tobytes()
    assert len(loaded) == 1
    assert cache.stats().misses_by_reason == {"absent": 2, "corrupt": count, "foreign": 1}


def test_an_intact_entry_that_xla_rejects_is_compiled_beside_it(cache, tmp_path):
    """The entry stays for those who can use it; this host's own goes beside it and is hit from then on."""
    expected = run()
    with ejcache.open_store(str(tmp_path / "cache")) as store:
        (info,) = programs_in(store)
        header = entry.decode(store.peek(info.key), key=info.key).header
        nonsense = entry_encoding.encode(header, b"no executable at all" * 50)
        store.replace(info.key, nonsense)

        for _ in range(3):
            assert run().tobytes() == expected.tobytes()

        assert store.peek(info.key) == nonsense
        assert len(programs_in(store)) == 2
    stats = cache.stats()
    assert (stats.misses_by_reason, stats.stores, stats.hits) == ({"absent": 1, "rejected": 1}, 2, 2)


def test_a_cache_error_is_raised_only_when_asked_for(cache, tmp_path):
    """`jax_raise_persistent_cache_errors` lets damage out; without it the program never sees it."""
    run()
    with ejcache.open_store(str(tmp_path / "cache")) as store:
        (info,) = programs_in(store)
        store.replace(info.key, b"damage")
    jax.config.update("jax_raise_persistent_cache_errors", True)
    try:
        with pytest.raises(ejcache.EjcacheError):
            run()
    finally:
        jax.config.update("jax_raise_persistent_cache_errors", False)


FLIPS = """
    import json, random, sys
    from pathlib import Path
    import jax, numpy as np
    import ejcache

    directory, *offsets = sys.argv[1:]
    for offset in map(float, offsets):
        database = next(Path(directory).rglob("cache.db"))
        damaged = bytearray(database.read_bytes())
        place = int(offset * (len(damaged) if offset < 1 else 1))
        damaged[place] ^= 1 << place % 8
        database.write_bytes(bytes(damaged))
    cache = ejcache.enable(directory, min_compile_seconds=0)
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    result = np.asarray(jax.jit(lambda x: jax.numpy.tanh(x) @ x.T + 1)(x)).tobytes().hex()
    print(json.dumps([result, cache.stats().to_dict()]))
"""


def test_flips_in_the_database_file_leave_a_program_right(tmp_path, run_forked):
    """Flips in the index itself, each in a process of its own: the result is right, nothing crashes, the next heals."""
    rng = random.Random(11)
    # The header and the first pages, where a flip does most harm, and anywhere (as a share of the file).
    flips = [str(rng.randrange(1, 100)) for _ in range(2)] + [str(rng.random()) for _ in range(4)]
    directory = str(tmp_path / "cache")
    starts = [[directory], *([directory, flip] for flip in flips), [directory], [directory]]
    answers = [json.loads(run_forked(FLIPS, *start).stdout) for start in starts]
    assert len({result for result, _ in answers}) == 1
    *_, healed, last = (stats for _, stats in answers)
    assert 1 in (healed["hits"], healed["stores"])
    assert last["hits"] == 1
