"""Plain helpers that several test files use; fixtures are in conftest.py."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ejcache.journal.line import EntryUse, encode_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ejcache.bucket.base import Bucket
    from ejcache.journal.start_records import StartRecord
    from ejcache.stores.documents import Documents

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

SUPPORT = ROOT / "tests" / "support"
"""Modules that tests share, and that programs of tests import."""

SMALL_SUITE = "-p no:cacheprovider -p no:hypothesispytest -p no:jaxtyping"
"""Options of a pytest that a test starts: without plug-ins that import libraries which its tests do not use."""

CLEARED = ("EJCACHE_", "EASYDEL_", "EJKERNEL_", "FSSPEC_", "JAX_", "XLA_", "LIBTPU_", "NEURON_")
"""Beginnings of the variables that would change what a test sees."""
CLEARED_NAMES = (
    "ALLOW_FULL_CACHE",
    "AWS_ENDPOINT_URL",
    "COMPILE_FUNC_DIR",
    "EJCACHE",
    "FORCE_COLOR",
    "NO_COLOR",
    "PYTHONWARNINGS",
    "STORAGE_EMULATOR_HOST",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
)


def variables_to_clear(environment: Mapping[str, str]) -> list[str]:
    """Names in `environment` that a test must not inherit from the person who runs it."""
    return [name for name in environment if name.startswith(CLEARED) or name in CLEARED_NAMES]


@dataclass(frozen=True)
class Finished:
    """How a program ended."""

    returncode: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return f"exit {self.returncode}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def run_program(
    arguments: list[str | os.PathLike[str]],
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    check: bool = True,
    timeout: float = 240.0,
    input: str | None = None,  # noqa: A002  # as subprocess.run has it
    start: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
) -> Finished:
    """Run a program with this environment, changed by `env` (None removes a variable).

    With `check`, an exit status other than 0 fails the test and shows both streams. `start` starts it as
    `subprocess.Popen` does.
    """
    with start(
        [os.fspath(argument) for argument in arguments],
        env={name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None},
        cwd=cwd,
        stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            printed, said = process.communicate(input, timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    finished = Finished(process.returncode, printed, said)
    assert not check or process.returncode == 0, f"{arguments}\n{finished}"
    return finished


def python_command(code_or_path: str | os.PathLike[str], *arguments: str) -> list[str | os.PathLike[str]]:
    """The command that runs a program text (anything with a line break or a space) or a program file."""
    text = os.fspath(code_or_path)
    is_file = isinstance(code_or_path, os.PathLike) or (text.endswith(".py") and "\n" not in text)
    return [sys.executable, *([text] if is_file else ["-c", text]), *arguments]


@contextmanager
def traced_memory() -> Iterator[list[int]]:
    """The most bytes that objects of Python have taken in this block, in the list when it has ended."""
    peak: list[int] = []
    tracemalloc.start()
    try:
        yield peak
    finally:
        peak.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


def local_documents(path: str | os.PathLike[str], *, read_only: bool = False) -> Documents:
    """Documents in a directory of a local disk."""
    from ejcache.bucket.files import FileBucket
    from ejcache.stores.documents import Documents

    return Documents(FileBucket(path, local=True, documents=True), read_only=read_only)


def used_in(objects: Bucket) -> dict[str, float]:
    """When each entry was last used, by the snapshot and the journals in `objects`."""
    from ejcache.journal.fold import compact
    from ejcache.maintenance.listed_entries import Listing

    listing = Listing()
    compact(objects, listing, dry_run=True)
    return {key: use.when for key, use in listing.uses()}


def uses(times: Mapping[str, float]) -> dict[str, EntryUse]:
    """One use of each key, at that time."""
    return {key: EntryUse(float(when)) for key, when in times.items()}


def raiser(error: BaseException) -> Callable[..., object]:
    """A function that raises this, whatever it is called with."""

    def fail(*_: object, **__: object) -> object:
        raise error

    return fail


def line_of(record: StartRecord) -> bytes:
    """The line of a start record."""
    return encode_line(record.process._asdict(), *record[1:])
