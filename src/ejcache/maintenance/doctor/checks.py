"""What a check of `ejcache doctor` finds, and the checks of this installation rather than of a place for a cache."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import resource
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ejcache.settings.environment import environment_variable
from ejcache.util.worker_processes import python_of_ours

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.settings.table import Settings


class CheckVerdict(StrEnum):
    """The verdict of a check. Codes are append-only."""

    OK = "ok"
    """It was tried and it works."""
    WARNING = "warning"
    """It works, but not as it should."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """It was not tried."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried.

    Attributes:
        name: what was tried, in a word or two.
        verdict: the verdict.
        detail: one sentence on what was observed.
        advice: one sentence on what to do; empty if there is nothing to do.
    """

    name: str
    verdict: CheckVerdict
    detail: str
    advice: str = ""


def fine(name: str, detail: str) -> Check:
    """A check that found nothing wrong."""
    return Check(name, CheckVerdict.OK, detail)


def warning(name: str, detail: str, advice: str) -> Check:
    """A check of something that works, but not as it should."""
    return Check(name, CheckVerdict.WARNING, detail, advice)


def failed(name: str, detail: object, advice: str) -> Check:
    """A check of something that does not work."""
    return Check(name, CheckVerdict.FAILED, str(detail), advice)


def skipped(name: str, why: str) -> Check:
    """A check that was not made."""
    return Check(name, CheckVerdict.SKIPPED, why)


_FEWEST_FILES: Final = 512
_JAX_SECONDS: Final = 20.0
_ASK_JAX: Final = """
try:
    import jax
except ImportError:
    print("absent")
else:
    print(jax.__version__)
    try:
        from ejcache.jax_integration.seam import patch
        print("; ".join(patch.mismatches()))
    except (ImportError, AttributeError) as exc:
        print(exc)
"""


def check_installation(settings: Settings) -> Iterator[Check]:
    """Whether this JAX, JAX's plug-ins, the settings and the limits of processes are as ejcache needs them.

    Args:
        settings: the settings of this command.
    """
    yield _jax(tuple(python_of_ours("-c", _ASK_JAX)))
    yield _plug_in()
    problems = "; ".join(str(problem) for problem in settings.problems)
    if problems:
        yield warning("settings", problems, "correct them; ejcache config shows what is used instead")
    else:
        yield fine("settings", "every variable and file could be read")
    yield _open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


@functools.cache
def _jax(command: tuple[str, ...]) -> Check:
    """Whether JAX is built as expected, by another process: the command line does not import JAX."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_JAX_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return skipped("JAX", f"importing JAX took longer than {_JAX_SECONDS:.0f} s, so its version is not known")
    except OSError as exc:
        return skipped("JAX", f"{command[0]} could not be started to import JAX: {exc.strerror or exc}")
    version, _, rest = done.stdout.partition("\n")
    if not version:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return warning("JAX", f"import jax fails: {why}", "repair the installation of JAX")
    if version == "absent":
        return skipped("JAX", f"JAX is not installed for {command[0]}")
    if rest.strip():
        return warning(
            "JAX",
            f"JAX {version} is not built as expected, so JAX's own cache stays in use: {rest.strip()}",
            "install versions of ejcache and JAX that fit",
        )
    return fine("JAX", f"JAX {version} is built as expected")


def _plug_in() -> Check:
    found = any(point.name == "ejcache" for point in importlib.metadata.entry_points(group="jax_plugins"))
    if not (found or importlib.util.find_spec("jax_plugins.ejcache")):
        return warning(
            "plug-in",
            "JAX does not find ejcache among its plug-ins, so EJCACHE=1 enables nothing",
            "install ejcache again",
        )
    value = environment_variable("EJCACHE")
    if value:
        return fine("plug-in", f"JAX finds it, and EJCACHE is {value}")
    return fine("plug-in", "JAX finds it; EJCACHE is not set, so programs enable the cache themselves")


def _open_files(limit: int) -> Check:
    if limit == resource.RLIM_INFINITY or limit >= _FEWEST_FILES:
        return fine("open files", "no limit" if limit == resource.RLIM_INFINITY else f"a process may open {limit:,}")
    return warning(
        "open files",
        f"a process may open {limit:,} files; a program with a cache in a bucket can need more",
        f"ulimit -n {_FEWEST_FILES}, or more, before the program starts",
    )
