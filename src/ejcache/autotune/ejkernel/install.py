"""Installs our chain, our cache and our `ejit` under ejkernel and EasyDeL.

ejkernel's `ejit` gives JAX a directory of its own each time that it decorates a function, or writes pickles. The
functions here have the same parameters, and compile through the cache of this process.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.ejkernel.cache import PersistentCache, adopt
from ejcache.autotune.ejkernel.chain import choose, choose_for_executor, held_in_modules, set_tuner
from ejcache.autotune.ejkernel_variables import label_prefix
from ejcache.errors import CompileForbiddenError
from ejcache.jax_integration import decorator
from ejcache.jax_integration.no_compile_blocks import forbid_compile
from ejcache.settings.environment import environment_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from ejcache.autotune.measure.tuner import Tuner


def ejit(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Return `ejcache.ejit` with the parameters of ejkernel's `ejit`."""
    if options.get("abstracted_axes", 0) is None:
        # Not every JAX has this option. ejkernel passes its default.
        del options["abstracted_axes"]
    return functools.partial(ejit, **options) if func is None else decorator.ejit(func, **options)


def smart_compile(
    lowered_func: Any,
    tag: str | None = None,
    verbose: bool = True,  # noqa: FBT001, FBT002
    cache_key: Any = None,
) -> tuple[Any, Any]:
    """Compile a lowered function, or load it from the cache; returns the executable, and `cache_key` as it is."""
    del tag, verbose
    return lowered_func.compile(), cache_key


class NoCompileContext:
    """EasyDeL's context manager that fails if anything is compiled: `ejcache.forbid_compile(everywhere=True)`.

    EasyDeL's own raises also for a program that the cache would serve. Here such a program is loaded. The error is a
    RuntimeError, as there.

    Args:
        message: a note on the error.
    """

    def __init__(self, message: str = "") -> None:
        self.message = message
        self._guards: list[Any] = []

    def __enter__(self) -> None:
        self._guards.append(forbid_compile(everywhere=True))
        self._guards[-1].__enter__()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._guards.pop().__exit__(kind, error, traceback)
        if isinstance(error, CompileForbiddenError) and self.message:
            error.add_note(self.message)


def load_cached_functions(verbose: bool = True) -> None:  # noqa: FBT001, FBT002
    """Load nothing: the cache loads each executable when it is needed."""
    del verbose


def install(*, tuner: Tuner | None = None) -> int:
    """Make all executors of ejkernel use our store and our chain, also those of modules that are imported later.

    ejkernel's `ejit`, which EasyDeL uses, becomes `ejcache.ejit` for what is decorated after this call; its
    `smart_compile` and `load_cached_functions` use the same cache. EasyDeL's `NoCompileContext`, if EasyDeL is imported
    later, lets pass what the cache serves.

    Call this before `import ejkernel` if you can. Otherwise ejkernel makes its own stores at import: they create
    directories, read `$HOME`, and raise on a file that is not JSON. A second call changes the tuner only.

    Args:
        tuner: how to measure; None for no change.

    Returns:
        The number of executors; 0 before ejkernel is imported.
    """
    if tuner is not None:
        set_tuner(tuner)
    for name in _STAND_INS:
        if name in sys.modules:
            _patch(name)
    if not any(isinstance(finder, _EjkernelFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _EjkernelFinder())
    return len(installed_chains())


def uninstall() -> None:
    """Restore ejkernel's own chain. Executors keep our `PersistentCache`, which has the same interface."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _EjkernelFinder)]
    for (module, path), original in _originals.items():
        target, name = _owner(module, path)
        if original is _NOTHING:
            delattr(target, name)
        else:
            setattr(target, name, original)
        for copy in _copies(module, path):
            if getattr(copy, path) is _STAND_INS[module][path]:
                setattr(copy, path, original)
    _originals.clear()


def installed_chains() -> list[Any]:
    """Return the chains of ejkernel's executors in imported modules, each with our store."""
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


def _prefix(executor: Any) -> Any:
    """Return the prefix of labels. ejkernel documents `EJKERNEL_OPS_PREFIX`, but does not use it here."""
    if environment_variable("EJKERNEL_OPS_PREFIX"):
        return label_prefix().rstrip("#")
    return vars(executor).get("stamp_prefix", "ejkernel_ops")


def _set_prefix(executor: Any, prefix: str) -> None:
    vars(executor)["stamp_prefix"] = prefix


_NOTHING: Final = object()
_originals: Final[dict[tuple[str, str], Any]] = {}
"""What stood under a module and a path in it."""
_STAND_INS: Final[dict[str, dict[str, Any]]] = {
    "easydel.utils.compiling_utils": {"NoCompileContext": NoCompileContext},
    "ejkernel.callib._ejit": {
        "ejit": ejit,
        "load_cached_functions": load_cached_functions,
        "smart_compile": smart_compile,
    },
    "ejkernel.ops.config.persistent": {"PersistentCache": PersistentCache},
    "ejkernel.ops.config.selection": {"ConfigSelectorChain.choose": choose},
    "ejkernel.ops.execution.executor": {
        "Executor._choose_heuristics_only": choose_for_executor,
        "Executor.stamp_prefix": property(_prefix, _set_prefix),
    },
}
"""What replaces names of ejkernel and EasyDeL, by the module and the path in it."""
_COPIES: Final = {
    "ejkernel.callib._ejit": ("ejkernel.callib",),
    "ejkernel.ops.config.persistent": ("ejkernel.ops.config", "ejkernel.ops", "ejkernel.ops.config.selection"),
}
"""Modules that have names of another one."""


def _owner(module: str, path: str) -> tuple[Any, str]:
    """Return the module, or the class in it, that has the last name of a path."""
    outer, _, name = path.rpartition(".")
    held = sys.modules[module]
    return (getattr(held, outer) if outer else held), name


def _copies(module: str, path: str) -> list[Any]:
    loaded = [sys.modules[name] for name in _COPIES.get(module, ()) if name in sys.modules]
    return [held for held in loaded if hasattr(held, path)]


def _patch(module: str) -> None:
    for path, ours in _STAND_INS[module].items():
        target, name = _owner(module, path)
        _originals.setdefault((module, path), getattr(target, name, _NOTHING))
        for held in (target, *_copies(module, path)):
            setattr(held, name, ours)


class _EjkernelFinder:
    """Patches the modules in `_STAND_INS` after they have been executed."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Find the ordinary spec of a module in `_STAND_INS`, with a loader that patches it; None for other modules."""
        if name not in _STAND_INS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_patch(module: ModuleType) -> None:
            run(module)
            _patch(name)

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec
