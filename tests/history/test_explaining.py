"""Each reason for a miss, provoked in a real program, and the sentence that a person reads of it."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import re
import threading
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import ejcache
from ejcache import entry
from ejcache.cli.main import build
from ejcache.history.causes import cause
from ejcache.history.difference import program_differences
from ejcache.history.environment_difference import environment_differences
from ejcache.history.host_log import read_misses, record_miss
from ejcache.history.known_entries import KnownEntries, stored_text
from ejcache.history.known_texts import Texts
from ejcache.history.nearest_program import Earlier
from ejcache.history.program_text import read_text
from ejcache.history.source_files import SourceFiles
from ejcache.jax_integration import publishing
from ejcache.jax_integration.program_details import located_text
from ejcache.journal.appended_log import AppendedLog
from ejcache.journal.line import ProgramRecord
from ejcache.journal.recorder import START_LOG
from ejcache.journal.start_records import Process, StartRecord
from ejcache.settings.directories import state_directory
from ejcache.stores.memory import MemoryStore


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture
def cache(directory):
    return ejcache.enable(directory, min_compile_seconds=0)


def train(x):
    return jax.numpy.sin(x) * 2


def compile_one(function=train, size=4):
    jax.clear_caches()
    return np.asarray(jax.jit(function)(np.ones(size, np.float32)))


def last_miss():
    return next(read_misses())


def explain(record, known=None, misses=(), **options):
    records = [StartRecord(Process(id=str(n)), [each]) for n, each in enumerate(misses)]
    return cause(record, Earlier(records, entries=lambda _: known), **options)


def sentence(directory):
    with ejcache.open_store(directory, read_only=True) as store:
        return explain(last_miss(), KnownEntries(store)).sentence


@pytest.mark.parametrize(
    ("settings", "environment", "words"),
    [
        pytest.param({"min_compile_seconds": 60}, {}, "less than the minimum compile time", id="quick"),
        pytest.param({"min_entry_size": 10**8}, {}, "below the minimum entry size", id="small"),
        pytest.param({"max_size": 500}, {}, "larger than the whole limit", id="large"),
        pytest.param({}, {"EJCACHE_READ_ONLY": "1"}, "the cache is read-only", id="read-only"),
    ],
)
def test_why_it_was_not_stored_either(settings, environment, words, directory, monkeypatch):
    """A compilation that is repeated at every start because it is never stored says why."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ejcache.enable(directory, **{"min_compile_seconds": 0, **settings})
    compile_one()
    jax.config.update("jax_compilation_cache_max_size", -1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    ejcache.disable()

    result = CliRunner().invoke(build(), ["why", "--dir", directory])

    assert result.exit_code == 0
    assert words in result.output


def test_functions_of_other_names_are_not_compared(cache, directory):
    """An equal function of another name, in this program or another one, is no earlier version of a new function."""

    def step(x):
        return jax.numpy.sin(x) * 2

    compile_one()
    compile_one(step)

    assert last_miss().name == "jit_step"
    assert sentence(directory) == "it is new here: no other program of this function is known"


def test_the_flag_logs_the_explanation(cache, caplog):
    """`jax_explain_cache_misses` says it where the program runs."""
    jax.config.update("jax_explain_cache_misses", True)
    try:
        with caplog.at_level(logging.WARNING, logger="ejcache"):
            compile_one()
            compile_one(size=8)
    finally:
        jax.config.update("jax_explain_cache_misses", False)

    said = [r.getMessage() for r in caplog.records if r.name == "ejcache"]
    assert any("it is new here" in line for line in said)
    assert any("argument x changed: f32[4] -> f32[8]" in line and "stored" in line for line in said)


def test_why_on_the_command_line(cache, directory):
    """By name, by key, the last ones, as a page and as JSON; and an unknown name is exit status 1."""
    compile_one()
    compile_one(size=8)
    runner = CliRunner()

    by_name = runner.invoke(build(), ["why", "train", "--dir", directory])
    assert by_name.exit_code == 0
    assert "argument x changed: f32[4] -> f32[8]" in by_name.output
    as_json = json.loads(runner.invoke(build(), ["why", "--last", "2", "--json", "--dir", directory]).output)[
        "explanations"
    ]
    assert [r["name"] for r in as_json] == ["jit_train", "jit_train"]
    assert as_json[0]["differences"][0]["kind"] == "shape_varies"
    key = as_json[1]["key"]
    assert key in runner.invoke(build(), ["why", key, "--full", "--dir", directory]).output
    assert runner.invoke(build(), ["why", "nobody", "--dir", directory]).exit_code == 1


def test_why_is_about_one_cache(cache, directory, tmp_path, monkeypatch):
    """With --dir, misses of that cache only; without, those of any, each compared with the entries of its own."""
    compile_one()
    compile_one(size=8)
    other = ejcache.enable(str(tmp_path / "other"), min_compile_seconds=0)
    compile_one(size=16)
    assert other.stats().misses == 1
    monkeypatch.chdir(tmp_path)

    def why(*arguments):
        return json.loads(CliRunner().invoke(build(), ["why", "--json", *arguments]).output)["explanations"]

    (there,) = why("--dir", "other", "--last", "5")
    assert (there["url"], there["nearest_key"]) == (other.url, None)
    (here,) = why("train", "--dir", directory)
    assert here["url"] == directory
    assert here["differences"][0]["kind"] == "shape_varies"
    found = why("--last", "3")
    assert [each["url"] for each in found] == [other.url, directory, directory]
    assert [each["nearest_key"] is None for each in found] == [True, False, True]
    assert directory in CliRunner().invoke(build(), ["why", "train", "--full", "--dir", directory]).output


def test_why_takes_a_full_name_before_its_beginning(tmp_path):
    """A later miss of `train_step` is not the answer about `train`."""
    for number, name in enumerate(("jit_train", "jit_train_step")):
        record_miss(
            ProgramRecord(
                time=number, url="u", reason="absent", outcome="stored", compile_seconds=0, key=f"{name}-k", name=name
            )
        )
    for what, name in (("jit_train", "jit_train"), ("train", "jit_train"), ("jit_train_", "jit_train_step")):
        assert (
            json.loads(CliRunner().invoke(build(), ["why", what, "--json"]).output)["explanations"][0]["name"] == name
        )


def test_why_of_an_entry_that_others_made(cache, directory, monkeypatch, tmp_path):
    """On a host that missed nothing: an entry is compared with the one of its function stored before it."""
    # The texts of programs that take longer than this one are stored with them.
    monkeypatch.setattr("ejcache.jax_integration.publishing.TEXT_SECONDS", 0.0)
    compile_one()
    compile_one(size=8)
    cache.flush()  # the texts are stored in the background
    assert last_miss()  # the log of this host is written, and not by the other one
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another-host"))

    result = CliRunner().invoke(build(), ["why", "train", "--dir", directory])

    assert result.exit_code == 0
    # The text in a cache has no names of arguments; only the log has them.
    assert "argument 0 changed: f32[4] -> f32[8]" in result.output


def test_a_module_is_printed_by_the_thread_that_lowered_it(cache, monkeypatch):
    """JAX's next lowering in that thread may be in the same MLIR context, which loads dialects for one thread alone.

    A process ended with SIGSEGV when a thread of ours printed a module while the program read an exported one.
    """
    threads = []
    monkeypatch.setattr(
        publishing, "located_text", lambda module: threads.append(threading.current_thread()) or located_text(module)
    )
    compile_one()
    compile_one(size=8)
    cache.flush()

    assert last_miss()
    assert {*threads} == {threading.current_thread()}


@pytest.fixture
def small_log(monkeypatch):
    """The log is renamed when it has 20,000 bytes."""
    for module in ("journal.recorder", "history.host_log"):
        monkeypatch.setattr(f"ejcache.{module}.START_LOG", AppendedLog("starts", limit=20_000))


@pytest.mark.usefixtures("small_log")
def test_the_log_stays_small():
    """There are two files of the limit at most."""
    assert START_LOG.limit == 8_000_000
    for number in range(90):
        record_miss(ProgramRecord(time=number, reason="absent", key="k", name="n" * 1_000))
    assert next(read_misses()).time == 89
    assert sum(path.stat().st_size for path in state_directory().glob("starts*")) < 45_000


@pytest.mark.usefixtures("small_log")
def test_a_log_that_another_process_has_moved_aside(monkeypatch):
    """Of two processes that find the log full one moves it; the other one's fresh log stays in its place."""
    record = ProgramRecord(time=1, url="u", reason="absent", outcome="stored", compile_seconds=0, key="k", name="n")
    record_miss(record)
    log = state_directory() / "starts.jsonl"
    log.write_bytes(log.read_bytes() + b"{}\n" * 7_000)
    stat = os.fstat
    calls = []
    own = threading.get_ident()  # threads of earlier tests may still write

    def stat_and_lose(descriptor):
        if threading.get_ident() != own:
            return stat(descriptor)
        calls.append(descriptor)
        if len(calls) == 1:  # before it writes
            return stat(descriptor)
        patched.undo()
        found = stat(descriptor)
        record_miss(record._replace(name="other"))
        record_miss(record._replace(name="fresh"))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", stat_and_lose)
        record_miss(record._replace(name="mine"))

    assert [r.name for r in read_misses()] == ["fresh", "other", "mine", "n"]


@pytest.mark.parametrize(
    "line",
    [b"not json", b'{"unknown": 1}', b"[" * 100_000, b"[]", b"\xff", b'{"v": 1, "programs": [{"time": "x"}]}'],
)
def test_damaged_lines_of_the_log_are_skipped(line):
    """A line of the log that no process of ours wrote hides none of the others."""
    good = ProgramRecord(time=1, url="u", reason="absent", outcome="stored", compile_seconds=0, key="k", name="n")
    record_miss(good)
    log = state_directory() / "starts.jsonl"
    log.write_bytes(line + b"\n" + log.read_bytes() + line + b"\n")
    assert list(read_misses()) == [good]


def test_a_log_that_is_a_pipe():
    """A named pipe in the place of the log keeps nobody waiting."""
    log = state_directory() / "starts.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(log)
    record_miss(ProgramRecord(time=1, url="u", reason="absent", outcome="stored", compile_seconds=0, key="k", name="n"))
    assert list(read_misses()) == []


def test_a_text_that_is_not_the_one_of_its_key():
    """`why` shows no text but the one whose digest the entry names, however intact the object under its key is."""
    from ejcache.keys.key import module_text_key

    digests = [hashlib.sha256(text).hexdigest() for text in (b"one\n", b"two\n")]
    with MemoryStore() as store:
        for digest in digests:
            key = module_text_key(digest)
            store.put(key, entry.encode(entry.Header(key=key, kind="module_text"), b"\x1b]0;evil\n"))
        assert [stored_text(store, digest) for digest in digests] == [None, None]
        key = module_text_key(digests[0])
        store.replace(key, entry.encode(entry.Header(key=key, kind="module_text"), b"one\n"))
        assert stored_text(store, digests[0]) == "one\n"
        store.replace(key, entry.encode(entry.Header(key=key), b"one\n"))
        assert stored_text(store, digests[0]) is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("func.func public @main(" + "%arg0: " * 60_000 + "{", id="arguments"),
        pytest.param("func.func public @main(%arg0: f32 {sharding = " + "<@m, [" * 60_000 + "}) {", id="sharding"),
        pytest.param("%0 = a.b " + "tensor<" * 60_000 + " : x", id="types"),
        pytest.param("%0 = stablehlo.constant dense<" + "1" * 400_000 + "> : tensor<f32>", id="constant"),
        pytest.param("sdy.mesh @" + "@a = <[" * 60_000, id="mesh"),
        pytest.param("%0 = a.b x loc(#loc1)\n#loc1 = loc(callsite(#loc1 at #loc1))", id="a location in itself"),
        pytest.param(
            "\n".join(f"%{n} = a.b loc(#loc{n})\n#loc{n} = loc(fused[#loc{n + 1}, #loc{n + 2}])" for n in range(3000)),
            id="locations",
        ),
    ],
)
def test_a_text_that_nothing_compiled(text):
    """A bucket may hold anything under the key of a text: reading and comparing it ends, and raises nothing."""
    before, after = read_text(text), read_text(text.replace("a.b", "a.c", 1))
    assert 0 <= before.likeness(after) <= 1
    assert isinstance(program_differences(before, after, sources=SourceFiles(until=0)), list)


