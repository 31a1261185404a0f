"""Encodes lines of start records: what each process of this user compiled and loaded here, how long, and why.

    log      := lines in `starts.jsonl` of the user's directory (an `AppendedLog`); one process writes each
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
      differences a list of what `--compare` has found (`differences`); only there
      overruled  which options of `ejcache run` had no effect, in a sentence; only there
      reuse    a list of what reuse did with functions: the fields of `ReuseNote`; only if there is any

A process appends a line after each miss, each minute, and when it ends, in the background; a killed one loses what came
after the last. A line that is damaged, or of another version, is skipped. On shared storage these lines are in usage
journals (`journal/format.py`). Nothing but reports and explanations reads any of this (`start_records`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class EntryUse(NamedTuple):
    """What a process says of the uses of an entry.

    Attributes:
        when: the last one, in seconds since the epoch; 0 if it only says what the entry is worth.
        times: how many there were.
        worth: the seconds of compiling that one use saves (`stores.worth.worth_of_use`), which who stores the entry
            says once: it is in the entry's header, and a pass over a bucket reads no entry. None if nobody has said it.
    """

    when: float
    times: int = 1
    worth: float | None = None

    def joined(self, other: EntryUse) -> EntryUse:
        """Join two uses: the later time, all uses, and the worth that was said last."""
        later, earlier = (self, other) if self.when >= other.when else (other, self)
        worth = earlier.worth if later.worth is None else later.worth
        return EntryUse(later.when, self.times + other.times, worth)


def joined_uses(parts: Iterable[Mapping[str, EntryUse]]) -> dict[str, EntryUse]:
    """Return the uses of each key in all of these together."""
    joined: dict[str, EntryUse] = {}
    for part in parts:
        for key, use in part.items():
            joined[key] = joined[key].joined(use) if key in joined else use
    return joined


_DID: Final = {
    "recorded": "traced and recorded",
    "proven": "traced and proven",
    "compared": "traced and compared",
    "plain": "traced, and is not recorded",
    "wrong": "traced, and nothing is reused any more",
}


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
    parts: Mapping[str, str] = {}
    url: str = ""
    process: int = 0
    time: float = 0.0

    @property
    def words(self) -> str:
        """`traced and recorded, because nothing was recorded for this word, code and call`."""
        return f"{_DID.get(self.did, self.did)}, because {self.sentence}"


HIT: Final = "hit"
"""The outcome of a program that was loaded."""
STORED: Final = "stored"
"""The outcome of a compilation whose executable was stored."""
PHASES: Final = ("traced", "lowered", "keyed", "fetched", "loaded", "waited", "compiled", "stored", "lost")
"""What the time of a program went into, in this order. `waited` is for other processes and ranks, `lost` for storage
that failed."""
MOST_RECORDED: Final = 1 << 20
"""Bytes of lines in one journal on shared storage; one with more was not written by ejcache."""
VERSION: Final = 1
_ALONE: Final = ("ranks", 1)
"""The one field of a process whose default is not empty."""
NOTHING: Final[Mapping[str, Any]] = {}


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
    seconds: Mapping[str, float] = NOTHING
    preloaded: bool = False
    components: Mapping[str, str] = NOTHING
    details: Mapping[str, str] = NOTHING
    signature: str = ""
    module: str = ""


def encode_line(
    process: Mapping[str, Any],
    programs: Iterable[ProgramRecord] = (),
    trouble: Mapping[str, int] = NOTHING,
    dropped: int = 0,
    reuse: Iterable[ReuseNote] = (),
    counts: Mapping[str, float] = NOTHING,
    caches: Mapping[str, str] = NOTHING,
    disabled: str = "",
    overruled: str = "",
    uses: Mapping[str, EntryUse] = NOTHING,
    at: float = 0.0,
    differences: Iterable[Mapping[str, Any]] = (),
) -> bytes:
    """Return the line of a part of a process's record, without a line break.

    The arguments are the fields of a `start_records.StartRecord`; those of its `Process` are by name.
    """
    body: dict[str, Any] = {
        "process": {name: value for name, value in process.items() if value and (name, value) != _ALONE},
        "programs": [_filled_fields(program) for program in programs],
        "trouble": dict(trouble),
        "dropped": dropped,
        "reuse": [note._asdict() for note in reuse],
        "counts": dict(counts),
        "caches": dict(caches),
        "disabled": disabled,
        "overruled": overruled,
        "uses": dict(uses),
        "at": at,
        "differences": list(differences),
    }
    filled = {name: value for name, value in body.items() if value or name == "process"}
    return json.dumps({"v": VERSION, **filled}, separators=(",", ":")).encode()


def _filled_fields(program: ProgramRecord) -> dict[str, Any]:
    filled = {name: value for name, value in program._asdict().items() if value}
    if program.seconds:
        filled["seconds"] = {phase: round(seconds, 6) for phase, seconds in program.seconds.items()}
    return filled


def saved_seconds(program: ProgramRecord) -> float:
    """Return the seconds of compiling that a hit saved, less those of getting it; 0.0 for a miss."""
    return max(0.0, program.compile_seconds - seconds_to_get(program)) if program.outcome == HIT else 0.0


def seconds_to_get(program: ProgramRecord) -> float:
    """Return the seconds that getting a hit took."""
    return program.seconds.get("fetched", 0.0) + program.seconds.get("loaded", 0.0)
