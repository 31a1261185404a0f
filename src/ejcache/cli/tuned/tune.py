"""Measures the calls that a program recorded, or makes now: `ejcache tuned tune`."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.call_documents import RecordedNames
from ejcache.autotune.recording import recorded_calls
from ejcache.autotune.tuning_in_advance import TuningOutcome, replay
from ejcache.cli import output
from ejcache.cli.chosen_cache import check_directory
from ejcache.cli.options import count, positive_seconds
from ejcache.cli.starting import command_of
from ejcache.cli.tuned.records import named_layer, open_autotune
from ejcache.errors import UsageError
from ejcache.settings.environment import child_environment
from ejcache.stores.documents import open_documents
from ejcache.util.patterns import fits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.autotune.tuning_in_advance import TunedCall
    from ejcache.errors import EntryError
    from ejcache.stores.documents import Documents


_END_SECONDS: Final = 30.0


def tune_calls(
    program: list[str] | None,
    recorded: str | None,
    directory: str | None,
    *,
    name: str | None,
    force: bool,
    unsure: bool,
    limit: str | None,
    module: list[str] | None,
    seconds: str | None,
    as_json: bool,
) -> int:
    """Measure calls, as `ejcache tuned tune` says."""
    _refuse_unused(program, recorded, module, seconds)
    modules = None if program else module or ()
    status = 0
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(open_autotune(directory, write=True))
        if program:
            recorded = stack.enter_context(tempfile.TemporaryDirectory(prefix="ejcache-calls-"))
            status = _run_recorded(program, recorded, directory, seconds=seconds, quiet=as_json)
        place = store.layers[0].documents if recorded is None else open_documents(recorded, read_only=True)
        calls, most = list(_calls(place, name)), count(limit, option="--limit")
        names, again = RecordedNames(modules), unsure or bool(program)
        results = (replay(path, call, store, names, force=force, unsure=again) for path, call in calls)
        total = len(calls) if most is None else None
        done = _shown(_with_limit(results, most), total, as_json=as_json)
        nothing = "the program made no calls of operations" if program else f"no recorded calls in {place.url}"
        _report(done, named_layer(store).documents.url, nothing, as_json=as_json)
    return int(bool(status) or any(item.outcome is TuningOutcome.FAILED for item in done))


def _refuse_unused(
    program: list[str] | None, recorded: str | None, module: list[str] | None, seconds: str | None
) -> None:
    if program and (recorded is not None or module):
        raise UsageError("a program records its calls itself and is trusted: leave out --calls and --module")
    if seconds is not None and not program:
        raise UsageError("--seconds ends a program, and none is named")
    if recorded is not None:
        check_directory(recorded, "no calls were recorded in")


def _with_limit(results: Iterator[TunedCall], most: int | None) -> Iterator[TunedCall]:
    """Yield the results until so many calls were measured, or have failed; None for no limit."""
    left = math.inf if most is None else most
    while left > 0 and (result := next(results, None)) is not None:
        left -= result.outcome is not TuningOutcome.ALREADY
        yield result


def _shown(results: Iterator[TunedCall], total: int | None, *, as_json: bool) -> list[TunedCall]:
    """Return the results, each said when it is known."""
    done = []
    with output.progress("measuring", total, quiet=as_json) as advance:
        for result in results:
            done.append(result)
            if not as_json:
                output.say(_line(result))
            advance()
    return done


def _report(done: Sequence[TunedCall], url: str, nothing: str, *, as_json: bool) -> None:
    counts = {outcome.name.lower(): sum(item.outcome is outcome for item in done) for outcome in TuningOutcome}
    if as_json:
        counts["failures"] = counts.pop(TuningOutcome.FAILED.name.lower())
        output.print_json({"url": url, **counts, "tuned_calls": [_fields(item) for item in done]})
    elif not done:
        output.say(nothing)
    else:
        output.say(", ".join(f"{number} {outcome}" for outcome, number in counts.items()))


def _calls(place: Documents, name: str | None) -> Iterator[tuple[str, dict[str, Any] | EntryError]]:
    for path, call in recorded_calls(place):
        if name is None or (isinstance(call, dict) and fits(call["operation"], name)):
            yield path, call


def _fields(result: TunedCall) -> dict[str, Any]:
    return {
        "path": result.path,
        "operation": result.operation,
        "outcome": result.outcome.name.lower(),
        "configuration": None if result.record is None else result.record.configuration,
        "problem": result.problem,
    }


def _line(result: TunedCall) -> str:
    chosen = "" if result.record is None else f" {json.dumps(result.record.configuration)}"
    problem = f": {result.problem}" if result.problem else ""
    return f"{result.operation or result.path}: {result.outcome}{chosen}{problem}"


def _run_recorded(
    program: Sequence[str], place: str, directory: str | None, *, seconds: str | None, quiet: bool
) -> int:
    """Run the program so that it records its calls and measures nothing; returns its exit status.

    Args:
        program: the script or command, and its arguments.
        place: takes the recorded calls.
        directory: of the tuned configurations; None for those that the settings name.
        seconds: end the program after so many, with the status 0.
        quiet: let the program write to standard error instead of standard output.

    Raises:
        UsageError: there is no such program, or `seconds` is no number above 0.
    """
    limit = None if seconds is None else positive_seconds(seconds, option="--seconds")
    command = command_of(program)
    changes = {"EJCACHE_AUTOTUNE_RECORD": place, "EJCACHE_AUTOTUNE_POLICY": "heuristics"}
    if directory is not None:
        changes["EJCACHE_AUTOTUNE_DIR"] = directory
    # As Python does for the program, so that its modules can be imported for the measurements.
    if Path(program[0]).is_file():
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
    elif program[0] == "-m":
        sys.path.insert(0, str(Path.cwd()))
    child = subprocess.Popen(command, env=child_environment(changes), stdout=2 if quiet else None)
    try:
        status = child.wait(limit)
    except subprocess.TimeoutExpired:
        return 0
    finally:
        child.terminate()
        try:
            child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    if status:
        output.warn(f"the program ended with status {status}; the calls that it made until then are measured")
    return status