def test_a_reason_of_a_later_version(directory):
    """The log is shared with other versions; a reason that this one does not know is given as it stands."""
    record_miss(
        ProgramRecord(time=1, url="u", reason="someday", outcome="stored", compile_seconds=0, key="k", name="jit_f")
    )
    ejcache.open_store(directory).close()

    assert sentence(directory) == "someday"


def identity(key="k", **components):
    details = {name: value for name, value in components.items() if name != "computation"}
    return ProgramRecord("jit_f", 1.0, key=key, components={"computation": "c", **components}, details=details)


def record_of(what, time=1.0):
    return what._replace(time=time, url="u", reason="absent", outcome="stored")


def test_a_number_in_a_library_has_the_path_there():
    """Its user cannot pass it as an argument: nothing of the kind is advised, and the caller's line is named."""
    file = "/venv/lib/python3.12/site-packages/diffrax/_step/pid.py"
    lines = ["  func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xf32>) {"]
    lines += ["    %cst = stablehlo.constant dense<{}> : tensor<f32>"]
    lines += ["    %1 = stablehlo.multiply %arg0, %cst : tensor<4xf32> loc(#loc1)"]
    lines += ["    return %1 : tensor<4xf32>", "  }", "}"]
    text = "\n".join(["module @jit_solve {", *lines, f'#loc1 = loc("{file}":490:1 to :9)'])
    made = record_of(identity())._replace(name="jit_solve", caller="/home/me/ode.py:7 in main")
    before, after = (made._replace(key=f"k{n}", time=n, components={"computation": str(n)}) for n in (1, 2))
    texts = Texts(lambda _: {"1": text.replace("{}", "0.9"), "2": text.replace("{}", "0.8")})
    found = cause(after, Earlier([StartRecord(Process(), [before, after])], texts))
    assert found.sentence == "a constant changed: 0.9 -> 0.8, diffrax/_step/pid.py:490"
    assert found.place == "/home/me/ode.py:7"
    assert found.what_to_do.startswith("nothing, if it was changed on purpose")
    assert not found.is_avoidable


