"""`ejcache prune`, `verify`: what goes, what stays, and what they exit with."""

from __future__ import annotations

import sys
import threading

import pytest
from cli_helpers import Terminal, damage, ejcache, fill, key_text, plain_jax, put

from ejcache import prune
from ejcache.cli import output
from ejcache.keys.key import module_text_key, parse_key
from ejcache.stores.local.store import LocalStore


@pytest.fixture
def cache(tmp_path):
    """A local cache of three entries."""
    fill(tmp_path / "cache", "jit_train", "jit_eval", "jit_init")
    return tmp_path / "cache"


def names(cache):
    return sorted(entry["name"] for entry in ejcache("ls", "--dir", cache, "--json").json["entries"])


def test_prune_needs_to_be_told_what(cache):
    """Without a criterion nothing goes, and the criteria are named."""
    said = ejcache("prune", "--dir", cache)
    assert (said.status, said.out) == (2, "")
    assert "--max-size" in said.err
    assert "--old-versions" in said.err
    assert len(names(cache)) == 3


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--max-entries", "1"], ["jit_init"]),
        (["--max-size", "0"], []),
        (["--max-size", "1GB"], ["jit_eval", "jit_init", "jit_train"]),
        (["--name", "jit_?ni*"], ["jit_eval", "jit_train"]),
        (["--name", "jit_t*", "--older-than", "1d"], ["jit_eval", "jit_init", "jit_train"]),
        (["--older-than", "14d", "--unused-for", "36h"], ["jit_eval", "jit_init", "jit_train"]),
    ],
)
def test_prune(cache, options, left):
    """Each criterion removes what it names, the least recently used first, and nothing else."""
    assert ejcache("prune", "--dir", cache, *options).status == 0
    assert names(cache) == left


def test_prune_says_what_it_removes(cache):
    """A dry run and the real one list the same, for people and for machines."""
    dry = ejcache("prune", "--dir", cache, "--max-entries", "2", "--dry-run")
    assert dry.lines[1].split()[0] == "jit_train"
    assert dry.lines[-1].startswith("would remove 1 entry (")
    planned = ejcache("prune", "--dir", cache, "--max-entries", "2", "--dry-run", "--json").json
    assert (planned["dry_run"], planned["removed_entries"], planned["left_entries"]) == (True, 0, 2)
    assert [p["reason"] for p in planned["planned"]] == ["max_entries"]
    assert len(names(cache)) == 3
    real = ejcache("prune", "--dir", cache, "--max-entries", "2", "--json").json
    assert real["planned"] == planned["planned"]
    assert (real["dry_run"], real["removed_entries"], real["left_entries"]) == (False, 1, 2)
    assert real["removed_size"] == planned["planned"][0]["size"]
    assert names(cache) == ["jit_eval", "jit_init"]
    assert ejcache("prune", "--dir", cache, "--max-entries", "2").out.startswith("removed 0 entries")


def test_prune_old_versions(cache):
    """Entries of an older environment are removed."""
    with LocalStore(cache) as store:
        put(store, key_text("jit_train", jaxlib="2.0"))
    said = ejcache("prune", "--dir", cache, "--old-versions", "--json").json
    assert {p["reason"] for p in said["planned"]} == {"old_version"}
    assert names(cache) == ["jit_train"]


def test_prune_takes_the_plain_one_of_a_pair(cache):
    """The plain entry of a program is removed before its PGLE variant, even if it was used later."""
    with LocalStore(cache) as store:
        put(store, key_text("jit_pair", variant="pgle"))
        put(store, key_text("jit_pair"))
    ejcache("prune", "--dir", cache, "--name", "jit_pair", "--max-entries", "1")
    left = ejcache("ls", "--dir", cache, "--name", "jit_pair", "--json").json["entries"]
    assert [entry["variant"] for entry in left] == ["pgle"]


