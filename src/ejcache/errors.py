"""The errors of ejcache, grouped by what a handler would do about them.

    EjcacheError
    ├── UsageError(ValueError)          the caller can mend it: a bad setting, key, size, age or URL
    │   ├── SettingError                names the setting, the value it got and what is accepted
    │   │   └── JaxImportError          of an environment variable with which JAX itself cannot be imported
    │   └── InvalidKeyError
    ├── EntryError                      the bytes are not an intact entry: count it, treat it as a miss
    │   ├── EntryCorruptError           truncated, flipped, or not ours
    │   ├── EntryForeignError           intact, but of another key
    │   └── EntryVersionError           intact for all we know, but of a format this version does not read
    └── StoreError(OSError)             the storage failed: count it, go on without it
        ├── StoreReadOnlyError          a write to a store opened (or found) read-only
        ├── StoreTooSmallError          this one entry is larger than the whole limit
        ├── StoreBusyError              a lock or database stayed busy until the deadline
        ├── StoreUnavailableError       cannot be reached, opened or repaired
        └── NotAStoreError              the place holds something that is not ours; nothing was touched

Absence is never an error: `get` answers `None`.
"""

from __future__ import annotations

__all__ = [
    "EjcacheError",
    "EntryCorruptError",
    "EntryError",
    "EntryForeignError",
    "EntryVersionError",
    "InvalidKeyError",
    "JaxImportError",
    "NotAStoreError",
    "SettingError",
    "StoreBusyError",
    "StoreError",
    "StoreReadOnlyError",
    "StoreTooSmallError",
    "StoreUnavailableError",
    "UsageError",
]


class EjcacheError(Exception):
    """Every error that ejcache raises."""


class UsageError(EjcacheError, ValueError):
    """The caller can mend it."""


class SettingError(UsageError):
    """A setting has a value that it cannot have.

    The message is one sentence: the setting, the value it got, what would be accepted.
    """

    def __init__(self, setting: str, value: object, accepted: str) -> None:
        super().__init__(setting, value, accepted)
        self.setting = setting
        self.value = value
        self.accepted = accepted

    def __str__(self) -> str:
        return f"{self.setting} cannot be {self.value!r}: accepted is {self.accepted}"


class JaxImportError(SettingError):
    """An environment variable of JAX's has a value with which `import jax` fails."""

    def __str__(self) -> str:
        return f"{super().__str__()}; JAX itself refuses to be imported with it"


class InvalidKeyError(UsageError):
    """A key that no store can hold: not text, empty, too long, or with characters that text files cannot carry."""


class EntryError(EjcacheError):
    """The bytes are not the intact entry that was asked for."""


class EntryCorruptError(EntryError):
    """Truncated, flipped, or never an entry."""


class EntryForeignError(EntryError):
    """An intact entry, but of another key than the one that was asked for."""


class EntryVersionError(EntryError):
    """An entry of a format that this version does not read: a miss, and left alone for those who can."""


class StoreError(EjcacheError, OSError):
    """The storage failed."""


class StoreReadOnlyError(StoreError):
    """A write to a store that is read-only."""


class StoreTooSmallError(StoreError):
    """One entry is larger than the store's whole limit; nothing was evicted for it."""


class StoreBusyError(StoreError):
    """A lock or database stayed busy until the deadline."""


class StoreUnavailableError(StoreError):
    """The storage cannot be reached, opened or repaired."""


class NotAStoreError(StoreError):
    """The place holds something that is not a store of ours; nothing was touched."""
