"""Reads start records from this host's log or from lines of other hosts, and says which are one start."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.errors import MALFORMED
from ejcache.journal.comparison_results import ProgramDifference, decode_differences
from ejcache.journal.line import NOTHING, VERSION, EntryUse, ProgramRecord, ReuseNote
from ejcache.journal.recorder import START_LOG, recorder
from ejcache.util.store_keys import check_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_LARGEST_NUMBER: Final = 1e15


class Process(NamedTuple):
    """The process of a start record.

    Attributes:
        id: names it among all processes of all hosts.
        host: its name.
        pid: its number there.
        rank: its index in its job.
        ranks: how many processes the job has.
        program: the name of what was started.
        began: when ejcache began to record, in seconds since the epoch.
        versions: of python, ejcache, jax and jaxlib, the platform, and the commit of the program's checkout, if it
            has one.
        settings: the settings that are not at their default, as texts.
    """

    id: str = ""
    host: str = ""
    pid: int = 0
    rank: int = 0
    ranks: int = 1
    program: str = ""
    began: float = 0.0
    versions: Mapping[str, str] = NOTHING
    settings: Mapping[str, str] = NOTHING


class StartRecord(NamedTuple):
    """What one process has recorded."""

    process: Process = Process()
    programs: Sequence[ProgramRecord] = ()
    trouble: Mapping[str, int] = NOTHING
    dropped: int = 0
    reuse: Sequence[ReuseNote] = ()
    counts: Mapping[str, float] = NOTHING
    caches: Mapping[str, str] = NOTHING
    disabled: str = ""
    overruled: str = ""
    uses: Mapping[str, EntryUse] = NOTHING
    at: float = 0.0
    differences: tuple[ProgramDifference, ...] = ()


def beginning_of(program: ProgramRecord) -> float:
    """Return the time at which the program's first phase began, in seconds since the epoch."""
    return program.time - sum(program.seconds.values())


def read_starts(others: Iterable[bytes] = ()) -> list[StartRecord]:
    """Return the records of this host, and those in lines that other hosts have left; the earliest process first."""
    recorder.write()
    here = decode_lines(reversed(list(START_LOG.lines())))
    known = {record.process.id for record in here}
    # A pass that was killed leaves equal lines in two objects.
    there = decode_lines(dict.fromkeys(others))
    return [*here, *(record for record in there if record.process.id not in known)]


def decode_lines(lines: Iterable[bytes]) -> list[StartRecord]:
    """Return one record for each process that these lines name, the earliest process first; its programs by time."""
    found: dict[str, StartRecord] = {}
    for line in lines:
        part = decode_line(line)
        if part is not None:
            before = found.get(part.process.id, StartRecord(part.process))
            found[part.process.id] = StartRecord(
                max(before.process, part.process, key=lambda process: len(process.versions)),
                (*before.programs, *part.programs),
                dict(Counter(before.trouble) + Counter(part.trouble)),
                before.dropped + part.dropped,
                (*before.reuse, *part.reuse),
            )
    ordered = sorted(found.values(), key=lambda record: record.process.began)
    return [each._replace(programs=tuple(sorted(each.programs, key=lambda program: program.time))) for each in ordered]


def decode_line(line: bytes) -> StartRecord | None:
    """Decode one line; None if it is not one of this version."""
    with suppress(*MALFORMED):
        body = json.loads(line)
        if body["v"] == VERSION:
            programs = tuple(map(decode_program, body.get("programs", ())))
            trouble = {str(kind): int(number) for kind, number in body.get("trouble", {}).items()}
            reuse = tuple(_check_tuple(ReuseNote, fields) for fields in body.get("reuse", ()))
            process = _check_tuple(Process, body["process"])
            counted: StartRecord = _check_tuple(StartRecord, {name: body[name] for name in _COUNTED & body.keys()})
            return counted._replace(
                process=process,
                programs=programs,
                trouble=trouble,
                dropped=int(body.get("dropped", 0)),
                reuse=reuse,
                differences=tuple(decode_differences(body.get("differences", ()))),
                uses={check_key(key): _check_use(*use) for key, use in body.get("uses", {}).items()},
            )
    return None


def decode_program(fields: Mapping[str, Any]) -> ProgramRecord:
    """Return a program of a line; raises one of `MALFORMED` if it is none."""
    program: ProgramRecord = _check_tuple(ProgramRecord, fields)
    return program


def _check_tuple(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Make a tuple of this kind; raises one of `MALFORMED` if a field has another type, as a log on disk may."""
    known = _DEFAULTS[kind]
    given = {name: value for name, value in fields.items() if name in known}
    for name, value in given.items():
        is_mapping = isinstance(known[name], dict)
        is_text = name not in _NUMBERS if is_mapping else isinstance(known[name], str)
        for each in value.values() if is_mapping else (value,):
            if not (isinstance(each, str) if is_text else abs(each) < _LARGEST_NUMBER):
                raise ValueError(f"{name} cannot be {each!r}")
    return kind(**given)


def _check_use(when: float, times: int, worth: float | None) -> EntryUse:
    if not (abs(when) < _LARGEST_NUMBER and 0 <= times < _LARGEST_NUMBER and abs(worth or 0.0) < _LARGEST_NUMBER):
        raise ValueError(f"no use is {when!r}, {times!r}, {worth!r}")
    return EntryUse(float(when), int(times), None if worth is None else float(worth))


_DEFAULTS: Final = {kind: kind()._asdict() for kind in (Process, ProgramRecord, ReuseNote, StartRecord)}
_NUMBERS: Final = {"seconds", "counts"}
_COUNTED: Final = {"counts", "caches", "disabled", "overruled", "at"}


_TOGETHER: Final = 60.0
"""Seconds within which the ranks of one start begin."""


def in_starts(records: Iterable[StartRecord]) -> list[list[StartRecord]]:
    """Return the records of each start, the earliest start first, in it by rank and host."""
    found: list[list[StartRecord]] = []
    latest: dict[tuple[str, int], list[StartRecord]] = {}
    for record in sorted(records, key=lambda record: record.process.began):
        process = record.process
        members = latest.get((process.program, process.ranks))
        if members is None or not _belongs(record, members):
            members = latest[process.program, process.ranks] = []
            found.append(members)
        members.append(record)
    return [sorted(each, key=lambda record: (record.process.rank, record.process.began)) for each in found]


def _belongs(record: StartRecord, members: Sequence[StartRecord]) -> bool:
    process = record.process
    if process.ranks > 1:
        ranks = {each.process.rank for each in members}
        return process.began - members[0].process.began <= _TOGETHER and process.rank not in ranks
    return process.began <= max(each.programs[-1].time for each in members)
