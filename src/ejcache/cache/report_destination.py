"""Says where the report at exit goes (`off`, `line`, `json`, a file), and what a run without a cache reports."""

from __future__ import annotations

import os


def absolute_destination(destination: str | None) -> str | None:
    """Return `destination`, as an absolute path if it is a path; None if the working directory is gone."""
    from ejcache.settings.table import REPORT_JSON, REPORT_LINE, REPORT_OFF  # the door to settings of a run

    if destination is None or destination.lower() in REPORT_OFF | REPORT_LINE | REPORT_JSON:
        return destination
    from pathlib import Path

    try:
        # For a user that does not exist, pathlib raises, and os.path leaves the text as it is.
        return str(Path(os.path.expanduser(destination)).absolute())  # noqa: PTH111
    except OSError as exc:
        from ejcache.util.log import warn_once  # the door to settings of a run

        # The working directory is deleted. Each cache that is opened asks again.
        warn_once(("report", destination), "EJCACHE_REPORT cannot be %r, and nothing is reported: %s", destination, exc)
        return None


def is_off(destination: str | None) -> bool:
    """True if no report goes to this destination."""
    from ejcache.settings.table import REPORT_OFF  # the door to settings of a run

    return destination is None or destination.lower() in REPORT_OFF


def line_without_a_cache(*, status: int) -> str:
    """Return the line of a run in which no process enabled the cache; one that failed may not have come to it."""
    hint = ". Does the program use JAX, and does its Python have ejcache?"
    return f"ejcache: nothing was cached: no process has enabled the cache{'' if status else hint}"
