"""The errors of ejcache, grouped by what a handler can do about them.

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
returns `None`. A hit loads none of the errors that are defined here.
"""

# An import under its own name is one that others may import from here.
# ruff: noqa: PLC0414

from __future__ import annotations

from ejcache.common_errors import ACCEPTED_SIZE as ACCEPTED_SIZE
from ejcache.common_errors import MALFORMED as MALFORMED
from ejcache.common_errors import EjcacheError as EjcacheError
from ejcache.common_errors import EntryCorruptError as EntryCorruptError
from ejcache.common_errors import EntryError as EntryError
from ejcache.common_errors import EntryForeignError as EntryForeignError
from ejcache.common_errors import EntryVersionError as EntryVersionError
from ejcache.common_errors import InvalidKeyError as InvalidKeyError
from ejcache.common_errors import NotAStoreError as NotAStoreError
from ejcache.common_errors import SettingError as SettingError
from ejcache.common_errors import StoreBusyError as StoreBusyError
from ejcache.common_errors import StoreError as StoreError
from ejcache.common_errors import StoreForbiddenError as StoreForbiddenError
from ejcache.common_errors import StoreReadOnlyError as StoreReadOnlyError
from ejcache.common_errors import StoreUnavailableError as StoreUnavailableError
from ejcache.common_errors import UntrustedDirectoryError as UntrustedDirectoryError
from ejcache.common_errors import UsageError as UsageError

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


class NotFoundError(UsageError):
    """What a command line names does not exist."""


class CompileForbiddenError(EjcacheError, RuntimeError):
    """A program would have been compiled inside of `ejcache.forbid_compile()`. It was not compiled, and did not run.

    Attributes:
        program: the name of the program, such as `jit_train_step`.
        sentence: the reason why the program is not in the cache, as `ejcache why` prints it.
        caller: the line that called the program, such as `/home/me/serve.py:31 in main`; empty if it is unknown.
        where: `here`, or the rank of the job that forbids compiling.
        more: a sentence about what else the user can do, or an empty text.
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


class EntryRecalledError(EntryError):
    """The entry is intact, and an operator has recalled it (`ejcache recall`)."""


class StoreTooSmallError(StoreError):
    """One entry is larger than the limit of the whole store. No other entry was evicted for it."""


class NoPermissionError(StoreForbiddenError):
    """The storage answered 403: these credentials may not read there.

    S3 and GCS answer so for an absent object, too, if the credentials may not list the bucket.
    """


class StoreRefusedError(StoreUnavailableError):
    """The storage answers every request so: there is no such bucket, or it does not know the credentials (401)."""


class PolicyDamagedError(StoreUnavailableError):
    """The policy of a cache is damaged. It may have turned the cache off or recalled entries, so it is not replaced."""


class StoreNotAskedError(StoreUnavailableError):
    """A request was not sent: the storage failed a moment ago, or the library that talks to it is still loading."""


CompileForbiddenError.__module__ = "ejcache"  # as those of `common_errors` that a program catches
