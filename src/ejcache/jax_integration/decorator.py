"""`@ejit`: `jax.jit`, with the cache enabled."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence  # noqa: TC003 (`typing.get_type_hints` of the options)
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

import jax

from ejcache.jax_integration import NEEDED, is_proven
from ejcache.jax_integration.activate import enable_by_default
from ejcache.jax_integration.seam.tracebacks import without_our_frames
from ejcache.util.log import warn_once

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
    """The keywords of `@ejit`: those of `jax.jit`, and the word of `reuse`."""

    reuse_lowering: Any


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
    """Return `jax.jit` with the cache enabled. It returns what `jax.jit` returns, so a call costs the same.

    The first use in a process enables the cache for the process, unless it is enabled already, or `EJCACHE` is false.

    Args:
        fun: the function. Without it, `ejit` returns a decorator.
        options: any parameter of `jax.jit`; also `func`, which is ejkernel's name for `fun`, and:
            reuse_lowering: a word for all that the function reads besides its arguments, or a function that returns
                one. A restart whose word, code and call are those of earlier starts takes their lowered program
                instead of tracing the function (docs/reuse.md).

    Raises:
        TypeError: the installed `jax.jit` does not have such an option.
        UsageError: `reuse_lowering` is no word.
    """
    fun = options.pop("func", fun)
    if fun is None:
        return functools.partial(ejit, **options)
    enable_by_default()
    word = options.pop(_WORD, None)
    if word is None or word is False:
        return jax.jit(fun, **options)
    if not is_proven(str(jax.__version__)):
        said = "ejcache: ejit(reuse_lowering=…) needs %s, and this is JAX %s"
        warn_once("unproven reuse", said, NEEDED, jax.__version__)
        return jax.jit(fun, **options)
    return import_module(_REUSE).reusing_jit(fun, word, options)


_WORD: Final = "reuse_lowering"


def _signature() -> inspect.Signature:
    of_jax = inspect.signature(jax.jit)
    word = inspect.Parameter(_WORD, inspect.Parameter.KEYWORD_ONLY, default=None)
    return of_jax.replace(parameters=[*of_jax.parameters.values(), word])


vars(ejit)["__signature__"] = _signature()