def test_the_nearest_entry_differs_least():
    """One flag apart is nearer than another program, whatever is newer."""
    wanted = record_of(identity("k", arguments="--xla_a", jaxlib="1"), time=9)
    flag = record_of(identity("flag", arguments="--xla_b", jaxlib="1"), time=1)
    program = record_of(identity("program", arguments="--xla_a", jaxlib="2", computation="other"), time=2)

    assert explain(wanted, None, [wanted, program, flag]).nearest.key == "flag"
    assert explain(wanted, None, [wanted]).nearest is None


def test_likeness_comes_before_age(cache, directory):
    """Of two programs of other shapes, the one of the same operations is compared, though the other one is newer."""

    def cosine(x):
        return jax.numpy.cos(x) * 2

    cosine.__name__ = cosine.__qualname__ = "train"
    compile_one()
    compile_one(cosine)
    compile_one(size=8)

    assert sentence(directory).endswith("argument x changed: f32[4] -> f32[8]")


def test_sizes_that_were_seen_are_in_the_advice(cache, directory):
    """A dimension that varies: what to do names sizes for all that this function was called with."""
    for size in (31, 48, 64, 40):
        compile_one(size=size)
    assert ejcache.why()[0].what_to_do.startswith("pad dimension 0 of x to ")
    assert "for the sizes 31, 40, 48, 64" in ejcache.why()[0].what_to_do


