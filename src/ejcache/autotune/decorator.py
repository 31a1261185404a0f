"""`@autotuned`: tunes a JAX function over configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from ejcache.autotune.operation import Autotuned
from ejcache.autotune.records.json_values import module_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ejcache.autotune.measure.results import Check
    from ejcache.autotune.measure.tuner import Tuner
    from ejcache.autotune.policy import Policy
    from ejcache.autotune.records.store import AutotuneStore

__all__ = ["autotuned"]

P = ParamSpec("P")
R = TypeVar("R")


@overload
def autotuned(
    function: Callable[P, R],
    *,
    configs: Sequence[Any] | Callable[..., Sequence[Any]],
    name: str | None = None,
    version: int | str = 1,
    key: Callable[..., Any] | None = None,
    heuristic: Any = None,
    tuner: Tuner | None = None,
    store: AutotuneStore | None = None,
    policy: Policy | None = None,
    gradient: bool = False,
    initialisers: Mapping[str, Callable[..., Any]] | None = None,
    check: Check | None = None,
    prune: Callable[..., Sequence[Any]] | None = None,
) -> Autotuned[P, R]: ...


@overload
def autotuned(
    function: None = None,
    *,
    configs: Sequence[Any] | Callable[..., Sequence[Any]],
    name: str | None = None,
    version: int | str = 1,
    key: Callable[..., Any] | None = None,
    heuristic: Any = None,
    tuner: Tuner | None = None,
    store: AutotuneStore | None = None,
    policy: Policy | None = None,
    gradient: bool = False,
    initialisers: Mapping[str, Callable[..., Any]] | None = None,
    check: Check | None = None,
    prune: Callable[..., Sequence[Any]] | None = None,
) -> Callable[[Callable[P, R]], Autotuned[P, R]]: ...


def autotuned(
    function: Callable[..., Any] | None = None,
    *,
    configs: Sequence[Any] | Callable[..., Sequence[Any]],
    name: str | None = None,
    version: int | str = 1,
    key: Callable[..., Any] | None = None,
    heuristic: Any = None,
    tuner: Tuner | None = None,
    store: AutotuneStore | None = None,
    policy: Policy | None = None,
    gradient: bool = False,
    initialisers: Mapping[str, Callable[..., Any]] | None = None,
    check: Check | None = None,
    prune: Callable[..., Sequence[Any]] | None = None,
) -> Any:
    """Tune a JAX function over configurations: measure them once, store the result, and choose at each call.

        @autotuned(configs=[{"block": 128}, {"block": 256}], name="matmul")
        def matmul(x, y, *, block): ...

    Args:
        function: the function; None if the decorator is used with parentheses.
        configs: the candidates, or a function of the call that returns them. A function with a parameter `config` gets
            a candidate as that, any value with a JSON form, such as a dataclass; others get its items as arguments.
        name: of the operation, in keys and paths; by default the module and name of the function.
        version: change it if the function changed so much that old measurements no longer hold.
        key: a function of the call; calls for which it returns equal values share a configuration. By default, those
            with the same shapes and data types of arrays and the same values of all other arguments.
        heuristic: the default, which a winner must beat, or a function of the call; by default the first candidate.
        tuner: how to measure.
        store: the records; by default `ejcache.autotune.default_store()`.
        policy: what to do without a record; by default, measure.
        gradient: measure the function with its gradient.
        initialisers: how to make inputs if the caller is being traced, by argument name.
        prune: a function of (the list of candidates, the call) that returns those that are worth measuring.
        check: how a candidate's results are compared with the default's, as in `Tuner`; None for the tuner's own way.

    Raises:
        UsageError: there is no configuration, one cannot be passed or written as JSON, or `check` is not valid.
    """

    def decorate(decorated: Callable[..., Any]) -> Autotuned[..., Any]:
        return Autotuned(
            decorated,
            configs=configs if callable(configs) else tuple(configs),
            name=name or f"{module_name(decorated)}.{decorated.__qualname__}".replace(".<locals>", ""),
            version=str(version),
            key=key,
            heuristic=heuristic,
            tuner=tuner,
            store=store,
            policy=policy,
            gradient=gradient,
            initialisers=initialisers,
            check=check,
            prune=prune,
        )

    return decorate if function is None else decorate(function)
