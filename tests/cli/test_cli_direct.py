"""Direct mode on the command line: its records, its counters, what `why` says of it, and `verify --direct`."""

from __future__ import annotations

import json
import sys
import time

import pytest
from cli_helpers import ejcache, fill, key_text
from helpers import run_program

import ejcache as package
from ejcache import entry
from ejcache.cache.counters import Verdict
from ejcache.cache.starts import STORED, ProgramRecord
from ejcache.direct.records import DIRECT_RECORD_KIND, DirectDocument, encode_document
from ejcache.direct.verdicts import record_verdict
from ejcache.keys.key import direct_record_key
from ejcache.misses.log import record_miss
from ejcache.stores.local.store import LocalStore

RECORD = direct_record_key("train.step", "signature", "environment")


@pytest.fixture
def cache(tmp_path):
    """A cache with two entries and the records of one function."""
    fill(tmp_path / "cache", "jit_step", "jit_eval")
    with LocalStore(tmp_path / "cache") as store:
        put_record(store)
    return tmp_path / "cache"


def put_record(store, *, damaged=False):
    payload = encode_document(DirectDocument("train.step"))
    data = bytearray(entry.encode(entry.Header(key=RECORD, kind=DIRECT_RECORD_KIND, name="train.step"), payload))
    data[-40] ^= damaged
    store.replace(RECORD, bytes(data))


def stored(directory):
    with LocalStore(directory, read_only=True) as store:
        return {info.key for info in store.entries()}


def test_records_are_no_entries(cache, tmp_path):
    """`ls`, `show` and the numbers of entries leave records out; sizes and the count of what lies beside have them."""
    with LocalStore(cache, read_only=True) as store:
        size = store.size()
    listed = ejcache("ls", "--dir", cache, "--json").json
    assert sorted(row["name"] for row in listed["entries"]) == ["jit_eval", "jit_step"]
    assert (listed["total_entries"], listed["total_size"], listed["side_objects"]) == (2, size, 1)
    counted = ejcache("stats", "--dir", cache, "--json").json
    assert (counted["entries"], counted["size"], counted["side_objects"]) == (2, size, 1)
    assert 0 < counted["side_size"] < size
    assert " in 1 text, profile or record\n" in ejcache("stats", "--dir", cache).out
    assert ejcache("show", "train.step", "--dir", cache).status == 1
    assert ejcache("show", "step", "--dir", cache, "--json").json["name"] == "jit_step"
    other = tmp_path / "other"
    assert ejcache("push", other, "--dir", cache, "--json").json["copied_entries"] == 2
    assert RECORD in stored(other)


def test_records_are_verified_and_repaired(cache):
    """`verify` reads records; `--fix` takes a damaged one out of use."""
    assert ejcache("verify", "--dir", cache).status == 0
    with LocalStore(cache) as store:
        put_record(store, damaged=True)
    found = ejcache("verify", "--dir", cache, "--json")
    assert (found.status, [each["key"] for each in found.json["findings"]]) == (1, [RECORD])
    assert ejcache("verify", "--dir", cache, "--fix").status == 0
    assert stored(cache) == {key_text("jit_step"), key_text("jit_eval")}


def test_records_are_removed(cache):
    """`clear` removes all records, `prune` by its limits; a rule for the names of programs leaves them."""
    assert ejcache("clear", "jit_eval", "--dir", cache).status == 0
    assert ejcache("prune", "--name", "jit_*", "--dir", cache).status == 0
    assert stored(cache) == {RECORD}
    planned = ejcache("prune", "--max-size", "0", "-n", "--dir", cache, "--json").json
    assert (planned["planned_entries"], planned["planned_side_objects"]) == (0, 1)
    assert ejcache("clear", "--yes", "--dir", cache).status == 0
    assert stored(cache) == set()


def test_stats_show_direct_mode_where_it_was_used(cache):
    """The calls of direct functions, by verdict; without such a call there is no line."""
    assert "Direct mode" not in ejcache("stats", "--dir", cache).out
    with LocalStore(cache) as store:
        store.add_counters({"direct_hit": 3, "direct_refused": 1})
    shown = [line.split() for line in ejcache("stats", "--dir", cache).lines]
    assert ["Direct", "mode", "4"] in shown
    assert ["hit", "3", "/", "4", "(75.0%)"] in shown
    assert ["refused", "1", "/", "4", "(25.0%)"] in shown
    direct = ejcache("stats", "--dir", cache, "--json").json["direct"]
    assert (direct["hit"], direct["refused"], direct["wrong"]) == (3, 1, 0)


def missed(name="jit_step", *, url="/c", key=""):
    record_miss(
        ProgramRecord(
            time=time.time(), url=url, reason="absent", outcome=STORED, compile_seconds=1.5, key=key, name=name
        )
    )


CHANGED = "cfg.K changed"
"""Why a function was traced."""


@pytest.mark.parametrize("what", ["step", "jit_step", "train.step", "my.train.step"])
def test_why_names_the_verdict_beside_the_miss(what):
    """The last verdict with its reason, when it was given, and how often each; the miss is explained as ever."""
    missed()
    record_verdict("my.train.step", Verdict.HIT, "nothing has changed", url="/c")
    record_verdict("my.train.step", Verdict.HIT, "nothing has changed", url="/c")
    record_verdict("my.train.step", Verdict.MISSED, CHANGED, url="/c")
    record_verdict("my.train.step", Verdict.PLAIN, "of another cache", url="/d")
    record_verdict("my.train.other", Verdict.REFUSED, "of another function", url="/c")
    said = ejcache("why", what)
    assert said.status == 0
    assert said.lines[0].startswith("jit_step was compiled: no entry is stored under its key")
    (row,) = [line for line in said.lines if line.startswith("direct ")]
    assert row.split("(")[0].split() == ["direct", "my.train.step", "missed", "because", "cfg.K", "changed"]
    assert row.endswith("s ago; 2 hit, 1 missed in all)")
    (document,) = ejcache("why", what, "--json").json
    assert document["name"] == "jit_step"
    (direct,) = document["direct"]
    assert direct.pop("time") == pytest.approx(time.time(), abs=600)
    assert direct == {
        "function": "my.train.step",
        "verdict": "missed",
        "sentence": CHANGED,
        "url": "/c",
        "counts": {"missed": 1, "hit": 2},
    }
    (explanation,) = package.why(what)
    assert [history.words for history in explanation.wings["direct"]] == [f"missed because {CHANGED}"]


def test_why_without_a_name_is_about_the_last_miss(tmp_path):
    """Without a miss it is about the last function of direct mode; `--dir` and `--since` choose of both."""
    assert ejcache("why").status == 1
    record_verdict("train.init", Verdict.HIT, "a", url=str(tmp_path / "a"))
    record_verdict("train.step", Verdict.REFUSED, "b", url=str(tmp_path / "b"))
    assert ejcache("why").lines[0] == "train.step in direct mode: refused because b."
    assert ejcache("why", "--dir", tmp_path / "a").lines[0] == "train.init in direct mode: hit: a."
    assert ejcache("why", "--last", "2").out.count("in direct mode") == 2
    assert ejcache("why", "--since", "2h").lines[0] == "train.step in direct mode: refused because b."
    assert ejcache("why", "--since", "0s").status == 1
    assert [each.wings["direct"][0].function for each in package.why(last=2)] == ["train.step", "train.init"]
    assert [each.wings["direct"][0].function for each in package.why(url=tmp_path / "a")] == ["train.init"]
    assert package.why(since=0) == []
    missed("jit_eval", url=str(tmp_path / "b"))
    assert ejcache("why").lines[0].startswith("jit_eval was compiled")
    assert ejcache("why", "--json").json[0]["direct"] == []
    assert package.why()[0].wings["direct"] == ()


def test_control_characters_of_a_verdict_are_not_printed():
    """What a path of the program may hold does not reach the terminal."""
    record_verdict("train.step", Verdict.REFUSED, "step → a\x1b[2Jb", url="/c")
    assert "\x1b" not in ejcache("why", "step").out
    missed()
    assert "\x1b" not in ejcache("why", "step").out


SAYS = """
import os, sys
from ejcache.direct.verdicts import record_verdict
assert "jax" not in sys.modules
for said in sys.argv[1:]:
    verdict, sentence = said.split("=")
    record_verdict("train.step", verdict, sentence, url="/c")
print(os.environ["EJCACHE_DIRECT"], os.environ["EJCACHE"], sys.argv[1:])
"""
"""A program that says of calls what direct mode would say of them, and what it finds in its environment."""


def verify_direct(tmp_path, *arguments, code=SAYS, **options):
    (tmp_path / "program.py").write_text(code)
    return run_program([sys.executable, "-m", "ejcache", *arguments], cwd=tmp_path, check=False, **options)


def test_verify_direct_prints_a_line_for_each_verdict(tmp_path):
    """What was wrong comes first, equal verdicts are one line, and the program's own output is on stderr."""
    calls = ["checked=right", "refused=a path", "checked=right", "wrong=another program"]
    done = verify_direct(tmp_path, "verify", "--direct", "--dir", "cache", "program.py", *calls)
    assert done.stdout.splitlines() == [
        "wrong    train.step: another program",
        "checked  train.step: right (2 calls)",
        "refused  train.step: a path",
        "4 calls of direct functions, 3 compared with a record: 1 record was wrong",
    ]
    assert (done.returncode, done.stderr) == (1, f"True {tmp_path / 'cache'} {calls}\n")


@pytest.mark.parametrize(
    ("calls", "options", "status"),
    [
        (["checked=a", "unproven=b", "missed=c", "plain=d"], ["--strict"], 0),
        (["checked=a", "refused=b"], ["--strict"], 1),
        (["checked=a", "refused=b"], [], 0),
        (["missed=a"], ["--strict"], 1),
        ([], [], 0),
        (["wrong=a"], [], 1),
    ],
)
def test_verify_direct_exits_with_1_if_a_record_was_wrong(tmp_path, calls, options, status):
    """With --strict also if a function was refused or nothing was compared; the JSON has every call."""
    said = verify_direct(tmp_path, "verify", *options, "--direct", "--json", "program.py", *calls)
    assert said.returncode == status
    document = json.loads(said.stdout)
    assert (document["clean"], document["status"], document["calls"]) == (status == 0, 0, len(calls))
    assert document["compared"] == sum(call.split("=")[0] in {"checked", "unproven", "wrong"} for call in calls)
    assert [f"{each['verdict']}={each['sentence']}" for each in document["functions"]] == calls


def test_verify_direct_says_that_nothing_was_compared(tmp_path):
    """With --strict, a program without direct functions is a failure."""
    strict = verify_direct(tmp_path, "verify", "--strict", "--direct", "program.py")
    assert (strict.returncode, "nothing was compared: no call of a direct function." in strict.stdout) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--direct"], "verify --direct needs a program"),
        (["--direct", "none.py"], "run: there is no script none.py"),
        (["--direct", "--fix", "program.py"], "--fix repairs entries, and --direct reads none"),
        (["program.py"], "program.py is for verify --direct"),
        (["--strict"], "--strict is for verify --direct"),
        (["--direct", "--dir", "gs://", "program.py"], "--dir: "),
    ],
)
def test_wrong_use_of_verify_direct(tmp_path, arguments, complaint):
    """One sentence says what is wrong, the exit status is 2, and nothing runs."""
    said = verify_direct(tmp_path, "verify", *arguments)
    assert (said.returncode, said.stdout, len(said.stderr.splitlines())) == (2, "", 1)
    assert said.stderr.startswith(f"ejcache: {complaint}")
