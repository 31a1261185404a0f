"""`@ejit`: `jax.jit`, with the cache enabled."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence  # noqa: TC003 (`typing.get_type_hints` of the options)
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

import jax

from ejcache.jax_integration.activate import current_settings, enable_by_default
from ejcache.jax_integration.forms import has_full_form
from ejcache.jax_integration.seam.tracebacks import without_our_frames

P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)


class JitOptions(TypedDict, total=False):
    """The keywords of `jax.jit`; a test compares them with the installed version."""

    in_shardings: Any
    out_shardings: Any
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Iterable[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Iterable[str] | None
    keep_unused: bool
    device: jax.Device | None
    backend: str | None
    inline: Any
    compiler_options: dict[str, Any] | None


class EjitOptions(JitOptions, total=False):
    """The keywords of `@ejit`: those of `jax.jit`, and those of `reuse`."""

    reuse_lowering: bool | Mapping[str, Any] | None
    name: str | None


_REUSE: Final = "ejcache.reuse.calls"
"""The room above that makes functions which restarts do not trace; imported where one asks for it."""

if TYPE_CHECKING:

    class JittedFunction(jax.stages.Wrapped, Protocol[P, R_co]):  # type: ignore[misc]  # mypy reads no types of jax._src
        """What `jax.jit` returns, with the types of the function's arguments and result."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
            """Call the compiled function; compile it first for new shapes and static arguments."""

        def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
            """Lower the function for these arguments, without running it."""

        def trace(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced:
            """Trace the function for these arguments, without running it."""

        def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any:
            """Return the shapes and types of the result for these arguments, without running the function."""

        @overload
        def __get__(self, instance: None, owner: type, /) -> JittedFunction[P, R_co]: ...
        @overload
        def __get__(
            self: JittedFunction[Concatenate[S_contra, Q], R_co], instance: S_contra, owner: type | None = None, /
        ) -> Callable[Q, R_co]: ...

else:
    JittedFunction = jax.stages.Wrapped


@overload
def ejit(fun: Callable[P, R_co], /, **options: Unpack[EjitOptions]) -> JittedFunction[P, R_co]: ...
@overload
def ejit(*, func: Callable[P, R_co], **options: Unpack[EjitOptions]) -> JittedFunction[P, R_co]: ...
@overload
def ejit(**options: Unpack[EjitOptions]) -> Callable[[Callable[P, R_co]], JittedFunction[P, R_co]]: ...
@without_our_frames
def ejit(fun: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """`jax.jit` with the cache enabled. It returns what `jax.jit` returns, so a call costs the same.

    The first use in a process enables the cache for the process, unless it is enabled already, or `EJCACHE` is false.

    Args:
        fun: the function. Without it, `ejit` returns a decorator.
        options: any parameter of `jax.jit`; also `func`, which is ejkernel's name for `fun`, and two that
            docs/reuse.md describes:
            reuse_lowering: take the lowered program of an earlier process that was started from the same inputs,
                instead of tracing the function. A mapping declares what else it depends on: callables, which are asked
                at each new signature, and paths, whose content counts. By default, what the setting says.
            name: tells functions apart that `reuse_lowering` would take for one.

    Raises:
        TypeError: the installed `jax.jit` does not have such an option.
        UsageError: `reuse_lowering` is something else.
    """
    fun = options.pop("func", fun)
    if fun is None:
        return functools.partial(ejit, **options)
    enable_by_default()
    wanted = options.get("reuse_lowering")
    asked = (current_settings().reuse_lowering if wanted is None else wanted) is not False  # an empty mapping asks
    if asked and has_full_form("ejit(reuse_lowering=…)"):
        reusing = import_module(_REUSE).reusing_jit(fun, options)
        if reusing is not None:
            return reusing
    options = {name: value for name, value in options.items() if name not in _OWN}
    return jax.jit(fun, **options)


_OWN: Final = {"reuse_lowering": None, "name": None}


def _signature() -> inspect.Signature:
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_OWN[name]) for name in _OWN]
    of_jax = inspect.signature(jax.jit)
    return of_jax.replace(parameters=[*of_jax.parameters.values(), *added])


vars(ejit)["__signature__"] = _signature()
