"""`ejcache prune`, `verify`, `clear`, `pin`, `unpin`: what goes, what stays, and what they exit with."""

from __future__ import annotations

import io
import sys

import pytest
from cli_helpers import ejcache, files, fill, key_text, plain_jax, put

from ejcache.cli import output
from ejcache.keys.key import module_text_key, parse_key
from ejcache.stores.local import LocalStore


@pytest.fixture
def cache(tmp_path):
    """A local cache of three entries."""
    fill(tmp_path / "cache", "jit_train", "jit_eval", "jit_init")
    return tmp_path / "cache"


def names(cache):
    return sorted(entry["name"] for entry in ejcache("ls", "--dir", cache, "--json").json["entries"])


def damage(cache, name):
    with LocalStore(cache) as store:
        data = bytearray(store.get(key_text(name)))
        data[-40] ^= 1
        store.replace(key_text(name), bytes(data))


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
    """What an older environment compiled goes."""
    with LocalStore(cache) as store:
        put(store, key_text("jit_train", jaxlib="2.0"))
    said = ejcache("prune", "--dir", cache, "--old-versions", "--json").json
    assert {p["reason"] for p in said["planned"]} == {"old_version"}
    assert names(cache) == ["jit_train"]


def test_prune_takes_the_plain_one_of_a_pair(cache):
    """Of a plain entry and its PGLE sibling, the plain one goes first, though it was used last."""
    with LocalStore(cache) as store:
        put(store, key_text("jit_pair", variant="pgle"))
        put(store, key_text("jit_pair"))
    ejcache("prune", "--dir", cache, "--name", "jit_pair", "--max-entries", "1")
    left = ejcache("ls", "--dir", cache, "--name", "jit_pair", "--json").json["entries"]
    assert [entry["variant"] for entry in left] == ["pgle"]


def test_prune_of_plain_jax(tmp_path):
    """In a directory of plain JAX its files are meant; others in it stay, and nothing is made."""
    plain_jax(tmp_path / "plain")
    (tmp_path / "plain" / "notes-cache").write_text("mine")
    said = ejcache("prune", "--dir", tmp_path / "plain", "--max-size", "0", "--json").json
    assert said["removed_entries"] == 1
    assert list(files(tmp_path / "plain")) == ["notes-cache"]


def test_prune_of_a_mixed_directory(cache):
    """Ours are meant, unless --jax is given."""
    key = plain_jax(cache)
    assert ejcache("prune", "--dir", cache, "--max-size", "0").status == 0
    assert names(cache) == ["jit_old"]
    fill(cache, "jit_new")
    said = ejcache("prune", "--dir", cache, "--max-size", "0", "--jax", "--json").json
    assert [p["key"] for p in said["planned"]] == [key]
    assert names(cache) == ["jit_new"]
    assert ejcache("prune", "--dir", cache, "--max-size", "0", "--jax").status == 2


def test_pinned_entries_stay(cache):
    """A pinned entry survives every prune; unpinned, it goes."""
    assert ejcache("pin", "jit_train", "--dir", cache).status == 0
    ejcache("prune", "--dir", cache, "--max-size", "0")
    assert names(cache) == ["jit_train"]
    assert ejcache("stats", "--dir", cache, "--json").json["pinned_entries"] == 1
    assert ejcache("show", "jit_train", "--dir", cache, "--json").json["pinned"] is True
    assert "already" in ejcache("pin", "jit_train", "--dir", cache).out
    said = ejcache("unpin", "jit_train", "--dir", cache, "--json").json
    assert said == {
        "url": str(cache),
        "pinned": False,
        "keys": [key_text("jit_train")],
        "changed": [key_text("jit_train")],
    }
    ejcache("prune", "--dir", cache, "--max-size", "0")
    assert names(cache) == []
    assert ejcache("pin", "jit_train", "--dir", cache).status == 1


def pinned(*arguments) -> list[str]:
    said = ejcache("pin", *arguments, "--json")
    assert said.status == 0, said
    return sorted(said.json["keys"])


def test_pin_takes_what_was_named(tmp_path):
    """An exact key goes before an exact name, and that before a beginning of one, of a key or a digest."""
    keys = fill(tmp_path / "cache", "jit_train", "jit_train_step", "jit_f", "jit_feed", "train")
    place = ("--dir", tmp_path / "cache")
    assert pinned(keys[1], *place) == [keys[1]]
    assert pinned("jit_f", *place) == [keys[2]]
    assert pinned("jit_train", *place) == [keys[0]]
    assert pinned("train", *place) == sorted([keys[0], keys[4]])
    assert pinned("jit_fee", *place) == [keys[3]]
    assert pinned(parse_key(keys[3]).logical[:6], *place) == [keys[3]]
    assert ejcache("pin", parse_key(keys[3]).logical[:5], *place).status == 1
    assert ejcache("show", "jit_train", *place, "--json").json["key"] == keys[0]


