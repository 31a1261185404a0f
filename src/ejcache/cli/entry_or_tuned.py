"""Commands that take a KEY of entries or of tuned records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.cli.selection import AmbiguousError
from ejcache.errors import NotAStoreError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable


def entries_or_records(
    of_entries: Callable[[], int], of_records: Callable[[], int], *, key: str, directory: str | None, tuned: bool
) -> int:
    """Run a command for entries; for tuned records with `tuned`, or if no entry but a record is named `key`."""
    if not tuned:
        try:
            return of_entries()
        except AmbiguousError:
            raise
        except (NotFoundError, NotAStoreError):
            from ejcache.cli.tuned.records import names_a_record

            if not names_a_record(key, directory):
                raise
    return of_records()
