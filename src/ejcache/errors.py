"""Lists the errors of ejcache, grouped by what a handler can do about them.

    EjcacheError
    ├── UsageError(ValueError)          the caller passed a bad setting, key, size, age or URL
    │   ├── SettingError                names the setting, its value and the accepted values
    │   │   ├── UnknownSettingError*    there is no setting or variable of this name
    │   │   ├── ConfigFileError*        a configuration file cannot be read or written
    │   │   └── JaxImportError*         an environment variable with which JAX cannot be imported
    │   └── InvalidKeyError
    ├── CompileForbiddenError           a program would have been compiled where `forbid_compile` forbids it
    ├── EntryError                      the bytes are not the intact entry that was asked for: a miss
    │   ├── EntryCorruptError*          truncated, changed, or never an entry
    │   ├── EntryForeignError*          an intact entry of another key
    │   ├── EntryVersionError*          an entry in a format that this version does not read
    │   └── EntryRecalledError*         an intact entry that an operator has recalled
    └── StoreError(OSError)             the storage failed; a program goes on without it
        ├── StoreReadOnlyError          a write to a read-only store
        ├── StoreTooSmallError          one entry is larger than the limit of the whole store
        ├── StoreBusyError              a lock or a database was busy until the deadline
        ├── StoreUnavailableError       the storage cannot be reached, opened or repaired
        │   ├── StoreForbiddenError*    one object may not be read, which says nothing about the others
        │   │   └── NoPermissionError*  the credentials may not read anything, or not list (403)
        │   ├── StoreRefusedError*      there is no such bucket, or it does not know the credentials
        │   ├── PolicyDamagedError*     what is stored with a cache of its use is damaged, and is not replaced unasked
        │   ├── UntrustedDirectoryError* another user owns a local directory, or can write to it
        │   └── StoreNotAskedError*     a request was not sent: the storage has just failed or is not ready yet
        └── NotAStoreError              there is something else at the URL, or nothing

Those with a star are for the package itself; a program catches what stands above them. Absence is not an error: `get`
returns `None`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self


class StorageCause(StrEnum):
    """What is behind an error of shared storage, where a user can do something about it that the class does not say."""

    THROTTLED = "throttled"
    PORTAL = "portal"
    """Somebody else answers in place of the storage, perhaps a proxy or a login page."""
    NO_ADDRESS = "no_address"
    """DNS has no address for the host."""
    NO_KEY_FILE = "no_key_file"
    BAD_KEY_FILE = "bad_key_file"
    BAD_KEYS = "bad_keys"
    BAD_PROFILE = "bad_profile"
    CREDENTIALS = "credentials"
    """There are none, or they are not valid any more."""
    REGION = "region"
    NO_BUCKET = "no_bucket"


__all__ = [
    "CompileForbiddenError",
    "EjcacheError",
    "EntryError",
    "SettingError",
    "StoreError",
    "StoreReadOnlyError",
    "StoreUnavailableError",
    "UsageError",
]

MALFORMED: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a decoder raises for text that is not in its format, whatever others have written: numbers that are too large,
lists in place of objects, nesting without end."""
ACCEPTED_SIZE: Final = "a number of bytes such as 500000, 10GB (decimal) or 10GiB (binary)"
"""What errors say of sizes (`util.units`); here, because most programs give none."""


class EjcacheError(Exception):
    """The base class of ejcache's public exceptions."""


class UsageError(EjcacheError, ValueError):
    """The caller passed a wrong value, such as a setting, key, size, age or URL, and can correct it."""


class SettingError(UsageError):
    """A setting or an argument has a value that ejcache does not accept, or a name is not the name of a setting.

    ejcache also raises it for a configuration file that it cannot read or write. The message names the setting, the
    argument or the file.
    """

    def __init__(self, setting: str, value: object, accepted: str) -> None:
        super().__init__(setting, value, accepted)
        self.setting = setting
        self.value = value
        self.accepted = accepted

    def __str__(self) -> str:
        return f"{self.setting} cannot be {self.value!r}: accepted is {self.accepted}"


class UnknownSettingError(SettingError):
    """There is no setting, or no environment variable of ejcache, of this name.

    `accepted` names the one that was probably meant, or all.
    """

    def __str__(self) -> str:
        return f"there is no {self.setting} {self.value} ({self.accepted})"


