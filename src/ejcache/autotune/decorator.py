"""`@autotuned`: tunes a JAX function over configurations; `@implementations`: over several functions and theirs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload

from ejcache.autotune.operation import Autotuned, Options
from ejcache.autotune.records.json_values import module_name
from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


P = ParamSpec("P")
R = TypeVar("R")


Configs = Sequence[Any] | Callable[..., Sequence[Any]]


@overload
def autotuned(function: Callable[P, R], *, configs: Configs, **options: Unpack[Options]) -> Autotuned[P, R]: ...


@overload
def autotuned(
    function: None = None, *, configs: Configs, **options: Unpack[Options]
) -> Callable[[Callable[P, R]], Autotuned[P, R]]: ...


def autotuned(function: Callable[..., Any] | None = None, *, configs: Configs, **options: Unpack[Options]) -> Any:
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
    if unknown := sorted(set(options) - Options.__annotations__.keys()):
        raise TypeError(f"autotuned() got an unexpected keyword argument {unknown[0]!r}")

    def decorate(decorated: Callable[..., Any]) -> Autotuned[..., Any]:
        own_name = f"{module_name(decorated)}.{decorated.__qualname__}".replace(".<locals>", "")
        name, version = options.get("name") or own_name, str(options.get("version", 1))
        held = configs if callable(configs) else tuple(configs)
        return Autotuned(decorated, held, name=name, version=version, options=options)

    return decorate if function is None else decorate(function)


@dataclass(frozen=True, slots=True)
class Implementation:
    """One candidate of an operation with several implementations.

    Attributes:
        implementation: its name.
        configuration: of an autotuned implementation; None for another one.
    """

    implementation: str
    configuration: Any = None


def implementations(
    choices: Mapping[str, Callable[..., Any]], *, name: str | None = None, version: int | str = 1, **options: Any
) -> Callable[[Callable[P, R]], Autotuned[P, R]]:
    """Choose between implementations of one operation, and between the configurations of each, at each kind of call.

        @implementations({"xla": attention_xla, "pallas": attention_pallas}, name="attention")
        def attention(q, k, v): ...

    The decorated function says the arguments; it never runs. The choice is measured and recorded as a configuration is:
    `{"implementation": "pallas", "configuration": {"block": 128}}`. An implementation that fails for a call, or whose
    results differ, is not chosen.

    Args:
        choices: the implementations by name, functions of the same arguments. The configurations of one that
            `autotuned` made are candidates, too; what it has recorded by itself is not used. The first is the default.
        name: of the operation, as for `autotuned`.
        version: of the operation, as for `autotuned`.
        **options: the other arguments of `autotuned`, but for `configs`.

    Raises:
        UsageError: there is no implementation, or an option is not valid.
    """
    held = dict(choices)
    if not held:
        raise UsageError("an operation needs at least one implementation")
    first = next(iter(held))

    def candidates_of(which: str, args: Any, kwargs: Any) -> list[Implementation]:
        function = held[which]
        if not isinstance(function, Autotuned):
            return [Implementation(which)]
        call = function.bound(args, kwargs)
        # Its own default comes first, so that the default of the first implementation is that of the operation.
        return [Implementation(which, item) for item in (call.default(), *call.candidates())]

    def configs(*args: Any, **kwargs: Any) -> list[Implementation]:
        return [item for which in held for item in candidates_of(which, args, kwargs)]

    def heuristic(*args: Any, **kwargs: Any) -> Implementation:
        return candidates_of(first, args, kwargs)[0]

    def decorate(declared: Callable[P, R]) -> Autotuned[P, R]:
        def run(*args: Any, config: Any, **kwargs: Any) -> Any:
            function = held[config.implementation]
            if isinstance(function, Autotuned):
                return function.invoke(config.configuration, args, kwargs)
            return function(*args, **kwargs)

        own = inspect.signature(declared)
        parameter = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = own.replace(parameters=[*own.parameters.values(), parameter])  # type: ignore[attr-defined]
        run.__module__, run.__qualname__, run.__doc__ = declared.__module__, declared.__qualname__, declared.__doc__
        given = {"heuristic": heuristic} | options
        made = autotuned(run, configs=configs, name=name, version=version, **given)
        return cast("Autotuned[P, R]", made)

    return decorate
