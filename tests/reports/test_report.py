"""`ejcache report`: each number of its pages is that of the records; of a real job, and of made-up records."""

from __future__ import annotations

import html
import json
import re
import runpy
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from capabilities import needs
from cli_helpers import Terminal, ejcache
from helpers import ROOT, line_of, run_program

from ejcache.history.causes import OUTCOMES
from ejcache.history.findings import Advice, Saving, SmallerFindings
from ejcache.history.host_log import remember_program
from ejcache.history.nearest_program import Earlier
from ejcache.journal.line import HIT, ProgramRecord
from ejcache.journal.recorder import START_LOG, recorder
from ejcache.journal.start_records import Process, StartRecord, beginning_of, read_starts
from ejcache.reports.build import build
from ejcache.reports.compare_starts import Side, changes, choose_records, is_slower, sum_up
from ejcache.reports.html import axis, html_page
from ejcache.reports.model import DiskUse
from ejcache.reports.sections import print_report
from ejcache.reports.trace import trace
from ejcache.util.units import duration, format_size

PROGRAM = """
import sys, jax, jax.numpy as jnp, numpy as np, ejcache
cache = ejcache.enable("gs://bucket/p", min_compile_seconds=0)
kind = sys.argv[1]
def step(x):
    return jnp.tanh(x @ x) * (2 if kind == "code" else 1)
x = np.ones((3, 3) if kind == "shape" else (4, 4), np.float32)
jax.jit(step)(x)
if kind == "cold":
    jax.jit(lambda x: x - 1)(x)
if kind != "failing":
    assert cache.flush(60)  # or what this process records is with the next one, and the last has none
"""


def test_a_job_of_several_processes(run_forked, bucket, monkeypatch, tmp_path):
    """Misses of six kinds, four processes at once, a slow bucket and a failing one: each number is the records'."""
    bucket.add_fault("latency", seconds=0.05)
    run_forked(PROGRAM, "cold")
    apart = {"shape": None, "code": None, "warm": None, "namespace": {"EJCACHE_NAMESPACE": "other"}}
    with ThreadPoolExecutor(len(apart)) as at_once:
        list(at_once.map(lambda kind: run_forked(PROGRAM, kind, env=apart[kind]), apart))
    run_forked(PROGRAM, "forced", env={"EASYDEL_RECOMPILE_FORCE": "1"})
    log = START_LOG.path.read_bytes()
    START_LOG.path.unlink()  # another host has the records that processes have left in the bucket
    there = ejcache("report", "--dir", "gs://bucket/p", "--json").json
    assert (there["sums"]["misses"], there["disk"][0]["total_entries"] > 0) == (6, True)
    START_LOG.path.write_bytes(log)
    bucket.add_fault("status", status=503)
    run_forked(PROGRAM, "failing", env={"EJCACHE_LOCAL_DIR": str(tmp_path / "other-host")})

    records = read_starts()
    programs = [program for record in records for program in record.programs]
    assert len(records) == 7
    report = build(records, disk=[DiskUse("all entries", 3, 4096)])
    assert {cause.kind: cause.misses for cause in report.causes} == {
        "new": 2, "shape_varies": 1, "code": 1, "namespace": 1, "forced": 1, "error": 1,
    }  # fmt: skip
    assert [program.outcome for program in programs].count(HIT) == 1
    failing = next(program for program in programs if program.reason == "error")
    assert failing.seconds["lost"] > 0
    assert all(program.caller.endswith("in <module>") for program in programs)
    assert all({"traced", "lowered", "keyed"} <= program.seconds.keys() for program in programs)
    check_numbers(report, programs)
    check_timeline(report, records)

    bucket.reset()
    said = ejcache("report", "--json")
    assert (said.status, said.json["sums"]["misses"], said.json["sums"]["hits"]) == (0, 7, 1)
    page = tmp_path / "page.html"
    assert ejcache("report", "--html", page, "--trace", tmp_path / "trace.json").status == 0
    assert len(rows_of(page.read_text(), "ranks")) == 7
    slices = [each for each in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if each["ph"] == "X"]
    assert sum(each["cat"] == "program" for each in slices) == 8


