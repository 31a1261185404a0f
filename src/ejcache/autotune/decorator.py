"""`@autotuned`: a function that finds out by itself which of its configurations is best."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.calls import encode_value, import_path
from ejcache.autotune.choice import ABSENT, Request
from ejcache.autotune.defaults import chooser_for, default_chooser
from ejcache.autotune.describe import Describer
from ejcache.autotune.key import RecordKey
from ejcache.autotune.plain import ConfigurationError, canonical_json, module_name, restored, to_plain
from ejcache.autotune.policy import altered, current_policy
from ejcache.autotune.recording import recording
from ejcache.autotune.records import Source
from ejcache.errors import UsageError
from ejcache.settings import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ejcache.autotune.choice import Choice, Chooser
    from ejcache.autotune.measure import Tuner
    from ejcache.autotune.policy import Policy
    from ejcache.autotune.records import Record
    from ejcache.autotune.store import AutotuneStore

__all__ = ["Autotuned", "autotuned"]

_CONFIG: Final = "config"
_GUESS_SECONDS: Final = 1.0
_REMEMBERED_CALLS: Final = 10_000


class BoundCall:
    """A call of an autotuned function: what it is filed under, what it may run with, and how that is measured.

    Attributes:
        key: of its record.
        opaque: why it has no key of its own; empty if it has.
    """

    def __init__(self, operation: Autotuned, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.operation = operation
        self.args = args
        self.kwargs = kwargs
        self.key, self.opaque = self._described()

    def request(self) -> Request:
        """What a chooser wants to know."""
        return Request(
            key=self.key,
            restore=self.restored,
            heuristic=self.default,
            candidates=self.candidates,
            tune=self._tune,
            policy=self.operation.policy,
            opaque=self.opaque,
            describe=self.described,
        )

    def candidates(self) -> list[Any]:
        """The configurations to measure."""
        configs = self.operation.configs
        return list(configs(*self.args, **self.kwargs) if callable(configs) else configs)

    def default(self) -> Any:
        """The configuration to use where nothing was measured."""
        heuristic = self.operation.heuristic
        if callable(heuristic):
            return heuristic(*self.args, **self.kwargs)
        if heuristic is not None:
            return heuristic
        candidates = self.candidates()
        if not candidates:
            raise UsageError(f"{self.operation.name} has no configurations for this call")
        return candidates[0]

    def restored(self, plain: Any, source: Source) -> Any:
        """The candidate that a stored configuration is; a pinned one need not be a candidate.

        Raises:
            ConfigurationError: it is none.
        """
        wanted = canonical_json(plain)
        default = self.default()
        for candidate in (default, *self.candidates()):
            if canonical_json(to_plain(candidate)) == wanted:
                return candidate
        if source is Source.PINNED:
            self.operation.check_names(plain)
            return restored(plain, like=default)
        raise ConfigurationError(f"{wanted} is no candidate of {self.operation.name} any more")

    def measured(self) -> Record | None:
        """Measure every candidate; None if none works."""
        return self._tune(None, self.default())

    def attempt(self, plain: Any) -> None:
        """Make the call once with this (plain) configuration."""
        from ejcache.autotune.measure import attempt

        configuration = self.restored(plain, Source.PINNED)
        operation = self.operation
        attempt(
            lambda *a, **k: operation.invoke(configuration, a, k),
            self.args,
            self.kwargs,
            tuner=self._tuner(),
            names=list(operation.signature.parameters),
        )

    def described(self) -> dict[str, Any]:
        """The call as `calls.py` writes it; raises `UnrecordableError`."""
        return {
            "how": {"kind": "autotuned", "object": self._path()},
            "args": [encode_value(item, name=f"argument {i}") for i, item in enumerate(self.args)],
            "kwargs": {name: encode_value(item, name=name) for name, item in self.kwargs.items()},
        }

    def _path(self) -> str:
        return import_path(self.operation, name=self.operation.name)

    def _described(self) -> tuple[RecordKey, list[str]]:
        from ejcache.autotune.measure_call import place_of

        operation, describer = self.operation, Describer()
        call: dict[str, Any]
        if operation.key_of is not None:
            call = {"key": describer.describe(operation.key_of(*self.args, **self.kwargs), name="the key")}
        else:
            arguments = self._arguments()
            call = {"arguments": {name: describer.describe(value, name=name) for name, value in arguments.items()}}
        call["mode"] = "forward and backward" if self._measures_gradient() else "forward"
        device, environment = place_of(self.args, self.kwargs)
        return RecordKey(operation.name, operation.version, device, environment, call), describer.opaque

    def _arguments(self) -> dict[str, Any]:
        """Arguments by name, so that positional and keyword spellings, and spelled-out defaults, are one call."""
        operation = self.operation
        bound = operation.signature.bind_partial(*self.args, **self.kwargs)
        bound.apply_defaults()
        left_out = {_CONFIG, "self", *operation.config_names}
        return {name: value for name, value in bound.arguments.items() if name not in left_out}

    def _measures_gradient(self) -> bool:
        return self.operation.gradient and not current_policy(self.operation.policy).forward_only

    def _tuner(self) -> Tuner:
        from ejcache.autotune.measure import Tuner

        tuner = self.operation.tuner or Tuner()
        initialisers = {**tuner.initialisers, **self.operation.initialisers}
        return dataclasses.replace(tuner, gradient=self._measures_gradient(), initialisers=initialisers)

    def _tune(self, known: Record | None, default: Any) -> Record | None:
        tuner = self._tuner()
        return tuner.tune(
            lambda configuration: lambda *a, **k: self.operation.invoke(configuration, a, k),
            self.args,
            self.kwargs,
            key=self.key,
            candidates=self.candidates(),
            default=ABSENT if default is None else default,
            known=known,
            names=list(self.operation.signature.parameters),
            call=self.described() if tuner.isolate else None,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Held:
    """The configuration of a kind of call, and as long as what it was chosen from is the same."""

    configuration: Any
    chooser: Chooser
    generation: int
    until: float

    def counts(self, chooser: Chooser) -> bool:
        if self.chooser is not chooser or self.generation != chooser.store.generation:
            return False
        return self.until == math.inf or time.monotonic() < self.until


class Autotuned:
    """A function whose configuration is chosen for each kind of call. Made by `autotuned`.

    It may be called as the function is, under `jit`, `grad`, `vmap` and `shard_map` too; a configuration that the
    caller gives is used as it is and stored nowhere.

    Attributes:
        name: of the operation.
        version: of the operation.
        function: the function itself.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        configs: Sequence[Any] | Callable[..., Sequence[Any]],
        name: str,
        version: str,
        key: Callable[..., Any] | None,
        heuristic: Any,
        tuner: Tuner | None,
        store: AutotuneStore | None,
        policy: Policy | None,
        gradient: bool,
        initialisers: Mapping[str, Callable[..., Any]] | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.version = version
        self.configs = configs
        self.key_of = key
        self.heuristic = heuristic
        self.tuner = tuner
        self._store = store
        self.policy = policy
        self.gradient = gradient
        self.initialisers = dict(initialisers or {})
        self.signature = inspect.signature(function)
        self.takes_config = _CONFIG in self.signature.parameters
        self.config_names = frozenset() if self.takes_config else self._names_of_configs()
        self._config_place = self._place_of_config()
        self._calls: dict[Any, _Held] = {}

    def __repr__(self) -> str:
        return f"Autotuned({self.name!r}, version={self.version!r})"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the configuration that is best for these arguments."""
        args, kwargs = self._without_none(args, kwargs)
        given = _CONFIG in kwargs if self.takes_config else not self.config_names.isdisjoint(kwargs)
        if given or len(args) > self._config_place:
            return self.function(*args, **kwargs)
        from ejcache.autotune.measure_call import fingerprint

        chooser = self._chooser()
        call = None if altered() or recording() else fingerprint(args, kwargs)
        if call is not None:
            held = self._calls.get(call)
            if held is not None and held.counts(chooser):
                return self._run(held.configuration, args, kwargs)
        generation = chooser.store.generation
        choice = chooser.choose(self.bound(args, kwargs).request())
        if call is not None:
            firm = choice.source.rank <= Source.SEED.rank
            until = math.inf if firm else time.monotonic() + _GUESS_SECONDS
            if len(self._calls) >= _REMEMBERED_CALLS:
                self._calls.clear()
            self._calls[call] = _Held(choice.configuration, chooser, generation, until)
        return self._run(choice.configuration, args, kwargs)

    def choose(self, *args: Any, **kwargs: Any) -> Choice:
        """The configuration that a call with these arguments would run with, and why; arrays may be stand-ins.

        Raises:
            ConfigurationMissingError: there is none, and the policy is to fail then.
        """
        return self._chooser().choose(self.bound(args, kwargs).request())

    def key(self, *args: Any, **kwargs: Any) -> RecordKey:
        """What a record of a call with these arguments is filed under."""
        return self.bound(args, kwargs).key

    def tune(self, *args: Any, **kwargs: Any) -> Record:
        """Measure every candidate for a call with these arguments, whatever is stored, and publish the result.

        Raises:
            UsageError: no candidate works.
        """
        call = self.bound(args, kwargs)
        record = call.measured()
        if record is None:
            raise UsageError(f"no configuration of {self.name} works for {call.key.text}")
        chooser = self._chooser()
        if not call.opaque:
            chooser.store.publish(record)
        self.forget()
        return record

    def forget(self) -> None:
        """Choose anew at the next call, from what is stored then."""
        self._calls.clear()
        self._chooser().forget()

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundCall:
        """A call with these arguments, to be looked at."""
        return BoundCall(self, *self._without_none(args, kwargs))

    def invoke(self, configuration: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the function with this configuration."""
        if self.takes_config:
            return self.function(*args, **kwargs, **{_CONFIG: configuration})
        return self.function(*args, **kwargs, **configuration)

    def _run(self, configuration: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """`invoke`, under a label in profiles if `EJKERNEL_OPS_STAMP` asks for one."""
        if environment().get("EJKERNEL_OPS_STAMP") is None:
            return self.invoke(configuration, args, kwargs)
        from ejcache.autotune.measure_context import labelled

        with labelled(self.bound(args, kwargs).key, configuration):
            return self.invoke(configuration, args, kwargs)

    def _chooser(self) -> Chooser:
        return default_chooser() if self._store is None else chooser_for(self._store)

    def check_names(self, plain: Any) -> None:
        """Raise `ConfigurationError` if a stored (plain) configuration cannot be passed by name, where it has to be."""
        if self.takes_config:
            return
        if not isinstance(plain, dict):
            raise ConfigurationError(
                f"{canonical_json(plain)} is no object, whose items {self.name} could take by name"
            )
        if unknown := sorted(set(plain) - self.config_names):
            raise ConfigurationError(f"the configurations of {self.name} have no {', '.join(unknown)}")

    def _place_of_config(self) -> int:
        """A call with more positional arguments than this gives the configuration itself."""
        for place, parameter in enumerate(self.signature.parameters.values()):
            if parameter.kind in {parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY}:
                break
            if parameter.name == _CONFIG or parameter.name in self.config_names:
                return place
        return sys.maxsize

    def _without_none(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """The call without a `config` that is None, which gives none; positional arguments behind it go by name."""
        if not self.takes_config:
            return args, kwargs
        place = self._config_place
        if len(args) > place and args[place] is None:
            names = list(self.signature.parameters)[place + 1 :]
            return args[:place], dict(zip(names, args[place + 1 :], strict=False)) | dict(kwargs)
        if kwargs.get(_CONFIG, ABSENT) is None:
            return args, {name: value for name, value in kwargs.items() if name != _CONFIG}
        return args, kwargs

    def _names_of_configs(self) -> frozenset[str]:
        if callable(self.configs):
            raise UsageError(f"{self.name} chooses its configurations by the call, and so needs a parameter `config`")
        names: set[str] = set()
        for configuration in self.configs:
            if not hasattr(configuration, "keys"):
                raise UsageError(f"{self.name} has no parameter `config`, so {configuration!r} must be a mapping")
            names |= set(configuration)
        unknown = sorted(names - set(self.signature.parameters))
        if unknown:
            raise UsageError(f"{self.name} has no parameter {', '.join(unknown)}, which its configurations set")
        return frozenset(names)


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
) -> Any:
    """Tune a JAX function over configurations: measured once, stored, and chosen at every call.

        @autotuned(configs=[{"block": 128}, {"block": 256}], name="matmul")
        def matmul(x, y, *, block): ...

    Args:
        function: the function; None when used with parentheses.
        configs: the candidates, or a function of the call that gives them. If the function has a parameter `config`,
            a candidate is passed as that and may be anything that JSON can hold (dataclasses too); otherwise it is a
            mapping whose items are passed by name.
        name: of the operation, in keys and paths; by default the function's module and name.
        version: change it when the function changed so much that old measurements say nothing about it.
        key: what makes two calls the same, as a function of the call; by default the shapes and data types of arrays
            and the values of everything else.
        heuristic: the configuration to use where nothing was measured and to beat where it is, or a function of the
            call that gives it; by default the first candidate.
        tuner: how to measure.
        store: where records are kept; by default the process's own (`ejcache.autotune.default_store`).
        policy: what to do without a record; by default the candidates are measured.
        gradient: measure the function with its gradient.
        initialisers: how to make inputs when the caller is being traced, by the argument's name.

    Raises:
        UsageError: a configuration cannot be passed to the function or written as JSON.
    """

    def decorate(decorated: Callable[..., Any]) -> Autotuned:
        made = Autotuned(
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
        )
        if not callable(configs):
            if not configs:
                raise UsageError(f"{made.name} needs at least one configuration")
            for configuration in configs:
                to_plain(configuration)
        return made

    return decorate if function is None else decorate(function)
