"""A bucket that hosts share: what is asked of it, how long programs wait for it, and what its troubles cost them."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from bench.measure import Summary, summarize
from bench.outcome import OURS, at_least, at_most
from bench.registry import case

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from bench.buckets import BucketServer
    from bench.context import Context
    from bench.outcome import Outcome

JAX = "JAX"
NONE = "no cache"
JITS = "bench.programs.shared_jits"
LATENCY = 0.03
FAULTS: dict[str, dict[str, Any]] = {
    "gone": {"action": "status", "status": 404},
    "unreachable": {"action": "reset"},
    "refusing": {"action": "status", "status": 503},
    "stalling": {"action": "stall"},
    "forbidden": {"action": "status", "status": 403},
}
MOMENTS = {"from the start": 0, "in the middle": 2, "at the end": 3}
"""After how many programs of three."""
AT_ONCE = 2
"""Programs with a failing bucket at a time: they wait more than they work."""


@case("shared", title="a bucket on loopback, shared by programs: requests, waiting, pruning, trouble", order=90)
def shared(context: Context, outcome: Outcome) -> None:
    """JAX's own cache, on a bucket of the same server, is the peer wherever it can do the job at all."""
    from bench.buckets import peer_is_here

    names = [OURS, JAX] if peer_is_here() else [OURS]
    if JAX not in names:
        outcome.note("JAX's own cache needs etils for a bucket, which is not installed: it was not measured.")
    with context.directory() as directory:
        _hot_path(context, outcome, directory / "path", names)
        _warm_start(context, outcome, directory / "warm", names)
        _once(context, outcome, directory / "once", names)
        _journals(context, outcome, directory / "journals")
        with ThreadPoolExecutor(1) as beside:
            # It is asleep nearly all of the time.
            theirs = beside.submit(_refused, directory / "refused") if JAX in names and not context.quick else None
            _prune(context, outcome, directory / "prune")
            _trouble(context, outcome, directory / "trouble", theirs)
    outcome.note(
        "The server is the project's own, on loopback: its answers are those that the service documents, and take "
        f"{LATENCY * 1000:.0f} ms where that is said. All who measure share this machine's cores."
    )


def _hot_path(context: Context, outcome: Outcome, home: Path, names: list[str]) -> None:
    from bench.buckets import BucketServer

    context.say("what one program asks of a bucket")
    found: dict[str, dict[str, Counter[str]]] = {}
    for name in names:
        with BucketServer() as server:
            _run(server, name, 1, home / f"{name} cold")
            missed = server.take_requests()
            _run(server, name, 1, home / f"{name} warm")
            found[name] = {"a miss and its publication": missed, "a hit": server.take_requests()}
    ours = found[OURS]
    outcome.ratio("requests for the entry, a hit", ours["a hit"]["GET entry"], at_most(1), unit="")
    missed = ours["a miss and its publication"]
    outcome.ratio("requests for the entry, a miss", missed["GET entry"], at_most(1), unit="")
    outcome.ratio("requests for the entry, a publication", missed["POST entry"], at_most(2), unit="")
    listings = sum(requests["list"] for requests in ours.values())
    outcome.ratio("listings, a hit, a miss and a publication", listings, at_most(0), unit="")
    for what in ours:
        counts = {name: summarize([sum(found[name][what].values())], unit="requests") for name in names}
        outcome.line(f"all requests of a process with {what}", counts)
    for name, what in itertools.product(names, ours):
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(found[name][what].items()))
        outcome.note(f"All requests of {name}'s process with {what}: {said}.")