def check_numbers(report, programs):
    """Each number of the page, beside a sum of the records that is made here."""
    saved_by = {
        name: sum(
            max(0, p.compile_seconds - p.seconds.get("fetched", 0) - p.seconds.get("loaded", 0))
            for p in programs if p.outcome == HIT and p.name == name
        )
        for name in {p.name for p in programs}
    }  # fmt: skip
    saved = sum(saved_by.values())
    waited, lost, keyed = (sum(p.seconds.get(phase, 0) for p in programs) for phase in ("waited", "lost", "keyed"))
    misses = [p for p in programs if p.outcome != HIT]
    page = html_page(report)
    title = re.search("<h1>(.*?)</h1><p>(.*?)</p><p>(.*?)</p>", page)
    net = saved - waited - lost - keyed
    worth = f"ejcache saved {duration(net)}" if net >= 0 else f"ejcache took {duration(-net)} more than it saved"
    assert title[1] == worth
    assert title[2] == (
        f"{duration(saved)} of compiling saved, less {duration(keyed)} for keys, {duration(waited)} of waiting for "
        f"leases and other processes and {duration(lost)} lost to failing storage"
    )
    assert f"{len(misses)} misses, {duration(sum(p.compile_seconds for p in misses))} of compiling" in title[3]
    for phase in {phase for p in programs for phase in p.seconds}:
        took = duration(sum(p.seconds.get(phase, 0) for p in programs))
        assert (f"{phase} {took}</span>" in page) == (took != "0 s")

    functions = {row["function"]: row for row in rows_of(page, "cost")}
    assert functions.keys() == {p.name for p in programs}
    for name, row in functions.items():
        mine = [p for p in programs if p.name == name]
        assert row["spent"] == f"{sum(sum(p.seconds.values()) for p in mine):.2f}"
        assert row["compiled"] == f"{sum(p.compile_seconds for p in mine if p in misses):.2f}"
        assert (int(row["hits"]), int(row["misses"])) == (
            sum(p.outcome == HIT for p in mine), sum(p.outcome != HIT for p in mine),
        )  # fmt: skip
        assert row["saved"] == f"{saved_by[name]:.2f}"
        assert row["called from"] in {p.caller.replace(f"{Path.cwd()}/", "") for p in mine}
    causes = [*rows_of(page, "first"), *rows_of(page, "again")]
    assert sum(int(row["misses"]) for row in causes) == len(misses)
    assert sum(float(row["compiled"]) for row in causes) == pytest.approx(
        sum(p.compile_seconds for p in misses), abs=0.05
    )
    for what in ("ranks", "days"):
        rows = rows_of(page, what)
        assert sum(int(row["hits"]) for row in rows) == len(programs) - len(misses)
        assert sum(int(row["misses"]) for row in rows) == len(misses)
        for column, total in (("waited", waited), ("lost", lost), ("net", saved - waited - lost - keyed)):
            assert sum(float(row[column]) for row in rows) == pytest.approx(total, abs=0.05)
    assert [row["size"] for row in rows_of(page, "disk")] == ["4.1 kB"]


def check_timeline(report, records):
    """Each program of the last start has a bar in which each phase is as wide as it took, where it began."""
    last = max(records, key=lambda record: record.process.began)
    bars = re.findall(
        r'title="([^"]*?): [^"]*" style="left:(.*?)%;width:(.*?)%">(.*?)<em>',
        html_page(report).partition('<div class="start" id="start-')[2].partition('<div class="start"')[0],
    )
    length = max(p.time for p in last.programs) - last.process.began
    seen = [p for p in last.programs if sum(p.seconds.values()) > length / 2000]
    assert len(seen) == len(bars) > 0
    for program in seen:
        took, at = sum(program.seconds.values()), max(0.0, beginning_of(program) - last.process.began)
        wanted = {phase: 100 * seconds / took for phase, seconds in program.seconds.items() if seconds}
        assert any(
            name == program.name
            and float(left) == pytest.approx(100 * at / length, abs=0.02)
            and float(width) == pytest.approx(100 * took / length, abs=0.02)
            and parts_of(inner) == pytest.approx(wanted, abs=0.02)
            for name, left, width, inner in bars
        ), program.name


def parts_of(bar):
    """The phases of a bar, each with its width."""
    return {phase: float(width) for phase, width in re.findall(r'<b class=(\w+) style="width:(.*?)%', bar)}


