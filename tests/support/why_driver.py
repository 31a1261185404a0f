"""Compiles pairs of `why_pairs` and asks `ejcache why` about the second program of each: `why_driver.py DIR [TITLE …]`.

Prints a JSON object for each pair, with what `report` and `advise` say of it, too. `why_driver.py --compile DIR NUMBER
WHICH` is the process of one program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from forking import Forked
from helpers import run_program
from why_pairs import PAIRS, WhyPair


def compile_program(pair: WhyPair, which: int, place: Path) -> None:
    """Run one program of a pair in this process, as a user runs `train.py`."""
    import jax

    import ejcache

    jax.clear_caches()
    path = place / "train.py"
    if not path.exists() or path.read_text() != pair.texts[which]:
        path.write_text(pair.texts[which])
    for name, value in pair.config[which].items():
        jax.config.update(name, value)
    with ejcache.enable(str(place / "cache"), min_compile_seconds=0):
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})


def compile_both(pair: WhyPair, number: int, place: Path) -> None:
    """Run both programs of a pair: here, or in processes of their own."""
    import jax

    if pair.is_alone:
        for which in (0, 1):
            command = [sys.executable, __file__, "--compile", str(place), str(number), str(which), *pair.argv[which]]
            start = subprocess.Popen if "PYTHONHASHSEED" in pair.env[which] else Forked
            run_program(command, env=pair.env[which], start=start)
        return
    before = {name: getattr(jax.config, name) for name in {**pair.config[0], **pair.config[1]}}
    try:
        for which in (0, 1):
            compile_program(pair, which, place)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def asked(pair: WhyPair) -> dict[str, Any]:
    """What `ejcache why` says of the second program, in a pipe and on a terminal of 80 columns."""
    from cli_helpers import ejcache

    piped = ejcache("why", pair.function)
    narrow = ejcache("why", pair.function, columns=80)
    lines = piped.lines or [piped.err]
    return {"first": lines[0], "all": lines, "lines": len("\n".join(narrow.lines).strip().splitlines())}


def told(pair: WhyPair) -> dict[str, Any]:
    """What `why`, `report` and `advise` say to machines of the second program."""
    from cli_helpers import ejcache

    why = ejcache("why", pair.function, "--json").json["explanations"][0]
    report = ejcache("report", "--json").json
    rows = [{**each, "kind": group["kind"]} for group in report["causes"] for each in group["functions"]]
    findings = [*report["findings"], *ejcache("advise", "--all", "--json").json["findings"]]
    return {
        "why": why,
        "report": [each for each in rows if each["name"] == why["name"]],
        "advise": [each for each in findings if each["function"] == pair.function],
    }


def measure(pair: WhyPair, number: int, place: Path) -> dict[str, Any]:
    """The answers about a pair, with its cache and without it."""
    place.mkdir(parents=True)
    os.environ["XDG_CACHE_HOME"] = str(place / "home")
    compile_both(pair, number, place)
    there, voices = asked(pair), told(pair)
    (place / "cache").rename(place / "gone")
    return {"title": pair.title, "there": there, "gone": asked(pair), **voices}


def main() -> None:
    """Measure the pairs of these titles, or all of them."""
    if sys.argv[1] == "--compile":
        place, number, which = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
        compile_program(PAIRS[number], which, place)
        return
    titles = sys.argv[2:]
    for number, pair in enumerate(PAIRS):
        if titles and pair.title not in titles:
            continue
        try:
            answer = measure(pair, number, Path(sys.argv[1]) / str(number))
        except Exception as exc:  # one pair must not hide the others
            answer = {"title": pair.title, "error": str(exc)[-600:]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
