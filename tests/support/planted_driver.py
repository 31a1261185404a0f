"""Runs planted programs as users do, one start each, and prints the findings: `planted_driver.py DIR [TITLE …]`."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from planted import PLANTED, Planted


def run(planted: Planted, place: Path) -> list[dict[str, Any]]:
    """The findings of a start of a program in this process, with a record of its own."""
    import jax

    import ejcache
    from ejcache.history.advise import advise
    from ejcache.history.text import SourceFiles
    from ejcache.journal.recorder import recorder
    from ejcache.journal.start_records import read_starts

    sources = SourceFiles(until=time.time() + 3600)
    path = place / "train.py"
    sys.argv[0] = str(path)
    path.write_text(planted.text)
    jax.clear_caches()
    recorder.after_fork_in_child()
    with ejcache.enable(str(place / "cache"), min_compile_seconds=0):
        exec(compile(planted.text, str(path), "exec"), {"__name__": "__main__"})
    return [finding.to_dict() for finding in advise(read_starts(), lines_of=sources.lines, least=0.0)]


def main() -> None:
    """Run the programs of these titles, or all of them."""
    titles = sys.argv[2:]
    for number, planted in enumerate(PLANTED):
        if titles and planted.title not in titles:
            continue
        place = Path(sys.argv[1]) / str(number)
        place.mkdir(parents=True)
        os.environ["XDG_CACHE_HOME"] = str(place / "home")
        try:
            answer: dict[str, Any] = {"title": planted.title, "findings": run(planted, place)}
        except Exception:  # one program must not hide the others
            answer = {"title": planted.title, "error": traceback.format_exc()[-1500:], "findings": []}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