def rows_of(page, anchor):
    """The rows of a section's table, as a browser shows them."""
    section = page.partition(f'<h2 id="{anchor}">')[2].partition("<h2")[0]
    rows = [re.findall(r'<td[^>]* data-name="(.*?)">(.*?)</td>', row) for row in re.split("<tr[^>]*>", section)]
    return [{name: html.unescape(re.sub("<[^>]*>", "", cell)) for name, cell in row} for row in rows if row]


def start(rank=0, *, began=1_000.0, program="train.py", jax="0.12.0", settings=None, programs=(), trouble=None):
    process = Process(
        f"{program}{began}{rank}", f"host{rank}", 7, rank, 4, program, began, {"jax": jax}, settings or {}
    )  # fmt: skip
    return StartRecord(process, programs, trouble or {})


def compiled(name, seconds=1.0, time=1_002.0, **fields):
    fields = {"reason": "absent", "outcome": "stored", "key": f"{name}-1", **fields}
    return ProgramRecord(name=name, time=time, compile_seconds=seconds, seconds={"compiled": seconds}, **fields)


def loaded(name, seconds=1.0, time=1_002.0, **fields):
    return ProgramRecord(name=name, time=time, compile_seconds=seconds, outcome=HIT, seconds={"loaded": 0.1}, **fields)


def test_ranks_that_differ():
    """A start has a warning for each way in which its processes differ; ranks that begin again are another start."""
    records = [
        start(0, programs=[loaded("jit_step"), compiled("jit_eval", components={"a": "1"})]),
        start(1, began=1_010.0, jax="0.11.0", programs=[loaded("jit_step")]),
        start(2, began=1_020.0, settings={"x": "1"}, programs=[compiled("jit_step", reason="checked")]),
        start(3, programs=[compiled("jit_eval", key="jit_eval-2", components={"a": "2"})]),
        start(0, began=5_000.0, programs=[loaded("jit_step", time=5_001.0)], trouble={"read an entry": 2}),
    ]
    report = build(records)
    assert [len(each.processes) for each in report.starts] == [1, 4]
    assert sorted(report.starts[1].warnings) == [
        "rank 1 on host1 has other versions than rank 0 on host0: jax 0.11.0 (not 0.12.0)",
        "rank 2 on host2 compiled jit_step, which others loaded: " + OUTCOMES["checked"].reason,
        "rank 2 on host2 has other settings than rank 0 on host0: x 1 (not unset)",
        "rank 3 on host3 compiled jit_eval, which rank 0 on host0 has otherwise: the keys differ in a",
    ]
    assert report.trouble == {"read an entry": 2}
    assert list(report.timelines[0].lanes) == ["rank 0 on host0, thread"]
    assert len(report.timelines) == 2


def test_texts_of_programs_are_escaped(capsys):
    """Names and paths of programs are data: neither HTML nor control sequences."""
    evil = "<script>alert(1)</script>\x1b[31m"
    records = [
        start(program=evil, settings={evil: evil}, programs=[compiled(evil, caller=evil, key=evil, thread=evil)])
    ]
    page = html_page(build(records, tuned=[(evil,), (evil,)], disk=[DiskUse(evil, 1, 1, evil)]))
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert Counter(re.findall("<script|<img|https?:", page)) == {"<script": 1}
    START_LOG.append(line_of(records[0]))
    assert "\x1b" not in ejcache("report").out


def test_thousands_of_programs_are_one_megabyte_at_most():
    """Functions beyond those that cost most, and bars that nobody would see, are left out and counted."""
    names = [f"jit_step_{number}_{'x' * 60}" for number in range(2_000)]
    programs = [
        make(name, time=1_000.0 + at, caller="/home/me/" * 20)
        for at, name in enumerate(names)
        for make in (compiled, loaded)
    ]
    report = build([start(programs=programs)])
    page = html_page(report)
    assert len(page) < 1_000_000
    assert report.sums.misses == 2_000
    assert "1,800 more functions" in page
    assert "2,500 shorter programs left out" in page
    assert len(trace([start(programs=programs)])["traceEvents"]) == 8_002


def test_comparing(tmp_path):
    """Files, versions and times are compared by what one start compiles; more than before is exit status 1."""
    now = time.time()
    old = [start(began=now - 90_000, jax="0.10.2", programs=[compiled("jit_step", 1.0, time=now - 90_000)])]
    new = [
        start(began=now - 60, programs=[compiled("jit_step", 1.3, time=now - 60), compiled("jit_more", 0.1, time=now)])
    ]
    for records in (old, new):
        START_LOG.append(line_of(records[0]))
    file = tmp_path / "before.jsonl"
    file.write_bytes(line_of(old[0]) + b"\n")
    for before, after, status in (
        ("jax=0.10", "jax=0.12", 1), (str(file), "program=train", 1), ("2d..1d", "1d..0s", 1),
        ("jax=0.12", "jax=0.10", 0), (str(file), "2d..1d", 0), ("jax=9", "jax=0.12", 1), ("nonsense", "jax=0.12", 2),
    ):  # fmt: skip
        assert ejcache("report", "--compare", before, after).status == status, (before, after)
    found = changes(sum_up("a", old), sum_up("b", choose_records("jax=0.12", [*old, *new], now=now)))
    assert [(name, round(a, 3), round(b, 3), m, n) for name, a, b, m, n in found] == [
        ("jit_step", 1.0, 1.3, 1.0, 1.0), ("jit_more", 0.0, 0.1, 0.0, 1.0),
    ]  # fmt: skip


def test_a_tenth_more_programs_is_slower():
    """Programs that compile in no time count as those that take long: so the help says."""
    before, more = (Side(name, 1, 0.01, misses, {}) for name, misses in (("before", 10.0), ("more", 19.0)))
    assert is_slower(before, more)
    assert not is_slower(before, Side("as many", 1, 0.05, 11.0, {}))
    assert is_slower(before, Side("longer", 1, 0.2, 10.0, {}))


def test_nothing_recorded():
    """Without a record, the command says so and fails."""
    said = ejcache("report")
    assert said.status == 1
    assert "no start was recorded" in said.err


def test_the_examples_of_events():
    """What they send to TensorBoard and Prometheus is what was recorded."""
    boards, counts = (
        runpy.run_path(str(ROOT / "examples" / f"{name}_events.py")) for name in ("tensorboard", "prometheus")
    )
    scalars, added = [], []

    class Writer:
        def add_scalar(self, *values):
            scalars.append(values)

    ends = [boards["log_to"](Writer()), counts["count_with"](lambda *values: added.append(values))]
    recorder.add(compiled("jit_step"))
    recorder.add(loaded("jit_step"))
    recorder.add_trouble("read an entry", "no")
    for end in ends:
        end()
    assert scalars == [
        ("ejcache/compiled/jit_step", 1.0, 1), ("ejcache/saved", 0.0, 1),
        ("ejcache/loaded/jit_step", 0.1, 2), ("ejcache/saved", 0.9, 2),
    ]  # fmt: skip
    assert added == [
        ("programs", "absent", 1), ("seconds", "absent", 1.0), ("programs", "hit", 1), ("seconds", "hit", 0.1),
        ("saved_seconds", "hit", 0.9), ("trouble", "read an entry", 1),
    ]  # fmt: skip


FINDING = Advice(
    *("shape_varies", "step", "/home/me/train.py", 7, "step(x)", 4, 9, 4.0, (Saving("about", 2.0, "of <it>"),)),
    *("argument x changed: f32[4] -> f32[8]", "pad <it>"),
)


SMALL = """
import ejcache, jax, jax.numpy as jnp, numpy as np
ejcache.enable(min_compile_seconds=0)
for number in range(4):
    jax.jit(lambda x, number=number: jnp.sin(x @ x) * number)(np.ones((4, 4), np.float32))
"""


