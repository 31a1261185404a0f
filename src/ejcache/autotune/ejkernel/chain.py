"""Replaces `ConfigSelectorChain.choose` of ejkernel by our chain of configurations.

This module does not import ejkernel: its objects come as arguments, and its helpers from the modules that are loaded.
Keys are ours, because ejkernel's keys do not tell all data types, functions and shardings apart. A configuration under
one of its keys is used only if the key is unambiguous.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.call import Call
from ejcache.autotune.call_documents import UnrecordableError, import_path
from ejcache.autotune.chooser import default_chooser
from ejcache.autotune.descriptions import Describer
from ejcache.autotune.ejkernel.cache import EJKERNEL_FILE, EJKERNEL_KEY, adopt, file_key, key_of_file
from ejcache.autotune.ejkernel_variables import LIMITS
from ejcache.autotune.log import warn_once
from ejcache.autotune.measure.spanning import refuse_spanning
from ejcache.autotune.measure.tuner import Tuner
from ejcache.autotune.records.json_values import from_json
from ejcache.autotune.records.record import Record, Source
from ejcache.autotune.records.store import Found
from ejcache.autotune.tuning_blocks import TuningPolicy, current_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.autotune.choice import Choice
    from ejcache.autotune.records.record_key import RecordKey
    from ejcache.autotune.records.store import AutotuneStore


_GUESSING: Final = frozenset({"attention", "kernel_delta_attention", "sdpa", "unified-attention"})
"""The operations, by the names of their files, that ejkernel never tunes, whatever the policy is."""


_tuner: Tuner | None = None


def set_tuner(tuner: Tuner) -> None:
    """Measure ejkernel's operations with these settings."""
    global _tuner
    _tuner = tuner


def choose_for_executor(executor: Any, inv: Any, kernel: Any) -> Any:
    """Replace `Executor._choose_heuristics_only`, which ignores overrides and stores guesses."""
    return executor.chooser.choose(inv, kernel)


def choose(chain: Any, inv: Any, kernel: Any) -> Any:
    """Return the configuration for one invocation: its override, an overlay of ejkernel's, or the chooser's choice.

    A measurement that fails raises nothing: it is logged once, and the next best configuration or the kernel's own
    guess is used.

    Raises:
        ConfigurationMissingError: none was found and the policy is `error`, or a guess was needed (tuning is off or
            failed) and the kernel may not guess, or another process of the job found none.
        CompileForbiddenError: it would have to be tuned where `forbid_compile` forbids compilations.
        DisagreementError: this process cannot use the configuration that the other processes of the job use.
    """
    call = InvocationCall(chain, inv, kernel)
    if inv.override_cfg is not None:
        call.emit("override", cfg=inv.override_cfg)
        return inv.override_cfg
    for overlay in reversed(_module("ejkernel.ops.config.cache")._cache_overlay.get()):  # noqa: SLF001 (their overlays)
        found = overlay.get(call.legacy_key)
        if found is not None:
            call.emit("overlay_hit", cfg=found)
            return found
    choice = default_chooser().choose(call)
    call.finish(choice)
    return choice.configuration


def _is_plain(kernel: Any) -> bool:
    """True if another process can make an equal kernel from its class alone."""
    try:
        fresh = type(kernel)()
    except TypeError:
        return False
    return bool(Describer().describe(vars(fresh)) == Describer().describe(vars(kernel)))


def _executor_path(chain: Any) -> str:
    for path, held in held_in_modules(_module("ejkernel.ops.execution.executor").Executor):
        if held.chooser is chain:
            return path
    raise UnrecordableError("no module has the executor of this call")


