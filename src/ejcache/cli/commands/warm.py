"""`ejcache warm`: compiles programs before a run needs them."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from ejcache.cli import output
from ejcache.cli.chosen_cache import command_settings
from ejcache.cli.commands.config import share_cache
from ejcache.cli.commands.run import RunCommand
from ejcache.cli.commands.target import find_devices
from ejcache.cli.interrupt import watch_no_longer
from ejcache.cli.options import Dir, Json, MinCompileSeconds, Readable, argument, option, positive
from ejcache.cli.programs.warm_worker import EXPORTED, FAILED
from ejcache.cli.run_settings import absolute_url, export
from ejcache.cli.starting import command_of, run_and_report
from ejcache.errors import EjcacheError, UsageError
from ejcache.jax_integration.shape_grammar import parse_call
from ejcache.settings.environment import child_environment, settings_environment
from ejcache.settings.resolve import command_line, resolve, set_command_line
from ejcache.stores.location import display_url
from ejcache.util.cores import cores
from ejcache.util.units import format_size
from ejcache.util.worker_processes import WorkerProcess, WorkerProcesses, how_it_ended

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_WORKER: Final = "ejcache.cli.programs.warm_worker"
_LARGE_BYTES: Final = 50_000_000
"""An entry above this size holds the code of many equal layers, most likely."""
Devices = Annotated[
    str | None,
    option(
        "--target",
        "NAME",
        "Compile for devices that this host need not have: those that `ejcache target save` saved, or a "
        "slice of TPUs such as tpu:v5e:4x4.",
    ),
]
Shapes = Annotated[
    list[str] | None,
    option(
        "--shapes",
        "SHAPES",
        "The arguments of one call, such as 'f32[32,128] i32[8] lr=f32[] mode:=\"fast\"'; or @FILE, a file "
        "with one call in each line. May be repeated.",
    ),
]
Jobs = Annotated[
    str | None,
    option(
        "--jobs",
        "-j",
        "N",
        "With several --shapes, how many processes compile at once. Default: one for each core on CPU without "
        "--target, otherwise 1.",
    ),
]
_OUTCOMES: Final = ("hit", "compiled", "not_stored", "failed")
_COUNT_OF: Final = {"hit": "hits", "failed": "failures"}
"""The fields of JSON that count an outcome, where they are not named as it."""


class WarmCommand(RunCommand):
    """Parses no options behind a script: they are the script's own. Behind MODULE:FUNCTION they are those of `warm`."""

    def program_begins(self, argument: str) -> bool:
        """True if this argument names a script."""
        return not _is_function(argument)


REGISTRATION: Final = {"warm": {"cls": WarmCommand}}
"""How the application registers commands, by their names."""


def _is_function(target: str) -> bool:
    """True if a target is MODULE:FUNCTION or an exported function, rather than a script."""
    return target.endswith(EXPORTED) or (":" in target and not Path(target).exists())


def warm(
    target: Annotated[
        str,
        argument("TARGET", "MODULE:FUNCTION, FILE.py:FUNCTION or FILE.bin; or a script, which is run."),
    ],
    arguments: Annotated[list[str] | None, argument("[ARGS]...", "Arguments of the script.")] = None,
    shapes: Shapes = None,
    jobs: Jobs = None,
    devices: Devices = None,
    readable: Readable = False,
    directory: Dir = None,
    min_compile_seconds: MinCompileSeconds = None,
    as_json: Json = False,
) -> int:
    """Compile programs and store them, so that a later run loads them, for example in an image or a pod.

    With --shapes, FUNCTION is a jitted function, or one that jax.jit can take. It is compiled for each of --shapes, and
    does not run. In --shapes, f32[8] stands for an array that is not committed to a device, and f32[8]@0 for an array
    that was put on device 0. name:=JSON or :=JSON stands for a value that is passed as it is: a static argument, or a
    Python number, which is weakly typed.

    Without --shapes, FUNCTION is called without arguments, and must itself call ejcache.warm(function, *arguments).
    This is for arguments that --shapes cannot describe: PyTrees, shardings over several devices, meshes, keys of
    jax.random. To warm a program that spans processes, run the job itself for a few steps.

    FILE.bin contains what Exported.serialize() of jax.export returned, in any version that this JAX reads. It is
    compiled for the shapes for which it was exported, or for --shapes if these shapes are symbolic. A run that calls
    jax.jit(jax.export.deserialize(data).call) loads it.

    A script runs to its end, as with `ejcache run`: pass arguments with which the script takes a single step.

    With --target and without --shapes, FUNCTION gets the devices of the target if it has a parameter without a default.
    FUNCTION can use these devices in meshes and shardings, but cannot put arrays on them, and passes shapes instead.
    jax.eval_shape gives the shapes of a whole training state. Programs are compiled with the flags and variables of a
    saved target. A program that does not fit into the memory of a device fails.

    Without --target, run `ejcache warm` where the program will run: on the same kind and number of devices, with the
    same versions and flags. Programs that the cache has are not compiled again, so the same command continues after an
    interruption. A program that fails does not stop the others. `ejcache warm` exits with 1 if a program failed, or if
    an entry is not uploaded yet.
    """
    given = {"dir": absolute_url(directory), "min_compile_seconds": min_compile_seconds}
    wanted = {name: value for name, value in given.items() if value is not None}
    if readable:
        share_cache(command_settings(directory), "readers")
    if not _is_function(target):
        if shapes or jobs or devices:
            raise UsageError(f"--shapes, --jobs and --target belong to MODULE:FUNCTION, and {target} is a script")
        command = command_of([target, *(arguments or [])])
        export(wanted)
        watch_no_longer()
        return run_and_report(command, "json" if as_json else "line")
    if arguments:
        raise UsageError(f"arguments are for scripts; give --shapes for {target}")
    processes = None if jobs is None else positive(jobs, option="--jobs")
    return _warm_function(target, _calls(shapes), wanted, jobs=processes, devices=devices, as_json=as_json)


