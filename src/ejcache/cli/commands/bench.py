"""`ejcache bench`: how a program starts without a cache, with JAX's own, and with ejcache.

Each contestant has caches of its own in a temporary directory. In every round each of them starts once, in turn, so
that a machine that is busy for a while slows all of them down. What the program prints is compared, because a start
that gives another result proves nothing.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from ejcache.cli import output
from ejcache.cli.commands.run import BEFORE_A_PROGRAM
from ejcache.cli.options import Json, argument, option, positive
from ejcache.cli.starting import command_of
from ejcache.errors import EjcacheError
from ejcache.settings.described import SETTINGS
from ejcache.settings.directories import default_directory, user_file
from ejcache.settings.environment import all_variables
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REGISTRATION: Final = {"bench": BEFORE_A_PROGRAM}
"""How the application registers `bench`."""
_OFF: Final = {"EJCACHE": "0"}
_JAX: Final = {**_OFF, "JAX_COMPILATION_CACHE_DIR": "jax"}
_FLOORLESS: Final = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
_CONTESTANTS: Final[Mapping[str, Mapping[str, str]]] = {
    "no cache": {**_OFF, "JAX_ENABLE_COMPILATION_CACHE": "0"},
    "JAX, defaults": _JAX,
    "JAX, floor 0": {**_JAX, **_FLOORLESS, "JAX_COMPILATION_CACHE_DIR": "jax-0"},
    "ejcache, cold": {"EJCACHE": "cold"},
    "ejcache, warm": {"EJCACHE": "warm"},
}
"""The variables of each contestant; a value that names a directory is one below the temporary directory."""
_OTHERS: Final = frozenset({"ALLOW_FULL_CACHE", "EASYDEL_CACHE_COMPILES"})
"""Variables, besides those of the settings, that change what is cached."""
_DIRECTORIES: Final = frozenset({"jax", "jax-0", "cold", "warm"})
_FILLING: Final = {"JAX, defaults": 1, "JAX, floor 0": 1, "ejcache, warm": 2}
"""Starts that are not timed: the first one compiles, and the second one of ejcache notes what a warm start uses."""


def bench(
    program: Annotated[
        list[str] | None,
        argument("PROGRAM ARGS", "A script, -m MODULE or -c CODE, as after `python`; or a command."),
    ] = None,
    rounds: Annotated[str, option("--rounds", "N", "How often the program starts with each cache.")] = "5",
    as_json: Json = False,
) -> int:
    """Time the starts of a program without a cache, with JAX's own cache, and with ejcache, cold and warm.

    Nothing is read from or written to your caches, unless the program itself or the configuration file of the host
    names one. The program should end by itself, and do the same at each start, for example a few training steps. Exits
    with 1 if a start failed, or if a cache changes the output of the program.
    """
    number = positive(rounds, option="--rounds")
    command = command_of(program or [])
    starts = number * len(_CONTESTANTS) + sum(_FILLING.values())
    seconds: dict[str, list[float]] = {name: [] for name in _CONTESTANTS}
    outputs: dict[str, set[bytes]] = {name: set() for name in _CONTESTANTS}
    with (
        tempfile.TemporaryDirectory(prefix="ejcache-bench-") as scratch,
        output.progress("starting", starts, quiet=as_json, after=0.0) as advance,
    ):
        start = _starter(command, Path(scratch), advance)
        for name, times in _FILLING.items():
            for _ in range(times):
                start(name, 0)
        for turn in range(number):
            for name in _CONTESTANTS:
                took, printed = start(name, turn)
                seconds[name].append(took)
                outputs[name].add(printed)
    found = _compare(seconds, outputs)
    if as_json:
        output.print_json({"command": command, "rounds": number, "contestants": found})
    else:
        _print(found, number)
    return int(any(each["same_output"] is False for each in found))


def _starter(
    command: list[str], scratch: Path, advance: Callable[[], None]
) -> Callable[[str, int], tuple[float, bytes]]:
    env = all_variables()
    homes = {
        "XDG_CACHE_HOME": _without_ours(default_directory(env).parent, scratch / "home"),
        "XDG_CONFIG_HOME": _without_ours(user_file(env).parent.parent, scratch / "configuration"),
    }
    ours = {variable for setting in SETTINGS for variable in setting.variables} | _OTHERS
    rest = {
        name: value
        for name, value in env.items()
        if name not in ours and not name.startswith("EJCACHE") and name not in homes
    }

    def start(name: str, turn: int) -> tuple[float, bytes]:
        """Return seconds from the start of the process to its end, and what it has printed."""
        own = {
            variable: f"{scratch / value}{turn if value == 'cold' else ''}/" if value in _DIRECTORIES else value
            for variable, value in _CONTESTANTS[name].items()
        }
        result = _start(command, {**rest, **homes, **own}, name)
        advance()
        return result

    return start


def _without_ours(of_user: Path, copy: Path) -> str:
    """Make a copy of a user's directory in which ejcache has nothing, and other programs have what they had."""
    with contextlib.suppress(OSError):
        copy.mkdir()
        for path in of_user.iterdir():
            if path.name != "ejcache":
                (copy / path.name).symlink_to(path)
    return str(copy)


def _start(command: list[str], env: Mapping[str, str], name: str) -> tuple[float, bytes]:
    """Run a program once; the seconds that its process took, and what it has printed."""
    began = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    took = time.monotonic() - began
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").rstrip().rpartition("\n")[2]
        raise EjcacheError(f"the program ended with {done.returncode} ({name}): {last}")
    return took, done.stdout


def _compare(seconds: Mapping[str, list[float]], outputs: Mapping[str, set[bytes]]) -> list[dict[str, Any]]:
    plain = outputs["no cache"]
    base = statistics.median(seconds["no cache"])
    return [
        {
            "name": name,
            "seconds": round(statistics.median(taken), 4),
            "least_seconds": round(min(taken), 4),
            "most_seconds": round(max(taken), 4),
            "times_faster": round(base / statistics.median(taken), 3),
            # A program that prints the time differs from itself, and so proves nothing.
            "same_output": None if len(plain) > 1 else outputs[name] == plain,
        }
        for name, taken in seconds.items()
    ]


def _print(found: list[dict[str, Any]], rounds: int) -> None:
    words = {None: "varies", True: "same", False: "DIFFERS"}
    rows = []
    for each in found:
        spread = (f"{each[name]:.2f} s" for name in ("seconds", "least_seconds", "most_seconds"))
        rows.append([each["name"], *spread, f"{each['times_faster']:.2f}x", words[each["same_output"]]])
    columns = ("", "median", "least", "most", "no cache ÷ it", "output")
    output.print_table(columns, rows, right=columns[1:5])
    output.say(f"\n{plural(rounds, 'start')} of each, in turn; whole processes")
    if found[0]["same_output"] is None:
        output.say("the program prints something else at each start, so its results were not compared")
