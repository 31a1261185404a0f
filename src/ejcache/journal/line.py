"""Start records: what each process of this user compiled and loaded on this host, how long that took, and why.

    log      := lines in `starts.jsonl` of the user's directory (`host_log.AppendedLog`); one process writes each
    line     := JSON object (version 1) of:
      v        1
      process  an object: id, host, pid, rank, ranks, program, began (seconds since the epoch), versions, settings;
               what is at its default is left out
      programs a list of the programs since the last line of this process; what is empty or 0 is left out:
        name, key, url, caller, thread, time, compile_seconds, size, reason, outcome, preloaded (see `ProgramRecord`)
        seconds    an object: phase → seconds
        components, details, signature, module: of a miss, what `ejcache why` compares
      trouble  an object: kind of warning → how often
      dropped  how many programs are in no line, because the process had too many
      counts   an object: counter → amount since the last line; only in the log of an `ejcache run` (`run_log`), and in
               what is to be sent to shared storage (`unsent`)
      uses     an object: key → [seconds since the epoch, times, worth], an `EntryUse`; only in what is to be sent
      at       when it was left there, in seconds since the epoch
      caches   an object: the URL of a cache → that of the one in whose place it is used, or nothing; only there
      disabled why nothing is cached; only there
      reuse    a list of what reuse did with functions: the fields of `ReuseNote`; only if there is any

A process appends a line after each miss, each minute, and when it ends, in the background; a killed one loses what came
after the last. A line that is damaged, or of another version, is skipped. On shared storage these lines are in usage
journals (`journal/objects.py`). Nothing but reports and explanations reads any of this.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ejcache.common_errors import MALFORMED
from ejcache.util.store_keys import check_key
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HIT: Final = "hit"
"""The outcome of a program that was loaded."""
STORED: Final = "stored"
"""The outcome of a compilation whose executable was stored."""
PHASES: Final = ("traced", "lowered", "keyed", "fetched", "loaded", "waited", "compiled", "stored", "lost")
"""What the time of a program went into, in this order. `waited` is for other processes and ranks, `lost` for storage
that failed."""
MOST_RECORDED: Final = 1 << 20
"""Bytes of lines in one journal on shared storage; one with more was not written by ejcache."""
_VERSION: Final = 1
_LARGEST_NUMBER: Final = 1e15
_NOTHING: Final[Mapping[str, Any]] = {}


class EntryUse(NamedTuple):
    """What a process says of the uses of an entry.

    Attributes:
        when: the last one, in seconds since the epoch.
        times: how many there were.
        worth: what one use is worth to the policy, the number from which the order of eviction is made; None if
            nobody has said it.
    """

    when: float
    times: int = 1
    worth: float | None = None

    def joined(self, other: EntryUse) -> EntryUse:
        """Join two uses: the later time, all uses, and the worth that was said last."""
        later, earlier = (self, other) if self.when >= other.when else (other, self)
        worth = earlier.worth if later.worth is None else later.worth
        return EntryUse(later.when, self.times + other.times, worth)


class ProgramRecord(NamedTuple):
    """One program that a process compiled or loaded.

    Attributes:
        name: of its module, such as `jit_train_step`.
        time: when it was ready, in seconds since the epoch.
        url: the cache; empty for none.
        key: the text of its key; empty if none could be made.
        reason: why the lookup failed, a `Miss`; empty for a hit, and if there was no lookup.
        outcome: `HIT`, `STORED`, or the `Skip` that says why it was not stored.
        compile_seconds: what compiling took, in this process, or for a hit in the one that stored the entry.
        size: bytes of its entry; 0 if it has none, or another rank makes it.
        caller: the line of the user's program that called it, `/home/me/train.py:31 in main`; of one in a method that
            makes or calls an object, or in a function that a library calls, also the line that does so,
            `/home/me/net.py:7 in Net.__init__, from …`; and last the library through which it did, `…, via optax`.
        thread: the name of the thread that wanted it.
        seconds: what each of `PHASES` took in this process.
        preloaded: whether it was loaded before the program asked for it.
        components: of its key, by name: a digest; only of a miss, like the rest.
        details: readable values: of the components that are small, and of `jax` (its version), `settings` (flags of JAX
            that are not at their default), `options` (compile options that are not), and `facts_of_call`.
        signature: its arguments and results.
        module: digest of its module's text, if that was stored.
    """

    name: str = ""
    time: float = 0.0
    url: str = ""
    key: str = ""
    reason: str = ""
    outcome: str = ""
    compile_seconds: float = 0.0
    size: int = 0
    caller: str = ""
    thread: str = ""
    seconds: Mapping[str, float] = _NOTHING
    preloaded: bool = False
    components: Mapping[str, str] = _NOTHING
    details: Mapping[str, str] = _NOTHING
    signature: str = ""
    module: str = ""

    @property
    def is_hit(self) -> bool:
        """True if it was loaded."""
        return self.outcome == HIT

    @property
    def saved(self) -> float:
        """Seconds of compiling that a hit saved, less those of getting it; 0.0 for a miss."""
        got = self.seconds.get("fetched", 0.0) + self.seconds.get("loaded", 0.0)
        return max(0.0, self.compile_seconds - got) if self.is_hit else 0.0

    @property
    def began(self) -> float:
        """The time at which the program's first phase began, in seconds since the epoch."""
        return self.time - sum(self.seconds.values())


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
    versions: Mapping[str, str] = _NOTHING
    settings: Mapping[str, str] = _NOTHING


