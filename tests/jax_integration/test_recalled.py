"""What an operator has recalled is compiled anew by every start, whether it was loaded ahead or not."""

from __future__ import annotations

import json
import textwrap

import pytest
from cli_helpers import ejcache

PROGRAM = """
    import json, sys
    import jax, numpy as np
    import ejcache

    cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
    jax.devices()
    assert ejcache.jax_integration.activate.compiler_in_use().preloader.drain(60)
    x = np.arange(6, dtype=np.float32)
    for number in range(3):
        assert np.array_equal(jax.jit(lambda: x * number)(), x * number), number
    amounts = cache.stats().amounts
    print(json.dumps([amounts.get(name, 0) for name in ("hits", "preload_hits", "miss_absent", "miss_recalled")]))
"""


@pytest.mark.parametrize("where", [pytest.param("directory", marks=pytest.mark.soak), "bucket"])
def test_starts_after_a_recall(where, bucket, run_client, tmp_path):
    """The copies of a host are misses from its next start; what is stored then is loaded again, ahead as before."""
    url = "gs://bucket/a" if where == "bucket" else str(tmp_path / "cache")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))

    def start():
        for note in tmp_path.rglob("scratch/policy"):
            note.unlink()  # as a minute later
        done = run_client(program, url, env={"EJCACHE_PRELOAD": "1", "EJCACHE_LOCAL_DIR": str(tmp_path / "host")})
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    assert start() == [0, 0, 3, 0]
    assert start() == [3, 3, 0, 0]
    assert ejcache("recall", "--all", "--yes", "--dir", url).status == 0
    hits, _, absent, recalled = start()
    assert (hits, absent + recalled) == (0, 3)
    hits, *_ = start()
    assert hits == 3