def test_prune_keeps_names(cache):
    """Entries whose name matches a pattern of --keep survive every rule; without it they go."""
    rules = ("--max-size", "0", "--older-than", "0s", "--keep", "jit_t*", "--keep", "jit_init")
    assert ejcache("prune", "--dir", cache, *rules).status == 0
    assert names(cache) == ["jit_init", "jit_train"]
    assert prune(cache, max_size=0, keep="jit_init").removed == 1
    assert names(cache) == ["jit_init"]
    assert prune(cache, name="jit_*", keep=["jit_eval", "jit_i*"]).removed == 0
    assert ejcache("prune", "--dir", cache, "--keep", "jit_init").status == 2  # no rule says what goes
    ejcache("prune", "--dir", cache, "--max-size", "0")
    assert names(cache) == []


def cleared(*arguments) -> list[str]:
    before = {row["key"] for row in ejcache("ls", *arguments[1:], "--json").json["entries"]}
    said = ejcache("prune", "--all", *arguments, "--json")
    assert said.status == 0, said
    return sorted(before - {row["key"] for row in ejcache("ls", *arguments[1:], "--json").json["entries"]})


def test_clear_takes_what_was_named(tmp_path):
    """A whole key takes precedence over a name, and a name over the beginning of a key or digest."""
    keys = fill(tmp_path / "cache", "jit_train", "jit_train_step", "jit_f", "jit_feed", "train")
    place = ("--dir", tmp_path / "cache")
    assert ejcache("prune", "--all", parse_key(keys[3]).logical[:5], *place).status == 1
    assert ejcache("ls", "jit_train", *place, "--json").json["key"] == keys[0]
    assert cleared(keys[1], *place) == [keys[1]]
    assert cleared("jit_f", *place) == [keys[2]]
    assert cleared("train", *place) == sorted([keys[0], keys[4]])
    assert cleared(parse_key(keys[3]).logical[:6], *place) == [keys[3]]


def test_a_beginning_of_several_programs_clears_none(cache):
    """The message lists their keys; variants of one program, and entries of one name, go together."""
    said = ejcache("prune", "--all", "jit_", "--dir", cache)
    assert (said.status, said.out) == (1, "")
    assert key_text("jit_train") in said.err
    assert len(names(cache)) == 3
    with LocalStore(cache) as store:
        put(store, key_text("jit_train", variant="pgle"))
        put(store, key_text("jit_train", program="another"))
    assert len(cleared(parse_key(key_text("jit_train")).logical[:8], "--dir", cache)) == 2
    with LocalStore(cache) as store:
        put(store, key_text("jit_train"))
    assert len(cleared("jit_train", "--dir", cache)) == 2


def test_verify_of_an_intact_cache(cache):
    """Nothing to find is exit status 0 and one line."""
    said = ejcache("verify", "--dir", cache)
    assert said.status == 0
    assert len(said.lines) == 1
    assert said.lines[0].startswith("verified 3 entries")
    assert said.lines[0].endswith("all intact")


def test_verify_finds_and_fixes(cache):
    """Damage is exit status 1; repaired, it is 0 and the next look is clean."""
    damage(cache, "jit_eval")
    found = ejcache("verify", "--dir", cache)
    assert found.status == 1
    assert found.lines[0].startswith(f"corrupt: {key_text('jit_eval')}: ")
    assert len(names(cache)) == 3
    fixed = ejcache("verify", "--dir", cache, "--fix", "--json")
    assert (fixed.status, fixed.json["clean"]) == (0, True)
    assert [(f["problem"], f["repaired"]) for f in fixed.json["findings"]] == [("corrupt", True)]
    assert ejcache("verify", "--dir", cache).status == 0
    assert names(cache) == ["jit_init", "jit_train"]


def test_clear_asks(cache):
    """Without a terminal, nothing is removed without --yes."""
    said = ejcache("prune", "--all", "--dir", cache)
    assert said.status == 2
    assert "--yes" in said.err
    assert len(names(cache)) == 3


@pytest.mark.parametrize(("answer", "status", "left"), [("n\n", 1, 3), ("y\n", 0, 0), ("", 130, 3)])
def test_clear_takes_an_answer(cache, monkeypatch, answer, status, left):
    """Entries are removed only after a yes; the end of the input does not count as one."""
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    said = ejcache("prune", "--all", "--dir", cache)
    assert said.status == status
    assert "Remove 3 entries (" in said.err
    assert len(names(cache)) == left


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