def _warm_start(context: Context, outcome: Outcome, home: Path, names: list[str]) -> None:
    from bench.buckets import BucketServer

    count = context.pick(200, 10)
    times: dict[str, Summary] = {}
    totals, requests, gaps = {}, {}, []
    for name in names:
        context.say(f"{name}: {count} programs")
        with BucketServer() as server:
            _run(server, name, count, home / f"{name} cold")
            gaps += _gaps(server) if name == OURS else []
            server.server.control(latency=LATENCY)
            server.take_requests()
            answer = _run(server, name, count, home / f"{name} warm")
            requests[name] = server.take_requests()
            seconds = [taken for _, taken in answer["asked"]]
            times[name], totals[name] = summarize(seconds), sum(seconds)
            if answer["compiled"]:
                outcome.note(f"{name} compiled {len(answer['compiled'])} of {count} programs on the warm start.")
            if name == OURS:
                _one_host(context, outcome, home, server, count)
    outcome.line(f"a hit, {count} of them, a bucket 30 ms away", times)
    all_requests = {name: sum(asked.values()) for name, asked in requests.items()}
    outcome.line(
        f"requests of a warm start of {count}",
        {name: summarize([asked], unit="requests") for name, asked in all_requests.items()},
    )
    outcome.line(f"in the cache, all {count}", {name: summarize([total]) for name, total in totals.items()})
    if JAX in names:
        outcome.ratio(
            f"requests of a warm start of {count}: {JAX} ÷ {OURS}", all_requests[JAX] / all_requests[OURS], at_least(5)
        )
        outcome.ratio(
            f"seconds in the cache, warm start of {count}: {JAX} ÷ {OURS}", totals[JAX] / totals[OURS], at_least(2.5)
        )
    outcome.ratio("journals written by that process", requests[OURS]["POST journal"], at_most(1), unit="")
    if gaps:
        outcome.ratio(
            "shortest time between two writes of one object, while all are stored", min(gaps), at_least(1), unit="s"
        )
    outcome.note(
        "In the cache is a program from when JAX asks for its executable to when it has it: the key, the fetch, the "
        "load, and in the first one of JAX's cache the import of gcsfs."
    )


def _one_host(context: Context, outcome: Outcome, home: Path, server: BucketServer, count: int) -> None:
    """Four processes with one empty local tier, and then the same with what that left.

    They have the programs of the run before: what its profile names besides would be fetched at any time.
    """
    from bench.buckets import URL, Program, run_together

    env = server.variables | {"EJCACHE_LOCAL_DIR": str(home / "local tier")}
    for tier, bar in (("an empty local tier", 1), ("a warm local tier", 0)):
        context.say(f"four processes that share {tier}")
        server.take_requests()
        programs = [Program(JITS, OURS, URL, count, home=home / f"{tier} {n}", env=env) for n in range(4)]
        answers = run_together(programs)
        entries = {request.name for request in server.server.requests if "/entries/" in request.name}
        fetched = server.take_requests()["GET entry"] / max(len(entries), 1)
        outcome.ratio(f"requests per entry, four processes that share {tier}", fetched, at_most(bar), unit="")
        hits = sum(answer["stats"]["hits"] for answer in answers)
        if hits != 4 * count:
            outcome.note(f"With {tier} {4 * count - hits} of {4 * count} programs were compiled.")


def _once(context: Context, outcome: Outcome, home: Path, names: list[str]) -> None:
    """Four processes of as many hosts that begin with the same program."""
    from bench.buckets import URL, BucketServer, Program, run_together

    layers = context.pick(60, 10)
    for name in names:
        context.say(f"{name}: four hosts begin with one program")
        with BucketServer(latency=LATENCY) as server:
            programs = [
                Program(
                    JITS, name, URL, 1, "--layers", layers, home=home / f"{name} {n}", env=server.variables_of(name)
                )
                for n in range(4)
            ]
            answers = run_together(programs)
            misses = [r.started + r.seconds for r in server.server.requests if r.method == "GET" and r.status == 404]
            requests = server.take_requests()
        compiles = [taken for answer in answers for _, taken in answer["compiled"]]
        bar = at_most(1) if name == OURS else None
        outcome.ratio(f"compilations, four hosts begin with one program, {name}", len(compiles), bar, unit="")
        first = min(misses)
        last = max(began + taken for answer in answers for began, taken in answer["asked"])
        outcome.line(f"first miss to last executable, {name}", {name: summarize([last - first])})
        outcome.line(f"a compilation of it, {name}", {name: summarize(compiles)})
        if name == OURS:
            outcome.ratio("publications of it", requests["POST entry"], at_most(1), unit="")
            load = max(answer["stats"]["load_seconds"] for answer in answers)
            beyond = last - first - max(compiles) - load
            outcome.ratio("last of four ready after compile and load", beyond, at_most(1), unit="s")
            outcome.note(
                f"Four hosts: the compilation took {max(compiles):.2f} s, the longest load of those who waited "
                f"{load:.2f} s with its fetch; all four share this machine's cores, also while they begin."
            )


