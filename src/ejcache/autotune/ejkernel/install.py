"""Installs our chain of configurations under ejkernel, and our cache under what compiles for it and for EasyDeL.

ejkernel's `ejit` gives JAX a directory of its own each time that it decorates a function, or writes pickles. The
functions here have the same parameters, and compile through the cache of this process.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.ejkernel.cache import PersistentCache, adopt
from ejcache.autotune.ejkernel.chain import InvocationCall, choose, choose_for_executor, held_in_modules, set_tuner
from ejcache.autotune.ejkernel_variables import label_prefix
from ejcache.errors import CompileForbiddenError, UsageError
from ejcache.settings.resolve import environment_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from ejcache.autotune.call_documents import RecordedNames
    from ejcache.autotune.measure.tuner import Tuner


def ejit(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`ejcache.ejit` with the parameters of ejkernel's `ejit`."""
    from ejcache.jax_integration.decorator import ejit as ours

    if options.get("abstracted_axes", 0) is None:
        # Not every JAX has this option. ejkernel passes its default.
        del options["abstracted_axes"]
    return functools.partial(ejit, **options) if func is None else ours(func, **options)


def smart_compile(
    lowered_func: Any,
    tag: str | None = None,
    verbose: bool = True,  # noqa: FBT001, FBT002
    cache_key: Any = None,
) -> tuple[Any, Any]:
    """The executable of a lowered function, which comes from the cache if it is there, and `cache_key` as it is."""
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
        from ejcache.jax_integration.compile_modes import forbid_compile

        self._guards.append(forbid_compile(everywhere=True))
        self._guards[-1].__enter__()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._guards.pop().__exit__(kind, error, traceback)
        if isinstance(error, CompileForbiddenError) and self.message:
            error.add_note(self.message)


def load_cached_functions(verbose: bool = True) -> None:  # noqa: FBT001, FBT002
    """Load nothing: the cache loads each executable when it is needed."""
    del verbose


_TARGETS: Final = (
    "easydel.utils.compiling_utils",
    "ejkernel.callib._ejit",
    "ejkernel.ops.config.persistent",
    "ejkernel.ops.config.selection",
    "ejkernel.ops.execution.executor",
)
_NOTHING: Final = object()
_originals: Final[dict[tuple[str, ...], Any]] = {}


_EJIT: Final[dict[str, Callable[..., Any]]] = {
    "ejit": ejit,
    "load_cached_functions": load_cached_functions,
    "smart_compile": smart_compile,
}
"""What stands in for functions of ejkernel itself."""


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
    for name in _TARGETS:
        module = sys.modules.get(name)
        if module is not None:
            _patch(module)
    if not any(isinstance(finder, _EjkernelFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _EjkernelFinder())
    return len(installed_chains())


def uninstall() -> None:
    """Restore ejkernel's own chain. Executors keep our `PersistentCache`, which has the same interface."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _EjkernelFinder)]
    for (module_name, *names), original in list(_originals.items()):
        target: Any = sys.modules[module_name]
        for name in names[:-1]:
            target = getattr(target, name)
        if original is _NOTHING:
            delattr(target, names[-1])
        else:
            setattr(target, names[-1], original)
    _originals.clear()


def installed_chains() -> list[Any]:
    """The chains of ejkernel's executors in imported modules, each with our store."""
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


def recorded_kernel(how: dict[str, Any], names: RecordedNames) -> tuple[Any, Any]:
    """The kernel and the executor of a recorded call.

    Raises:
        UsageError: `names` does not find them, or they are not a kernel and an executor of ejkernel's.
    """
    kernel, executor = names.find(str(how["kernel"])), names.find(str(how["executor"]))
    core, execution = sys.modules.get("ejkernel.ops.core.kernel"), sys.modules.get("ejkernel.ops.execution.executor")
    if core is None or not (isinstance(kernel, type) and issubclass(kernel, core.Kernel)):
        raise UsageError(f"{how['kernel']} is not a kernel of ejkernel's")
    if execution is None or not isinstance(executor, execution.Executor):
        raise UsageError(f"{how['executor']} is not an executor of ejkernel's")
    return kernel(), executor


def recorded_invocation(kernel: Any, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InvocationCall:
    """A recorded call, ready to be measured."""
    install()
    inv = sys.modules["ejkernel.ops.core.kernel"].Invocation(op_id=kernel.op_id, args=args, kwargs=kwargs)
    return InvocationCall(executor.chooser, inv, kernel)


def _patch(module: ModuleType) -> None:
    if module.__name__ == "easydel.utils.compiling_utils":
        if hasattr(module, "NoCompileContext"):
            _replace(module, NoCompileContext, "NoCompileContext")
    elif module.__name__ == "ejkernel.callib._ejit":
        for name, ours in _EJIT.items():
            _replace(module, ours, name)
            package = sys.modules.get("ejkernel.callib")
            if package is not None and hasattr(package, name):
                # The package may have ours already, from its module.
                setattr(package, name, _originals[module.__name__, name])
                _replace(package, ours, name)
    elif module.__name__ == "ejkernel.ops.config.persistent":
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
    _originals[module.__name__, *names] = getattr(target, names[-1], _NOTHING)
    setattr(target, names[-1], value)


def _prefix(executor: Any) -> Any:
    """The prefix of labels. ejkernel documents `EJKERNEL_OPS_PREFIX`, but does not use it here."""
    if environment_variable("EJKERNEL_OPS_PREFIX"):
        return label_prefix().rstrip("#")
    return vars(executor).get("stamp_prefix", "ejkernel_ops")


def _set_prefix(executor: Any, prefix: str) -> None:
    vars(executor)["stamp_prefix"] = prefix


class _EjkernelFinder:
    """Patches the modules of ejkernel in `_TARGETS` after they have been executed."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The ordinary spec of a module in `_TARGETS`, with a loader that patches it; None for all other modules."""
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