def test_a_cache_that_is_too_small_for_a_start(run_forked, monkeypatch):
    """The report has the bytes that the last start used, made and found, and says that the limit is below them."""
    run_forked(SMALL)
    run_forked(SMALL)
    said = ejcache("report", "--json").json
    again, first = said["starts"]
    assert again["warnings"] == first["warnings"] == []
    (made,), (found,) = first["working_sets"].values(), again["working_sets"].values()
    assert 0.5 * made < found <= made <= said["disk"][0]["total_size"]
    monkeypatch.setenv("EJCACHE_MAX_SIZE", str(made // 2))
    said = ejcache("report", "--json").json
    (warning,) = said["starts"][0]["warnings"]
    assert f"is {format_size(found)}, the limit {format_size(made // 2)}: " in warning
    assert warning.endswith("or set evict=cost, which keeps what takes longest to compile for its size")
    assert said["starts"][1]["warnings"] == []
    assert warning in " ".join(ejcache("report").out.split())


def test_working_sets():
    """An entry that several ranks use counts once; another cache's entries and limit count for that one."""
    step = loaded("jit_step", key="a", url="there", size=600)
    records = [
        start(0, settings={"evict": "cost"}, programs=[step, loaded("jit_eval", key="b", url="there", size=500)]),
        start(1, programs=[step, compiled("jit_new", key="c", url="elsewhere", size=5_000)]),
    ]
    (both,) = build(records, limits={"there": 1_000}).starts
    assert both.working_sets == {"there": 1_100, "elsewhere": 5_000}
    assert both.warnings[-1] == (
        "the working set of train.py is 1.1 kB, the limit 1 kB: one start evicts what the next one needs; "
        "raise max_size of there"
    )
    assert "limit" not in " ".join(build(records, limits={"there": 1_100}).starts[0].warnings)


def test_what_to_change_comes_first(capsys):
    """In the terminal and as JSON too."""
    report = build([start(programs=[compiled("jit_step")])], findings=[FINDING])
    page = html_page(report)
    assert page.index('<h2 id="change">') < page.index('<h2 id="first">')
    (row,) = rows_of(page, "change")
    assert (row["change"], row["would save"]) == ("/home/me/train.py:7", "about 2.00 s")
    below = page.partition('<h2 id="change">')[2].partition("<h2")[0]
    assert "<p>argument x changed: f32[4] -&gt; f32[8].</p><p>What to do: pad &lt;it&gt;.</p>" in below
    assert '<td data-name="function"><a href="#f-jit_step">step</a></td>' in page
    print_report(report)
    assert "/home/me/train.py:7" in capsys.readouterr().out


@pytest.mark.parametrize(("variable", "styled"), [("FORCE_COLOR", True), ("NO_COLOR", False)])
def test_styles_are_codes_of_the_terminal_and_no_text(monkeypatch, variable, styled):
    """The headline and the titles are bold, a warning is red, and no code is printed as text."""
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1")
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    print_report(build([start(programs=[compiled("jit_step")], trouble={"store": 3})], findings=[FINDING]))
    said = out.getvalue()
    assert ("\x1b[1mWhat to change in the programs\x1b[0m" in said) is styled
    assert ("\x1b[31m! could not store" in said) is styled
    assert ("\x1b" in said) is styled
    assert "\N{REPLACEMENT CHARACTER}" not in said


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(monkeypatch, columns):
    """Findings are wrapped within their indent, blocks of a table are one empty line apart, and no text is a code."""
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    long = "the weak type of argument layers[0][0] and 47 more changed, which is a sentence of some length " * 2
    finding = FINDING._replace(sentence=long, what_to_do=long, function="st\x1b[31mep", source="step(x, y) " * 10)
    programs = [compiled("jit_step"), compiled("jit_loss", key="b")]
    print_report(build([start(programs=programs)], findings=[finding], smaller_findings=SmallerFindings(2, 0.08)))
    lines = sys.stdout.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert "\n\n\n" not in sys.stdout.getvalue()
    assert "\x1b" not in sys.stdout.getvalue()


def versioned(name, at, text, **versions):
    """The miss of a function at a time; its text is remembered."""
    remember_program(f"digest{at}", text)
    components = {"computation": f"digest{at}"}
    return compiled(name, key=f"{name}-{at}", time=at, components=components, details=versions, signature="() -> ()")


MODULE = """module @jit_step attributes {} {
  func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xf32>) {
    %cst = stablehlo.constant dense<{}> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.multiply %arg0, %0 : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}"""


def compared(records, **options):
    """The report of these records, with the texts that this host remembers."""
    return build(records, earlier=Earlier(records), with_diffs=True, **options)


def test_from_a_cause_to_the_difference_of_two_texts():
    """A cause unfolds its functions, and each of these what changed: in words, and in the lines of the texts."""
    texts = [MODULE.replace("{}> :", f"{number}.0> :") for number in (2, 3)]
    records = [start(programs=[versioned("jit_step", 1_000.0 + n, text) for n, text in enumerate(texts)])]
    report = compared(records)
    (why,) = (group.first for group in report.causes if group.kind == "static_number")
    assert (why.name, why.nearest.key, why.key) == ("jit_step", "jit_step-1000.0", "jit_step-1001.0")
    page = html_page(report)
    unfolded = page.partition('<h2 id="first">')[2].partition("<h2")[0]
    assert re.search(
        r"<details><summary>1 function, and what changed</summary><ul><li><details open><summary>jit_step 1.0 s",
        unfolded,
    )
    assert "<p>From the program of start 1 on host0 to that of start 1 on host0:</p>" in unfolded
    assert page.count("id=d-0>") == 1
    assert '<a href="#d-0">a constant changed: 2 -&gt; 3' in page.partition('<h2 id="cost">')[2]
    assert "<li>a constant changed: 2 -&gt; 3" in unfolded
    assert "<i class=old>-    %cst = stablehlo.constant dense&lt;2.0&gt; : tensor&lt;f32&gt;</i>" in unfolded
    assert "<i class=new>+    %cst = stablehlo.constant dense&lt;3.0&gt; : tensor&lt;f32&gt;</i>" in unfolded


@pytest.mark.parametrize(
    ("versions", "constants", "words"),
    [
        (["0.12", "0.12"], ["1.0", "2.0"], "a constant changed: 1 -> 2"),
        (["0.10", "0.11", "0.12"], ["1.0", "1.0", "1.0"], "0.11 -> 0.12"),  # of one kind, and other words
    ],
)
def test_the_reason_of_a_function_is_what_changed_last(versions, constants, words):
    """The table of functions and what unfolds below the cause say it in the same words."""
    programs = []
    for at, (version, constant) in enumerate(zip(versions, constants, strict=True)):
        made = versioned("jit_step", 1_000.0 + at, MODULE.replace("{}> :", f"{constant}> :"), jax=version)
        computation = f"digest{1_000.0 + at}" if len(set(constants)) > 1 else "same"
        programs.append(made._replace(components={"computation": computation, "jaxlib": version}))
    records = [start(programs=programs)]
    page = html_page(compared(records))
    (row,) = rows_of(page, "cost")
    (link,) = re.findall(r'<a href="#(d-\d+)">', page.partition('<h2 id="cost">')[2])
    told = page.partition(f"id={link}>")[2].partition("</ul>")[0]
    assert row["compiled because"] == html.unescape(re.findall("<li>([^<]*)", told)[0])
    assert words in row["compiled because"]


def test_what_is_not_known_of_two_programs_is_not_shown():
    """Without a text the difference is in words."""
    programs = [
        compiled("jit_step", key=f"k{n}", time=1_000.0 + n, components={"computation": str(n)}, details={"jax": "1"})
        for n in range(2)
    ]
    (why,) = (group.first for group in compared([start(programs=programs)]).causes if group.kind == "code")
    assert why.diff == ""
    assert "its text is not known" in why.sentence


@pytest.mark.one_python
@needs("chromium")
def test_a_browser_cuts_nothing_and_every_text_can_be_read(tmp_path):
    """At four widths, light and dark, with everything unfolded: `tools/site_check.py` finds no fault."""
    texts = [MODULE.replace("{}> :", f"{number}.0> :") for number in (2, 3)]
    programs = [versioned("jit_step", 1_000.0 + n, text) for n, text in enumerate(texts)]
    records = [start(programs=[*programs, loaded("jit_" + "a_long_name_" * 8)]), start(1, trouble={"store": 3})]
    report = compared(records, findings=[FINDING._replace(file="/home/me/" + "deep/" * 20 + "train.py")])
    page = tmp_path / "page.html"
    page.write_text(html_page(report))
    looked = run_program([sys.executable, ROOT / "tools" / "site_check.py", page], timeout=400, check=False)
    assert looked.returncode == 0, looked
    assert ": 0 faults, 0 errors" in looked.stdout


def test_header():
    """Number, program, commit, host, device, time and versions of the last start."""
    record = start(2, programs=[compiled("jit_step")])
    versions = {"jax": "0.12.0", "platform": "cpu", "commit": "0123456789ab"}
    page = html_page(build([record._replace(process=record.process._replace(versions=versions))]))
    facts = dict(re.findall("<div><dt>(.*?)<dd>(.*?)</div>", page))
    assert facts.pop("began").startswith("1970-01-01")
    assert facts == {
        "last start": "1", "program": "train.py", "commit": "0123456789ab", "host": "host2", "device": "cpu",
        "jax": "0.12.0",
    }  # fmt: skip


def test_each_start_has_a_number_and_a_timeline():
    """The first start is number 1; its number in the table leads to its timeline, which says what took longest."""
    records = [
        start(began=1_000.0 + 100 * n, programs=[compiled("jit_step", time=1_050.0 + 100 * n)]) for n in range(3)
    ]
    page = html_page(build(records))
    assert re.findall(r'href="#start-(\d)">(\d)</a>', page) == [("3", "3"), ("2", "2"), ("1", "1")]
    assert re.findall(r'id="start-(\d)"( hidden)?', page) == [("3", ""), ("2", " hidden"), ("1", " hidden")]
    assert re.findall(r"<option value=.(\d).>start (\d):", page) == [("3", "3"), ("2", "2"), ("1", "1")]
    longest = page.partition("What took longest in start 3")[2]
    assert re.search('"function">jit_step</td>.*?>1.00</td>.*?>compiled</td>', longest)


@pytest.mark.parametrize("began", [-9e14, -1.0, 2_000.0, 9e14])
@pytest.mark.parametrize("ended", [-9e14, 0.0, 1_000.0, 9e14])
def test_a_record_with_odd_times_is_shown(began, ended):
    """Of a clock that was set back, or written by somebody else: the page has the other starts, too."""
    odd = start(1, began=began, programs=[compiled("jit_odd", time=ended), loaded("jit_odd", time=ended)])
    page = html_page(build([odd, start(began=1_000.0, programs=[compiled("jit_step", time=1_050.0)])]))
    assert "jit_odd" in page
    assert "jit_step" in page


def test_what_threads_compile_and_load_at_once_counts_once():
    """A start and a process save what they became shorter; a function has the seconds of its own programs."""

    def record(outcome, began):
        return StartRecord(
            Process(id=outcome, began=began),
            [
                ProgramRecord(
                    name=f"jit_{n}", time=began + 10.0 + n / 100, outcome=outcome, compile_seconds=10.0, thread=f"t{n}",
                    seconds={"loaded": 0.5} if outcome == HIT else {"compiled": 10.0},
                )
                for n in range(8)
            ],
        )  # fmt: skip

    report = build([record("stored", 1e9), record(HIT, 2e9)])
    latest, first = report.starts
    assert first.processes[0].sums.compile_seconds == pytest.approx(10.07)
    assert latest.processes[0].sums.seconds_saved == pytest.approx(9.5)
    assert report.sums.seconds_saved == report.sums.net == pytest.approx(9.5)
    assert [timeline.sums.seconds_saved for timeline in report.timelines] == pytest.approx([9.5, 0.0])
    assert sorted(day.seconds_saved for day in report.days.values()) == pytest.approx([0.0, 9.5])
    assert {each.sums.seconds_saved for each in report.functions} == {9.5}


@pytest.mark.parametrize("length", [1e-7, 0.0021, 0.94, 1.0, 7.0, 61.0, 5_000.0])
def test_an_axis_has_a_few_round_numbers(length):
    ticks = re.findall('left:(.*?)%">(.*?) s<', axis(length))
    assert 2 <= len(ticks) <= 8
    assert [float(place) for place, _ in ticks] == pytest.approx(
        [100 * float(seconds) / length for _, seconds in ticks], abs=0.1
    )


def test_operations_of_jax_are_one_row():
    defined = {"defined": "/x/site-packages/jax/_src/dispatch.py:102 sin"}
    programs = [compiled(f"jit_{name}", details=defined, key=name) for name in ("sin", "cos")]
    report = build([start(programs=[*programs, loaded("jit_sin", key="sin"), compiled("jit_step")])])
    assert [each.name for each in report.functions] == ["operations of JAX, one at a time", "jit_step"]
    assert report.causes[0].seconds_by_function == {"operations of JAX, one at a time": 2.0, "jit_step": 1.0}