class ReuseNote(NamedTuple):
    """What reuse did with one question of a function.

    Attributes:
        function: module and qualified name.
        did: `recorded`, `proven`, `compared`, `reused`, `traced`, `plain` or `wrong`.
        sentence: why, for a person.
        parts: of what was asked, by what a person calls them: a short digest of each.
        url: the cache.
        process: its number.
        time: seconds since the epoch.
    """

    function: str = ""
    did: str = ""
    sentence: str = ""
    parts: Mapping[str, str] = _NOTHING
    url: str = ""
    process: int = 0
    time: float = 0.0

    @property
    def words(self) -> str:
        """`traced and recorded, because nothing was recorded for this word, code and call`."""
        return f"{_DID.get(self.did, self.did)}, because {self.sentence}"


_DID: Final = {
    "recorded": "traced and recorded",
    "proven": "traced and proven",
    "compared": "traced and compared",
    "plain": "traced, and is not recorded",
    "wrong": "traced, and nothing is reused any more",
}


class StartRecord(NamedTuple):
    """What one process has recorded."""

    process: Process = Process()
    programs: Sequence[ProgramRecord] = ()
    trouble: Mapping[str, int] = _NOTHING
    dropped: int = 0
    reuse: Sequence[ReuseNote] = ()
    counts: Mapping[str, float] = _NOTHING
    caches: Mapping[str, str] = _NOTHING
    disabled: str = ""
    uses: Mapping[str, EntryUse] = _NOTHING
    at: float = 0.0


def encode_line(record: StartRecord) -> bytes:
    """Return the line of a part of a process's record, without a line break."""
    usual = _DEFAULTS[Process]
    body: dict[str, Any] = {
        "process": {name: value for name, value in record.process._asdict().items() if value != usual[name]},
        "programs": [_filled_fields(program) for program in record.programs],
        "trouble": dict(record.trouble),
        "dropped": record.dropped,
        "reuse": [note._asdict() for note in record.reuse],
        "counts": dict(record.counts),
        "caches": dict(record.caches),
        "disabled": record.disabled,
        "uses": dict(record.uses),
        "at": record.at,
    }
    filled = {name: value for name, value in body.items() if value or name == "process"}
    return json.dumps({"v": _VERSION, **filled}, separators=(",", ":")).encode()


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
        if body["v"] == _VERSION:
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
                uses={check_key(key): _check_use(*use) for key, use in body.get("uses", {}).items()},
            )
    return None


def decode_program(fields: Mapping[str, Any]) -> ProgramRecord:
    """Return a program of a line; raises one of `MALFORMED` if it is none."""
    program: ProgramRecord = _check_tuple(ProgramRecord, fields)
    return program


def _filled_fields(program: ProgramRecord) -> dict[str, Any]:
    filled = {name: value for name, value in program._asdict().items() if value}
    if program.seconds:
        filled["seconds"] = {phase: round(seconds, 6) for phase, seconds in program.seconds.items()}
    return filled


def _check_tuple(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Make a tuple of this kind; raises one of `MALFORMED` if a field has another type, as a log on disk may."""
    known = _DEFAULTS[kind]
    given = {name: value for name, value in fields.items() if name in known}
    for name, value in given.items():
        is_mapping = known[name] is _NOTHING
        is_text = name not in _NUMBERS if is_mapping else isinstance(known[name], str)
        for each in value.values() if is_mapping else (value,):
            if not (isinstance(each, str) if is_text else abs(each) < _LARGEST_NUMBER):
                raise ValueError(f"{name} cannot be {each!r}")
    return kind(**given)


def _check_use(when: float, times: int, worth: float | None) -> EntryUse:
    if not (abs(when) < _LARGEST_NUMBER and 0 <= times < _LARGEST_NUMBER and abs(worth or 0.0) < _LARGEST_NUMBER):
        raise ValueError(f"no use is {when!r}, {times!r}, {worth!r}")
    return EntryUse(float(when), int(times), None if worth is None else float(worth))


def joined_uses(parts: Iterable[Mapping[str, EntryUse]]) -> dict[str, EntryUse]:
    """Return the uses of each key in all of these together."""
    joined: dict[str, EntryUse] = {}
    for part in parts:
        for key, use in part.items():
            joined[key] = joined[key].joined(use) if key in joined else use
    return joined


_DEFAULTS: Final = {kind: kind()._asdict() for kind in (Process, ProgramRecord, ReuseNote, StartRecord)}
_NUMBERS: Final = {"seconds", "counts"}
_COUNTED: Final = {"counts", "caches", "disabled", "at"}
