"""A drop-in for ejkernel's configuration store, and `install`, which puts it under an unmodified ejkernel.

    import ejcache.autotune.ejkernel as drop_in
    drop_in.install()          # before or after `import ejkernel`

From then on every executor of ejkernel chooses through our chain: what one process tunes every other one finds, in a
bucket too; what is measured is execution and never tracing; overrides and guesses are not stored as tuned.
"""

from __future__ import annotations

import importlib.machinery
import sys
from argparse import Namespace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ejcache.autotune.ejkernel_files import OperationFile, file_key, key_of_file, operation_directory
from ejcache.autotune.exchange import EJKERNEL_FILE, EJKERNEL_KEY
from ejcache.autotune.layer import warn_once
from ejcache.autotune.plain import ConfigurationError, restored, to_plain
from ejcache.autotune.records import Record, Source
from ejcache.autotune.store import default_store
from ejcache.errors import EjcacheError
from ejcache.settings import environment, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ejcache.autotune.store import AutotuneStore

__all__ = ["PersistentCache", "install", "installed_chains", "uninstall"]

Cfg = TypeVar("Cfg")


class PersistentCache(Generic[Cfg]):
    """ejkernel's class of this name: configurations of one operation, kept across processes.

    Args:
        opname: names the file, `<opname>.json`.
        path: of the file, a URL too; by default in `EJKERNEL_PERSISTENT_CACHE_DIR` or where ejkernel would put it,
            looked up when it is used.
        loader: makes a configuration of a stored value.
        dumper: makes a value that JSON can hold of a configuration.
        cfg_type: the configuration's type, for stored values that are objects; without it they become a `Namespace`.
        store: where records are kept beside the file; by default the process's own.

    Reads see what other processes wrote. Nothing raises because of what is stored or because it cannot be stored.
    """

    def __init__(
        self,
        opname: str,
        path: str | None = None,
        loader: Callable[[Any], Cfg] | None = None,
        dumper: Callable[[Cfg], Any] | None = None,
        cfg_type: type[Cfg] | None = None,
        *,
        store: AutotuneStore | None = None,
    ) -> None:
        self.opname = opname
        self.loader = loader
        self.dumper = dumper
        self.cfg_type = cfg_type
        self._path = path
        self._store = store
        self._files: dict[str, OperationFile] = {}
        self._memory: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"PersistentCache({self.opname!r}, path={self._path!r})"

    @property
    def path(self) -> str:
        """Where the file is now."""
        return self.file.path

    @property
    def file(self) -> OperationFile:
        """The file, where it is now."""
        where = self._path or f"{operation_directory()}/{self.opname}.json"
        if where not in self._files:
            self._files[where] = OperationFile.at(where)
        return self._files[where]

    @property
    def store(self) -> AutotuneStore:
        """Where records are kept beside the file."""
        return default_store() if self._store is None else self._store

    @property
    def _data(self) -> dict[str, Any]:
        return {**self._read(), **self._memory}

    @property
    def _disabled(self) -> bool:
        return False

    def _key(self, device: str, op_id: str, call_key: str) -> str:
        return file_key(device, op_id, call_key)

    def get(self, device: str, op_id: str, call_key: str) -> Cfg | None:
        """The configuration, or None."""
        text = self._key(device, op_id, call_key)
        for plain in self._stored(text):
            try:
                return self.load(plain)
            except Exception as exc:
                warn_once(f"{self.opname} load", "a configuration of %s cannot be used: %s", self.opname, exc)
        return None

    def put(self, device: str, op_id: str, call_key: str, cfg: Cfg) -> None:
        """Keep the configuration, for this process whatever happens and for others if it can be written.

        The caller does not say how it was found, so it ranks as imported.
        """
        text = self._key(device, op_id, call_key)
        try:
            plain = self.dump(cfg)
        except Exception as exc:
            warn_once(f"{self.opname} dump", "a configuration of %s is not kept: %s", self.opname, exc)
            return
        self._memory[text] = plain
        self.write(text, plain)
        key = key_of_file(text)
        if key is not None:
            import time

            provenance = {EJKERNEL_KEY: text, EJKERNEL_FILE: f"{self.opname}.json"}
            record = Record(key, plain, Source.IMPORTED, provenance=provenance, created=time.time())
            try:
                self.store.publish(record)
            except EjcacheError as exc:
                warn_once(f"{self.opname} publish", "a configuration of %s is not kept: %s", self.opname, exc)

    def load(self, plain: Any) -> Cfg:
        """A stored value as the configuration.

        Raises:
            ConfigurationError: it does not fit `cfg_type`.
            Exception: what `loader` raises.
        """
        value: Any = plain if self.loader is None else self.loader(plain)
        if not isinstance(value, dict):
            if self.cfg_type is not None and not isinstance(value, self.cfg_type):
                raise ConfigurationError(f"{value!r} is no {self.cfg_type.__qualname__}")
            return value  # type: ignore[no-any-return]  # a stored value is of no known type
        if self.cfg_type is None:
            return Namespace(**value)  # type: ignore[return-value]  # as ejkernel does without a type
        return restored(value, cfg_type=self.cfg_type)  # type: ignore[no-any-return]

    def dump(self, cfg: Cfg) -> Any:
        """The configuration as JSON has it.

        Raises:
            ConfigurationError: it has no such form.
            Exception: what `dumper` raises.
        """
        return to_plain(cfg if self.dumper is None else self.dumper(cfg))

    def write(self, text: str, plain: Any) -> None:
        """Set the entry in the file alone."""
        try:
            self.file.put(text, plain)
        except EjcacheError as exc:
            warn_once(f"{self.opname} file", "the file of %s cannot be used: %s", self.opname, exc)

    def read(self, text: str) -> Any:
        """The entry in the file alone, or None."""
        return self._read().get(text)

    def _read(self) -> dict[str, Any]:
        try:
            return self.file.read()
        except EjcacheError as exc:
            warn_once(f"{self.opname} file", "the file of %s cannot be used: %s", self.opname, exc)
            return {}

    def _stored(self, text: str) -> Sequence[Any]:
        if text in self._memory:
            return (self._memory[text],)
        key = key_of_file(text)
        found = [] if key is None else [item.record.configuration for item in self.store.find_all(key)]
        entry = self.read(text)
        return found if entry is None else [*found, entry]