@pytest.mark.parametrize("removal", [("prune", "--all", "--yes"), ("prune", "--max-size", "0")])
def test_only_ours_are_removed(cache, removal):
    """Entries go; files of JAX's own cache and of others stay."""
    old = plain_jax(cache)
    kept = {f"{old}-cache", f"{old}-atime", ".lockfile", "mine.txt"}
    for name in kept - {f"{old}-cache"}:
        (cache / name).write_text("mine")
    said = ejcache(*removal, "--dir", cache, "--json")
    assert (said.status, said.json["removed_entries"]) == (0, 3)
    assert names(cache) == []
    assert kept == {path.name for path in cache.iterdir() if path.is_file()} - {"CACHEDIR.TAG"}
    assert "nothing to remove" in ejcache("prune", "--all", "--dir", cache, "--yes").out


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


def test_a_dry_run_that_would_remove_nothing_is_a_dry_run(cache):
    """`dry_run` is true if --dry-run was given, also if there is nothing to remove."""
    said = ejcache("prune", "--dir", cache, "--dry-run", "--max-size", "1GB", "--json").json
    assert (said["dry_run"], said["planned_entries"], said["left_entries"]) == (True, 0, 3)


def test_clear_of_named_entries(cache):
    """With keys or names, `prune --all` removes those entries without asking."""
    said = ejcache("prune", "--all", "jit_train", "init", "--dir", cache, "--json")
    assert (said.status, said.json["removed_entries"]) == (0, 2)
    assert names(cache) == ["jit_eval"]
    said = ejcache("prune", "--all", "jit_eval", "jit_nothing", "--dir", cache)
    assert (said.status, "'jit_nothing'" in said.err) == (1, True)
    assert ejcache("prune", "--all", "", "--dir", cache).status == 2
    assert names(cache) == ["jit_eval"]


@pytest.mark.parametrize(("answer", "left"), [("n\n", 3), ("y\n", 1)])
def test_prune_asks_on_a_terminal_when_most_would_go(tmp_path, monkeypatch, answer, left):
    """It shows what would go, asks once, and removes nothing when the answer is no."""
    fill(tmp_path, "jit_a", "jit_b", "jit_c")
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    said = ejcache("prune", "--dir", tmp_path, "--max-entries", 1)
    assert "Remove 2 entries" in said.err
    assert "1 entry" in said.err
    assert said.out.count("jit_a") == said.out.count("jit_b") == 1
    assert (said.status, len(ejcache("ls", "--dir", tmp_path, "--json").json["entries"])) == (left == 3, left)


@pytest.mark.parametrize("arguments", [["--max-entries", 2], ["--max-entries", 1, "--yes"], ["--max-size", 0, "-n"]])
def test_prune_does_not_ask_for_little(tmp_path, monkeypatch, arguments):
    """Nothing is asked if at most half would go, with --yes, and in a dry run."""
    fill(tmp_path, "jit_a", "jit_b", "jit_c")
    monkeypatch.setattr("sys.stdin", Terminal(""))
    said = ejcache("prune", "--dir", tmp_path, *arguments)
    assert (said.status, said.err) == (0, "")


def test_a_size_without_unit_is_refused(tmp_path):
    """10 would be bytes and remove everything: the message says how gigabytes and bytes are written."""
    fill(tmp_path, "jit_a")
    said = ejcache("prune", "--dir", tmp_path, "--max-size", "10")
    assert said.status == 2
    assert said.err.startswith(
        "ejcache: --max-size cannot be '10': accepted is a size with a unit: '10GB' for gigabytes, "
    )
    assert len(ejcache("ls", "--dir", tmp_path, "--json").json["entries"]) == 1
    for few in ("0", "10B", "100000"):
        assert ejcache("prune", "-n", "--dir", tmp_path, "--max-size", few).err == ""


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
