"""Where the run profile of this program is kept, what names it (`entry_point`), and when it is written."""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from ejcache import entry
from ejcache.errors import EntryCorruptError
from ejcache.jax_integration.lowering.key import compiler_environment
from ejcache.jax_integration.preload.run_profile import (
    MAX_PAYLOAD,
    RUN_PROFILE_KIND,
    RunProfile,
    decode_profile,
    differs,
    encode_profile,
    merge,
)
from ejcache.keys.key import run_profile_key
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ejcache.cache.policy import CachePolicy
    from ejcache.jax_integration.preload.run_profile import ProgramUse
    from ejcache.settings.table import Settings
    from ejcache.stores.base import TwoTiers


def environment(client: Any, settings: Settings) -> str:
    """Names what compiles and runs the programs: platform, versions, flags, kinds and number of devices."""
    return f"{client.platform}-{compiler_environment(client, settings)}-{client.local_device_count()}"


def note_below_floor(store: TwoTiers, uses: Iterable[ProgramUse]) -> None:
    """Tell this host which programs are not on shared storage, so that nobody asks for them."""
    for use in uses:
        if use.quick and not store.is_below_floor(use.key, math.inf):
            store.note_below_floor(use.key, use.quick)


class ProfileKeeper:
    """The run profile of this process's program in one cache, as it was when this run began.

    Args:
        policy: of the cache.
        settings: those that hold for reading and writing it: a program may have changed them when it ends.

    Raises:
        StoreError: the storage failed.
    """

    def __init__(self, policy: CachePolicy, settings: Settings) -> None:
        self._policy = policy
        self._key = run_profile_key(*entry_point(), jax.__version__, settings.namespace)
        self._settings = settings
        self._before = self._read()
        self._stored = self._before

    @property
    def knows_any(self) -> bool:
        """Whether there was a run before, in whatever environment."""
        return bool(self._before.environments)

    def uses(self, environment: str) -> tuple[ProgramUse, ...]:
        """What the last runs used in this environment, in the order of first use."""
        return self._before.environments.get(environment, ())

    def write(self, used: Mapping[str, Sequence[ProgramUse]]) -> None:
        """Store what this run has used so far, by environment, if the next run would do something else with it."""
        now = self._before
        for name, uses in used.items():
            now = merge(now, name, uses)
        if not any(differs(self._stored, now, name) for name in used):
            return
        header = entry.Header(key=self._key, kind=RUN_PROFILE_KIND, jax=jax.__version__)
        if self._policy.write_beside(header, encode_profile(now), self._settings):
            self._stored = now

    def _read(self) -> RunProfile:
        raw = self._policy.read_beside(self._key, RUN_PROFILE_KIND, self._settings, max_size=MAX_PAYLOAD)
        if raw is None:
            return RunProfile()
        try:
            return decode_profile(raw)
        except EntryCorruptError as exc:
            # The end of this run replaces it.
            log.debug("ejcache: the run profile %s cannot be read: %s", self._key, exc)
            return RunProfile()


def entry_point() -> tuple[str, ...]:
    """What was started: a script by its path, a module by its name, a `-c` text by its digest.

    What is installed with the interpreter (console scripts, `-m pytest`, `-m ipykernel`) and what has no file runs many
    programs, which the working directory tells apart. A child process of `multiprocessing` is a program of its own:
    it runs a part of what its parent does.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    child = "child" if _is_multiprocessing_child() else ""
    if isinstance(file, str) and file:
        path = Path(file).absolute()
        module = str(getattr(spec, "name", None) or "")
        return "file", str(path), module, child, _directory() if _is_installed(path) else ""
    return "text", _digest_of_text(), "", child, _directory()


def _is_installed(path: Path) -> bool:
    prefixes = {Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    return "site-packages" in path.parts or any(path.is_relative_to(prefix) for prefix in prefixes)


def _is_multiprocessing_child() -> bool:
    # Not imported for this: each child of multiprocessing has imported it.
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def _digest_of_text() -> str:
    arguments = list(getattr(sys, "orig_argv", ()))
    for place, argument in enumerate(arguments[:-1]):
        if argument == "-c":
            return hashlib.sha256(arguments[place + 1].encode("utf-8", "surrogateescape")).hexdigest()
    return ""


def _directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""
