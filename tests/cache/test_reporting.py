"""The report at exit."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter

import pytest

from ejcache.cache.exit_report import report_line
from ejcache.cache.reasons import Miss, Skip
from ejcache.cache.stats import Stats, add_skip, amounts_of_miss
from ejcache.util import tally as tallies
from ejcache.util.tally import Tally


def stats_of(tally):
    return Stats.of(tally.totals())


def test_the_line():
    """Hits, misses and why, what was stored and what not and why, and the time saved."""
    tally = Tally()
    tally.add(hits=12, seconds_saved=41.25, compile_seconds=1.75, stores=2)
    tally.add(**amounts_of_miss(Miss.ABSENT))
    assert report_line(stats_of(tally), ["/c"]) == "ejcache: saved 41.2 of 43.0 s: 12 hits, 1 miss, 2 stored (/c)"
    tally.add(**amounts_of_miss(Miss.CORRUPT))
    add_skip(tally, Skip.QUICK)
    tally.add(errors=1)
    assert report_line(stats_of(tally), ["/c", "/d"]) == (
        "ejcache: saved 41.2 of 43.0 s: 12 hits, 2 misses (1 absent, 1 corrupt), 2 stored, 1 not stored (1 quick), "
        "1 error (/c, /d)"
    )
    tally.add(left_out_seconds=1.5)
    assert report_line(stats_of(tally), ["/c"], processes=3).splitlines()[1] == (
        "ejcache: programs that compile quickly took 1.5 s in all; min_compile_seconds=0 stores them, too"
    )


def test_the_line_says_what_is_on_this_host_only():
    """Of what a cache in a bucket has stored, some entries are below its floor, and some uploads are not finished."""
    tally = Tally()
    tally.add(stores=9, kept_here=8, shared_uploads=2)
    assert "9 stored, 8 of them on this host only (gs://b)" in report_line(stats_of(tally), ["gs://b"])
    tally.add(shared_spooled=2, shared_uploads_lost=1, shared_refused=3)
    assert "host only, 3 uploads refused, 2 uploads left to the next start, 1 upload lost (gs" in report_line(
        stats_of(tally), ["gs://b"]
    )


PROGRAM = """
import os, sys
from ejcache.cache import exit_report as reporting
from ejcache.util.tally import Tally
class Cache:
    def __init__(self, url): self.url, self.tally = url, Tally()
    def count_tiers(self): pass
for url in ("/a", "/b"):
    cache = Cache(url)
    cache.tally.add(hits=2)
    reporting.include(cache, destination="off")
    reporting.include(cache, destination=sys.argv[1])
"""


LINE = "ejcache: saved 0.0 of 0.0 s: 4 hits, 0 misses, 0 stored (/a, /b)\n"
GONE = "import os, sys\nplace = os.path.abspath('gone')\nos.mkdir(place)\nos.chdir(place)\nos.rmdir(place)\n"
FORKED = "pid = os.fork()\nif pid: os.waitpid(pid, 0)\n"


@pytest.mark.parametrize(
    ("program", "destination", "said"),
    [
        (PROGRAM, "line", LINE),
        (PROGRAM, "TRUE", LINE),
        (PROGRAM, "off", ""),
        (PROGRAM, "", ""),
        (PROGRAM + FORKED, "line", LINE),
    ],
)
def test_a_line_at_exit(run_forked, program, destination, said):
    """The sum over all caches of the process, once, and once if it has forked; or nothing, if that is asked for."""
    assert run_forked(program, destination).stderr == said


@pytest.mark.parametrize(
    ("program", "path", "said"),
    [
        (PROGRAM, "nowhere/report.json", "nowhere/report.json: "),
        (PROGRAM, "~nosuchuser/report.json", "nosuchuser/report.json: "),
        (GONE + PROGRAM, "report.json", "EJCACHE_REPORT"),
    ],
)
def test_a_report_that_cannot_be_written(run_forked, program, path, said):
    """It is said once, at exit: a path that is none, that of nobody's home, one from a directory that is gone."""
    done = run_forked(program, path)
    assert (done.returncode, done.stderr.count(said), "Traceback" in done.stderr) == (0, 1, False)
    assert path.removeprefix("~") in done.stderr


def test_json_at_exit(run_forked, tmp_path):
    """On stderr or in a file that is replaced whole."""
    assert json.loads(run_forked(PROGRAM, "json").stderr)["hits"] == 4
    (tmp_path / "report.json").write_text("old")
    run_forked(PROGRAM, "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["schema"], report["urls"]) == (1, ["/a", "/b"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "report.json"]


def test_counting_in_a_signal_handler():
    """A signal handler that counts, reads or takes inside the same thread's call waits for nobody and loses nothing."""
    tally = Tally()
    taken = Counter()
    calls = [
        lambda: tally.add(here=1, hits=1),
        tally.totals,
        lambda: taken.update(tally.take_pending()),
    ]

    def handler(frame, event, argument):
        # Where the interpreter runs handlers: at the start of a Python function, and after a C function.
        if event in {"call", "c_return"} and frame.f_code.co_filename == tallies.__file__:
            sys.setprofile(None)
            tally.add(**{f"handler{stats_of(tally).amounts.get('handlers', 0) % 5}": 1, "handlers": 1})
            taken.update(tally.take_pending())
            sys.setprofile(handler)

    def count():
        for call in calls * 5:
            sys.setprofile(handler)
            try:
                call()
            finally:
                sys.setprofile(None)
        taken.update(tally.take_pending())

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    thread.join(240.0)
    assert not thread.is_alive()
    amounts = stats_of(tally).amounts
    assert amounts["here"] == 5
    assert amounts["handlers"] > 20
    assert sum(amounts[f"handler{n}"] for n in range(5)) == amounts["handlers"]
    assert taken == amounts
