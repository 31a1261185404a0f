"""`%load_ext ejcache`, and what statistics look like in a notebook."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from capabilities import require
from forking import ForkedWithChildren

import ejcache
from ejcache.cache.reasons import Miss, Skip
from ejcache.cache.stats import Stats, add_skip, amounts_of_miss
from ejcache.history.causes import Cause
from ejcache.util.tally import Tally

BOOK = """
import nbclient, nbformat, sys
cells = ["%load_ext ejcache", "import jax; f = jax.jit(lambda x: x * 3 + 1)", "print(f(2.0))", "1 + 1",
         "import ejcache; ejcache.active().stats()",
         "from ejcache.jax_integration.progress import progress_of; print(type(progress_of('f')).__name__)",
         "%unload_ext ejcache", "print(f(2))", "print(ejcache.active())"]
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
# A kernel sends what is printed when a timer fires, on a busy machine in the middle of a line.
options = dict(timeout=240, startup_timeout=240, coalesce_streams=True)
done = nbclient.NotebookClient(book, kernel_name="python3", **options).execute()
for cell in done.cells:
    for output in cell.outputs:
        print(repr(output.get("text") or output.get("data", {}).get("text/html")))
    print("--")
"""


COMPILED, LOADED = "ejcache: compiled 1 in ", "ejcache: loaded 1, saved "


@pytest.mark.parametrize("starts", [[COMPILED], pytest.param([COMPILED, LOADED], marks=pytest.mark.soak)])
def test_cells_in_a_kernel(run_python, monkeypatch, starts):
    """A cell that compiles or loads is followed by a line that says so; others are not; unloaded, none is."""
    require("notebooks")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    for what in starts:
        cells = run_python(BOOK, start=ForkedWithChildren).stdout.split("--\n")
        assert cells[0] == cells[1] == ""
        assert cells[2].startswith(f"'7.0\\n{what}")
        assert "2" not in cells[3]
        assert "<table><tr><th>saved</th>" in cells[4]
        assert cells[5] == "'_GeneratorContextManager\\n'\n"
        assert cells[6] == ""
        assert cells[7] == "'7\\n'\n"
        assert cells[8] == "'None\\n'\n"


def test_statistics_as_text_and_as_a_table():
    """Statistics lead with the seconds, as text and as HTML, in which a counter's name cannot be a tag."""
    tally = Tally()
    tally.add(hits=3, seconds_saved=1.25, compile_seconds=0.5, stores=1, **{"miss_<b>": 1})
    tally.add(**amounts_of_miss(Miss.ABSENT))
    add_skip(tally, Skip.QUICK)
    stats = Stats.of(tally.totals())
    assert str(stats) == "saved 1.2 of 1.8 s of compiling: 3 hits, 1 miss, 1 stored"
    html = stats._repr_html_()
    assert html.startswith("<table><tr><th>saved</th><td>1.2 of 1.8 s</td></tr>")
    assert "1 absent" in html
    assert "<b>" not in html


def test_what_a_cell_shows_is_short():
    """A cell shows the `repr` of its last value: of many misses, and of counters, a line each."""
    tally = Tally()
    for reason in Miss:
        tally.add(**amounts_of_miss(reason))
    assert repr(Stats.of(tally.totals())).startswith("<Stats: saved 0.0 of 0.0 s of compiling: 0 hits, ")
    assert repr(Cause("jit_f", sentence="it is new", diff="a\n" * 1_000)) == (
        "<Cause: jit_f was compiled because it is new>"
    )


@pytest.mark.parametrize("before", [False, True])
def test_unloading_disables_what_loading_has_enabled(before, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shell = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None, unregister=lambda *_: None))
    if before:
        ejcache.enable(str(tmp_path))
    ejcache.load_ipython_extension(shell)
    assert ejcache.active() is not None
    ejcache.unload_ipython_extension(shell)
    assert (ejcache.active() is not None) is before
