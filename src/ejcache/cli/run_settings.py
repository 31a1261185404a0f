"""Checks the options of `ejcache run` and `warm`, and puts them into the environment of the program.

Most runs have no options, so `starting` imports this where a setting is given.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ejcache.cache.report_destination import absolute_destination, is_off
from ejcache.errors import JaxImportError, NotFoundError, UsageError
from ejcache.settings.environment import export_settings
from ejcache.settings.resolve import command_line, resolve, set_command_line
from ejcache.stores.location import Location

if TYPE_CHECKING:
    from collections.abc import Mapping


def use_settings(given: Mapping[str, Any]) -> str | None:
    """Put the settings that were given into the environment; return where the report goes.

    Args:
        given: settings by name; None for those that were not given.

    Raises:
        EjcacheError: a setting cannot be used.
    """
    known = {name: value for name, value in given.items() if value is not None}
    if "dir" in known:
        known["dir"] = absolute_url(known["dir"])
    destination = absolute_destination(export(known))
    if known.get("report") is not None and destination is not None:
        _check_report(destination)
    return destination


def has_report(destination: str | None) -> bool:
    """True if there is a report when the program has ended, or a comparison decides the exit status."""
    return not is_off(destination) or bool(resolve().compare)


def absolute_url(directory: str | None) -> str | None:
    """Return `--dir`, from which the program may start processes in other directories."""
    try:
        return None if directory is None else Location.parse(directory).url
    except UsageError as exc:
        raise UsageError(f"--dir: {exc}") from exc


def export(given: dict[str, Any]) -> str:
    """Put the options into the environment; returns where the report goes."""
    set_command_line(given)
    report = resolve().report or "line"
    export_settings({**command_line(), "report": "off"})
    set_command_line({})
    for problem in resolve().problems:
        if isinstance(problem, JaxImportError) or problem.setting == "EJCACHE":
            raise problem
    return str(report)


def _check_report(destination: str) -> None:
    """Refuse a file that could not be written, before the program runs for hours."""
    place = os.path.dirname(destination)  # noqa: PTH120
    if os.path.isabs(destination) and not os.path.isdir(place):  # noqa: PTH112, PTH117
        raise NotFoundError(f"--report {destination} could not be written: the directory {place} does not exist")
