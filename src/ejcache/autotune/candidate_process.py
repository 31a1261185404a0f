"""The process in which `measure.isolated` tries one candidate: `python -m ejcache.autotune.candidate_process`."""

from __future__ import annotations

import faulthandler
import json
import sys

from ejcache.autotune.call_documents import RecordedNames
from ejcache.autotune.measure.compile import error_line
from ejcache.autotune.measure.isolated import ANSWER
from ejcache.autotune.records.record import Status
from ejcache.autotune.replay import tunable

__all__ = ["main"]


def main() -> None:
    """Make the call that standard input describes once, and write the result to standard output."""
    given = json.loads(sys.stdin.read())
    sys.path[:] = given["path"]
    status: Status | None = None
    try:
        # The parent process made this call, so all of its names are trusted.
        call = tunable(given["call"], RecordedNames(None))
        status = Status.FAILED
        # A thread of C code, which ends the process also if the candidate never releases the interpreter.
        faulthandler.dump_traceback_later(given["timeout"], exit=True)
        call.attempt(given["configuration"])
        faulthandler.cancel_dump_traceback_later()
        answer: dict[str, str | None] = {"status": Status.OK, "error": ""}
    except (Exception, SystemExit) as exc:
        answer = {"status": status, "error": error_line(exc)}
    sys.stdout.write(f"{ANSWER}{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
