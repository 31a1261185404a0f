"""When entries were last used, and how often.

A use is written at once, unless another was within a second: then many are written together.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["USES_SECONDS", "PendingUses"]

USES_SECONDS: Final = 1.0
"""How long a use may be known to this process only. A killed process loses it."""
_MOST: Final = 1_000
_ROWS: Final = 300
"""Rows of one statement, which may have 999 values. Python runs other threads at each statement: one for each row takes
the interpreter from the program so often."""
_MARK: Final = """
    WITH Used (key, at, times) AS (VALUES {rows})
    UPDATE Cache SET
        access_time = max(access_time, (SELECT at FROM Used WHERE Used.key = Cache.key)),
        access_count = access_count + (SELECT times FROM Used WHERE Used.key = Cache.key)
    WHERE raw = 1 AND key IN (SELECT key FROM Used)
"""


class PendingUses:
    """The uses of one connection that are not in its index yet.

    `note` may be called by any thread. A use that one thread notes while another writes the same entry's is kept; how
    many there were is then perhaps wrong by one.
    """

    def __init__(self) -> None:
        self._uses: dict[str, tuple[float, int]] = {}  # the time of the last one, and how many
        self._marked: dict[str, tuple[float, int]] = {}
        self._tried_at = float("-inf")
        self._is_scheduled = False

    def __bool__(self) -> bool:
        return bool(self._uses)

    def note(self, key: str, when: float) -> float | None:
        """Note that `key` was used at `when`; in how many seconds to write, or None if that is arranged already."""
        self._uses[key] = when, self._uses.get(key, (when, 0))[1] + 1
        since = time.monotonic() - self._tried_at
        if since >= USES_SECONDS or len(self._uses) >= _MOST:
            return 0.0
        if self._is_scheduled:
            return None
        self._is_scheduled = True
        return USES_SECONDS - since

    def trying(self) -> None:
        """The uses are about to be written, whatever becomes of it."""
        self._tried_at = time.monotonic()
        self._is_scheduled = False

    def mark(self, sql: Callable[..., Any]) -> None:
        """Write the uses, inside a transaction. `committed` or `rolled_back` says what became of it."""
        self._marked = dict(self._uses)
        rows = [(key, when, times) for key, (when, times) in self._marked.items()]
        for start in range(0, len(rows), _ROWS):
            some = rows[start : start + _ROWS]
            sql(_MARK.format(rows=", ".join(["(?, ?, ?)"] * len(some))), [value for row in some for value in row])

    def committed(self) -> None:
        """Forget what `mark` has written."""
        for key, written in self._marked.items():
            noted = self._uses.get(key, written)
            if noted == written:
                self._uses.pop(key, None)
            else:
                self._uses[key] = noted[0], noted[1] - written[1]
        self._marked = {}

    def rolled_back(self) -> None:
        """Keep what `mark` has written, for the next transaction."""
        self._marked = {}
        while len(self._uses) > _MOST:
            del self._uses[next(iter(self._uses))]
