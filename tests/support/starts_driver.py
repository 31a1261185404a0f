"""Runs scripts as starts of one host, and prints what is said of the last one: `starts_driver.py DIR TITLE …`.

Prints a JSON object for each of these cases and planted programs of `start_cases`: the causes of what its last start
compiled, in the order in which that was asked for, and the findings of `advise` about each start.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from start_cases import CASES, PLANTED, Case, Start


def run(start: Start, place: Path) -> None:
    """Run a start in this process, with a record of its own, unless it goes on with the one before it."""
    import jax

    import ejcache
    from ejcache.journal.appended_log import write_now
    from ejcache.journal.recorder import recorder

    script = place / start.script
    script.parent.mkdir(parents=True, exist_ok=True)
    if not start.goes_on:
        sys.argv = [str(script)]
        recorder.after_fork_in_child()
        for name in [name for name in sys.modules if name.startswith("helper_of_case")]:
            del sys.modules[name]
        jax.clear_caches()
    for name, text in start.files.items():
        (place / name).write_text(text)
    name = start.cell or str(script)
    if not start.cell:
        script.write_text(start.text)
    linecache.cache[name] = (len(start.text), None, start.text.splitlines(keepends=True), name)
    sys.path.insert(0, str(script.parent))
    try:
        with ejcache.enable(str(place / "cache"), min_compile_seconds=0):
            exec(compile(start.text, name, "exec"), {"__name__": "__main__"})
    finally:
        sys.path.remove(str(script.parent))
    write_now()  # as at the exit of a process; on a busy host a miss would be one of the next start
    recorder.write()


def causes(case: Case) -> list[dict[str, Any]]:
    """What `ejcache why` says of each miss of the last start of the case's function, in their order."""
    from ejcache.history.causes import cause
    from ejcache.history.nearest_program import Earlier
    from ejcache.journal.line import HIT
    from ejcache.journal.start_records import read_starts

    starts = read_starts()
    earlier = Earlier(starts)
    missed = [each for each in starts[-1].programs if each.outcome != HIT and each.name == f"jit_{case.function}"]
    return [{**(why := cause(each, earlier)).to_dict(), "reason": why.reason} for each in missed]


def findings() -> list[dict[str, Any]]:
    """What `advise` says of the last start."""
    import time

    from ejcache.history.advise import advise
    from ejcache.history.source_files import SourceFiles
    from ejcache.journal.start_records import read_starts

    sources = SourceFiles(until=time.time() + 3600)
    return [each.to_dict() for each in advise(read_starts(), lines_of=sources.lines, least=0.0)]


def measure(case: Case, place: Path) -> dict[str, Any]:
    """The causes of the last start, and the findings about each."""
    place.mkdir(parents=True)
    os.environ["XDG_CACHE_HOME"] = str(place / "home")
    found = []
    for start in case.starts:
        run(start, place)
        found.append(findings() if case.advise else [])
    return {"title": case.title, "causes": causes(case), "findings": found}


def main() -> None:
    """Run what has these titles."""
    where, titles = Path(sys.argv[1]), sys.argv[2:]
    for number, case in enumerate([*CASES, *(planted.case for planted in PLANTED)]):
        if case.title not in titles:
            continue
        try:
            answer = measure(case, where / str(number))
        except Exception:  # one case must not hide the others
            answer = {"title": case.title, "error": traceback.format_exc()[-1500:], "causes": [], "findings": []}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
