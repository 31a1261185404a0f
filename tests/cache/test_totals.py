"""Totals are kept with the store: whoever uses it sees them all, whatever becomes of the logs of hosts."""

from __future__ import annotations

import json
from collections import Counter

import pytest

USER = """
import json, os, sys
import ejcache
from ejcache.journal import recorder as recording
from ejcache.journal.appended_log import AppendedLog
from ejcache.journal.line import HIT, ProgramRecord

recording.START_LOG = AppendedLog("starts", limit=100)  # each line is too long for it
cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
counted = dict.fromkeys(("hits", "misses", "stores"), 0)
for number in range(50):
    key = f"jit_{sys.argv[2]}_{number % 20}"
    found = cache.get(key)
    counted["hits" if found else "misses"] += 1
    if not found:
        counted["stores"] += cache.put(key, b"value")
    recording.recorder.add(ProgramRecord(name=key, key=key, outcome=HIT, time=1.0))
    recording.recorder.write()
lines = list(recording.START_LOG.lines())
print(json.dumps([counted, len(lines)]))
"""
STATS = """
import sys
from ejcache.cli.main import main
sys.exit(main(["stats", "--dir", sys.argv[1], "--json"]))
"""


@pytest.mark.parametrize("place", ["mount", pytest.param("local", marks=pytest.mark.soak)])
def test_after_fifty_rotations(run_forked, tmp_path, place):
    """Two users of one cache, and then a container with another home: the sums are those that were kept by hand."""
    cache = tmp_path / "cache"
    if place == "mount":
        (cache / "v1" / "entries").mkdir(parents=True)

    def home(name):
        return {variable: str(tmp_path / below) for variable, below in _variables(name)}

    kept = Counter()
    for user in ("ann", "bob", "ann"):
        counted, lines = json.loads(run_forked(USER, str(cache), user, env=home(user)).stdout.splitlines()[-1])
        assert lines < 3  # all others have been rotated out
        kept.update(counted)
    assert kept == {"hits": 30 + 30 + 50, "misses": 40, "stores": 40}
    said = json.loads(run_forked(STATS, str(cache), env=home("container")).stdout)
    assert {name: said[name] for name in kept} == kept


def _variables(name):
    return (
        ("HOME", name),
        ("XDG_CACHE_HOME", f"{name}/.cache"),
        ("XDG_CONFIG_HOME", f"{name}/.config"),
        ("EJCACHE_LOCAL_DIR", f"{name}/tiers"),
    )
