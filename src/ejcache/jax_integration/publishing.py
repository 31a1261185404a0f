"""What happens to an executable that was compiled: it is stored or not, and the miss is logged and explained.

`notes` and `located_text` are what `ejcache why` compares besides the key.

What was compiled without its GPU is compiled again with it, behind the program that uses it.

XLA chooses among its kernels by running them. Without a device it takes the first that fits, and the executable is
stored as the variant `cross`. A process that has the device uses that at once. With the setting `tune_cross` it then
compiles the program as plain XLA would, when the program has had time to start, and the next process loads the result.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import jax
from jaxlib.mlir import ir

from ejcache import entry
from ejcache.cache.counters import Miss, Skip
from ejcache.cache.run_counts import write_later
from ejcache.cache.starts import STORED
from ejcache.errors import CompileForbiddenError
from ejcache.jax_integration.compile_modes import is_forbidden
from ejcache.jax_integration.lowering.key import alternative_key
from ejcache.jax_integration.lowering.modules import module_text
from ejcache.jax_integration.program import LoweredProgram
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.seam import tracing
from ejcache.jax_integration.seam.backends import process_index
from ejcache.jax_integration.seam.durations import when_compiled
from ejcache.jax_integration.seam.flags import changed_trace_settings
from ejcache.misses.explanation import why_not_found, why_not_stored
from ejcache.misses.log import LARGE_CONSTANT, MissRecord, record_miss, remember_program
from ejcache.settings.table import Floors
from ejcache.util.lifecycle import ExitPhase, at_exit
from ejcache.util.log import log
from ejcache.util.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ejcache.cache.policy import CachePolicy
    from ejcache.jax_integration.compilation import Compilation
    from ejcache.jax_integration.pgle import PgleVariants
    from ejcache.jax_integration.program import CompileTarget
    from ejcache.keys.key import CacheKey
    from ejcache.misses.explanation import Explanation
    from ejcache.settings.table import Settings


_TEXT_SECONDS: Final = 0.1
"""The text of a program that compiles faster is only in the log of this user on this host: to print it and to store it
takes as long as to store the executable."""
_SUCCESSION_SECONDS: Final = 30.0
"""After this long the next rank checks whether the rank before it has stored the entry."""


class Publisher:
    """Stores what was compiled. Safe to use from several threads.

    Args:
        variants: stores the profile that a program was compiled with.
        succession_seconds: after how long the second rank checks that the first one has stored the entry.
    """

    def __init__(self, variants: PgleVariants, *, succession_seconds: float = _SUCCESSION_SECONDS) -> None:
        self._variants = variants
        self._succession_seconds = succession_seconds
        self._refused: dict[str, str] = {}  # why each program that was refused would have been compiled, by its key
        self._scheduler = Scheduler(threads=1, name="ejcache-publisher")

    def publish(
        self,
        compilation: Compilation,
        program: LoweredProgram,
        executable: Any,
        *,
        compile_seconds: float,
        raw: bytes | None = None,
    ) -> Skip | None:
        """Store an executable if the settings allow it, and log the miss; why it was not stored, or None if it was.

        Args:
            compilation: which missed.
            program: what was compiled.
            executable: the result.
            compile_seconds: what it took.
            raw: the serialised executable where it was received from another process.

        Raises:
            Warning: JAX's warning about a write under `expect_pgle`, if the program makes warnings errors.
        """
        cache, settings = compilation.cache, compilation.settings
        record = _record(
            cache, program.name, compilation.key, program, reason=compilation.miss, seconds=compile_seconds
        )
        record = self._with_notes(compilation, program, record)
        skip = cache.why_not_stored(compile_seconds, settings)
        if skip is not None:
            cache.leave_out(_stored_key(compilation, program), skip, compile_seconds, settings)
        else:
            began = time.monotonic()
            try:
                raw = seam.serialize_executable(executable) if raw is None else raw
                compilation.serialized_size = len(raw)
                if compile_seconds >= max(_TEXT_SECONDS, Floors.of(settings).publish):
                    # The text goes first: nothing may be written after the entry that could evict it.
                    text = module_text(program.module)
                    record = replace(record, module=cache.write_text(text, settings, program=program.name))
                skip = self._write(compilation, program, record, raw)
            except Exception as exc:
                # A failure of ours must not take the executable from the program.
                compilation.report_failure("write an entry", exc)
                skip = Skip.ERROR
            compilation.spent("lost" if skip is Skip.ERROR else "stored", began)
        record = replace(record, outcome=skip.value if skip is not None else STORED)
        self._log(cache, settings, record, program, compilation.seconds)
        if skip is None:
            seam.record_event("/jax/compilation_cache/cache_misses")
            if settings.expect_pgle:
                warnings.warn(
                    f"PERSISTENT CACHE WRITE with key {compilation.text}, this is unexpected because "
                    "JAX_COMPILATION_CACHE_EXPECT_PGLE is set. The execution that populated the cache may lack "
                    "coverage",
                    stacklevel=2,
                )
        return skip

    def skip(self, compilation: Compilation, program: LoweredProgram, reason: Skip, compile_seconds: float) -> None:
        """Count and log a compilation that cannot be stored."""
        compilation.cache.count_skip(reason)
        record = _record(compilation.cache, program.name, compilation.key, program, seconds=compile_seconds)
        record = self._with_notes(compilation, program, record)
        record = replace(record, outcome=reason.value)
        self._log(compilation.cache, compilation.settings, record, program, compilation.seconds)

    def refusal(self, compilation: Compilation, program: LoweredProgram, skip: Skip | None, where: str) -> Exception:
        """The error for a compilation that is forbidden. It is counted as a miss, and logged the first time.

        Args:
            compilation: which missed.
            program: what would be compiled.
            skip: why this program is never stored, if that is so.
            where: which ranks forbid it, in words.
        """
        cache, name, key = compilation.cache, program.name, compilation.text
        cache.count_miss(compilation.miss)
        cache.count_skip(Skip.FORBIDDEN)
        if key not in self._refused:
            # A server may be asked for the same program again and again, and the reason may cost a listing.
            sentence = f"{name} would be compiled: {why_not_stored(skip) if skip else why_not_found(compilation.miss)}"
            self._refused[key] = self._logged_refusal(compilation, program, explained=skip is None) or sentence
        more = f"`ejcache why {name}` says more."
        return CompileForbiddenError(name, self._refused[key], seam.caller(), where, more)

    def _logged_refusal(self, compilation: Compilation, program: LoweredProgram, *, explained: bool) -> str:
        """Log a compilation that is refused; why it would be compiled, or nothing if that is not known."""
        cache, settings = compilation.cache, compilation.settings
        record = _record(cache, program.name, compilation.key, program, reason=compilation.miss)
        record = replace(self._with_notes(compilation, program, record), outcome=Skip.FORBIDDEN.value)
        self._log(cache, settings, record, program, compilation.seconds)
        try:
            explanation = _explanation(cache, record, settings) if explained else None
        except Exception as exc:
            compilation.report_failure("explain a miss", exc)
            return ""
        return explanation.sentence if explanation is not None else ""

    def skip_without_key(
        self, cache: CachePolicy, settings: Settings, name: str, reason: Skip, seconds: Mapping[str, float]
    ) -> None:
        """Count a program of which no key can be made, and log it when JAX has compiled it."""
        cache.count_skip(reason)
        record = replace(_record(cache, name, None), outcome=reason.value)

        def log_it(took: float) -> None:
            self._log(cache, settings, replace(record, compile_seconds=took), seconds={**seconds, "compiled": took})

        when_compiled(log_it)

    def _with_notes(self, compilation: Compilation, program: LoweredProgram, record: MissRecord) -> MissRecord:
        try:
            return replace(record, details={**record.details, **notes(program)})
        except Exception as exc:
            compilation.report_failure("log a miss", exc)
            return record

    def _write(self, compilation: Compilation, program: LoweredProgram, record: MissRecord, raw: bytes) -> Skip | None:
        cache, settings, profile = compilation.cache, compilation.settings, compilation.profile
        backend = program.target.backend
        where = _stored_key(compilation, program)
        extra: dict[str, Any] = {
            "details": dict(record.details),
            "signature": record.signature,
            "module": record.module,
        }
        if profile is not None:
            extra["profile"] = profile.fields()
            if not profile.from_store:
                self._variants.write_beside(compilation, profile)
        header = entry.Header(
            key=where,
            name=record.name,
            compile_seconds=record.compile_seconds,
            platform=str(backend.platform),
            jax=jax.__version__,
            jaxlib=seam.jaxlib_version(),
            variant=compilation.key.variant,
            logical_key=compilation.key.logical,
            profile_digest=profile.digest if profile is not None else "",
            components=dict(record.components),
            extra=extra,
        )
        if compilation.publisher == 0 or cache.is_local_only(record.compile_seconds, settings):
            # Each host of the program needs one of its own.
            return cache.write(header, raw, settings, replacing=where in compilation.unloadable)
        if compilation.publisher == 1:
            self._publish_if_missing_later(cache, settings, header, raw)
        cache.count_skip(Skip.OTHER_RANK)
        return Skip.OTHER_RANK

    def _publish_if_missing_later(
        self, cache: CachePolicy, settings: Settings, header: entry.Header, raw: bytes
    ) -> None:
        def publish() -> None:
            if not cache.contains(header.key, settings):
                cache.write(header, raw, settings)

        self._scheduler.later(self._succession_seconds, publish)

    def _log(
        self,
        cache: CachePolicy,
        settings: Settings,
        record: MissRecord,
        program: LoweredProgram | None = None,
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """Write the miss down, and with `jax_explain_cache_misses` say why it was one."""
        add = partial(record_miss, seconds=dict(seconds or {}), thread=threading.current_thread().name)
        try:
            # The caller's path is of this host only, so it is not in the header of the entry.
            record = replace(record, details={**record.details, "caller": seam.caller()})
        except Exception as exc:
            cache.report_failure("log a miss", exc, settings, program=record.name)
        write = partial(_write_log, cache, settings, replace(record, time=time.time()), program, add)
        if settings.explain_misses or settings.raise_errors or log.isEnabledFor(logging.DEBUG):
            # Whether it is said or raised, it is where and when the program compiles.
            write()
        else:
            write_later(write)


def _write_log(
    cache: CachePolicy,
    settings: Settings,
    record: MissRecord,
    program: LoweredProgram | None,
    add: Callable[[MissRecord], None],
) -> None:
    try:
        add(record)
        if program is not None and settings.keep_module_text and record.components:
            remember_program(record.components.get("computation", ""), located_text(program))
        kept = "stored" if record.outcome == STORED else f"not stored: {why_not_stored(record.outcome)}"
        explanation = _explanation(cache, record, settings) if settings.explain_misses else None
        if explanation is not None:
            log.warning("ejcache: %s (%.2f s; %s)", explanation.sentence, record.compile_seconds, kept)
        else:
            log.debug("ejcache: %s: %.2f s; %s; key %r", record.name, record.compile_seconds, kept, record.key)
    except Exception as exc:
        cache.report_failure("log a miss", exc, settings, program=record.name)


def _explanation(cache: CachePolicy, record: MissRecord, settings: Settings) -> Explanation | None:
    from ejcache.misses.explanation import explain_in  # only explanations need it

    return explain_in(cache, record, settings)


def publisher_order(said: dict[int, Any]) -> dict[str, list[int]]:
    """Of each storage domain, the ranks that see it, in the order in which they store an entry."""
    domains: dict[str, list[int]] = {}
    for rank in sorted(said):
        domains.setdefault(said[rank]["domain"], []).append(rank)
    return domains


def _stored_key(compilation: Compilation, program: LoweredProgram) -> str:
    """What the result is stored under."""
    if compilation.text in compilation.unloadable:
        # Hosts that cannot load each other's entries would replace them for ever, so ours goes beside the other.
        return alternative_key(compilation.text, program.target.backend)
    return compilation.text


def _record(
    cache: CachePolicy,
    name: str,
    key: CacheKey | None,
    program: LoweredProgram | None = None,
    *,
    reason: Miss | str = "",
    seconds: float = 0.0,
) -> MissRecord:
    """What the miss log says about a compilation before it is known whether it is stored."""
    return MissRecord(
        time=time.time(),
        url=cache.absolute_url,
        reason=str(reason),
        outcome="",
        compile_seconds=seconds,
        key=key.text if key is not None else "",
        name=name,
        components=dict(key.components) if key is not None else {},
        details=dict(key.details) if key is not None else {},
        signature=_signature(program) if program is not None else "",
    )


def _signature(program: LoweredProgram) -> str:
    try:
        return seam.signature(program.module)
    except Exception as exc:
        # The program is compiled; a detail of the log must not take it away.
        log.debug("ejcache: the arguments of %s are not known: %s", program.name, exc)
        return ""


_ELIDED: Final = "__elided__"
_EFFORTS: Final = {"9": "O0", "19": "O1", "29": "O2", "39": "O3"}
"""XLA's numbers of the levels of effort."""
_OPTIONS: Final = (
    "exec_time_optimization_effort",
    "memory_fitting_effort",
    "memory_fitting_level",
    "num_partitions",
    "num_replicas",
    "optimization_level",
    "use_auto_spmd_partitioning",
    "use_shardy_partitioner",
    "use_spmd_partitioning",
)