def test_versions_are_named_from_what_to_what():
    """`jaxlib 0.10.1 -> 0.10.2`; libraries that changed under the same version are said to have."""
    old, new = identity(jaxlib="0.10.1", native_libraries="a"), identity("n", jaxlib="0.10.2", native_libraries="b")
    (only,) = environment_differences(old, new)
    assert only.sentence == "the version of JAX changed: jaxlib 0.10.1 -> 0.10.2"

    swapped = identity("s", jaxlib="0.10.1", native_libraries="b")
    (only,) = environment_differences(old, swapped)
    assert "though jaxlib's version is the same" in only.sentence


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"namespace": ""}, {"namespace": "second"}, "EJCACHE_NAMESPACE changed: (none) -> second"),
        (
            {"variables": "XLA_FLAGS=--xla_a=1"},
            {"variables": "XLA_FLAGS=--xla_a=2\n--xla_b"},
            "the environment variable XLA_FLAGS changed: --xla_a=1 -> 2, + --xla_b",
        ),
        (
            {"variables": ""},
            {"variables": "NVIDIA_TF32_OVERRIDE=0"},
            "the environment variable NVIDIA_TF32_OVERRIDE changed: (not set) -> 0",
        ),
    ],
)
def test_flags_and_variables_are_named(before, after, words):
    """A value is named from what to what, a flag by itself and not with the others of its variable."""
    assert [each.sentence for each in environment_differences(identity(**before), identity("n", **after))] == [words]


def test_kinds_and_numbers_of_devices_are_named():
    """Another accelerator, and more of them."""
    of = "{} process 0 device {} slice 0"
    old = identity(devices=of.format("NVIDIA A100", 0), machine="m")
    new = identity("n", devices="\n".join(of.format("NVIDIA H100", n) for n in range(2)), machine="o")
    assert [each.sentence for each in environment_differences(old, new)] == [
        "the kind of device changed: NVIDIA A100 -> NVIDIA H100",
        "the number of devices changed: 1 -> 2",
    ]


def test_a_program_that_is_compiled_again_unchanged(directory):
    """Not stored the last time, or evicted since, or compiled for another cache: that is the reason, with advice."""
    ejcache.enable(directory, min_compile_seconds=60)
    compile_one()
    compile_one()
    explained = ejcache.why()[0]
    assert "because it was not stored when it was compiled" in explained.text
    assert (explained.kind, "min_compile_seconds" in explained.what_to_do) == ("quick", True)

    ejcache.enable(directory, min_compile_seconds=0)
    compile_one()
    ejcache.clear()
    compile_one()
    assert "its entry is gone: it was stored" in ejcache.why()[0].sentence

    ejcache.enable(f"{directory}-2", min_compile_seconds=0)
    compile_one()
    assert re.search(rf"another cache: \d+s before, it was compiled for {directory}", ejcache.why()[0].sentence)


def test_the_miss_log_holds_the_line_that_called(cache):
    """The user's file, line and function, not ours and not JAX's."""
    compile_one()
    file, _, rest = last_miss().caller.rpartition(":")
    assert (file, rest.split()[1:]) == (__file__, ["in", "compile_one"])


def test_the_line_that_called_a_library(cache, tmp_path):
    """Of a call through a library, the line is the one of the user's program that called the library, or follows."""
    library = tmp_path / "site-packages" / "library.py"
    names = {}
    exec(compile("def call(function):\n    return function()\n", str(library), "exec"), names)
    names["call"](compile_one)
    assert re.search(r" in compile_one, from \S+:\d+ in test_the_line_that_called_a_library$", last_miss().caller)
    names["call"](jax.jit(lambda: np.ones(3) * jax.random.key_data(jax.random.key(0))[0]))
    file, _, rest = last_miss().caller.rpartition(":")
    assert (file, rest.partition(" ")[2]) == (__file__, "in test_the_line_that_called_a_library, via library")


def test_without_the_cache_a_miss_is_compared_with_what_this_host_compiled(cache, directory):
    """The cache is gone or cannot be reached: the same first line, and a note that says so."""
    compile_one()
    compile_one(size=8)
    ejcache.disable()
    there = ejcache.why()[0]
    Path(directory).rename(f"{directory}-gone")

    gone = ejcache.why()[0]
    assert gone.sentence == there.sentence
    assert "its cache cannot be read" in gone.note
    assert "there is no cache at" in gone.note
    said = CliRunner().invoke(build(), ["why", "train"])
    assert said.exit_code == 0
    assert said.output.startswith(there.text)
    assert "its cache cannot be read" in said.output