def _calls(shapes: Sequence[str] | None) -> list[str] | None:
    """Return the texts of the calls, each once; None if there are to be none.

    Raises:
        UsageError: one of them cannot be read, or describes no call.
    """
    if not shapes:
        return None
    calls: list[str] = []
    for text in shapes:
        if not text.startswith("@"):
            calls.append(text)
            continue
        try:
            lines = Path(text[1:]).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as exc:
            raise UsageError(f"--shapes {text}: the file cannot be read: {exc}") from exc
        calls += [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for call in calls:
        parse_call(call)
    return list(dict.fromkeys(calls))


def _warm_function(
    target: str,
    calls: list[str] | None,
    wanted: dict[str, Any],
    *,
    jobs: int | None,
    devices: str | None,
    as_json: bool,
) -> int:
    set_command_line(wanted)
    settings = resolve()
    if settings.disabled_reason:
        raise UsageError(f"warm: nothing is cached: {settings.disabled_reason}")
    # What warms is not what runs later: it preloads nothing, and leaves no list of what to preload.
    variables: dict[str, str | None] = {**settings_environment({**command_line(), "report": "off", "preload": False})}
    if devices is not None:
        from ejcache.jax_integration.devices.targets import environment_for  # JAX itself

        variables |= environment_for(find_devices(devices, None))
    if (jobs or 0) > 1:
        # Each process on a GPU would take nearly all of its memory.
        variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    programs: list[dict[str, Any]] = []
    work = _Work(target, devices, child_environment(variables), jobs)
    with output.progress("warming", len(calls) if calls is not None else None, quiet=as_json) as advance:
        for program in work.programs(deque([{}] if calls is None else [{"shapes": call} for call in calls])):
            programs.append(program)
            advance()
            if not as_json:
                output.say(_line(program))
                sys.stdout.flush()  # a log file shows each program when it is there
    counts = {outcome: sum(program["outcome"] == outcome for program in programs) for outcome in _OUTCOMES}
    url = display_url(str(settings.dir))
    if as_json:
        fields = {"target": target, "url": url, "jobs": work.jobs, "uploaded": work.uploaded}
        fields |= {_COUNT_OF.get(outcome, outcome): number for outcome, number in counts.items()}
        output.print_json({**fields, "programs": programs})
    elif programs:
        words = ", ".join(f"{number} {outcome.replace('_', ' ')}" for outcome, number in counts.items())
        output.say(f"{words} ({url})")
    else:
        raise UsageError(f"warm: {target} called ejcache.warm for nothing; give --shapes to compile it itself")
    if not work.uploaded:
        output.warn("not everything is uploaded; the next process of this host that uses this cache uploads the rest")
    return int(bool(counts["failed"]) or not work.uploaded)


class _Worker(WorkerProcess):
    """A process that compiles one program at a time.

    Attributes:
        is_ready: it has imported the target.
        request: what it is doing; None if nothing.
    """

    is_ready: bool = False
    request: dict[str, str] | None = None

    @property
    def shapes(self) -> dict[str, str]:
        """The field `shapes` of what it is doing."""
        return {"shapes": (self.request or {}).get("shapes", "")}

    def go_on(self, waiting: deque[dict[str, str]]) -> None:
        """Begin the next program, or end."""
        self.request = waiting.popleft() if waiting else None
        if self.request is None:
            self.finish()
        else:
            self.send(**self.request)


class _Work:
    """The compilation of the programs of one target in several processes.

    Args:
        target: `MODULE:FUNCTION` or `FILE.py:FUNCTION`.
        devices: the name of the target whose devices to compile for; None for those of this host.
        environment: of the processes.
        wanted: how many processes; None for one for each core where the platform is CPU, and otherwise one.

    Attributes:
        jobs: how many processes there were at once.
        uploaded: whether everything that was stored has reached shared storage.
    """

    def __init__(self, target: str, devices: str | None, environment: dict[str, str], wanted: int | None) -> None:
        self.target = target
        self.command = (_WORKER, target, *([] if devices is None else [devices]))
        self.environment = environment
        self.wanted = wanted
        self.workers: WorkerProcesses[_Worker] = WorkerProcesses()
        self.jobs = 0
        self.uploaded = True

    def programs(self, waiting: deque[dict[str, str]]) -> Iterator[dict[str, Any]]:
        """Yield the fields of each program: `shapes`, `program`, `outcome`, `reason`, `seconds`.

        A program that ends its process, because XLA crashes or memory runs out, has failed: another process goes on.

        Raises:
            UsageError: there is no such target.
            EjcacheError: it cannot be imported.
        """
        try:
            self._start(1)
            for worker, answer in self.workers.answers():
                if answer is None:
                    # It may still write its counters to slow storage.
                    how = how_it_ended(worker.end(timeout=None))
                    if not worker.is_ready:
                        raise EjcacheError(f"warm: {self.target} ends its process with {how} when it is imported")
                    if worker.request is not None:
                        failed = {"program": "", "outcome": FAILED, "seconds": 0.0}
                        yield {**worker.shapes, **failed, "reason": f"its process ended with {how}"}
                        self._start(bool(waiting))
                elif "refused" in answer:
                    kind = UsageError if answer["usage"] else EjcacheError
                    raise kind(f"warm: {self.target} cannot be imported: {answer['refused']}")
                elif "uploaded" in answer:
                    self.uploaded = self.uploaded and bool(answer["uploaded"])
                elif "platform" in answer:
                    if answer["jitted"] and waiting and "shapes" not in waiting[0]:
                        raise UsageError(
                            f"warm: {self.target} is jitted; --shapes say for which arguments to compile it"
                        )
                    worker.is_ready = True
                    worker.go_on(waiting)
                    self._start_others(str(answer["platform"]), waiting)
                elif "done" in answer:
                    worker.go_on(waiting)
                else:
                    yield {**worker.shapes, **answer}
        finally:
            self.workers.kill()

    def _start(self, number: int) -> None:
        for _ in range(number):
            self.workers.add(_Worker(*self.command, environment=self.environment))
        self.jobs = max(self.jobs, len(self.workers))

    def _start_others(self, platform: str, waiting: deque[dict[str, str]]) -> None:
        """Start as many processes as are wanted and have something to do; the first one knows the platform."""
        # An accelerator belongs to one process, or has no memory for several.
        wanted = self.wanted or (cores() if platform == "cpu" else 1)
        coming = sum(not worker.is_ready for worker in self.workers)
        active = sum(not worker.is_finishing for worker in self.workers)
        self._start(min(wanted - active, len(waiting) - coming))


def _line(program: dict[str, Any]) -> str:
    took = f" in {output.seconds(program['seconds'])} s" if program["outcome"] == "compiled" else ""
    name = " ".join(filter(None, (program["program"], program["shapes"])))
    reason = f": {program['reason']}" if program["reason"] else ""
    size, peak = program.get("size", 0), program.get("peak", 0)
    needs = f", {format_size(size)}" if took and size else ""
    of = f" of {format_size(program['memory'])}" if program.get("memory") else ""
    needs += f", {format_size(peak)}{of} on each device" if peak else ""
    needs += " (large: are its layers unrolled? jax.lax.scan keeps the code of one)" if size > _LARGE_BYTES else ""
    return f"{name}: {program['outcome'].replace('_', ' ')}{took}{needs}{reason}"
