"""ejkernel's choice of a configuration, made by our chain. It replaces `ConfigSelectorChain.choose`.

Nothing of ejkernel is imported here: its objects come in as arguments, its helpers from the modules that it has
loaded. Keys are ours, because ejkernel's own say too little of data types, functions and shardings; a configuration
that is filed under a key of theirs is used where that key is beyond doubt.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from ejcache.autotune.calls import UnrecordableError, encode_value, import_path, imported
from ejcache.autotune.choice import ABSENT, Request
from ejcache.autotune.defaults import default_chooser
from ejcache.autotune.describe import Describer
from ejcache.autotune.ejkernel_files import file_key, key_of_file
from ejcache.autotune.exchange import EJKERNEL_FILE, EJKERNEL_KEY
from ejcache.autotune.key import RecordKey
from ejcache.autotune.layer import warn_once
from ejcache.autotune.plain import restored
from ejcache.autotune.policy import Policy, current_policy
from ejcache.autotune.records import Record, Source
from ejcache.autotune.store import Found

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.autotune.choice import Choice
    from ejcache.autotune.measure import Tuner

__all__ = ["call_again", "choose", "choose_for_executor", "set_tuner"]

_GUESSING: Final = frozenset({"attention", "kernel_delta_attention", "sdpa", "unified-attention"})
"""Operations (by their file's name) that ejkernel never tunes, whatever `EJKERNEL_AUTOTUNE_POLICY` says."""

_LIMITS: Final = {
    "triton_smem_limit": "EJKERNEL_TRITON_SMEM_LIMIT",
    "rda_max_candidates": "EJKERNEL_RDA_MAX_CANDIDATES",
}
_kept: Final[WeakKeyDictionary[Any, dict[tuple[str, str, str], tuple[str, int]]]] = WeakKeyDictionary()
"""What we put into ejkernel's memory: by their key, which says too little of a call, the digest of ours and the store's
generation."""

_tuner: Tuner | None = None


def set_tuner(tuner: Tuner | None) -> None:
    """Measure ejkernel's operations as `tuner` does; None for the default."""
    global _tuner
    _tuner = tuner


def choose_for_executor(executor: Any, inv: Any, kernel: Any) -> Any:
    """Stands in for `Executor._choose_heuristics_only`, which forgets overrides and stores guesses."""
    return executor.chooser.choose(inv, kernel)


def choose(chain: Any, inv: Any, kernel: Any) -> Any:
    """The configuration for one invocation, as ejkernel's method of this name answers it.

    Raises:
        ConfigurationMissingError: none was found and the policy allows neither tuning nor guessing.
    """
    call = _Call(chain, inv, kernel)
    if inv.override_cfg is not None:
        call.emit("override", cfg=inv.override_cfg)
        return inv.override_cfg
    for overlay in reversed(_module("ejkernel.ops.config.cache")._cache_overlay.get()):  # noqa: SLF001 (their overlays)
        found = overlay.get(call.legacy)
        if found is not None:
            call.emit("overlay_hit", cfg=found)
            return found
    if not call.describer.vague:
        found = chain.cache.get(*call.legacy)
        if found is not None and call.may_use_cached():
            call.emit("cache_hit", level="memory", cfg=found)
            return found
    choice = default_chooser().choose(call.request())
    call.finish(choice)
    return choice.configuration


def call_again(how: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A recorded call, to be measured; raises as `replay.tunable` does."""
    from ejcache.autotune.ejkernel import install

    kernel = imported(how["kernel"])()
    executor = imported(how["executor"])
    install()
    inv = _module("ejkernel.ops.core.kernel").Invocation(op_id=kernel.op_id, args=args, kwargs=kwargs)
    return _Call(executor.chooser, inv, kernel)


def _is_plain(kernel: Any) -> bool:
    """Whether another process gets the same kernel by making one of its class."""
    try:
        fresh = type(kernel)()
    except TypeError:
        return False
    return bool(Describer().describe(vars(fresh)) == Describer().describe(vars(kernel)))


def _executor_path(chain: Any) -> str:
    from ejcache.autotune.ejkernel import held_in_modules

    for path, held in held_in_modules(_module("ejkernel.ops.execution.executor").Executor):
        if held.chooser is chain:
            return path
    raise UnrecordableError("the executor of this call is in no module")


def _module(name: str) -> Any:
    return sys.modules[name]


@cache
def _argument_names(run: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(run).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD)


class _Call:
    """One invocation and what ejkernel knows of it."""

    def __init__(self, chain: Any, inv: Any, kernel: Any) -> None:
        from ejcache.autotune.ejkernel import adopt

        fingerprints = _module("ejkernel.ops.utils.fingerprint")
        self.chain = chain
        self.inv = inv
        self.kernel = kernel
        self.persistent = adopt(chain)
        self.platform = fingerprints.get_device_platform()
        self.context = "shard_map" if inv.method == "shard_map" else None
        version = str(getattr(kernel, "version", "0"))
        self.legacy = (
            fingerprints.device_fingerprint(),
            f"{kernel.op_id}@v{version}",
            inv.make_key(kernel.key_builder),
        )
        self.describer = Describer()
        self.key = self._key(version)
        # Asked for before the choice: what is chosen while another thread reloads the store is chosen again.
        self.stamp = (self.key.digest, default_chooser().store.generation)

    def _key(self, version: str) -> RecordKey:
        from ejcache.autotune.measure_call import place_of

        names = self._names()
        arguments = {
            (names[i] if i < len(names) else f"argument {i}"): value for i, value in enumerate(self.inv.args)
        } | dict(self.inv.kwargs)
        describe = self.describer.describe
        call: dict[str, Any] = {"arguments": {name: describe(value, name=name) for name, value in arguments.items()}}
        if self.inv.batch_axes is not None:
            call["batch_axes"] = describe(self.inv.batch_axes, name="batch_axes")
        if self.inv.method is not None:
            call["method"] = self.inv.method
            for name in ("mesh", "in_specs", "out_specs"):
                call[name] = describe(getattr(self.inv, name), name=name)
            # None of these is in ejkernel's key.
            self.describer.vague.append("the mesh and the partition specs")
        call["mode"] = "forward and backward" if self._gradient() else "forward"
        device, environment = place_of(self.inv.args, self.inv.kwargs)
        # Nor are the limits; they are in ours only where they are set.
        self.describer.vague += [f"{name} is set" for limit, name in _LIMITS.items() if limit in environment]
        return RecordKey(self.kernel.op_id, version, device, environment, call)

    def request(self) -> Request:
        return Request(
            key=self.key,
            restore=lambda plain, _: self._restored(plain),
            heuristic=self._heuristic if self.chain.policy.allow_heuristics else None,
            candidates=self._candidates,
            tune=self._tune,
            legacy=self._from_file,
            policy=self._policy(),
            opaque=self.describer.opaque,
            describe=self.described,
        )

    def described(self) -> dict[str, Any]:
        """The call as `calls.py` writes it; raises `UnrecordableError`."""
        if self.inv.method is not None:
            raise UnrecordableError(f"{self.kernel.op_id} runs under {self.inv.method}, whose mesh cannot be recorded")
        if not _is_plain(self.kernel):
            raise UnrecordableError(f"{self.kernel.op_id} is a kernel with a state of its own")
        return {
            "how": {
                "kind": "ejkernel",
                "kernel": import_path(type(self.kernel), name="the kernel"),
                "executor": _executor_path(self.chain),
            },
            "args": [encode_value(item, name=f"argument {i}") for i, item in enumerate(self.inv.args)],
            "kwargs": {name: encode_value(item, name=name) for name, item in self.inv.kwargs.items()},
        }

    def measured(self) -> Record | None:
        """Measure every candidate; None if none works."""
        return self._tune(None, self._heuristic())

    def attempt(self, plain: Any) -> None:
        """Make the call once with this (plain) configuration."""
        from ejcache.autotune.measure import Tuner, attempt

        build = self._build(self._restored(plain))
        attempt(build, self.inv.args, self.inv.kwargs, tuner=_tuner or Tuner(), names=self._names())

    def emit(self, event: str, **data: Any) -> None:
        device, op_id, call_key = self.legacy
        self.chain._emit(event, device=device, op_id=op_id, call_key=call_key, **data)  # noqa: SLF001 (their event)

    def finish(self, choice: Choice) -> None:
        """Tell ejkernel's listener, and keep a firm choice where ejkernel keeps its own."""
        if choice.source is Source.OVERLAY:
            self.emit("overlay_hit", cfg=choice.configuration)
            return
        if choice.source is Source.HEURISTIC:
            self.emit("heuristics", cfg=choice.configuration, platform=self.platform, method=self.inv.method)
            return
        if choice.layer == "memory":
            self.emit("autotune_finish", cfg=choice.configuration, platform=self.platform, method=self.inv.method)
        else:
            self.emit("cache_hit", level="persistent", cfg=choice.configuration)
        if self.describer.vague or choice.source.rank > Source.SEED.rank:
            return
        _kept.setdefault(self.chain.cache, {})[self.legacy] = self.stamp
        self.chain.cache.put(*self.legacy, choice.configuration)

    def may_use_cached(self) -> bool:
        """Whether what ejkernel's memory has is of this call, not reloaded since, or of somebody else who answers."""
        return _kept.get(self.chain.cache, {}).get(self.legacy, self.stamp) == self.stamp

    def _policy(self) -> Policy:
        theirs = self.chain.policy
        if theirs.cache_miss_fallback == "autotune" and theirs.allow_autotune:
            own = Policy("autotune")
        else:
            own = Policy("heuristics" if theirs.allow_heuristics else "error")
        name = "" if self.persistent is None else self.persistent.opname
        if own.on_miss != "autotune" and (name in _GUESSING or not theirs.allow_autotune):
            # Not a default that the environment may change, but what the operation's author decided.
            return Policy(own.on_miss, fixed=True)
        return own

    def _names(self) -> list[str]:
        return [name for name in _argument_names(type(self.kernel).run) if name != "self"]

    def _gradient(self) -> bool:
        theirs = self.chain.policy
        enabled = _module("ejkernel.ops.config.selection")._is_backward_autotune_enabled()  # noqa: SLF001
        if not (theirs.validate_backward and enabled) or current_policy().forward_only:
            return False
        return self.inv.method != "shard_map" or bool(getattr(self.kernel, "supports_grad_validation", False))

    def _method(self, name: str) -> Any:
        find = _module("ejkernel.ops.core.kernel")._get_platform_method  # noqa: SLF001 (their dispatch)
        return find(self.kernel, name, self.platform, self.context) or getattr(self.kernel, name)

    def _heuristic(self) -> Any:
        return self._method("heuristic_cfg")(self.inv)

    def _candidates(self) -> list[Any]:
        return list(self._method("candidate_cfgs")(self.inv))

    def _restored(self, plain: Any) -> Any:
        like = self._heuristic()
        if dataclasses.is_dataclass(like) and not isinstance(like, type):
            return restored(plain, cfg_type=type(like))
        return restored(plain, like=like)

    def _from_file(self) -> Found | None:
        """What ejkernel's file, or a record of one, has under ejkernel's key: trusted if the key is beyond doubt."""
        if self.persistent is None:
            return None
        text = file_key(*self.legacy)
        key = key_of_file(text)
        found = None if key is None else default_chooser().store.find(key)
        if found is None and (plain := self.persistent.read(text)) is not None:
            found = Found(Record(key or self.key, plain, Source.IMPORTED), "ejkernel's file", Source.IMPORTED)
        if found is None:
            return None
        if not self.describer.vague:
            return None if self._is_of_another_call(text, found.record) else found
        default_chooser().emit("ambiguous", self.key, detail="; ".join(self.describer.vague))
        warn_once(
            f"ambiguous {self.kernel.op_id}",
            "a configuration of %s is filed under a key of ejkernel's that other calls share, and is not used: %s",
            self.kernel.op_id,
            self.describer.vague[0],
        )
        return None

    def _is_of_another_call(self, text: str, entry: Record) -> bool:
        """Whether we wrote the entry ourselves, for a call that ejkernel's key does not tell from this one.

        Their key has neither the mode nor the toolchain nor the model of a CPU.
        """
        return any(
            found.record.provenance.get(EJKERNEL_KEY) == text
            and found.record.key not in {self.key, entry.key}
            and found.record.configuration == entry.configuration
            for found in default_chooser().store.records(operation=self.key.operation, device=self.key.device)
        )

    def _tune(self, known: Record | None, default: Any) -> Record | None:
        from ejcache.autotune.measure import Tuner
        from ejcache.autotune.measure_spans import refuse_spanning

        refuse_spanning([self.inv.mesh], name=self.kernel.op_id)
        candidates = self._candidates()
        self.emit("autotune_start", candidates=len(candidates), platform=self.platform, method=self.inv.method)
        tuner = dataclasses.replace(_tuner or Tuner(), gradient=self._gradient())
        record = tuner.tune(
            self._build,
            self.inv.args,
            self.inv.kwargs,
            key=self.key,
            candidates=candidates,
            default=ABSENT if default is None else default,
            known=known,
            names=self._names(),
            call=self.described() if tuner.isolate else None,
        )
        if record is None or self.persistent is None or self.describer.vague or not self.chain.persist_autotune:
            return record
        text = file_key(*self.legacy)
        self.persistent.write(text, record.configuration)
        legacy = {EJKERNEL_KEY: text, EJKERNEL_FILE: f"{self.persistent.opname}.json"}
        return dataclasses.replace(record, provenance={**record.provenance, **legacy})

    def _build(self, configuration: Any) -> Callable[..., Any]:
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
