"""Decorates functions: `@autotuned` chooses a configuration for each call, `@implementations` one of several ways."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import math
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from ejcache.autotune.call import Call
from ejcache.autotune.call_documents import import_path
from ejcache.autotune.calls_ahead import is_ahead
from ejcache.autotune.chooser import chooser_for, default_chooser
from ejcache.autotune.descriptions import Describer, code_digest
from ejcache.autotune.ejkernel_variables import label_of_calls, label_prefix
from ejcache.autotune.fingerprint import fingerprint
from ejcache.autotune.log import warn_once
from ejcache.autotune.measure.output_comparison import check_setting
from ejcache.autotune.measure.space import Space
from ejcache.autotune.measure.trial import error_line
from ejcache.autotune.measure.tuner import Tuner
from ejcache.autotune.recording import recording
from ejcache.autotune.records.json_values import ConfigurationError, canonical_json, from_json, json_or_repr, to_json
from ejcache.autotune.records.record import CODE, NO_CONFIGURATION, Source, Status
from ejcache.autotune.tuning_blocks import altered, current_policy
from ejcache.autotune.value_kinds import module_name
from ejcache.errors import UsageError
from ejcache.jax_integration.seam.autotune.tracing import traces_nothing, watch_shape_evaluation
from ejcache.jax_integration.seam.tracebacks import cut_our_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ejcache.autotune.choice import Choice
    from ejcache.autotune.chooser import Chooser
    from ejcache.autotune.measure.output_comparison import Check
    from ejcache.autotune.measure.space import CallSpace
    from ejcache.autotune.records.record import Record
    from ejcache.autotune.records.record_key import RecordKey
    from ejcache.autotune.records.store import AutotuneStore
    from ejcache.autotune.tuning_blocks import TuningPolicy

    Configs = Sequence[Any] | Callable[..., Sequence[Any]] | Space


P = ParamSpec("P")
R = TypeVar("R")

_CONFIG: Final = "config"
_GUESS_SECONDS: Final = 1.0
_REMEMBERED_CALLS: Final = 10_000
_DRAWN: Final = 64
"""Configurations of a space that are candidates where several implementations compete."""


class Options(TypedDict, total=False):
    """The optional arguments of `autotuned`, which says what each is."""

    name: str | None
    version: int | str
    key: Callable[..., Any] | None
    heuristic: Any
    tuner: Tuner | None
    store: AutotuneStore | None
    policy: TuningPolicy | None
    gradient: bool
    initialisers: Mapping[str, Callable[..., Any]] | None
    check: Check | None
    check_inputs: Callable[..., Any] | None
    prune: Callable[..., Sequence[Any]] | None


class BoundCall(Call):
    """A call of an autotuned function."""

    def __init__(self, operation: Autotuned[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__(args, kwargs, list(operation.signature.parameters))
        self.operation = operation
        self.policy = operation.policy
        call = self._described_arguments()
        self.key = self.keyed(operation.name, operation.version, call, gradient=self._measures_gradient())
        if operation.key_of is not None:
            described = canonical_json(Describer().describe([list(args), dict(kwargs)]))
            self.part += hashlib.sha256(described.encode()).hexdigest()[:16]
            self.shares_key = True

    def candidates(self) -> list[Any]:
        """Return the configurations to measure, which are listed."""
        configs, prune = self.operation.configs, self.operation.prune
        if isinstance(configs, Space):
            raise UsageError(f"the configurations of {self.operation.name} are a space, which is never listed")
        listed = list(configs(*self.args, **self.kwargs) if callable(configs) else configs)
        return listed if prune is None else list(prune(listed, *self.args, **self.kwargs))

    def default(self) -> Any:
        """Return the configuration for a call that was not measured."""
        heuristic = self.operation.heuristic
        if heuristic is not None:
            return heuristic(*self.args, **self.kwargs) if callable(heuristic) else heuristic
        if isinstance(self.operation.configs, Space):
            return self.operation.configs.default
        candidates = self.candidates()
        if not candidates:
            raise UsageError(f"{self.operation.name} has no configurations for this call")
        return candidates[0]

    def restored(self, stored: Any, source: Source) -> Any:
        """Return the candidate that equals a stored configuration. A pinned configuration need not be a candidate.

        Raises:
            ConfigurationError: no candidate equals it.
        """
        wanted = canonical_json(stored)
        default, space = self.default(), self.space()
        if space is not None:
            return default if canonical_json(to_json(default)) == wanted else space.checked(stored)
        for candidate in (default, *self.candidates()):
            if canonical_json(to_json(candidate)) == wanted:
                return candidate
        if source is Source.PINNED:
            self.operation.check_names(stored)
            return from_json(stored, like=default)
        raise ConfigurationError(f"{wanted} is not a candidate of {self.operation.name} any more")

    def space(self) -> CallSpace | None:
        """Return the configurations that this call may use, if they are described and not listed."""
        configs = self.operation.configs
        return configs.of_call(self.args, self.kwargs) if isinstance(configs, Space) else None

    def build(self, configuration: Any) -> Callable[..., Any]:
        """Return the function with this configuration."""
        return lambda *args, **kwargs: self.operation.invoke(configuration, args, kwargs)

    def how(self) -> dict[str, Any]:
        """Return the name of the function; raises `UnrecordableError`."""
        return {"kind": "autotuned", "object": import_path(self.operation, name=self.operation.name)}

    def store(self) -> AutotuneStore:
        """Return the records of the operation."""
        return self.operation.chooser().store

    def tuner(self) -> Tuner:
        """Return the operation's own, or the default one, with what the decorator says of the operation."""
        tuner = self.operation.tuner or Tuner()
        initialisers = {**tuner.initialisers, **self.operation.initialisers}
        check = tuner.check if self.operation.check is None else self.operation.check
        return dataclasses.replace(
            tuner,
            gradient=self._measures_gradient(),
            initialisers=initialisers,
            check=check,
            check_inputs=self.operation.check_inputs or tuner.check_inputs,
        )

    def code(self) -> str:
        """Return the digest of the function's code."""
        return self.operation.code

    def measured(self, known: Record | None = None) -> Record:
        """Return the record, with the digest of the function's code."""
        record = super().measured(known)
        provenance = {**record.provenance, CODE: self.operation.code}
        return dataclasses.replace(record, provenance=provenance)

    def _described_arguments(self) -> dict[str, Any]:
        operation, describe = self.operation, self.describer.describe
        if operation.key_of is not None:
            return {"key": describe(operation.key_of(*self.args, **self.kwargs), name="the key")}
        # A call has one key, however it passes its arguments and whether it spells out defaults.
        bound = operation.signature.bind_partial(*self.args, **self.kwargs)
        bound.apply_defaults()
        left_out = {_CONFIG, *operation.config_names}
        arguments = {name: value for name, value in bound.arguments.items() if name not in left_out}
        described = {name: describe(value, name=name) for name, value in arguments.items()}
        if set(described.get("self") or ()) == {"is"}:
            # An object without values. It never was in the key, and records from then stay valid.
            del described["self"]
        return {"arguments": described}

    def _measures_gradient(self) -> bool:
        return self.operation.gradient and not current_policy(self.operation.policy).forward_only


@dataclasses.dataclass(frozen=True, slots=True)
class _RememberedCall:
    """The configuration for one fingerprint, and how long it counts."""

    configuration: Any
    record: Record | None
    chooser: Chooser
    generation: int
    until: float

    def counts(self, chooser: Chooser) -> bool:
        if self.chooser is not chooser or self.generation != chooser.store.generation:
            return False
        return self.until == math.inf or time.monotonic() < self.until


class Autotuned(Generic[P, R]):
    """A function that chooses its configuration for each kind of call. `autotuned` makes it.

    Call it as you call the function, also under `jit`, `grad`, `vmap` and `shard_map`. A configuration that the call
    gives is used as it is and never stored.

    Attributes:
        name: of the operation.
        version: of the operation.
        function: the undecorated function.
    """

    def __init__(
        self,
        function: Callable[P, R],
        configs: Configs,
        *,
        name: str,
        version: str,
        options: Options,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function: Callable[..., R] = function
        self.name = name
        self.version = version
        self.configs = configs
        self.key_of = options.get("key")
        self.heuristic = options.get("heuristic")
        self.tuner = options.get("tuner")
        self.policy = options.get("policy")
        self.gradient = options.get("gradient", False)
        self.initialisers = dict(options.get("initialisers") or {})
        self.prune = options.get("prune")
        self.check = options.get("check")
        self.check_inputs = options.get("check_inputs")
        if self.check is not None:
            check_setting(self.check)
        self.signature = inspect.signature(function)
        self.takes_config = _CONFIG in self.signature.parameters
        self.config_names = frozenset() if self.takes_config else self._names_of_configs()
        self._config_index = self._first_config_index()
        self._check_configs()
        store = options.get("store")
        self._own_chooser = None if store is None else chooser_for(store)
        self._calls: dict[Any, _RememberedCall] = {}
        if "jax" in sys.modules:
            watch_shape_evaluation()

    def __repr__(self) -> str:
        return f"Autotuned({self.name!r}, version={self.version!r})"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundOperation(self, instance)

    @functools.cached_property
    def code(self) -> str:
        """A digest of the function's code, which is not part of keys: `version` is."""
        return code_digest(self.function)

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> R: ...

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Call the function with the best configuration for these arguments. The configuration may be left out."""
        try:
            return self._call(args, kwargs)
        except BaseException as exc:
            # The user's line is what matters.
            cut_our_frames(exc)
            raise

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> R:
        args, kwargs = self._without_none(args, kwargs)
        given = _CONFIG in kwargs if self.takes_config else not self.config_names.isdisjoint(kwargs)
        if given or len(args) > self._config_index:
            return self.function(*args, **kwargs)
        chooser = self._own_chooser or default_chooser()
        call = None if altered() or recording() or is_ahead() else fingerprint(args, kwargs)
        if call is not None:
            held = self._calls.get(call)
            if held is not None and held.counts(chooser):
                return self._run_or_other(held.configuration, held.record, args, kwargs)
        generation = chooser.store.generation
        choice = chooser.choose(self.bound(args, kwargs))
        if call is not None:
            firm = choice.source.rank <= Source.IMPORTED.rank
            until = math.inf if firm else time.monotonic() + _GUESS_SECONDS
            if len(self._calls) >= _REMEMBERED_CALLS:
                self._calls.clear()
            self._calls[call] = _RememberedCall(choice.configuration, choice.record, chooser, generation, until)
        return self._run_or_other(choice.configuration, choice.record, args, kwargs)

    def choose(self, *args: Any, **kwargs: Any) -> Choice:
        """Return the configuration for a call with these arguments, and the reason for it. Arrays may be stand-ins.

        Raises:
            ConfigurationMissingError: no configuration was found, or none that is tuned where the policy requires one.
        """
        return self.chooser().choose(self.bound(args, kwargs))

    def key(self, *args: Any, **kwargs: Any) -> RecordKey:
        """Return the key of a call with these arguments."""
        return self.bound(args, kwargs).key

    def tune(self, *args: Any, **kwargs: Any) -> Record:
        """Measure all candidates for a call with these arguments, even if there is a record, and publish the result.

        Raises:
            UsageError: all candidates fail.
        """
        call = self.bound(args, kwargs)
        store = self.chooser().store
        store.find(call.key)  # what is found now is replaced
        record = call.measured()
        if not record.works:
            raise UsageError(f"no configuration of {self.name} works for {call.key.text}: {record.failures()}")
        if not call.unhashable:
            store.publish(record)
        self.forget()
        return record

    def forget(self) -> None:
        """Choose again at the next call, from the records that the store has then."""
        self.chooser().store.reload()

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundCall:
        """Return the call with these arguments."""
        return BoundCall(self, *self._without_none(args, kwargs))

    def invoke(self, configuration: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> R:
        """Call the function with this configuration."""
        given = {_CONFIG: configuration} if self.takes_config else configuration
        return self.function(*args, **kwargs, **given)

    def check_names(self, stored: Any) -> None:
        """Raise `ConfigurationError` if the function takes no such configuration (a JSON value) by name."""
        if self.takes_config:
            return
        if not isinstance(stored, dict):
            raise ConfigurationError(f"{canonical_json(stored)} is not an object with arguments of {self.name}")
        if unknown := sorted(set(stored) - self.config_names):
            raise ConfigurationError(f"the configurations of {self.name} have no {', '.join(unknown)}")

    def _run_or_other(
        self, configuration: Any, record: Record | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> R:
        """Run a configuration, or the best of the others if this one was measured and works only under `jax.jit`."""
        try:
            return self._run(configuration, args, kwargs)
        except Exception as exc:
            if record is None or record.source is not Source.TUNED or not traces_nothing():
                raise
            call = self.bound(args, kwargs)
            for other in record.candidates:
                if other.status is Status.OK and other.digest != canonical_json(record.configuration):
                    # One error may concern the call and not the configuration. Then each of the others raises, too.
                    with contextlib.suppress(Exception):
                        found = self._run(call.restored(other.configuration, Source.TUNED), args, kwargs)
                        warn_once(
                            f"eager {self.name} {record.configuration}",
                            "the configuration %s of %s works only under jax.jit, so this call without jax.jit runs "
                            "with %s, the best of the others: %s",
                            canonical_json(record.configuration),
                            self.name,
                            other.digest,
                            error_line(exc),
                        )
                        return found
            raise

    def _run(self, configuration: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> R:
        """Return `invoke`, with a label in profiles if `EJKERNEL_OPS_STAMP` asks for one."""
        wanted = label_of_calls()
        if wanted is None:
            return self.invoke(configuration, args, kwargs)
        with labelled(self.bound(args, kwargs).key, configuration, as_json=wanted == "json"):
            return self.invoke(configuration, args, kwargs)

    def chooser(self) -> Chooser:
        """Return the chooser that decides for this operation."""
        return self._own_chooser or default_chooser()

    def _first_config_index(self) -> int:
        """Count the positional arguments before the configuration: a call with more of them gives it itself."""
        for index, parameter in enumerate(self.signature.parameters.values()):
            if parameter.kind in {parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY}:
                break
            if parameter.name == _CONFIG or parameter.name in self.config_names:
                return index
        return sys.maxsize

    def _without_none(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Drop a `config` of None, which means none, from the call. Positional arguments after it become keywords."""
        if not self.takes_config:
            return args, kwargs
        index = self._config_index
        if len(args) > index and args[index] is None:
            names = list(self.signature.parameters)[index + 1 :]
            return args[:index], dict(zip(names, args[index + 1 :], strict=False)) | dict(kwargs)
        if kwargs.get(_CONFIG, NO_CONFIGURATION) is None:
            return args, {name: value for name, value in kwargs.items() if name != _CONFIG}
        return args, kwargs

    def _check_configs(self) -> None:
        if isinstance(self.configs, Space):
            if self.prune is not None:
                raise UsageError(f"the configurations of {self.name} are a space: give it constraints, and no prune=")
        elif not callable(self.configs):
            if not self.configs:
                raise UsageError(f"{self.name} needs at least one configuration")
            for configuration in self.configs:
                to_json(configuration)

    def _names_of_configs(self) -> frozenset[str]:
        if callable(self.configs):
            raise UsageError(f"{self.name} computes its configurations, so its function needs a parameter `config`")
        names: set[str] = set()
        for configuration in [self.configs.default] if isinstance(self.configs, Space) else self.configs:
            if not hasattr(configuration, "keys"):
                raise UsageError(f"{self.name} has no parameter `config`, so {configuration!r} must be a mapping")
            names |= set(configuration)
        unknown = sorted(names - set(self.signature.parameters))
        if unknown:
            raise UsageError(f"{self.name} has no parameter {', '.join(unknown)}, which its configurations set")
        return frozenset(names)


class BoundOperation(Generic[R]):
    """An autotuned method of one object: the attributes of `Autotuned`, with the object as first argument."""

    def __init__(self, operation: Autotuned[..., R], instance: Any) -> None:
        self.__name__ = operation.name
        self.__doc__ = operation.function.__doc__
        self.__self__ = instance
        self.__func__ = operation

    def __getattr__(self, name: str) -> Any:
        held = getattr(self.__func__, name)
        return functools.partial(held, self.__self__) if name in {"choose", "key", "tune"} else held

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Return `Autotuned.__call__`, bound."""
        return self.__func__(self.__self__, *args, **kwargs)


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
        configs: the candidates, a function of the call that returns them, or a `Space`. A function with a parameter
            `config` gets a candidate as that, any value with a JSON form, such as a dataclass; others get its items as
            arguments.
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
        check_inputs: a function of the call's arguments and `key=` that returns lists of arguments of the same shapes,
            on which candidates have to be right, too, as those of the kernel's tests; see `Tuner`.

    Raises:
        UsageError: there is no configuration, one cannot be passed or written as JSON, or `check` is not valid.
    """
    if unknown := sorted(set(options) - Options.__annotations__.keys()):
        raise TypeError(f"autotuned() got an unexpected keyword argument {unknown[0]!r}")

    def decorate(decorated: Callable[..., Any]) -> Autotuned[..., Any]:
        own_name = f"{module_name(decorated)}.{decorated.__qualname__}".replace(".<locals>", "")
        name, version = options.get("name") or own_name, str(options.get("version", 1))
        held = configs if callable(configs) or isinstance(configs, Space) else tuple(configs)
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


def _some_of(call: BoundCall) -> list[Any]:
    """List the candidates of a call; of a space some, the same in every process: a record has their digest."""
    if (space := call.space()) is None:
        return call.candidates()
    return space.some(random.Random(0), _DRAWN)  # noqa: S311 (not a secret)


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
            `autotuned` made are candidates, too, of a `Space` some random ones; what it has recorded by itself is not
            used. The first is the default.
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
        # Its own default comes first, so that the default of the first implementation is that of the operation.
        call = function.bound(args, kwargs)
        return [Implementation(which, item) for item in (call.default(), *_some_of(call))]

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


def labelled(key: RecordKey, configuration: Any, *, as_json: bool) -> contextlib.AbstractContextManager[Any]:
    """Label the operations in this block `<prefix><operation>@v<version>:<digest>`, and the call if that is wanted."""
    import jax

    label = f"{label_prefix()}{key.operation}@v{key.version}:{key.digest}"
    if as_json:
        label += canonical_json({"call": dict(key.call), "configuration": json_or_repr(configuration)})
    return jax.named_scope(label)  # type: ignore[no-any-return]  # the seam of JAX has no types