def test_since_full_and_the_number_of_lines(cache, directory):
    """`--since` bounds the time; an explanation has at most 20 lines, and `--full` adds the diff."""
    compile_one()
    compile_one(size=8)
    why = CliRunner().invoke
    assert len(json.loads(why(build(), ["why", "--since", "1h", "--json"]).output)["explanations"]) >= 2
    assert why(build(), ["why", "--since", "0s"]).exit_code == 1
    assert isinstance(why(build(), ["why", "--since", "soon"]).exception, ejcache.UsageError)
    short, full = why(build(), ["why"]).output, why(build(), ["why", "--full"]).output
    assert len(short.splitlines()) <= 20
    assert "stablehlo.sine" not in short
    assert "+    %0 = stablehlo.sine" in full


def test_since_says_nothing_of_entries_that_it_did_not_search(cache, directory):
    """`--since` of a time without misses does not deny the entry that `ls` shows; without it, the entry is searched."""
    compile_one()
    why = CliRunner().invoke

    since = why(build(), ["why", "train", "--since", "0s", "--dir", directory]).exception
    assert str(since) == (
        "no miss of 'train' was recorded on this host in the last 0s; without --since, earlier ones are explained"
    )
    said = str(why(build(), ["why", "nobody"]).exception)
    assert said.startswith("no program of the name or key 'nobody' was compiled on this host, nor is one stored")


def test_a_function_that_another_one_has_called(cache):
    """A jitted function that JAX has put into the program of another one was never missed: it was no program."""

    @jax.jit
    def inner(x):
        return jax.numpy.sin(x) * 2

    def outer(x):
        return inner(x) + inner(x + 1)

    compile_one(outer)
    said = str(CliRunner().invoke(build(), ["why", "inner"]).exception)
    assert said.startswith("'inner' was no program of its own: JAX has made it a part of jit_outer, because")
    assert "made it a part" not in str(CliRunner().invoke(build(), ["why", "inn"]).exception)


def test_colours_on_a_terminal_only(cache, monkeypatch):
    """Bold and coloured with FORCE_COLOR, plain with NO_COLOR and in a pipe."""
    compile_one()
    compile_one(size=8)
    assert "\x1b" not in CliRunner().invoke(build(), ["why", "--full"]).output
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = CliRunner().invoke(build(), ["why", "--full"], color=True).output
    assert "\x1b[1mjit_train was compiled" in coloured
    assert "\x1b[32m+    %0" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in CliRunner().invoke(build(), ["why", "--full"], color=True).output


def test_damaged_programs_in_the_log(cache, directory):
    """Lines of the program log that we did not write, or that unpack to very much, hide no other program."""
    compile_one()
    compile_one(size=8)
    log = state_directory() / "programs.jsonl"
    computation = last_miss().components["computation"]
    packed = base64.b64encode(zlib.compress(bytes(50_000_000))).decode()
    for text in ("!", packed[:10_000], 3, None):
        with log.open("a") as file:
            file.write(json.dumps({"computation": computation, "text": text}, separators=(",", ":")) + "\n")
    ejcache.disable()
    Path(directory).rename(f"{directory}-gone")

    assert ejcache.why()[0].sentence.endswith("argument x changed: f32[4] -> f32[8]")


def test_a_cause_is_said_once(cache, directory):
    """A constant and one that follows from it are two causes: the sentence names both, and no other line does."""

    def made(rate):
        def step(x):
            return jax.numpy.sin(x * rate) + 2 * rate

        return step

    compile_one(made(0.5))
    compile_one(made(0.75))
    said = CliRunner().invoke(build(), ["why", "step", "--last", "1", "--dir", directory]).output
    assert said.count("0.5 ->") == said.count("1 -> 1.5") == 1, said
    assert "pass it" not in said
