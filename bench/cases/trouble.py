"""What trouble costs that is not of the cache: slow imports, dead mounts, lost answers, programs that are short."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from bench.context import ROOT, support
from bench.measure import summarize
from bench.outcome import OURS, at_least, at_most
from bench.registry import SkipCase, case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.buckets import Program
    from bench.context import Context
    from bench.outcome import Outcome

NONE = "no cache"
JITS = "bench.programs.shared_jits"
S3_URL = "s3://bucket/cache"

_SLOW_IMPORT = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "gcsfs":
            sys.meta_path.remove(self)
            time.sleep({seconds})

sys.meta_path.insert(0, Slow())
"""


@case(
    "slow-import",
    title="processes that start together, and ask through gcsfs, whose import takes 8 s",
    order=91,
)
def slow_import(context: Context, outcome: Outcome) -> None:
    """A healthy bucket that has all programs: a slow import must cost no hit."""
    from bench.buckets import GCSFS, URL, BucketServer, Program, run_together

    processes, count, seconds = context.pick((16, 8, 8), (3, 2, 2))
    with context.directory() as home, BucketServer() as server:
        _alone(Program(JITS, OURS, URL, count, home=home / "cold", env=server.variables))
        slow = home / "slow"
        slow.mkdir()
        (slow / "sitecustomize.py").write_text(_SLOW_IMPORT.format(seconds=seconds))
        env = server.variables | GCSFS | {"PYTHONPATH": f"{slow}:{ROOT}"}
        homes = [home / str(n) for n in range(processes)]
        answers = run_together([Program(JITS, OURS, URL, count, home=place, env=env) for place in homes])
        said = [line for place in homes for line in (place / "stderr").read_text().splitlines() if line.strip()]
    hits = sum(answer["stats"]["hits"] for answer in answers)
    title = f"{processes} processes, gcsfs imports in {seconds} s"
    outcome.ratio(f"{title}: hits of {processes * count}", 100 * hits / (processes * count), at_least(100), unit="%")
    outcome.ratio(f"{title}: lines of warnings", len(said), at_most(0), unit="")
    outcome.line(f"{title}: all programs", {OURS: summarize([a["ended"] - a["began"] for a in answers])})
    for line in sorted({line[:300] for line in said})[:3]:
        outcome.note(f"It said: {line}")


@case("dead-mount", title="a shared directory whose server is dead, beside no cache", order=92)
def dead_mount(context: Context, outcome: Outcome) -> None:
    """Calls of the operating system below the directory do not return, from the start or after two programs."""
    from bench.buckets import Program

    rounds = context.pick(3, 1)
    taken: dict[str, list[float]] = {NONE: [], "from the start": [], "in the middle": []}
    with context.directory() as home:
        for number in range(rounds):
            for what, seconds in taken.items():
                place = home / f"{what} {number}"
                mount = place / "mount"
                mount.mkdir(parents=True)
                pause = 2 if what == "in the middle" else -1
                who = NONE if what == NONE else OURS
                program = Program(
                    "bench.programs.dead_mount",
                    mount,
                    who,
                    mount / "cache",
                    3,
                    "--pause-after",
                    pause,
                    home=place,
                    env={},
                )
                program.expect("ready")
                if what == "from the start":
                    (place / "mount is dead").touch()
                began = time.perf_counter()
                program.go_on()
                if what == "in the middle":
                    program.expect("paused")
                    (place / "mount is dead").touch()
                    program.go_on()
                if program.answer()["right"] != 3:
                    raise AssertionError("wrong values were computed")
                seconds.append(time.perf_counter() - began)
    outcome.line("three programs, to the end of the process", {what: summarize(found) for what, found in taken.items()})
    base = statistics.median(taken.pop(NONE))
    for what, found in taken.items():
        outcome.ratio(f"mount dead {what}: slower than no cache", statistics.median(found) - base, at_most(6), unit="s")
    outcome.note("The mount is a directory; calls of the operating system below it wait in the program itself.")


@case("short-runs", title="short programs that find everything in their host's copies of an S3 bucket", order=93)
def short_runs(context: Context, outcome: Outcome) -> None:
    """They make no requests; the next run that does sends what all of them used, and their ends take no second."""
    from bench.buckets import Program

    runs = context.pick(12, 2)
    exits, asked = [], 0
    with context.directory() as home, ExitStack() as stack:
        proxy, env = _s3(stack)
        env["EJCACHE_LOCAL_DIR"] = str(home / "copies")
        for number in range(runs + 2):
            proxy.seen.clear()
            last = number > runs
            program = Program(JITS, OURS, S3_URL, 3 if last else 2, home=home / str(number), env=env)
            answer = _alone(program)
            ended = time.time() - answer["ended"]
            if number == 0:
                continue  # it fills the copies
            if last:
                break  # it compiles another program, for which it asks the bucket
            if answer["stats"]["hits"] != 2:
                raise AssertionError(f"a warm run had {answer['stats']['hits']} hits of 2")
            exits.append(ended)
            asked += len(proxy.seen)
        arrived = sum(method == "PUT" and "/v1/journal/" in path for method, path, _ in proxy.seen)
        hits = _hits(lambda support: support.s3_bucket(proxy.url, "cache"))
    outcome.ratio("requests of the short runs", asked, at_most(0), unit="")
    outcome.ratio("journals of a run that asks the bucket", arrived, at_least(1), unit="")
    outcome.ratio(f"hits that are counted, of {2 * runs + 2}", hits, at_least(2 * runs + 2), unit="")
    outcome.line("from the last statement to the end of the process", {OURS: summarize(exits)})
    outcome.ratio("end of a short program", statistics.median(exits), at_most(1), unit="s")


