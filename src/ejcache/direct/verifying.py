"""`ejcache verify --direct`: runs a program that traces every direct function, and compares with the records."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ejcache.cli import output
from ejcache.cli.run import absolute_url, command_of, end_as, export, run_and_count
from ejcache.errors import UsageError
from ejcache.settings.resolve import export_variables
from ejcache.util.text import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.cache.run_counts import RunTotal

__all__ = ["verify_direct"]

_COMPARED: Final = ("checked", "unproven", "wrong")
"""Verdicts that follow from a trace and a record of the same state."""


def verify_direct(program: Sequence[str], directory: str | None, *, strict: bool, as_json: bool) -> int:
    """Run the program, print what direct mode said of each function, and return the exit status.

    Args:
        program: the words behind the options.
        directory: the value of `--dir`.
        strict: what was refused counts as a failure, and so does a program in which nothing was compared.
        as_json: print JSON.

    Raises:
        UsageError: there is no such program.
    """
    if not program:
        raise UsageError("verify --direct needs a program: a script, -m MODULE, -c CODE, - or a command")
    command = command_of(program)
    given = {"cache_dir": absolute_url(directory), "direct": True}
    export_variables({"EJCACHE_DIRECT_CHECK_ONE_IN": "1"})
    export({name: value for name, value in given.items() if value is not None})
    status, total = run_and_count(command)
    found = _Comparison(status, total, strict=strict)
    if as_json:
        output.print_json(found.fields())
    else:
        found.print()
    if status:
        output.warn(f"the program {f'ended with status {status}' if status > 0 else f'was killed by signal {-status}'}")
    return end_as(status) if status < 0 else int(not found.clean)


class _Comparison:
    """What direct mode said of the calls of a program."""

    def __init__(self, status: int, total: RunTotal, *, strict: bool) -> None:
        self.status = status
        self.counts: Counter[str] = Counter()
        for call, number in total.verdicts.items():
            self.counts[call.verdict] += number
        self.compared = sum(self.counts[verdict] for verdict in _COMPARED)
        doubtful = strict and (self.counts["refused"] > 0 or not self.compared)
        self.clean = not status and not self.counts["wrong"] and not doubtful
        # What is wrong comes first; everything else in the order of the calls.
        self._calls = sorted(total.verdicts.items(), key=lambda item: item[0].verdict != "wrong")
        self._urls = list(total.urls)

    def fields(self) -> dict[str, Any]:
        """Stable fields for JSON."""
        return {
            "urls": self._urls,
            "status": self.status,
            "clean": self.clean,
            "calls": self.counts.total(),
            "compared": self.compared,
            "counts": dict(self.counts),
            "functions": [{**call._asdict(), "calls": number} for call, number in self._calls],
        }

    def print(self) -> None:
        """Print a line for each verdict of a function, and the sum."""
        width = max((len(call.verdict) for call, _ in self._calls), default=0)
        for call, number in self._calls:
            times = f" ({number:,} calls)" if number > 1 else ""
            output.say_columns([(call.verdict, width)], f"{call.function}: {call.sentence}{times}")
        if not self._calls:
            output.say("nothing was compared: no call of a direct function. Does the program use @ejcache.ejit?")
            return
        calls = plural(self.counts.total(), "call")
        wrong = plural(self.counts["wrong"], "record") if self.counts["wrong"] else "no record"
        was = "were" if self.counts["wrong"] > 1 else "was"
        output.say(f"{calls} of direct functions, {self.compared:,} compared with a record: {wrong} {was} wrong")
