"""What a hit costs beside one of JAX's own cache without floors, by time and by memory; and `ejcache run`."""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import shutil
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.measure import interval_of_median, paired_ratio, summarize
from bench.outcome import OURS, at_least, at_most
from bench.registry import SkipCase, case
from bench.starts import (
    AT_ONCE,
    CPU,
    JAX,
    PLAIN,
    PRELOAD,
    UNSET,
    WHOLE,
    Start,
    Work,
    on_a_gpu,
    pairs_of,
    start_by_turns,
    start_once,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bench.context import Context
    from bench.outcome import Bar, Outcome
    from bench.starts import Contestant

    Found = dict[tuple[str, str], list[Start]]
    Pairs = list[tuple[float, float]]

_ONE_CORE = Work("one core", 0, one_core=True)
_NO_COLLECTOR = Work("no collector", 0, env={"BENCH_NO_COLLECTOR": "1"})
_AT_ONCE = Work(AT_ONCE, 0)
_AS_CUDA = Work("as on CUDA", 0, env={"BENCH_AS_CUDA": "1"})
_PROGRAMS = {
    "tiny": (150, 10),
    "nnx_blocks": (4, 1),
    "real_diffrax": (3, 1),
    "blocks": (4, 1),
    "real_numpyro": (100, 10),
    "real_keras": (8, 4),
}
"""What each is given in a full and in a quick run."""
_NEEDS = {"nnx_blocks": "flax", "real_diffrax": "diffrax", "real_numpyro": "numpyro", "real_keras": "keras"}
_BLOCKS = (2, 4, 8, 24)
_KEPT = "hit"


def _rounds(context: Context) -> int:
    return context.turns(5 if on_a_gpu() else 10)


def _lacking(program: str) -> str | None:
    """Return the library that a program needs and that is not installed."""
    needed = _NEEDS.get(program)
    return needed if needed and find_spec(needed) is None else None


def _programs(outcome: Outcome) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield those that can be started here, and what each is given; tell which cannot, and why."""
    for name, sizes in _PROGRAMS.items():
        if lacking := _lacking(name):
            outcome.note(f"{name} needs {lacking}, which this environment does not have.")
        else:
            yield name, sizes


def _program(name: str, context: Context, outcome: Outcome) -> None:
    if lacking := _lacking(name):
        raise SkipCase(f"it needs {lacking}, which this environment does not have.")
    entered = [(one, _AT_ONCE) for one in (JAX, PLAIN, PRELOAD)]
    entered += [(one, _ONE_CORE) for one in (JAX, UNSET)]
    entered += [(one, _NO_COLLECTOR) for one in (JAX, PLAIN)]
    _, warm = start_by_turns(context, name, context.pick(*_PROGRAMS[name]), entered, rounds=_rounds(context))
    _tell(outcome, warm)
    least = 0.96 if name == "tiny" else 0.98
    _compare(context, outcome, CPU, pairs_of(warm, JAX, PLAIN, AT_ONCE, CPU), PLAIN.name, at_least(least))
    what = f"{CPU}, collector off"
    _compare(context, outcome, what, pairs_of(warm, JAX, PLAIN, _NO_COLLECTOR.name, CPU), PLAIN.name, at_least(0.98))
    _compare(context, outcome, CPU, pairs_of(warm, JAX, PRELOAD, AT_ONCE, CPU), PRELOAD.name)
    _compare(context, outcome, WHOLE, pairs_of(warm, JAX, PRELOAD, AT_ONCE, WHOLE), PRELOAD.name, at_least(1.0))
    _compare(context, outcome, WHOLE, pairs_of(warm, JAX, PLAIN, AT_ONCE, WHOLE), PLAIN.name)
    pairs = pairs_of(warm, JAX, UNSET, _ONE_CORE.name, WHOLE)
    _compare(context, outcome, f"{WHOLE}, one core", pairs, UNSET.name, at_least(0.97))


def _tell(outcome: Outcome, warm: Found) -> None:
    for measure, of in ((CPU, lambda start: start.cpu), (WHOLE, lambda start: start.seconds)):
        for moment in dict.fromkeys(moment for _, moment in warm):
            found = {name: summarize(map(of, starts)) for (name, when), starts in warm.items() if when == moment}
            outcome.line(f"{measure}, {moment}", found)
    collected = [
        f"{name}, {moment}: {_in_words(starts)}"
        for (name, moment), starts in warm.items()
        if moment != _NO_COLLECTOR.name
    ]
    outcome.note(f"Full collections of garbage in a start, by phase: {'; '.join(collected)}.")
    hits = {f"{name}: {starts[-1].counts.get('hits', 0)}" for (name, _), starts in warm.items()}
    outcome.note(f"Hits of a start: {', '.join(sorted(hits))}.")


def _in_words(starts: Sequence[Start]) -> str:
    phases = dict.fromkeys(phase for start in starts for phase in start.collections)
    means = {phase: sum(start.collections.get(phase, 0) for start in starts) / len(starts) for phase in phases}
    return ", ".join(f"{phase} {mean:g}" for phase, mean in means.items()) or "none"


def _compare(context: Context, outcome: Outcome, measure: str, pairs: Pairs, who: str, bar: Bar | None = None) -> None:
    """JAX ÷ ours: the median of the rounds with its interval, and beside it the ratio of the smallest."""
    value, interval = paired_ratio(pairs)
    what = f"{measure}: JAX ÷ {who}"
    outcome.ratio(what, value, bar, interval=interval)
    outcome.ratio(f"{what}, smallest", min(first for first, _ in pairs) / min(second for _, second in pairs))
    context.kept.setdefault(_KEPT, {}).setdefault(what, []).append(pairs)


_MEANS: dict[str, Bar] = {
    f"{CPU}: JAX ÷ {PLAIN.name}": at_least(0.99),
    f"{WHOLE}: JAX ÷ {PRELOAD.name}": at_least(1.07),
    f"{WHOLE}, one core: JAX ÷ {UNSET.name}": at_least(0.99),
}


@case("hit-mean", title="the means of the programs of this run, warm", order=306, when_named=True)
def means(context: Context, outcome: Outcome) -> None:
    """The geometric means of what the cases before have measured."""
    found: dict[str, list[Pairs]] = context.kept.get(_KEPT, {})
    if not found:
        raise SkipCase("no program was measured in this run; `python -m bench hit` measures all of them.")
    for what, series in found.items():
        value, interval = paired_ratio(*series)
        outcome.ratio(what, value, _MEANS.get(what), interval=interval)
    outcome.note(f"{max(map(len, found.values()))} of {len(_PROGRAMS)} programs.")


@case(
    "instructions",
    title="the instructions of a start that hits, beside JAX's cache",
    order=312,
    when_named=True,
)
def instructions(context: Context, outcome: Outcome) -> None:
    """What valgrind counts is the same on a busy machine; a first start compiles, and a second one is not counted."""
    if shutil.which("valgrind") is None:
        raise SkipCase("it needs valgrind.")
    for name, sizes in _programs(outcome):
        counted = {one.name: _instructions(context, name, context.pick(*sizes), one) for one in (JAX, PLAIN)}
        ratio = counted[JAX.name] / counted[PLAIN.name]
        outcome.ratio(f"{name}: JAX ÷ {PLAIN.name}", ratio, at_least(0.96 if name == "tiny" else 0.98))
        outcome.note(f"{name}: {', '.join(f'{who} {count / 1e6:,.0f} million' for who, count in counted.items())}.")


def _instructions(context: Context, program: str, size: int, one: Contestant) -> int:
    """Count those of one start and of what it forks; XLA compiles for the processor that valgrind shows."""
    with context.directory() as home:
        files = f"--callgrind-out-file={home}/counted.%p"
        # Names are hashed alike, so that a dictionary has the same collisions every time; and the threads of BLAS spin
        # while they wait, which valgrind counts: by chance 12 or 24 million for the same start.
        env = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
        for tool in (["none"], ["none"], ["callgrind", files]):
            context.say(f"{program}, {one.name}: {tool[0]}")
            under = ("valgrind", "--quiet", f"--tool={tool[0]}", *tool[1:])
            start_once(context, program, size, one, home, Work("counted", 0, env=env, under=under))
        lines = (line for file in home.glob("counted.*") for line in file.read_text("utf-8", "replace").splitlines())
        return sum(int(line.split()[1]) for line in lines if line.startswith("totals: "))


@case("hit-collections", title="full collections of garbage in a warm start", order=313, when_named=True)
def collections(context: Context, outcome: Outcome) -> None:
    """Whether a start has one more is luck: it is the program's objects that decide how near the next one is.

    So each program makes objects of its own before its first call, as many more in each start that in the end every
    state of the collector has been met, and both caches get the same.
    """
    # After so many objects more, a full collection can come again: 84,700 in Python 3.12.
    youngest, *older = gc.get_threshold()
    whole_round = youngest * math.prod(number + 1 for number in older)
    works = [
        Work(f"{objects:,} objects", 0, env={"BENCH_OBJECTS": str(objects)})
        for objects in range(0, whole_round, math.ceil(whole_round / context.pick(24, 3)))
    ]
    all_three = (JAX, PLAIN, PRELOAD)
    series: dict[str, list[Pairs]] = {}
    for name, sizes in _programs(outcome):
        entered = [(one, work) for at, work in enumerate(works) for one in (all_three if at % 2 else all_three[::-1])]
        _, warm = start_by_turns(context, name, context.pick(*sizes), entered, rounds=1)
        found = {one.name: [warm[one.name, work.name][0] for work in works] for one in all_three}
        for measure, one in ((CPU, PLAIN), (WHOLE, PRELOAD)):
            pairs = [pair for work in works for pair in pairs_of(warm, JAX, one, work.name, measure)]
            series.setdefault(f"{measure}: JAX ÷ {one.name}", []).append(pairs)
            value, interval = paired_ratio(pairs)
            outcome.ratio(f"{name}, {measure}: JAX ÷ {one.name}", value, interval=interval)
        counts = {who: [sum(start.collections.values()) for start in each] for who, each in found.items()}
        seconds = {who: sum(start.collecting for start in each) / len(each) for who, each in found.items()}
        more = (sum(counts[PLAIN.name]) - sum(counts[JAX.name])) / len(works)
        outcome.ratio(f"{name}: collections beyond JAX, in the mean", more, unit="more")
        milliseconds = 1e3 * (seconds[PLAIN.name] - seconds[JAX.name])
        outcome.ratio(f"{name}: what they take beyond JAX, in the mean", milliseconds, unit="ms")
        listed = (f"{who} {' '.join(map(str, each))}" for who, each in counts.items())
        outcome.note(f"{name}, collections by start: {'; '.join(listed)}.")
    for what, pairs_of_all in series.items():
        value, interval = paired_ratio(*pairs_of_all)
        outcome.ratio(f"mean, {what}", value, interval=interval)


@case("hit-cuda", title="2, 4, 8 and 24 blocks, warm, as on a CUDA machine", order=307, when_named=True)
def as_cuda(context: Context, outcome: Outcome) -> None:
    """On a CPU, ejcache does what it does beside a GPU; on a GPU, this is the comparison itself."""
    work = _AT_ONCE if on_a_gpu() else _AS_CUDA
    compared: dict[str, list[Pairs]] = {}
    for blocks in context.pick(_BLOCKS, (1,)):
        entered = [(one, work) for one in (JAX, PLAIN, PRELOAD)]
        _, warm = start_by_turns(context, "blocks", blocks, entered, rounds=_rounds(context))
        for one in (JAX, PLAIN, PRELOAD):
            collected = _in_words(warm[one.name, work.name])
            outcome.note(f"{blocks} blocks, {one.name}: full collections by phase: {collected}.")
        found = {one.name: summarize(start.cpu for start in warm[one.name, work.name]) for one in (JAX, PLAIN, PRELOAD)}
        outcome.line(f"{CPU}, {blocks} blocks", found)
        for one in (PLAIN, PRELOAD):
            pairs = pairs_of(warm, JAX, one, work.name, CPU)
            compared.setdefault(one.name, []).append(pairs)
            value, interval = paired_ratio(pairs)
            outcome.ratio(f"{CPU}, {blocks} blocks: JAX ÷ {one.name}", value, interval=interval)
    for name, least in ((PLAIN.name, 0.98), (PRELOAD.name, 0.97)):
        value, interval = paired_ratio(*compared[name])
        outcome.ratio(f"{CPU}, mean: JAX ÷ {name}", value, at_least(least), interval=interval)


@case("hit-run", title="`ejcache run x.py` beyond `python x.py`, x.py being `pass`", order=309)
def run(context: Context, outcome: Outcome) -> None:
    """Processor time of whole processes, which take turns."""
    with context.directory() as home:
        script = home / "x.py"
        script.write_text("pass\n", encoding="utf-8")
        commands: dict[str, list[object]] = {
            "python x.py": [script],
            "ejcache run x.py": ["-m", "ejcache", "run", script],
        }
        context.say("starting interpreters")
        calls: dict[str, Callable[[], object]] = {
            who: partial(context.start, *command, home=home) for who, command in commands.items()
        }
        samples = _cpu_by_turns(calls, rounds=context.turns(20, 3))
    outcome.line(CPU, {who: summarize(taken) for who, taken in samples.items()})
    added = [1e3 * (ours - bare) for bare, ours in zip(*samples.values(), strict=True)]
    _difference(outcome, "ejcache run, beyond python", added, at_most(40))


@case(
    "hit-xla-caches", title="a hit as on a CUDA machine, by what XLA's caches have stored", order=310, when_named=True
)
def xla_caches(context: Context, outcome: Outcome) -> None:
    """Processor time of the call that hits, from the compile options to the result; a whole process varies more."""
    if on_a_gpu():
        raise SkipCase("XLA would read what is stored here in place of results.")
    counts = (0, 300, 3000)
    env = {**PLAIN.env, **_AS_CUDA.env}
    with context.directory() as home:
        calls: dict[str, Callable[[], Any]] = {}
        for count in counts:
            cache = home / str(count)
            command = ("-m", "bench.programs.start_up", "tiny", 1, OURS, cache, 0)
            context.start(*command, home=home, env=env)
            _store_results(cache, count)

            def answer(command: Sequence[object] = command) -> Any:
                return json.loads(context.start(*command, home=home, env=env)[1].splitlines()[-1])

            answer()
            calls[f"{count} results"] = answer
        samples: dict[str, list[float]] = {who: [] for who in calls}
        for number in range(_rounds(context)):
            for who in calls if number % 2 == 0 else reversed(calls):
                samples[who].append(calls[who]()["called_cpu"])
    outcome.line(f"{CPU} of the call", {who: summarize(taken) for who, taken in samples.items()})
    none, *others = samples.values()
    for count, taken in zip(counts[1:], others, strict=True):
        added = [1e3 * (many - few) for few, many in zip(none, taken, strict=True)]
        _difference(outcome, f"{count} results, beyond none", added, at_most(2))


def _store_results(cache: Path, count: int) -> None:
    from ejcache.bucket.files import FileBucket
    from ejcache.jax_integration.xla_caches import XlaFiles
    from ejcache.jax_integration.xla_directories import AUTOTUNE
    from ejcache.stores.documents import Documents

    (environment,) = (path.name for path in (cache / "v1" / "xla-processes").iterdir())
    made = cache.with_name(f"{cache.name}-made")
    (made / AUTOTUNE).mkdir(parents=True)
    for number in range(count):
        (made / AUTOTUNE / f"result{number}").write_bytes(os.urandom(50))
    if count:
        stored = Documents(FileBucket(cache, local=True, documents=True))
        XlaFiles(stored, environment).push(made, known=set(), seconds=600)


def _cpu_by_turns(calls: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Seconds of all processors that the processes of each call took."""
    samples: dict[str, list[float]] = {who: [] for who in calls}
    for call in calls.values():
        call()
    for number in range(rounds):
        for who in calls if number % 2 == 0 else reversed(calls):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            calls[who]()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            samples[who].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return samples


def _difference(outcome: Outcome, what: str, milliseconds: list[float], bar: Bar) -> None:
    value, interval = interval_of_median(milliseconds)
    outcome.ratio(what, value, bar, unit="ms", interval=interval)


def _register() -> None:
    for number, name in enumerate(_PROGRAMS):

        def measured(context: Context, outcome: Outcome, name: str = name) -> None:
            _program(name, context, outcome)

        case(f"hit-{name}", title=f"a warm start of {name}", order=300 + number, when_named=True)(measured)


_register()
