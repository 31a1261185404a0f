"""Runs compiled programs under watch: the seam of `ejcache run --compare`.

JAX runs a compiled program by `pxla.ExecuteReplicated.__call__`, with the arguments of the call, and returns the list
of its results. Of later calls, JAX's C++ code takes over with the data that `pjit._get_fastpath_data` gives it; while a
program is watched, it is given none. `mismatches` says whether this JAX has what is used here. If not, nobody may call
the rest.

Read for this: jax 0.4.38, 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1, `interpreters/pxla.py`, `pjit.py`, `random/prng.py`.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax
import numpy as np
from jax._src import pjit as jax_pjit
from jax._src.interpreters import pxla
from jax._src.random import prng as jax_prng

from ejcache.errors import EjcacheError
from ejcache.util.locks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FASTPATH: Final = "_get_fastpath_data"
_SLOTS: Final = frozenset({
    *("xla_executable", "name", "in_handler", "out_handler", "has_unordered_effects", "ordered_effects"),
    *("has_host_callbacks", "kept_var_idx", "mut", "pgle_profiler"),
})  # fmt: skip


class NotComparedError(EjcacheError):
    """A call cannot be made twice.

    Args:
        reason: why, as the end of a sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def mismatches() -> list[str]:
    """List how this JAX differs from what is used here; empty if it does not."""
    run = getattr(pxla, "ExecuteReplicated", None)
    found = [] if run is not None else ["jax._src.interpreters.pxla.ExecuteReplicated is gone"]
    missing = sorted(_SLOTS - set(getattr(run, "__slots__", ())))
    found += [f"ExecuteReplicated has no {', '.join(missing)}"] if missing and run is not None else []
    fastpath = getattr(jax_pjit, _FASTPATH, None)
    if fastpath is None or next(iter(inspect.signature(fastpath).parameters)) != "executable":
        found.append(f"jax._src.pjit.{_FASTPATH} is gone, or takes other arguments")
    keys = getattr(jax_prng, "PRNGKeyArray", None)
    if keys is None or next(iter(inspect.signature(keys).parameters), "") != "impl":
        found.append("jax._src.random.prng.PRNGKeyArray is gone, or is made otherwise")
    return found


class _Keys(NamedTuple):
    """Random keys on the host, and how keys are made of them."""

    implementation: Any
    base: _Array


class _Array(NamedTuple):
    """An array on the host, and where JAX has it."""

    value: np.ndarray[Any, Any]
    sharding: Any


class ProgramRun:
    """One call of a compiled program.

    Args:
        execution: JAX's object for the program.
        arguments: of the call.
        own: JAX's own `__call__`.
    """

    def __init__(self, execution: Any, arguments: Sequence[Any], own: Callable[..., Any]) -> None:
        self._execution = execution
        self._arguments = arguments
        self._own = own
        self.executable = execution.xla_executable

    def why_not(self) -> str:
        """Say why the call cannot be made twice, as the end of a sentence; empty if it can."""
        execution = self._execution
        if execution.has_host_callbacks:
            return "it calls back into Python"
        if execution.ordered_effects or execution.has_unordered_effects:
            return "it has effects"
        return "it changes references" if execution.mut else ""

    def bytes_of_inputs(self) -> int:
        """Return how many bytes the arrays among the arguments have."""
        return bytes_of(self._kept())

    def _kept(self) -> list[Any]:
        return [each for number, each in enumerate(self._arguments) if number in self._execution.kept_var_idx]

    def copy_inputs(self) -> list[Any]:
        """Copy the arguments to the host, so that calls can be made with them after JAX has donated them.

        Raises:
            NotComparedError: this process does not have all of an array.
        """
        kept = self._execution.kept_var_idx
        return [
            _to_host(each) if number in kept else each  # what the program does not take may be gone
            for number, each in enumerate(self._arguments)
        ]

    def run(self) -> Any:
        """Make the call as JAX does, and return its results. Raises whatever JAX raises."""
        return self._own(self._execution, *self._arguments)

    def run_with(self, executable: Any, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """Make the call with another executable of the program, and return its results on the host.

        Args:
            executable: as XLA has it.
            inputs: what `copy_inputs` returned.
        """
        twin = copy.copy(self._execution)
        twin.xla_executable = executable
        twin.pgle_profiler = None
        return results_on_host(self._own(twin, *map(_to_device, inputs)))


def results_on_host(results: Any) -> list[np.ndarray[Any, Any]]:
    """Return the arrays among the results of a call.

    Raises:
        NotComparedError: this process does not have all of an array.
    """
    copied = map(_to_host, results)
    arrays = (each.base if isinstance(each, _Keys) else each for each in copied)
    return [each.value for each in arrays if isinstance(each, _Array)]


def bytes_of(values: Sequence[Any]) -> int:
    """Return how many bytes the arrays among the arguments or results of a call have."""
    return sum(int(getattr(_base(each), "nbytes", 0)) for each in values)


def _base(value: Any) -> Any:
    """Return the numbers of an array of random keys, which itself has no size before JAX 0.6; of others themselves."""
    return value._base_array if isinstance(value, jax_prng.PRNGKeyArray) else value


def _to_host(value: Any) -> Any:
    if isinstance(value, jax_prng.PRNGKeyArray):
        return _Keys(value._impl, _to_host(value._base_array))
    if not isinstance(value, jax.Array):
        return value
    if not value.is_fully_addressable:
        raise NotComparedError("it spans processes")
    return _Array(np.array(value), value.sharding)


def _to_device(value: Any) -> Any:
    if isinstance(value, _Keys):
        return jax_prng.PRNGKeyArray(value.implementation, _to_device(value.base))
    if isinstance(value, _Array):
        # A copy, because JAX may use the memory of an array of NumPy, and a donated argument is written to.
        return jax.device_put(value.value.copy(), value.sharding)
    return value


# -- watching --------------------------------------------------------------------------------------------------------


_own: Final[list[Callable[..., Any]]] = []
"""JAX's own call, once it is replaced."""
_lock: Final = ForkLock()


def watch(run: Callable[[ProgramRun], Any], *, is_watched: Callable[[Any], bool]) -> None:
    """Have `run` make the calls of watched programs; does nothing if that is so already.

    Args:
        run: is called in place of JAX's own code, and returns the results.
        is_watched: whether the calls of an executable are still watched; asked at each call that C++ does not make.
    """
    with _lock:
        if _own:
            return
        own, fastpath = pxla.ExecuteReplicated.__call__, getattr(jax_pjit, _FASTPATH)
        _own.append(own)

        def call(execution: Any, *arguments: Any) -> Any:
            if not is_watched(execution.xla_executable):
                return own(execution, *arguments)
            return run(ProgramRun(execution, arguments, own))

        def fastpath_data(executable: Any, *arguments: Any, **named: Any) -> Any:
            execution = getattr(executable, "unsafe_call", None)
            if is_watched(getattr(execution, "xla_executable", None)):
                return None
            return fastpath(executable, *arguments, **named)

        pxla.ExecuteReplicated.__call__ = call
        setattr(jax_pjit, _FASTPATH, fastpath_data)
