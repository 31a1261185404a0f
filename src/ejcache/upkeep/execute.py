"""Carrying out a plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from ejcache.errors import StoreError, StoreReadOnlyError
from ejcache.keys.key import is_side_key
from ejcache.upkeep.abilities import BatchDeletable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ejcache.upkeep.plan import Deletion

__all__ = ["Deletable", "Outcome", "execute"]

_BATCH: Final = 100
_PATIENCE: Final = 3
"""Batches in a row that the storage refuses before the rest is not tried any more."""


class Deletable(Protocol):
    """What a plan is carried out on: a store, or a directory of plain JAX."""

    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none."""


@dataclass(slots=True)
class Outcome:
    """What became of a plan.

    Attributes:
        removed: entries whose deletion took place, and `freed` the bytes, those of what lay beside entries too.
        gone: deletions of what somebody else had removed meanwhile.
        failed: deletions that the storage refused, with its reason.
    """

    removed: int = 0
    freed: int = 0
    gone: int = 0
    failed: list[tuple[Deletion, str]] = field(default_factory=list)

    def count_removed(self, deletion: Deletion) -> None:
        """`deletion` took place."""
        self.removed += not is_side_key(deletion.entry.key)
        self.freed += deletion.entry.size


def execute(store: Deletable, deletions: Iterable[Deletion], *, advance: Callable[[], None] = lambda: None) -> Outcome:
    """Remove what `deletions` say, in their order.

    Args:
        store: what they were planned on.
        deletions: as `plan` gives them.
        advance: called after each.

    An entry that cannot be removed is recorded and the next is tried; entries come and go meanwhile as they like.

    Raises:
        StoreReadOnlyError: the store is read-only, so that nothing was removed.
    """
    if isinstance(store, BatchDeletable):
        return _execute_in_batches(store, deletions, advance)
    outcome = Outcome()
    for deletion in deletions:
        try:
            if store.delete(deletion.entry.key):
                outcome.count_removed(deletion)
            else:
                outcome.gone += 1
        except StoreReadOnlyError:
            raise
        except StoreError as exc:
            outcome.failed.append((deletion, str(exc)))
        advance()
    return outcome


def _execute_in_batches(store: BatchDeletable, deletions: Iterable[Deletion], advance: Callable[[], None]) -> Outcome:
    outcome = Outcome()
    source = iter(deletions)
    refused = 0
    problem = ""
    while batch := list(islice(source, _BATCH)):
        removed: set[str] = set()
        if refused < _PATIENCE:
            try:
                removed.update(store.delete_many([deletion.entry.key for deletion in batch]))
                refused, problem = 0, ""
            except StoreReadOnlyError:
                raise
            except StoreError as exc:
                refused, problem = refused + 1, str(exc)
        for deletion in batch:
            if deletion.entry.key in removed:
                outcome.count_removed(deletion)
            elif problem:
                outcome.failed.append((deletion, problem))
            else:
                outcome.gone += 1
            advance()
    return outcome