def held_in_modules(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield (`module:name`, value) of each global of this type in the imported modules.

    This reads no attribute of a module or a value. A lazy module of some library would be imported by that, or raise.
    """
    variables: Any = vars(ModuleType)["__dict__"].__get__
    for name, module in list(sys.modules.items()):
        if not issubclass(type(module), ModuleType):
            continue
        for variable, value in list(variables(module).items()):
            if issubclass(type(value), kind):
                yield f"{name}:{variable}", value


def _module(name: str) -> Any:
    return sys.modules[name]


@cache
def _parameters(run: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    try:
        return tuple(inspect.signature(run).parameters.values())
    except (TypeError, ValueError):
        return ()


class InvocationCall(Call):
    """One invocation of a kernel."""

    def __init__(self, chain: Any, inv: Any, kernel: Any) -> None:
        parameters = _parameters(type(kernel).run)
        names = [item.name for item in parameters if item.kind is not item.VAR_KEYWORD and item.name != "self"]
        super().__init__(inv.args, inv.kwargs, names)
        fingerprints = _module("ejkernel.ops.utils.fingerprint")
        self.chain = chain
        self.inv = inv
        self.kernel = kernel
        self.persistent = adopt(chain)
        self.platform = fingerprints.get_device_platform()
        self.context = "shard_map" if inv.method == "shard_map" else None
        version = str(getattr(kernel, "version", "0"))
        self.legacy_key = (
            fingerprints.device_fingerprint(),
            f"{kernel.op_id}@v{version}",
            inv.make_key(kernel.key_builder),
        )
        self.policy = self._policy()
        self.may_guess = bool(chain.policy.allow_heuristics)
        self.key = self._key(version)

    def _key(self, version: str) -> RecordKey:
        names, ambiguous = self.names, self.describer.ambiguous
        arguments = {
            (names[i] if i < len(names) else f"argument {i}"): value for i, value in enumerate(self.inv.args)
        } | dict(self.inv.kwargs)
        describe = self.describer.describe
        call: dict[str, Any] = {"arguments": {name: self._argument(name, arguments[name]) for name in arguments}}
        if self.inv.batch_axes is not None:
            call["batch_axes"] = describe(self.inv.batch_axes, name="batch_axes")
        if self.inv.method is not None:
            call["method"] = self.inv.method
            for name in ("mesh", "in_specs", "out_specs"):
                call[name] = describe(getattr(self.inv, name), name=name)
            ambiguous.append("the mesh and the partition specs")
        key = self.keyed(self.kernel.op_id, version, call, gradient=self._gradient())
        # ejkernel's key has neither these nor a mesh, and the limits only if ours has them: if they are set.
        ambiguous += [f"{name} is {value}" for name, value in call.get("settings", {}).items()]
        if self.axes:
            ambiguous.append("jax.vmap maps the call")
        ambiguous += [f"{name} is set" for limit, name in LIMITS.items() if limit in key.environment]
        return key

    def _argument(self, name: str, value: Any) -> Any:
        """Return the description of an argument. At its default it is unambiguous.

        ejkernel's key does not tell data types and functions apart. Nearly all calls have the default, so a
        configuration in ejkernel's file is taken to be of such a call, and of no other.
        """
        ambiguous = self.describer.ambiguous
        before = len(ambiguous)
        described = self.describer.describe(value, name=name)
        if len(ambiguous) > before:
            defaults = {item.name: item.default for item in _parameters(type(self.kernel).run)}
            default = defaults.get(name, inspect.Parameter.empty)
            if default is not inspect.Parameter.empty and described == Describer().describe(default):
                del ambiguous[before:]
        return described

    def how(self) -> dict[str, Any]:
        """Return the names of the kernel and the executor; raises `UnrecordableError`."""
        if self.inv.method is not None:
            raise UnrecordableError(f"{self.kernel.op_id} runs under {self.inv.method}, whose mesh cannot be recorded")
        if not _is_plain(self.kernel):
            raise UnrecordableError(f"{self.kernel.op_id} is a kernel with a state of its own")
        kernel = import_path(type(self.kernel), name="the kernel")
        return {"kind": "ejkernel", "kernel": kernel, "executor": _executor_path(self.chain)}

    def store(self) -> AutotuneStore:
        """Return the process's own store."""
        return default_chooser().store

    def tuner(self) -> Tuner:
        """Return the one that `install` was given, or the default one."""
        return dataclasses.replace(_tuner or Tuner(), gradient=self._gradient())

    def emit(self, event: str, **data: Any) -> None:
        device, op_id, call_key = self.legacy_key
        self.chain._emit(event, device=device, op_id=op_id, call_key=call_key, **data)  # noqa: SLF001 (their event)

    def finish(self, choice: Choice) -> None:
        """Notify ejkernel's listener."""
        if choice.source is Source.OVERLAY:
            self.emit("overlay_hit", cfg=choice.configuration)
        elif choice.source is Source.HEURISTIC:
            self.emit("heuristics", cfg=choice.configuration, platform=self.platform, method=self.inv.method)
        else:
            self.emit(
                "cache_hit", level="memory" if choice.layer == "memory" else "persistent", cfg=choice.configuration
            )

    def _policy(self) -> TuningPolicy:
        theirs = self.chain.policy
        if theirs.cache_miss_fallback == "autotune" and theirs.allow_autotune:
            own = TuningPolicy("autotune")
        else:
            own = TuningPolicy("heuristics" if theirs.allow_heuristics else "error")
        name = "" if self.persistent is None else self.persistent.opname
        if own.on_miss != "autotune" and (name in _GUESSING or not theirs.allow_autotune):
            # The operation's author decided this. The environment must not change it.
            return TuningPolicy(own.on_miss, fixed=True)
        return own

    def _gradient(self) -> bool:
        theirs = self.chain.policy
        enabled = _module("ejkernel.ops.config.selection")._is_backward_autotune_enabled()  # noqa: SLF001
        if not (theirs.validate_backward and enabled) or current_policy().forward_only:
            return False
        return self.inv.method != "shard_map" or bool(getattr(self.kernel, "supports_grad_validation", False))

    def _method(self, name: str) -> Any:
        find = _module("ejkernel.ops.core.kernel")._get_platform_method  # noqa: SLF001 (their dispatch)
        return find(self.kernel, name, self.platform, self.context) or getattr(self.kernel, name)

    def default(self) -> Any:
        """Return the kernel's own guess."""
        return self._method("heuristic_cfg")(self.inv)

    def candidates(self) -> list[Any]:
        """Return the configurations that the kernel proposes."""
        return list(self._method("candidate_cfgs")(self.inv))

    def restored(self, stored: Any, source: Source) -> Any:  # noqa: ARG002  # all are used alike
        """Return the configuration, in the type of the kernel's guess."""
        return from_json(stored, like=self.default())

    def legacy(self) -> Found | None:
        """Look up the configuration under ejkernel's key, in a record or in its file, if that key is unambiguous."""
        if self.persistent is None:
            return None
        text = file_key(*self.legacy_key)
        key = key_of_file(text)
        found = None if key is None else default_chooser().store.find(key)
        if found is None and (stored := self.persistent.file.read().get(text)) is not None:
            found = Found(Record(key or self.key, stored, Source.IMPORTED), "ejkernel's file", Source.IMPORTED)
        if found is None:
            return None
        if not self.describer.ambiguous:
            return None if self._is_of_another_call(text, found.record) else found
        default_chooser().emit("ambiguous", self.key, detail="; ".join(self.describer.ambiguous))
        warn_once(
            f"ambiguous {self.kernel.op_id}",
            "a configuration of %s has a key of ejkernel's that other calls share, so it is not used: %s",
            self.kernel.op_id,
            self.describer.ambiguous[0],
        )
        return None

    def _is_of_another_call(self, text: str, entry: Record) -> bool:
        """True if we wrote the entry for another call with the same key of ejkernel's.

        ejkernel's key does not have the mode, the toolchain and the model of a CPU.
        """
        return any(
            found.record.provenance.get(EJKERNEL_KEY) == text
            and found.record.key not in {self.key, entry.key}
            and found.record.configuration == entry.configuration
            for found in default_chooser().store.records(operation=self.key.operation, device=self.key.device)
        )

    def measured(self, known: Record | None = None) -> Record:
        """Return the record, which is also written into ejkernel's file if its key there is unambiguous."""
        refuse_spanning([self.inv.mesh], name=self.kernel.op_id)
        count = len(self.candidates())
        self.emit("autotune_start", candidates=count, platform=self.platform, method=self.inv.method)
        record = super().measured(known)
        if not record.works:
            return record
        winner = self.restored(record.configuration, record.source)
        self.emit("autotune_finish", cfg=winner, platform=self.platform, method=self.inv.method)
        if self.persistent is None or self.describer.ambiguous or not self.chain.persist_autotune:
            return record
        text = file_key(*self.legacy_key)
        self.persistent.file.put(text, record.configuration)
        legacy = {EJKERNEL_KEY: text, EJKERNEL_FILE: f"{self.persistent.opname}.json"}
        return dataclasses.replace(record, provenance={**record.provenance, **legacy})

    def build(self, configuration: Any) -> Callable[..., Any]:
        """Return the kernel with this configuration."""
        if self.inv.method == "shard_map":
            return lambda *args, **kwargs: self._sharded(configuration, args, kwargs)
        run = self._method("run")
        return lambda *args, **kwargs: run(*args, cfg=configuration, **kwargs)

    def _sharded(self, configuration: Any, args: Any, kwargs: Any) -> Any:
        inv = self.inv
        mapped, call_args, *callback = self.kernel.create_shard_map_wrapper(
            *args,
            cfg=configuration,
            mesh=inv.mesh,
            in_specs=inv.in_specs,
            out_specs=inv.out_specs,
            check_vma=inv.check_vma,
            **kwargs,
        )
        out = mapped(*call_args)
        return callback[0](out, cfg=configuration) if callback and callback[0] is not None else out