def _journals(context: Context, outcome: Outcome, home: Path) -> None:
    """An hour of a process that uses two of a thousand entries every second, by a clock that is moved on."""
    from ejcache.bucket.files import FileBucket
    from ejcache.journal.format import JOURNALS
    from ejcache.maintenance.pass_scheduler import attach
    from ejcache.stores.memory import MemoryStore
    from ejcache.stores.shared.store import SharedStore
    from ejcache.stores.tiered.store import TieredStore
    from ejcache.util.scheduler import Scheduler

    context.say("an hour of journals")
    keys = [f"jit_step_{number}-{number:064x}" for number in range(1000)]
    chosen, now = random.Random(0), 0.0
    bucket, minutes = FileBucket(home), context.pick(60, 5)
    with TieredStore(MemoryStore(), SharedStore(bucket), worker=Scheduler(clock=lambda: now)) as store:
        attach(store)
        for key in keys:
            store.local.put(key, b"value")
        for _ in range(60 * minutes):
            now += 1.0
            for key in chosen.sample(keys, 2):
                store.get(key)
                store.note_used(key)
            while store.worker.run_due():
                pass
        sizes = [info.size for info in bucket.walk(JOURNALS)]
    outcome.ratio("journals per minute of a busy process", len(sizes) / minutes, at_most(1), unit="")
    outcome.line("a journal of a minute, 120 uses", {OURS: summarize(sizes, unit="B")})
    outcome.note(
        "A journal is written every 60 s give or take a tenth, so that now and then two fall into one minute; they are "
        f"counted over {minutes} minutes of a clock that the benchmark moves on."
    )