def notes(program: LoweredProgram) -> dict[str, str]:
    """The version of JAX, and its settings and compile options that are not at their default, as texts."""
    settings = changed_trace_settings()
    build = program.target.options.executable_build_options
    options = {name: value for name in _OPTIONS if (value := _small(getattr(build, name, None)))}
    return {"jax": jax.__version__, "settings": _lines(settings), "options": _lines(options)}


def located_text(program: LoweredProgram) -> str:
    """The module as text with the source lines of its operations, and digests of the constants that it leaves out."""
    text = module_text(program.module, locations=True)
    if _ELIDED not in text:
        return text
    return "\n".join((text, *(f"{LARGE_CONSTANT}{digest}" for digest in _large_constants(program.module))))


def _large_constants(module: Any) -> Iterator[str]:
    found: list[str] = []

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.constant":
            value = operation.attributes["value"]
            # As in the text: a splat is never left out, and neither are 64 elements.
            if isinstance(value, ir.DenseElementsAttr) and not value.is_splat and len(value) > 64:
                found.append(hashlib.blake2b(_content(value), digest_size=8).hexdigest())
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(visit)
    return iter(found)


def _content(value: Any) -> bytes:
    try:
        return memoryview(value).tobytes()
    except (RuntimeError, TypeError, BufferError):
        return str(value).encode()  # Python has no buffers of bfloat16 and of the smaller types


