"""Logs what differs where the ranks of a job compile different programs, but should compile the same one.

A constant that one host reads from its clock, a flag that a launcher forwards to one rank only, or another version of
JAX makes ranks compile different programs that must run as one. The job may hang in a collective for hours, and nothing
says why. So the keys of the ranks meet before the program is compiled (`common_hit.py`), and every rank logs at once
what differs.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from ejcache.history.environment_difference import environment_differences
from ejcache.jax_integration.seam.compiling import module_text
from ejcache.journal.line import ProgramRecord
from ejcache.util.log import log, warn_once

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.jax_integration.compilation import Compilation
    from ejcache.jax_integration.ranks.agreement import RankAgreement

_PROGRAM: Final = "program"
_PATIENCE: Final = 1.0
"""Seconds that a rank waits for the program of the other, which publishes it at the same moment."""
_MOST_CHARACTERS: Final = 500_000
"""The coordination service holds what ranks publish in memory."""
_WIDTH: Final = 160


def log_difference(
    compilation: Compilation, agreement: RankAgreement, topic: str, *, pair: tuple[int, int], lowest_key: str
) -> None:
    """Log once which component of the keys of two ranks differs, and the first line that does.

    Args:
        compilation: this rank's.
        agreement: of the ranks.
        topic: on which the ranks have met.
        pair: two ranks whose keys differ.
        lowest_key: the key of the first of the pair.
    """
    key = compilation.key
    mine = {
        "components": dict(key.components),
        "details": dict(key.details),
        "text": module_text(compilation.module)[:_MOST_CHARACTERS] if compilation.module is not None else "",
    }
    if agreement.rank in pair:
        agreement.publish(topic, _PROGRAM, mine)
    other = pair[1] if compilation.text == lowest_key else pair[0]
    theirs = agreement.published_by(other, topic, _PROGRAM, timeout=_PATIENCE)
    what = "their keys differ" if theirs is None else _sentences(mine, theirs, key.text, f"rank {other}")
    warn_once(
        ("ranks differ", key.name),
        "ejcache: the ranks compile different programs as %s, so none of them uses the cache for it. "
        "Here (rank %d) and on rank %d: %s",
        key.name,
        agreement.rank,
        other,
        what,
    )


def _sentences(mine: Mapping[str, Any], theirs: Mapping[str, Any], key: str, where: str) -> str:
    ours, others = mine["components"], theirs["components"]
    names = sorted(name for name in ours.keys() | others.keys() if ours.get(name) != others.get(name))
    found = [f"the components that differ are {', '.join(names)}" if names else "their variants differ"]
    try:
        # Here comes first: "A -> B" is this rank's value and the other's.
        both = [
            ProgramRecord(key=key, components=each["components"], details=each["details"]) for each in (mine, theirs)
        ]
        found += [difference.sentence for difference in environment_differences(*both)]
    except Exception as exc:  # another version of ejcache may publish other details
        log.debug("ejcache: the environments of the ranks cannot be compared: %s", exc)
    for number, (line, other) in enumerate(
        itertools.zip_longest(mine["text"].splitlines(), str(theirs["text"]).splitlines(), fillvalue=""), 1
    ):
        if line != other:
            found.append(f"line {number} of the program is `{_short(line)}` here and `{_short(other)}` on {where}")
            break
    return "; ".join(found)


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _WIDTH else f"{line[:_WIDTH]}…"
