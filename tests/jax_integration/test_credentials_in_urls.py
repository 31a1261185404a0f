"""A credential in the URL of a cache is refused, and shows up nowhere: no message, log, report or file repeats it."""

from __future__ import annotations

import pytest
from soak_turns import some

SECRET = "hunter2"

PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
logging.getLogger("jax").setLevel(logging.WARNING)
import jax, numpy as np
import ejcache

url = sys.argv[1] if len(sys.argv) > 1 else None
try:
    cache = ejcache.enable(url) if url else ejcache.enable()
except ejcache.UsageError as exc:
    print("refused", exc)
    cache = ejcache.enable()
print(repr(cache), cache.url)
print(float(jax.jit(lambda x: x.sum() - 1.25)(np.arange(3.0))))
print(ejcache.stats() if hasattr(ejcache, "stats") else cache.stats())
"""

URLS = [
    f"sftp://alice:{SECRET}@host/dir",
    f"s3://AKIAEXAMPLE:{SECRET}@bucket/x",
    f"abfs://container@account/x?sig={SECRET}",
    f"https://alice:{SECRET}@host/x",
]


WAYS = ("environment", "argument", "local dir")
EACH = [(url, how) for url in URLS for how in WAYS]


@pytest.mark.parametrize(("url", "how"), some(EACH, every=5))
def test_no_credential_is_repeated(run_client, tmp_path, clean_environment, url, how):
    """The program runs, and neither its output nor any file it leaves has the credential."""
    report = tmp_path / "report.json"
    variables = {"EJCACHE_REPORT": str(report)}
    if how == "environment":
        variables["JAX_COMPILATION_CACHE_DIR"] = url
    elif how == "local dir":
        variables |= {"EJCACHE_LOCAL_DIR": url, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    finished = run_client(PROGRAM, *([url] if how == "argument" else []), env=variables)
    assert "1.75" in finished.stdout
    assert SECRET not in finished.stdout + finished.stderr
    for path in tmp_path.rglob("*"):
        assert SECRET not in str(path)
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes()