@pytest.mark.parametrize("command", ["pin", "unpin"])
def test_a_beginning_of_several_programs_pins_none(cache, command):
    """Their keys are told, as by `show`; variants of one program, and entries of one name, are meant together."""
    before = ejcache("stats", "--dir", cache, "--json").json["pinned_entries"]
    said = ejcache(command, "jit_", "--dir", cache)
    assert (said.status, said.out) == (1, "")
    assert key_text("jit_train") in said.err
    assert ejcache("stats", "--dir", cache, "--json").json["pinned_entries"] == before
    with LocalStore(cache) as store:
        put(store, key_text("jit_train", variant="pgle"))
        put(store, key_text("jit_train", program="another"))
    assert len(pinned("jit_train", "--dir", cache)) == 3
    assert len(pinned(parse_key(key_text("jit_train")).logical[:8], "--dir", cache)) == 2


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


def test_verify_of_plain_jax(tmp_path):
    """A truncated file of plain JAX is found, and removed by a fix."""
    key = plain_jax(tmp_path / "plain")
    other = plain_jax(tmp_path / "plain", digit="b")
    (tmp_path / "plain" / f"{key}-cache").write_bytes(b"")
    said = ejcache("verify", "--dir", tmp_path / "plain", "--json")
    assert said.status == 1
    assert [f["key"] for f in said.json["findings"]] == [key]
    assert ejcache("verify", "--dir", tmp_path / "plain", "--fix").status == 0
    assert list(files(tmp_path / "plain")) == [f"{other}-cache"]


def test_clear_asks(cache):
    """Where nobody can answer, nothing goes without --yes."""
    said = ejcache("clear", "--dir", cache)
    assert said.status == 2
    assert "--yes" in said.err
    assert len(names(cache)) == 3


class Terminal(io.StringIO):
    """Somebody at a keyboard."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("answer", "status", "left"), [("n\n", 1, 3), ("y\n", 0, 0), ("", 130, 3)])
def test_clear_takes_an_answer(cache, monkeypatch, answer, status, left):
    """Only a yes removes anything; the end of the input is no yes."""
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    said = ejcache("clear", "--dir", cache)
    assert said.status == status
    assert "Remove 3 entries (" in said.err
    assert len(names(cache)) == left


def test_a_bar_for_long_work(cache, monkeypatch):
    """Work that takes long shows a bar to whoever watches, on stderr; nobody else sees it."""
    monkeypatch.setattr(output, "_PROGRESS_AFTER", 0.0)
    monkeypatch.setattr("sys.stderr", Terminal())
    with output.progress("verifying", 2) as advance:
        advance()
        advance()
    assert "verifying" in sys.stderr.getvalue()
    monkeypatch.setattr("sys.stderr", Terminal())
    with output.progress("verifying", 1, quiet=True) as advance:
        advance()
    assert sys.stderr.getvalue() == ""


def test_clear_removes_ours_only(cache):
    """Entries go, pinned ones too; files of plain JAX and of others stay."""
    plain_jax(cache)
    (cache / "mine.txt").write_text("mine")
    ejcache("pin", "jit_train", "--dir", cache)
    said = ejcache("clear", "--dir", cache, "--yes", "--json")
    assert (said.status, said.json["removed_entries"]) == (0, 3)
    assert names(cache) == ["jit_old"]
    assert (cache / "mine.txt").read_text() == "mine"
    assert "nothing to remove" in ejcache("clear", "--dir", cache, "--yes").out


def test_what_lies_beside_entries_is_not_counted(cache, tmp_path):
    """A kept text is verified, copied and removed with the entries, and is none itself, as in `ls` and `stats`."""
    with LocalStore(cache) as store:
        put(store, module_text_key("0" * 64))
    size = ejcache("stats", "--dir", cache, "--json").json["size"]
    verified = ejcache("verify", "--dir", cache, "--json").json
    assert verified["entries"] == 3
    assert "3 entries" in ejcache("doctor", cache).out
    other = tmp_path / "other"
    assert ejcache("push", other, "--dir", cache, "--dry-run", "--json").json["entries"] == 3
    assert ejcache("push", other, "--dir", cache, "--json").json["copied_entries"] == 3
    assert ejcache("push", other, "--dir", cache, "--json").json["already_entries"] == 3
    assert "would remove 3 entries" in ejcache("prune", "--dir", cache, "-n", "--max-size", "0").out
    assert ejcache("prune", "--dir", other, "--max-size", "0", "--json").json["removed_entries"] == 3
    cleared = ejcache("clear", "--dir", cache, "--yes", "--json").json
    assert cleared["removed_entries"] == 3
    assert cleared["removed_size"] == verified["size"] >= size
