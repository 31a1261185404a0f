"""`TunedRecords`: what `tune` has found, as a value that a program applies, saves and loads.

    {"ejcache": "autotune records", "schema": 1, "records": [record, …], "checksum": "sha256:…"}

Each record is a document as `records/record.py` has it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self, overload

from ejcache.autotune.choice import overlay
from ejcache.autotune.records.document_frame import decode_document, encode_document
from ejcache.autotune.records.record import MAX_RECORD_BYTES, decode_record, encode_record
from ejcache.errors import EntryCorruptError
from ejcache.util.files import read_regular, write_atomically

if TYPE_CHECKING:
    import contextlib
    import os
    from collections.abc import Iterable
    from types import TracebackType

    from ejcache.autotune.records.record import Record


KIND: Final = "autotune records"
SCHEMA: Final = 1
_MAX_BYTES: Final = 8 * MAX_RECORD_BYTES


class TuningOutcome(StrEnum):
    """The result of tuning a call."""

    TUNED = "tuned"
    ALREADY = "already tuned"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TunedCall:
    """One call that was to be tuned.

    Attributes:
        path: of the document that recorded it, or of its record.
        operation: its name.
        outcome: the result.
        record: of the call, if there is one.
        problem: the reason for a failure.
    """

    path: str
    operation: str
    outcome: TuningOutcome
    record: Record | None = None
    problem: str = ""


class TunedRecords(Sequence[TunedCall]):
    """The calls that were tuned, in the order in which the program makes them.

    `with records:` runs each of these calls, on this kind of device, with the configuration that its record has,
    whatever a store says. Functions are traced anew in the block.

    Args:
        calls: what was tuned.
    """

    def __init__(self, calls: Iterable[TunedCall]) -> None:
        self._calls = tuple(calls)
        self._blocks: list[contextlib.AbstractContextManager[None]] = []

    def __repr__(self) -> str:
        return f"<TunedRecords of {', '.join(call.operation for call in self._calls) or 'no calls'}>"

    @overload
    def __getitem__(self, index: int) -> TunedCall: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TunedCall]: ...

    def __getitem__(self, index: int | slice) -> TunedCall | Sequence[TunedCall]:
        return self._calls[index]

    def __len__(self) -> int:
        return len(self._calls)

    def __enter__(self) -> Self:
        block = overlay({record.key: record for record in self.records})
        block.__enter__()
        self._blocks.append(block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._blocks.pop().__exit__(kind, exc, traceback)

    @property
    def records(self) -> list[Record]:
        """The records that have a configuration that works."""
        return [call.record for call in self._calls if call.record is not None and call.record.works]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the records into a file, which is replaced when it is complete."""
        records = [json.loads(encode_record(record)) for record in self.records]
        write_atomically(path, encode_document({"records": records}, kind=KIND, schema=SCHEMA))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TunedRecords:
        """Read the records of a file.

        Raises:
            OSError: the file cannot be read.
            EntryCorruptError: the file, or a record in it, is damaged.
            EntryVersionError: this version does not read its schema.
        """
        body = decode_document(
            read_regular(path, max_size=_MAX_BYTES), kind=KIND, schema=SCHEMA, max_size=_MAX_BYTES
        )  # fmt: skip
        return cls(_call_of(each) for each in _records_in(body))


def _records_in(body: dict[str, Any]) -> list[Record]:
    records = body.get("records")
    if not isinstance(records, list):
        raise EntryCorruptError("the file has no list of records")
    return [decode_record(json.dumps(each).encode()) for each in records]


def _call_of(record: Record) -> TunedCall:
    return TunedCall(record.key.path, record.key.operation, TuningOutcome.ALREADY, record)
