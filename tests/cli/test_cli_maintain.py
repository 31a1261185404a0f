"""What all commands count alike, who is asked, and what is shown of long work. What `prune` does is in runs/."""

from __future__ import annotations

import sys
import threading

import pytest
from archives import of_a_later_version
from cli_helpers import Terminal, ejcache, fill, put

from ejcache import prune
from ejcache.cli import output
from ejcache.keys.key import module_text_key
from ejcache.stores.local.store import LocalStore


@pytest.fixture
def cache(tmp_path):
    """A local cache of three entries."""
    fill(tmp_path / "cache", "jit_train", "jit_eval", "jit_init")
    return tmp_path / "cache"


def names(cache):
    return sorted(entry["name"] for entry in ejcache("ls", "--dir", cache, "--json").json["entries"])


def test_the_end_of_the_input_is_no_yes(cache, monkeypatch):
    """It is Ctrl-D, and ends the command as Ctrl-C does."""
    monkeypatch.setattr("sys.stdin", Terminal(""))
    said = ejcache("prune", "--all", "--dir", cache)
    assert (said.status, len(names(cache))) == (130, 3)


def test_python_keeps_names(cache):
    """`ejcache.prune` takes a pattern, or several."""
    assert prune(cache, max_size=0, keep="jit_[ti]*").removed == 1
    assert prune(cache, name="jit_*", keep=["jit_train", "jit_i*"]).removed == 0
    assert names(cache) == ["jit_init", "jit_train"]


def test_a_bar_for_long_work(monkeypatch):
    """Long work shows a bar on stderr if that is a terminal, unless it is quiet."""
    monkeypatch.setattr("sys.stderr", Terminal())
    with output.progress("verifying", 2, after=0.0) as advance:
        advance()
        advance()
    assert "verifying" in sys.stderr.getvalue()
    monkeypatch.setattr("sys.stderr", Terminal())
    with output.progress("verifying", 1, quiet=True, after=0.0) as advance:
        advance()
    assert sys.stderr.getvalue() == ""


class WatchedTerminal(Terminal):
    """Tells when a text has been written to it."""

    def __init__(self, text):
        super().__init__()
        self.text, self.seen = text, threading.Event()

    def write(self, text):
        written = super().write(text)
        if self.text in self.getvalue():
            self.seen.set()
        return written


def test_a_spinner_while_storage_is_silent(monkeypatch):
    """Work whose length is not known is shown before its first step has ended, once, with the number of its steps."""
    terminal = WatchedTerminal("listing")
    monkeypatch.setattr("sys.stderr", terminal)
    with output.progress("listing", None, after=0.0) as advance:
        assert terminal.seen.wait(60)
        with output.progress("reading", 2, after=0.0) as inner:
            inner()
        advance()
    assert "reading" not in terminal.getvalue()


def test_verify_counts_entries_of_a_later_version(cache):
    """It cannot know whether they are intact, and says how many it has left alone."""
    with LocalStore(cache) as store:
        for info in list(store.entries())[:2]:
            store.replace(info.key, of_a_later_version(store.peek(info.key)))
    said = ejcache("verify", "--dir", cache)
    assert (said.status, said.out.splitlines()[0]) == (0, "left 2 entries of another format version alone")


def test_what_lies_beside_entries_is_not_counted(cache, tmp_path):
    """Every command gives one number of entries and one size, which includes the texts beside them."""
    with LocalStore(cache) as store:
        put(store, module_text_key("0" * 64))
        size = store.size()
    verified = ejcache("verify", "--dir", cache, "--json").json
    assert (verified["total_entries"], verified["total_size"]) == (3, size)
    listed = ejcache("ls", "--dir", cache, "--json").json
    assert (listed["total_entries"], listed["total_size"], listed["side_objects"]) == (3, size, 1)
    counted = ejcache("stats", "--dir", cache, "--json").json
    assert (counted["total_entries"], counted["total_size"], counted["side_objects"]) == (3, size, 1)
    assert "1 text, profile or record" in ejcache("ls", "--dir", cache).out
    planned = ejcache("prune", "--dir", cache, "-n", "--max-size", "0", "--json").json
    assert (planned["planned_entries"], planned["planned_size"], planned["planned_side_objects"]) == (3, size, 1)
    other = tmp_path / "other"
    assert ejcache("push", other, "--dir", cache, "--dry-run", "--json").json["planned_entries"] == 3
    assert ejcache("push", other, "--dir", cache, "--json").json["copied_entries"] == 3
    assert ejcache("push", other, "--dir", cache, "--json").json["already_entries"] == 3
    assert "would remove 3 entries" in ejcache("prune", "--dir", cache, "-n", "--max-size", "0").out
    assert ejcache("prune", "--dir", other, "--max-size", "0", "--json").json["removed_entries"] == 3
    cleared = ejcache("prune", "--all", "--dir", cache, "--yes", "--json").json
    assert (cleared["removed_entries"], cleared["removed_size"]) == (3, size)


def test_failures_that_many_entries_share_are_a_few_lines(capsys):
    """A message that names the object differs for each entry; what a person reads is the reason, and how many."""
    failed = [(f"jit_{n}-cpu", f"403 for gs://b/v1/entries/{n:02}/jit_{n}-cpu: denied") for n in range(63)]
    output.warn_of_each([*failed, *((f"k{n}", f"reason {n}") for n in range(7))], "could not be removed")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        "ejcache: jit_0-cpu and 62 more could not be removed: 403 for gs://b/v1/entries/00/jit_0-cpu: denied"
    )
    assert lines[-1] == "ejcache: 3 more could not be removed"
    assert len(lines) == 6