def _prune(context: Context, outcome: Outcome, home: Path) -> None:
    from bench.buckets import URL, GcsServerProcess, Program, bucket_variables, kind_of

    counts, grown = context.pick([10_000, 100_000], [1_000, 2_000]), []
    for count in counts:
        context.say(f"pruning a bucket of {count:,}")
        filled = Program("bench.programs.shared_fill", count, home=home / f"{count} fill", env={})
        server = GcsServerProcess()
        server.url = filled.says()
        limit = json.loads(filled.says())["limit"]
        env = bucket_variables(server.url)
        found = Program("bench.programs.shared_prune", URL, limit, home=home / f"{count} prune", env=env).answer()
        requests = server.requests
        filled.go_on()
        left = filled.answer()
        what = f"{count:,} entries pruned to half"
        kinds = [kind_of(request.method, request.path, request.name) for request in requests]
        pages = [request for request, kind in zip(requests, kinds, strict=True) if kind == "list"]
        outcome.line(what, {OURS: summarize([found["seconds"]])})
        grown.append(found["grown"])
        outcome.line(f"{what}: memory that took at most", {OURS: summarize(grown[-1:], unit="B")})
        listings = sum("pageToken" not in request.query for request in pages)
        outcome.ratio(f"{what}: listings", listings, at_most(1), unit="")
        per_batch = (found["removed"] + found["journals"]) / max(1, kinds.count("batch"))
        outcome.ratio(f"{what}: removals per request", per_batch, at_least(90), unit="")
        wrong = 50 - left["spared"] + (not left["in_order"]) + abs(left["left"] - count // 2)
        outcome.ratio(f"{what}: entries that should have stayed or gone", wrong, at_most(0), unit="")
        outcome.note(
            f"{what}: {found['removed']:,} removed, {found['journals']} journals folded; {len(requests):,} requests, "
            f"of them {len(pages)} pages of the listing; the process had {found['peak'] / 1e6:.0f} MB at most. 50 "
            "in use, which by age were the first to go, stayed."
        )
    per_entry = (grown[-1] - grown[0]) / (counts[-1] - counts[0])
    outcome.ratio(
        f"memory of a prune, {counts[-1]:,} entries ÷ {counts[0]:,}", grown[-1] / max(1, grown[0]), at_most(1.5)
    )
    outcome.note(
        f"Of memory a prune takes {per_entry:,.0f} B more for each further entry: the snapshot of uses, compressed, is "
        "one object, which is held whole to be sent and received. The listing and the plan are on disk."
    )


def _trouble(context: Context, outcome: Outcome, home: Path, theirs: Future[float] | None) -> None:
    """The same three programs without a cache, and with one whose bucket fails."""
    moments = context.pick(MOMENTS, {"from the start": 0})
    faults = context.pick(FAULTS, {"refusing": FAULTS["refusing"]})
    context.say("programs without a cache")
    with ThreadPoolExecutor(AT_ONCE) as side:
        alone = [side.submit(_in_trouble, home / f"none {n}", NONE, {}, 0) for n in range(2 * AT_ONCE)]
        without = [ended.result() for ended in alone]
    base = statistics.median(without)
    outcome.line("three programs, without a cache", {NONE: summarize(without)})
    for moment, after in moments.items():
        context.say(f"a bucket in trouble {moment}")
        with ThreadPoolExecutor(AT_ONCE) as side:
            started = {
                kind: side.submit(_in_trouble, home / f"{kind} {moment}", OURS, fault, after)
                for kind, fault in faults.items()
            }
            for kind, ended in started.items():
                slower = ended.result() - base
                outcome.ratio(f"bucket {kind} {moment}: slower than without", slower, at_most(10), unit="s")
    if theirs is not None:
        context.say("JAX, one program, a bucket that refuses")
        outcome.ratio("bucket refusing from the start, one program: JAX slower than without", theirs.result(), unit="s")
    outcome.note(
        f"Programs in trouble run {AT_ONCE} at a time, and so do those without a cache. In trouble all requests are: "
        "gone is a 404, unreachable a reset connection, refusing a 503, forbidden a 403, and stalling no answer at "
        "all. All programs computed the right values, and ended with 0."
    )


def _refused(home: Path) -> float:
    refusing = FAULTS["refusing"]
    return _in_trouble(home / "JAX", JAX, refusing, 0, count=1) - _in_trouble(home / "none", NONE, {}, 0, count=1)


def _in_trouble(home: Path, who: str, fault: dict[str, Any], after: int, *, count: int = 3) -> float:
    """Seconds from where the program begins with its cache to its end."""
    from bench.buckets import URL, BucketServer, Program

    with BucketServer() as server:
        program = Program(JITS, who, URL, count, "--pause-after", after or -1, home=home, env=server.variables_of(who))
        program.expect("ready")
        if fault and not after:
            server.server.add_fault(**fault)
        began = time.perf_counter()
        program.go_on()
        paused = 0.0
        if after:
            program.expect("paused")
            at = time.perf_counter()
            server.server.add_fault(**fault)
            paused = time.perf_counter() - at
            program.go_on()
        answer = program.answer(timeout=180)
        if answer["right"] != count:
            raise AssertionError(f"{who} computed wrong values")
        return time.perf_counter() - began - paused


def _run(server: BucketServer, name: str, count: int, home: Path) -> dict[str, Any]:
    from bench.buckets import URL, Program

    program = Program(JITS, name, URL, count, home=home, env=server.variables_of(name))
    program.expect("ready")
    program.go_on()
    answer = program.answer()
    if answer["right"] != count:
        raise AssertionError(f"{name} computed wrong values")
    return answer


def _gaps(server: BucketServer) -> list[float]:
    """Seconds between two writes of the same object that the server carried out, for all objects."""
    writes: dict[str, list[float]] = {}
    for request in server.server.requests:
        if request.method in ("POST", "PUT", "PATCH") and request.name and request.status == 200:
            writes.setdefault(request.name, []).append(request.started)
    return [later - sooner for times in writes.values() for sooner, later in itertools.pairwise(sorted(times))]
