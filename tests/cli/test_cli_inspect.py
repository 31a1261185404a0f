"""Commands that look: a narrow terminal, and that looking changes nothing. What they print is in runs/."""

from __future__ import annotations

import pytest
from cli_helpers import ejcache, files, fill, key_text, put
from soak_turns import some

from ejcache import entry
from ejcache.stores.local.store import LocalStore


@pytest.fixture
def cache(tmp_path):
    """A local cache of three entries, and counters."""
    fill(tmp_path / "cache", "jit_train", "jit_eval", "jit_init")
    return tmp_path / "cache"


def recency(cache):
    with LocalStore(cache, read_only=True) as store:
        return {entry.key: entry.last_used for entry in store.entries()}


def too_long(lines, columns):
    """Lines that do not fit, but for those that end in a key or a path, which is not broken."""
    return [line for line in lines if len(line) > columns and len(line.split()[-1]) < 40]


@pytest.mark.usefixtures("doctor_is_told")
@pytest.mark.parametrize("columns", some([60, 80, 200], every=3))
def test_a_narrow_terminal(cache, columns):
    """Nothing of a table is cut, a key is on one line, and sentences are wrapped between words."""
    with LocalStore(cache) as store:
        put(store, key_text("jit_" + "Q" * 60))
        put(store, key_text("jit_eval", variant="pgle"))
    commands = (
        ["ls"], ["stats"], ["ls", "jit_train"], ["verify"], ["prune", "-n", "--max-size", "0"], ["config"],
        ["doctor"], ["why", "jit_train"],
    )  # fmt: skip
    for command in commands:
        said = ejcache(*command, "--dir", cache, columns=columns)
        assert too_long(said.lines, columns) == [], command
    lines = ejcache("ls", "--dir", cache, columns=columns).lines
    assert "key" in " ".join(lines).split()
    listed = ejcache("ls", "--dir", cache, "--json").json["entries"]
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)
    assert all(any(line.rstrip().endswith(entry["logical_key"][:12]) for line in lines) for entry in listed)
    assert "".join(lines).count("Q") == 60


def test_no_text_of_a_table_is_lost():
    """The meaning of each setting is there on a terminal of 120 columns, on as many lines as it takes."""
    said = ejcache("config", columns=120)
    assert said.lines[0].split() == ["setting", "value", "source", "meaning"]
    words = " ".join(" ".join(line[said.lines[0].index("meaning") :] for line in said.lines).split())
    assert "ejcache deletes entries in the order that `evict` sets" in words
    assert too_long(said.lines, 120) == []


@pytest.mark.parametrize(
    "command", [["stats"], ["ls"], ["ls", "jit_eval"], ["why", "jit_eval"], ["verify"], ["prune", "-n", "--name", "*"]]
)
def test_looking_leaves_no_trace(cache, command):
    """Commands that look change neither the last use of an entry nor any file."""
    before, used = files(cache), recency(cache)
    assert ejcache(*command, "--dir", cache).status == 0
    assert recency(cache) == used
    assert files(cache) == before


def test_a_value_of_several_lines_is_shown_in_several_lines(tmp_path):
    """The compile options in an entry's metadata are lines, and no character stands for their ends."""
    key = key_text()
    header = entry.Header(key=key, extra={"details": {"options": "level=O2\nshardy=True", "other": "x"}})
    with LocalStore(tmp_path / "cache") as store:
        store.put(key, entry.encode(header, b"executable"))
    shown = ejcache("ls", key, "--dir", tmp_path / "cache").out
    at = [line.find(text) for text in ("level=O2", "shardy=True") for line in shown.splitlines() if text in line]
    assert len(at) == 2
    assert at[0] == at[1]
    assert "\N{REPLACEMENT CHARACTER}" not in shown


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("command", ["stats", "ls"])
def test_a_cache_in_which_nothing_is_stored_yet(tmp_path, monkeypatch, command, there):
    """Before the first program has run, the place of the settings is an empty cache, and no failure."""
    place = tmp_path / "cache"
    if there:
        place.mkdir()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(place))
    said = ejcache(command, "--json")
    assert (said.status, said.err) == (0, "")
    assert said.json["url"] == str(place)
    assert said.json["total_entries"] == 0
    shown = ejcache(command)
    assert (shown.status, "0" in shown.out, str(place) in shown.out) == (0, True, True)
    assert place.exists() is there
