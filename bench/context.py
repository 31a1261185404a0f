"""What a case is given: how much to measure, where to write, and fresh processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["ROOT", "ChildError", "Context", "child_environment", "support"]

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""

_T = TypeVar("_T")
_CLEARED = ("EJCACHE", "EASYDEL_", "EJKERNEL_", "JAX_", "XLA_", "LIBTPU_", "NEURON_", "PYTHON")
_CLEARED_NAMES = ("COMPILE_FUNC_DIR", "ALLOW_FULL_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


class ChildError(Exception):
    """A measured program failed; the message ends with what it said."""


def support(name: str) -> Any:
    """A module of the tests' servers, or of the tools."""
    for place in (str(ROOT / "tests" / "support"), str(ROOT / "tools")):
        if place not in sys.path:
            sys.path.append(place)
    return import_module(name)


def child_environment(home: Path) -> dict[str, str]:
    """This environment without the settings that change what is measured; the home directory is `home`.

    `JAX_PLATFORMS` stays as it is, and is `cpu` where it is not set.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_CLEARED) and k not in _CLEARED_NAMES}
    kept["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
    kept["HOME"] = str(home)
    kept["XDG_CACHE_HOME"] = str(home / ".cache")
    kept["PYTHONPATH"] = str(ROOT)
    kept["TF_CPP_MIN_LOG_LEVEL"] = "2"
    return kept


@dataclass(frozen=True)
class Context:
    """One run of the benchmarks.

    Attributes:
        quick: measure less, to see that everything works; the numbers are rough.
        say: shows what is going on to a person who waits.
        rounds: how often contestants that are processes take turns; what the case says if None.
        parent: directory of all that is written; the system's temporary one if None.
        kept: what cases leave for later cases of the same run, by their names.
    """

    quick: bool
    say: Callable[[str], None]
    rounds: int | None = None
    parent: Path | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    _done: list[Path] = field(default_factory=list)

    def pick(self, full: _T, quick: _T) -> _T:
        """One of the two, by how much is to be measured."""
        return quick if self.quick else full

    def turns(self, full: int, quick: int = 1) -> int:
        """How many rounds are measured of contestants that are processes."""
        return self.pick(full, quick) if self.rounds is None else self.rounds

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """A new directory that is removed by `clean_up`.

        Not sooner: a disk that is told of freed blocks is busy with them for a while, and what is measured meanwhile
        waits (3 ms for each removed file, on ext4 mounted with `discard`).
        """
        path = Path(tempfile.mkdtemp(prefix="ejcache-bench-", dir=self.parent))
        self._done.append(path)
        yield path

    def clean_up(self) -> None:
        """Remove all that was written."""
        while self._done:
            shutil.rmtree(self._done.pop(), ignore_errors=True)

    def start(
        self,
        *command: object,
        home: Path,
        env: Mapping[str, str] | None = None,
        timeout: float = 300.0,
        under: Sequence[str] = (),
    ) -> tuple[float, str]:
        """Run `python *command` in a fresh process; the seconds from its start to its end, and its standard output.

        Args:
            command: what the interpreter is given.
            home: the directory that it starts in.
            env: variables beside those of a clean environment.
            timeout: in seconds.
            under: the command that runs the interpreter, such as one that counts its instructions.

        Raises:
            ChildError: it failed, or took longer than `timeout` seconds.
        """
        arguments = [str(word) for word in command]
        environment = child_environment(home) | dict(env or {})
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [*under, sys.executable, *arguments],
                env=environment,
                cwd=home,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise ChildError(f"{arguments} did not end in {timeout:.0f} s") from exc
        if done.returncode != 0:
            raise ChildError(f"{arguments} ended with {done.returncode}: {done.stderr[-2000:]}")
        return time.perf_counter() - began, done.stdout

    def run(
        self,
        module: str,
        *arguments: object,
        home: Path,
        env: Mapping[str, str] | None = None,
        timeout: float = 300.0,
    ) -> dict[str, Any]:
        """Run `python -m module` in a fresh process, and return the JSON of the last line that it prints.

        Raises:
            ChildError: it failed, took longer than `timeout` seconds, or answered something else.
        """
        _, printed = self.start("-m", module, *arguments, home=home, env=env, timeout=timeout)
        try:
            answer = json.loads(printed.splitlines()[-1])
        except (IndexError, ValueError) as exc:
            raise ChildError(f"{module} answered no JSON: {printed[-500:]}") from exc
        if not isinstance(answer, dict):
            raise ChildError(f"{module} answered {answer!r}")
        return answer
