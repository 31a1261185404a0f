"""The files of a record: what was imported and opened up to the end of its trace, and whether it is the same now.

    manifest := an object of:
      modules        name of a module of the project, or of one that the trace imported → digest of its file, or null:
                     it could not be imported
      files          place → digest of a file or directory that the trace opened, or null: it was not there
      distributions  name → digest of its state, see `owners`

    place := "project:" path below the project | "cwd:" path below the working directory | "path:" absolute path;
             with "dir:" before it for a directory that was listed

The paths are those of the project, so that it may lie in another directory at each start. Which modules happen to be
imported when a record is compared does not count: their files are looked for as an import would.

One audit hook sees what a trace opens, lists and imports. It is installed at the first recording, and does nothing
outside of one: CPython cannot remove it. What is asked of a file without opening it (whether it is there, how large,
how old) raises no event, and is not seen.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from ejcache.direct.files.owners import (
    ALWAYS_LIBRARIES,
    directory_digest,
    distribution_named,
    distribution_of,
    distribution_state,
    file_digest,
    loaded_distributions,
    module_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ejcache.direct.files.owners import Owners


__all__ = ["Opened", "directory_digest", "file_digest", "make_manifest", "manifest_difference", "recorded"]

_WRITING: Final = os.O_WRONLY | os.O_RDWR
_READ_MODES: Final = ("r", "+")
_SYSTEM: Final = ("/proc/", "/sys/")
_EMPTY: Final = ("/dev/null", "/dev/random", "/dev/urandom", "/dev/tty")


class Opened:
    """What a recording saw.

    Attributes:
        files: absolute paths of files that were opened to be read.
        directories: absolute paths of directories that were listed.
        modules: names that were imported.
        unpickled: modules of which something was unpickled.
        refusal: what cannot be compared afterwards; empty if there is nothing.
        paused: something is done that is not the program's trace.
    """

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.directories: dict[str, None] = {}
        self.modules: dict[str, None] = {}
        self.unpickled: dict[str, None] = {}
        self.refusal = ""
        self.paused = False

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an event of Python's audit."""
        if event == "import":
            self.modules[str(arguments[0])] = None
        elif event == "open":
            path, mode, flags = arguments
            reads = any(each in mode for each in _READ_MODES) if isinstance(mode, str) else not flags & os.O_WRONLY
            if reads and not (isinstance(mode, str) and "w" in mode):
                self._add(self.files, path)
        elif event in {"os.listdir", "os.scandir"}:
            self._add(self.directories, "." if arguments[0] is None else arguments[0])
        elif event == "pickle.find_class":
            self.unpickled[str(arguments[0])] = None
        elif event in _UNKNOWN:
            self.refusal = f"tracing starts another program, or asks for this machine's name ({event})"
        elif event in {"sqlite3.connect", "ctypes.dlopen"}:
            self._add(self.files, arguments[0])

    def _add(self, found: dict[str, None], path: Any) -> None:
        if isinstance(path, int) or path is None:
            return  # a descriptor: the file was opened before
        with contextlib.suppress(TypeError, ValueError, OSError):
            absolute = os.path.abspath(os.fsdecode(path))
            if absolute.startswith(_SYSTEM):
                self.refusal = f"tracing reads {absolute}, which is about this machine or process"
            elif not absolute.startswith(_EMPTY):
                found[absolute] = None


class _Recording(threading.local):
    current: Opened | None = None


_here: Final = _Recording()
_installed = False
_lock: Final = threading.Lock()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    opened = _here.current
    if opened is not None and not opened.paused and event in _EVENTS:
        opened.note(event, arguments)


_UNKNOWN: Final = frozenset(
    {"os.exec", "os.fork", "os.posix_spawn", "os.system", "socket.gethostname", "subprocess.Popen"}
)
_EVENTS: Final = _UNKNOWN | {
    *("import", "open", "os.listdir", "os.scandir", "sqlite3.connect", "ctypes.dlopen", "pickle.find_class")
}


