"""Describes what the last runs of a program used, in the order of first use. Pure functions.

It is stored as an entry of kind "run_profile" under `keys.key.run_profile_key`. Its payload (version 1):

    payload      := JSON, an object of:
      version      1
      options      a list of compile options, in base64, without paths of caches (`without_cache_paths`)
      environments an object: name of an environment → a list of programs
    program      := an object of:
      key          the entry's key
      size         bytes of the serialised executable; 0 if not known
      seconds      what loading took; 0 if not known
      quick        the seconds that it took to compile, if that was too quick for it to be published; otherwise 0
      options      index into `options`; -1 for a program that is stored nowhere
      devices      ids of the devices, in the order of the device assignment
      unused       how many runs in a row did not use it

An environment is what compiles and runs the programs: backend, versions, kinds and number of devices, flags. One
profile holds several, because the machines that run a program from one bucket may differ.

Unknown fields are ignored. A profile of a later version, or a damaged one, is none: the next run writes a new one. No
program is in a profile that was seen with host callbacks: without them, its executable crashes the process.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ejcache.errors import MALFORMED, EntryCorruptError
from ejcache.util.store_keys import check_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

RUN_PROFILE_KIND: Final = "run_profile"
"""`kind` in the header of the stored object."""
MAX_PAYLOAD: Final = 2 << 20
"""Bytes of a payload; a larger one is not decoded."""
_VERSION: Final = 1
_MAX_PROGRAMS: Final = 4096
_MAX_ENVIRONMENTS: Final = 4
_MAX_OPTIONS: Final = 64 << 10
"""Bytes of one program's compile options; a program with more (a PGLE profile is in them) is not preloaded."""
_MAX_DEVICES: Final = 1024
_FORGOTTEN_AFTER: Final = 3
"""A program leaves the profile when so many runs in a row did not use it."""


class ProgramUse(NamedTuple):
    """A program that a run used.

    Attributes:
        key: its entry's key.
        size: bytes of the serialised executable; 0 if not known.
        seconds: what loading took; 0.0 if not known.
        quick: the seconds that it took to compile, if it was too quick to be published; otherwise 0.0.
        stored: whether some host has its entry, or shared storage does.
        options: its compile options, without paths of caches.
        devices: ids of its devices, in the order of the device assignment.
        unused: how many runs in a row did not use it.
    """

    key: str
    size: int = 0
    seconds: float = 0.0
    quick: float = 0.0
    stored: bool = True
    options: bytes = b""
    devices: tuple[int, ...] = ()
    unused: int = 0

    def is_as(self, other: ProgramUse) -> bool:
        """True if the next run does the same with either."""
        mine, others = (use._replace(size=0, seconds=0.0, quick=float(use.quick > 0)) for use in (self, other))
        return mine == others


class RunProfile(NamedTuple):
    """What the last runs used, for each environment; the environment that was written last comes last."""

    environments: Mapping[str, tuple[ProgramUse, ...]] = {}


def merge(profile: RunProfile, environment: str, used: Sequence[ProgramUse]) -> RunProfile:
    """Return the profile after a run that used these programs, in this order, in this environment.

    Programs that it did not use follow, until `_FORGOTTEN_AFTER` runs in a row have not used them. A run that used less
    than half as many programs as the profile has, such as one that failed early, says nothing about the others.
    """
    known = {use.key: use for use in profile.environments.get(environment, ())}
    fitting = [use for use in used if len(use.options) <= _MAX_OPTIONS and len(use.devices) <= _MAX_DEVICES]
    keys = {use.key for use in used}
    counts = 2 * len(keys) >= len(known)
    left = [use._replace(unused=use.unused + 1) if counts else use for key, use in known.items() if key not in keys]
    programs = [_complete(use, known.get(use.key)) for use in fitting]
    programs += [use for use in left if use.unused < _FORGOTTEN_AFTER]
    others = {name: uses for name, uses in profile.environments.items() if name != environment}
    kept = list(others.items())[-(_MAX_ENVIRONMENTS - 1) :]
    return RunProfile({**dict(kept), environment: tuple(programs[:_MAX_PROGRAMS])})


