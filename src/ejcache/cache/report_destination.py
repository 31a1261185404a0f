"""Where the report at exit goes: `off`, `line`, `json`, or the path of a file."""

from __future__ import annotations

import os
from pathlib import Path

from ejcache.settings.parsers import REPORT_JSON, REPORT_LINE, REPORT_OFF
from ejcache.util.log import warn_once


def absolute_destination(destination: str | None) -> str | None:
    """Return `destination`, as an absolute path if it is a path; None if the working directory is gone."""
    if destination is None or destination.lower() in REPORT_OFF | REPORT_LINE | REPORT_JSON:
        return destination
    try:
        # For a user that does not exist, pathlib raises, and os.path leaves the text as it is.
        return str(Path(os.path.expanduser(destination)).absolute())  # noqa: PTH111
    except OSError as exc:
        # The working directory is deleted. Each cache that is opened asks again.
        warn_once(("report", destination), "EJCACHE_REPORT cannot be %r, and nothing is reported: %s", destination, exc)
        return None


def is_off(destination: str | None) -> bool:
    """True if no report goes to this destination."""
    return destination is None or destination.lower() in REPORT_OFF