class ConfigFileError(SettingError):
    """A configuration file cannot be read or written. None of its values counts."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__("the configuration file", path, why)

    def __str__(self) -> str:
        return f"{self.setting} {self.value}: {self.accepted}"

    def __reduce__(self) -> tuple[type, tuple[object, str]]:
        return type(self), (self.value, self.accepted)


class JaxImportError(SettingError):
    """An environment variable of JAX has a value with which `import jax` fails."""

    def __str__(self) -> str:
        return f"{super().__str__()}; JAX itself refuses to be imported with it"


class InvalidKeyError(UsageError):
    """A key that no store can hold: not text, empty, too long, or with characters that text files cannot carry."""


class NotFoundError(UsageError):
    """What a command line names does not exist."""


class CompileForbiddenError(EjcacheError, RuntimeError):
    """A call needed a compilation, or a measurement of a kernel, that `ejcache.forbid_compile()` forbids.

    The program was not compiled, and did not run.

    Attributes:
        program: the name of the program, such as `jit_train_step`, or of a kernel that would have been measured.
        sentence: why the program would have been compiled, as a sentence.
        caller: the line that called the program, such as `/home/me/serve.py:31 in main`; empty if it is unknown.
        where: the text `here`, or a text such as `on rank 3` if another process of the job forbids compiling.
        more: a sentence that names a command with more information, or an empty text.
    """

    is_for_program = True  # no failure of the cache, with which the program would compile on

    def __init__(self, program: str, sentence: str, caller: str = "", where: str = "here", more: str = "") -> None:
        super().__init__(program, sentence, caller, where, more)
        self.program = program
        self.sentence = sentence
        self.caller = caller
        self.where = where
        self.more = more

    def __str__(self) -> str:
        called = f" It is called at {self.caller}." if self.caller else ""
        return (
            f"compilations are forbidden {self.where} (ejcache.forbid_compile): {self.sentence}.{called} "
            f"Do this earlier: outside the block, or in a process that stores the result. {self.more}".rstrip()
        )


class EntryError(EjcacheError):
    """An entry or another file of a cache is damaged, recalled, of another key, or in an unknown format."""


class EntryCorruptError(EntryError):
    """The bytes are truncated or changed, or never were an entry."""


class EntryForeignError(EntryError):
    """The entry is intact, but belongs to another key than the one that was asked for."""


class EntryVersionError(EntryError):
    """The entry is in a format that this version does not read. It is a miss, and stays for versions that read it."""


class EntryRecalledError(EntryError):
    """The entry is intact, and an operator has recalled it (`ejcache recall`)."""


class StoreError(EjcacheError, OSError):
    """The storage of a cache failed, holds no cache, or has no room for an entry.

    Attributes:
        cause: a word for the cause, such as `credentials` or `region`, if ejcache knows it; otherwise None.
    """

    cause: str | None = None

    def because(self, cause: str | None) -> Self:
        """Note the cause, unless there is one already."""
        self.cause = self.cause or cause
        return self


class StoreReadOnlyError(StoreError):
    """The program tried to write to a cache that it may only read."""


class StoreTooSmallError(StoreError):
    """One entry is larger than the limit of the whole store. No other entry was evicted for it."""


class StoreBusyError(StoreError):
    """A lock or a database was busy until the deadline."""


class StoreUnavailableError(StoreError):
    """The storage of a cache cannot be reached, opened or repaired, or ejcache may not use it."""


class StoreForbiddenError(StoreUnavailableError):
    """The storage answered, but not with the object: this user may not read it, or it is behind a link."""


class NoPermissionError(StoreForbiddenError):
    """The storage answered 403: these credentials may not read there.

    S3 and GCS answer so for an absent object, too, if the credentials may not list the bucket.
    """


class StoreRefusedError(StoreUnavailableError):
    """The storage answers every request so: there is no such bucket, or it does not know the credentials (401)."""


class PolicyDamagedError(StoreUnavailableError):
    """The policy of a cache is damaged. It may have turned the cache off or recalled entries, so it is not replaced."""


class UntrustedDirectoryError(StoreUnavailableError):
    """Another user owns a local directory, or can write to it, and entries are code. It was not used."""


class StoreNotAskedError(StoreUnavailableError):
    """A request was not sent: the storage failed a moment ago, or the library that talks to it is still loading."""


class NotAStoreError(StoreError):
    """The URL holds something that is not a cache, or nothing. It was not changed."""


for _name in __all__:
    globals()[_name].__module__ = "ejcache"  # tracebacks show the name by which a program catches the error