def _complete(use: ProgramUse, known: ProgramUse | None) -> ProgramUse:
    """Return `use`, with what an earlier run knew: this one has compiled the program, and did not load it."""
    if known is None or use.seconds:
        return use
    if not use.stored:
        # Each host keeps what compiles slowly enough there. Without this, each new host would write the profile anew,
        # because a few programs always are about as slow as the floor.
        return known._replace(quick=use.quick, unused=0) if known.stored and known.quick else use
    return use._replace(size=use.size or known.size, seconds=known.seconds)


def differs(profile: RunProfile, other: RunProfile, environment: str) -> bool:
    """True if a run in this environment would do something else with the other profile."""
    mine = profile.environments.get(environment, ())
    others = {use.key: use for use in other.environments.get(environment, ())}
    return len(mine) != len(others) or any(use.key not in others or not use.is_as(others[use.key]) for use in mine)


def encode_profile(profile: RunProfile) -> bytes:
    """Return the payload; programs at the end of the longest list are left out until it is small enough."""
    environments = {name: list(uses) for name, uses in profile.environments.items()}
    while True:
        payload = _encode(environments)
        longest = max(environments.values(), key=len, default=[])
        if len(payload) <= MAX_PAYLOAD or not longest:
            return payload
        del longest[len(longest) // 2 :]


def _encode(environments: Mapping[str, Iterable[ProgramUse]]) -> bytes:
    options: dict[bytes, int] = {}

    def fields(use: ProgramUse) -> dict[str, Any]:
        return {
            "key": use.key,
            "size": use.size,
            "seconds": round(use.seconds, 6),
            "quick": round(use.quick, 6),
            "options": -1 if not use.stored else options.setdefault(use.options, len(options)),
            "devices": list(use.devices),
            "unused": use.unused,
        }

    written = {name: [fields(use) for use in uses] for name, uses in environments.items()}
    encoded = [base64.b64encode(each).decode() for each in options]
    about = {"version": _VERSION, "options": encoded, "environments": written}
    return json.dumps(about, separators=(",", ":"), sort_keys=False).encode()


def decode_profile(payload: bytes) -> RunProfile:
    """Read the run profile in a payload.

    Raises:
        EntryCorruptError: it is not one, or one of a later version.
    """
    if len(payload) > MAX_PAYLOAD:
        raise EntryCorruptError(f"a run profile of {len(payload)} bytes, and at most {MAX_PAYLOAD} are read")
    try:
        about = json.loads(payload.decode("ascii"))
        if about["version"] != _VERSION:
            raise EntryCorruptError("a run profile of a later version")
        options = [base64.b64decode(text, validate=True) for text in about["options"]]
        environments = {
            _text(name): tuple(_program(fields, options) for fields in programs[:_MAX_PROGRAMS])
            for name, programs in list(about["environments"].items())[-_MAX_ENVIRONMENTS:]
        }
    except MALFORMED as exc:
        raise EntryCorruptError("the payload is not a run profile") from exc
    return RunProfile(environments)


def _program(fields: dict[str, Any], options: list[bytes]) -> ProgramUse:
    devices = fields["devices"]
    if type(devices) is not list or len(devices) > _MAX_DEVICES:
        raise ValueError(fields)
    index = _number(fields["options"], least=-1)
    return ProgramUse(
        key=check_key(fields["key"]),
        size=_number(fields["size"]),
        seconds=_seconds(fields["seconds"]),
        quick=_seconds(fields["quick"]),
        stored=index >= 0,
        options=options[index] if index >= 0 else b"",
        devices=tuple(_number(device) for device in devices),
        unused=_number(fields["unused"]),
    )


def _seconds(value: Any) -> float:
    if type(value) not in {int, float} or not 0.0 <= value < 1e9:
        raise ValueError(value)
    return float(value)


def _number(value: Any, *, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 53:
        raise ValueError(value)
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > 200 or not value.isascii() or not value.isprintable():
        raise ValueError(value)
    return value