@case("lost-answers", title="a bucket that loses half of its answers to writes", order=94)
def lost_answers(context: Context, outcome: Outcome) -> None:
    """Six programs are compiled and stored; all writes are carried out, and the answer to every other one is lost."""
    for storage, run in (("GCS", _gcs_loses), ("S3", _s3_loses)):
        healthy: list[float] = []
        lossy: list[float] = []
        for number in range(context.pick(3, 1)):
            for loses, seconds in ((False, healthy), (True, lossy)):
                context.say(f"{storage}, round {number + 1}, {'lost' if loses else 'all'} answers")
                with context.directory() as home:
                    taken, stored = run(home, loses=loses)
                seconds.append(taken)
                if stored != 6:
                    outcome.note(f"{storage}: {stored} of 6 entries were stored.")
        outcome.line(f"{storage}, six cold programs", {"healthy": summarize(healthy), "half lost": summarize(lossy)})
        slower = statistics.median(lossy) - statistics.median(healthy)
        outcome.ratio(f"{storage}, half of the answers to writes lost: slower", slower, at_most(10), unit="s")


@case("four-hosts", title="four hosts that start together with one program of nested jits, default settings", order=95)
def four_hosts(context: Context, outcome: Outcome) -> None:
    """The floors are the defaults: the program counts as large, although its own text is short."""
    from bench.buckets import URL, BucketServer, Program, run_together

    layers = context.pick(60, 20)
    with context.directory() as home, BucketServer(latency=0.03) as server:
        arguments = (JITS, OURS, URL, 1, "--layers", layers, "--nested", "--default-floors")
        programs = [Program(*arguments, home=home / str(n), env=server.variables) for n in range(4)]
        answers = run_together(programs)
        requests = server.server.requests
    published = sum(r.method == "POST" and "v1/entries/" in r.name and "/jit_layers-" in r.name for r in requests)
    compiled = [seconds for answer in answers for _, seconds in answer["compiled"]]
    outcome.ratio("compilations, four hosts, nested jits, default floors", len(compiled), at_most(1), unit="")
    outcome.ratio("publications of it", published, at_most(1), unit="")
    outcome.line("a compilation of it", {OURS: summarize(compiled)})


def _alone(program: Program) -> dict[str, Any]:
    program.expect("ready")
    program.go_on()
    return program.answer()


def _gcs_loses(home: Path, *, loses: bool) -> tuple[float, int]:
    from bench.buckets import URL, BucketServer

    with BucketServer() as server:
        if loses:
            server.server.add_fault("drop_after", method="POST", probability=0.5)
        seconds = _cold(URL, home, server.variables)
        server.server.clear_faults()
        return seconds, _entries(lambda support: support.gcs_bucket(server.server.url, "cache"))


def _s3_loses(home: Path, *, loses: bool) -> tuple[float, int]:
    with ExitStack() as stack:
        proxy, env = _s3(stack)
        proxy.lose, proxy.probability = "PUT" if loses else "", 0.5
        seconds = _cold(S3_URL, home, env)
        proxy.lose = ""
        return seconds, _entries(lambda support: support.s3_bucket(proxy.url, "cache"))


def _cold(url: str, home: Path, env: dict[str, str]) -> float:
    from bench.buckets import Program

    program = Program(JITS, OURS, url, 6, home=home, env=env)
    program.expect("ready")
    began = time.perf_counter()
    program.go_on()
    if program.answer()["right"] != 6:
        raise AssertionError("wrong values were computed")
    return time.perf_counter() - began


def _entries(bucket_of: Callable[[Any], Any]) -> int:
    """How many of the programs a bucket holds; other objects lie beside them."""
    bucket = bucket_of(support("buckets"))
    try:
        return sum("/jit_program_" in info.name for info in bucket.walk("v1/entries/"))
    finally:
        bucket.close()


def _hits(bucket_of: Callable[[Any], Any]) -> float:
    """The hits that all processes have counted in a bucket."""
    from ejcache.stores.shared.store import SharedStore

    with SharedStore(bucket_of(support("buckets")), read_only=True) as store:
        return store.counters().get("hits", 0.0)


def _s3(stack: ExitStack) -> tuple[Any, dict[str, str]]:
    """A proxy in front of an emulated S3, which notes the requests, and what leads programs to it."""
    try:
        server = stack.enter_context(support("buckets").S3Server())
    except ImportError as exc:
        raise SkipCase(f"{exc.name} is not installed") from exc
    proxy = stack.enter_context(support("lossy_proxy").LossyProxy(server.url))
    env = {"AWS_ENDPOINT_URL": proxy.url, "AWS_DEFAULT_REGION": "us-east-1"}
    return proxy, env | {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