def _small(value: Any) -> str:
    """The text of an option; empty if it is at its default."""
    text = str(getattr(value, "name", value))
    text = _EFFORTS.get(text, text)
    return "" if text in {"None", "False", "0", "1", "0.0", "UNKNOWN"} else text


def _lines(values: dict[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in sorted(values.items()))


_DELAY_SECONDS: Final = 60.0
"""A program that has just loaded its executables compiles and loads others."""
_EXIT_SECONDS: Final = 600.0
"""How long a process that ends waits for XLA, which cannot be interrupted."""


class Tuning:
    """Compiles programs again, one after the other. Safe to use from several threads.

    A failure is logged; the program goes on with what it has.

    Args:
        publisher: stores the results.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._begun: set[str] = set()
        self._scheduler = Scheduler(threads=1, name="ejcache-tuning")
        at_exit(ExitPhase.WRITE, self.close)

    def begin(self, compilation: Compilation, target: CompileTarget) -> None:
        """Compile a program later, if the settings say so; of several processes, the lowest rank does."""
        if not compilation.settings.tune_cross:
            compilation.cache.warn(
                "cross",
                f"{compilation.key.name} was compiled without a GPU, so XLA has not tuned it; EJCACHE_TUNE_CROSS=1 has "
                "such programs compiled again behind this one",
            )
            return
        leads = process_index() == compilation.ranks[0]
        if not leads or compilation.text in self._begun or is_forbidden() or target.callbacks:
            return
        self._begun.add(compilation.text)
        data = tracing.module_bytes(compilation.module)
        # XLA would wait for the other ranks, which do not compile it.
        alone = {"xla_gpu_shard_autotuning": False} if compilation.is_multi_process else {}
        target = target._replace(options=tracing.with_overrides(target.options, alone))
        task = partial(self._compile, compilation, target, data)
        self._scheduler.later(_DELAY_SECONDS, lambda: self._scheduler.submit(task))

    def close(self) -> None:
        """Compile nothing more, and wait for what is being compiled."""
        self._scheduler.stop()
        self._scheduler.drain(patience=_EXIT_SECONDS, limit=_EXIT_SECONDS)

    def _compile(self, compilation: Compilation, target: CompileTarget, data: bytes) -> None:
        if is_forbidden() or compilation.cache.contains(compilation.text, compilation.settings):
            return
        name = compilation.key.name
        try:
            program = LoweredProgram(tracing.module_of(data), name, target)
            began = time.monotonic()
            executable = seam.compile_executable(program)
            seconds = time.monotonic() - began
            compilation.miss = Miss.CROSS
            self._publisher.publish(compilation, program, executable, compile_seconds=seconds)
        except Exception as exc:
            compilation.report_failure("compile a program on the GPU again", exc)
        else:
            log.info("ejcache: %s is tuned: %.2f s", name, seconds)
