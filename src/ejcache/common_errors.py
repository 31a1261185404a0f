"""The errors that every start has at hand, because what it imports raises or catches them.

`errors` has all of them, shows how they belong together, and is where programs and all other modules import them from.
"""

from __future__ import annotations

from typing import Final, Self

MALFORMED: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a decoder raises for text that is not in its format, whatever others have written: numbers that are too large,
lists in place of objects, nesting without end."""


class EjcacheError(Exception):
    """The base class of all exceptions that ejcache raises."""


class UsageError(EjcacheError, ValueError):
    """The caller passed a wrong value, such as a setting, key, size, age or URL, and can correct it."""


class SettingError(UsageError):
    """A setting has a value that it cannot have.

    The message is one sentence: the setting, its value, and the values that are accepted.
    """

    def __init__(self, setting: str, value: object, accepted: str) -> None:
        super().__init__(setting, value, accepted)
        self.setting = setting
        self.value = value
        self.accepted = accepted

    def __str__(self) -> str:
        return f"{self.setting} cannot be {self.value!r}: accepted is {self.accepted}"


class InvalidKeyError(UsageError):
    """A key that no store can hold: not text, empty, too long, or with characters that text files cannot carry."""


class EntryError(EjcacheError):
    """The stored bytes are not the intact cache entry that was asked for."""


class EntryCorruptError(EntryError):
    """The bytes are truncated or changed, or never were an entry."""


class EntryForeignError(EntryError):
    """The entry is intact, but belongs to another key than the one that was asked for."""


class EntryVersionError(EntryError):
    """The entry is in a format that this version does not read. It is a miss, and stays for versions that read it."""


class StoreError(EjcacheError, OSError):
    """The storage failed.

    Attributes:
        cause: the cause of the failure, if the client library of the storage names it; otherwise None.
    """

    cause: str | None = None

    def because(self, cause: str | None) -> Self:
        """Note the cause, unless there is one already."""
        self.cause = self.cause or cause
        return self


class StoreReadOnlyError(StoreError):
    """A write to a read-only store."""


class StoreBusyError(StoreError):
    """A lock or a database was busy until the deadline."""


class StoreUnavailableError(StoreError):
    """The storage cannot be reached, opened or repaired."""


class UntrustedDirectoryError(StoreUnavailableError):
    """Another user owns a local directory, or can write to it, and entries are code. It was not used."""


class StoreForbiddenError(StoreUnavailableError):
    """The storage answered, but not with the object: this user may not read it, or it is behind a link."""


class NotAStoreError(StoreError):
    """The URL holds something that is not a cache, or nothing. It was not changed."""


ACCEPTED_SIZE: Final = "a number of bytes such as 500000, 10GB (decimal) or 10GiB (binary)"
"""What errors say of sizes (`util.units`); here, because most programs give none."""

# Tracebacks show the name by which a program catches the error.
for _error in (
    EjcacheError,
    UsageError,
    SettingError,
    EntryError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
):
    _error.__module__ = "ejcache"
for _error in (
    InvalidKeyError,
    EntryCorruptError,
    EntryForeignError,
    EntryVersionError,
    StoreBusyError,
    UntrustedDirectoryError,
    StoreForbiddenError,
    NotAStoreError,
):
    _error.__module__ = "ejcache.errors"