@contextlib.contextmanager
def recorded() -> Iterator[Opened]:
    """Within the block, note what this thread opens."""
    global _installed
    with _lock:
        if not _installed:
            sys.addaudithook(_audit)
            _installed = True
    opened, before = Opened(), _here.current
    _here.current = opened
    try:
        yield opened
    finally:
        _here.current = before


def make_manifest(owners: Owners, opened: Opened, root: str) -> dict[str, dict[str, str | None]]:
    """The manifest of a trace that has just ended.

    Args:
        owners: tells the project's modules.
        opened: what the trace opened.
        root: the directory of the project.
    """
    imported = owners.modules()
    absent = [name for name in opened.modules if name not in sys.modules and _find(name) is None]
    late = [name for name in opened.modules if _is_late(module_file(name) or "")]
    files: dict[str, str | None] = {}
    modules = {path for name in imported if (path := module_file(name))}
    for path in opened.files:
        if path not in modules and owners.is_data_file(path):
            files[_place(path, root)] = file_digest(path)
    for path in opened.directories:
        if owners.is_data_file(os.path.join(path, "")):
            files[f"dir:{_place(path, root)}"] = directory_digest(path)
    distributions = {
        name: distribution_state(distribution, loaded)
        for name, (distribution, loaded) in loaded_distributions().items()
        if not distribution.is_project
    }
    return {
        "modules": {name: _module_digest(name) for name in (*imported, *late)} | dict.fromkeys(absent),
        "files": files,
        "distributions": dict(distributions),
    }


def _is_late(path: str) -> bool:
    """Whether what the trace imports is of a library that keys do not name: nobody has compared its file before."""
    distribution = distribution_of(path)
    return distribution is not None and distribution.name not in ALWAYS_LIBRARIES


def manifest_difference(manifest: Mapping[str, Mapping[str, Any]], root: str) -> str | None:
    """The first file that is not as a manifest has it, in words; None if all are.

    Args:
        manifest: of a record.
        root: the directory of the project now.
    """
    for name, digest in manifest["modules"].items():
        if _module_digest(name) != digest:
            return f"the module {name} changed"
    for place, digest in manifest["files"].items():
        path = _path(place.removeprefix("dir:"), root)
        now = directory_digest(path) if place.startswith("dir:") else file_digest(path)
        if now != digest:
            return f"{path} changed, which was read while tracing"
    loaded = loaded_distributions() if manifest["distributions"] else {}
    for name, digest in manifest["distributions"].items():
        distribution, files = loaded.get(name) or (distribution_named(name), [])
        if distribution is None or distribution_state(distribution, files) != digest:
            return f"the distribution {name} changed"
    return None


def _place(path: str, root: str) -> str:
    for kind, directory in (("project", root), ("cwd", os.getcwd())):
        if path == directory or path.startswith(os.path.join(directory, "")):
            return f"{kind}:{os.path.relpath(path, directory)}"
    return f"path:{path}"


def _path(place: str, root: str) -> str:
    kind, _, path = place.partition(":")
    return path if kind == "path" else os.path.normpath(os.path.join(root if kind == "project" else os.getcwd(), path))


def _module_digest(name: str) -> str | None:
    path = module_file(name) or _find(name)
    return None if path is None else file_digest(path)


def _find(name: str) -> str | None:
    """The file that an import of a module would find. Nothing is imported."""
    search: Any = None
    path: str | None = None
    above = ""
    for part in name.split("."):
        above = f"{above}.{part}" if above else part
        loaded = sys.modules.get(above)
        if loaded is not None:
            path, search = getattr(loaded, "__file__", None), getattr(loaded, "__path__", None)
            continue
        found = next(filter(None, (_spec(finder, above, search) for finder in sys.meta_path)), None)
        if found is None:
            return None
        path, search = found.origin, found.submodule_search_locations
    return path if path is not None and os.path.isabs(path) else None


def _spec(finder: Any, name: str, search: Any) -> Any:
    try:
        return finder.find_spec(name, search)
    except Exception:
        return None  # a finder of the program's