_TARGETS: Final = (
    "ejkernel.ops.config.persistent",
    "ejkernel.ops.config.selection",
    "ejkernel.ops.execution.executor",
)
_ABSENT: Final = object()
_originals: Final[dict[tuple[str, ...], Any]] = {}


def install() -> int:
    """Put our store and our chain under every executor of ejkernel, now and later.

    Call it before `import ejkernel` where you can: then ejkernel's own stores are never made, which would create
    directories, read `$HOME` at import, and fail on a file that is no JSON. Calling it again does nothing.

    Returns:
        How many executors it found; 0 before ejkernel is imported.
    """
    for name in _TARGETS:
        module = sys.modules.get(name)
        if module is not None:
            _patch(module)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    return len(installed_chains())


def uninstall() -> None:
    """Give ejkernel its own chain back; executors keep our `PersistentCache`, which does what theirs does."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for (module_name, *names), original in list(_originals.items()):
        target: Any = sys.modules[module_name]
        for name in names[:-1]:
            target = getattr(target, name)
        if original is _ABSENT:
            delattr(target, names[-1])
        else:
            setattr(target, names[-1], original)
    _originals.clear()


def installed_chains() -> list[Any]:
    """Ejkernel's chains that executors in imported modules have, each with our store under it."""
    executor = sys.modules.get("ejkernel.ops.execution.executor")
    selection = sys.modules.get("ejkernel.ops.config.selection")
    if executor is None or selection is None or not _originals:
        return []
    chains: list[Any] = []
    for _, held in held_in_modules(executor.Executor):
        chain = held.chooser
        if isinstance(chain, selection.ConfigSelectorChain) and not any(chain is seen for seen in chains):
            adopt(chain)
            chains.append(chain)
    return chains


def held_in_modules(kind: type) -> Iterator[tuple[str, Any]]:
    """(`module:name`, value) of every global of an imported module that is of this type.

    Nothing is asked of the values, nor of the modules: lazy ones, of any library, would load what they stand for, or
    raise because it is not configured yet.
    """
    variables: Any = vars(ModuleType)["__dict__"].__get__
    for name, module in list(sys.modules.items()):
        if not issubclass(type(module), ModuleType):
            continue
        for variable, value in list(variables(module).items()):
            if issubclass(type(value), kind):
                yield f"{name}:{variable}", value


def adopt(chain: Any) -> PersistentCache[Any] | None:
    """Put our store under one of ejkernel's chains in place of its own; None if it has none."""
    held = chain.persistent
    if held is None or isinstance(held, PersistentCache):
        return held
    name = str(getattr(held, "path", "")).replace("\\", "/").rpartition("/")[2].removesuffix(".json")
    chain.persistent = PersistentCache(
        name or "operation",
        loader=getattr(held, "loader", None),
        dumper=getattr(held, "dumper", None),
        cfg_type=getattr(held, "cfg_type", None),
    )
    return chain.persistent  # type: ignore[no-any-return]


def _patch(module: ModuleType) -> None:
    from ejcache.autotune.ejkernel_chain import choose, choose_for_executor

    if module.__name__ == "ejkernel.ops.config.persistent":
        _replace(module, PersistentCache, "PersistentCache")
        for name in ("ejkernel.ops.config", "ejkernel.ops"):
            if name in sys.modules and hasattr(sys.modules[name], "PersistentCache"):
                _replace(sys.modules[name], PersistentCache, "PersistentCache")
    elif module.__name__ == "ejkernel.ops.config.selection":
        _replace(module, choose, "ConfigSelectorChain", "choose")
        if hasattr(module, "PersistentCache"):
            _replace(module, PersistentCache, "PersistentCache")
    else:
        _replace(module, choose_for_executor, "Executor", "_choose_heuristics_only")
        _replace(module, property(_prefix, _set_prefix), "Executor", "stamp_prefix")


def _replace(module: ModuleType, value: Any, *names: str) -> None:
    target: Any = module
    for name in names[:-1]:
        target = getattr(target, name)
    if (module.__name__, *names) in _originals:
        return
    _originals[module.__name__, *names] = getattr(target, names[-1], _ABSENT)
    setattr(target, names[-1], value)


def _prefix(executor: Any) -> Any:
    """How labels begin: ejkernel documents `EJKERNEL_OPS_PREFIX`, and reads it only where nothing asks for it."""
    if environment().get("EJKERNEL_OPS_PREFIX"):
        return str(resolve().autotune_prefix).rstrip("#")
    return vars(executor).get("stamp_prefix", "ejkernel_ops")


def _set_prefix(executor: Any, prefix: str) -> None:
    vars(executor)["stamp_prefix"] = prefix


class _Finder:
    """Patches the modules of ejkernel that matter right after they were run."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The ordinary spec of a module of interest, with a loader that patches; None for all others."""
        if name not in _TARGETS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_patch(module: ModuleType) -> None:
            run(module)
            _patch(module)

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec
