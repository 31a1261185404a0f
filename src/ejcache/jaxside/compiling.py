"""What happens at each compilation: look up, load, or compile and keep."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache import entry
from ejcache.explaining import why_not_stored
from ejcache.jaxside import seam
from ejcache.jaxside.checking import Stored, Verdict, judge, serialized
from ejcache.jaxside.keying import CustomPartitioningError, KeyText, make_key
from ejcache.jaxside.loading import Loaded, Loader, alternative_key
from ejcache.jaxside.modules import module_text
from ejcache.jaxside.pgle import Profile, Variants
from ejcache.jaxside.sharing import Sharing
from ejcache.jaxside.xla_caches import XlaCaches
from ejcache.keys.key import PGLE, PLAIN
from ejcache.misses import STORED, MissRecord, record_miss
from ejcache.statistics import Miss, Skip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ejcache.compilation import CompilationCache
    from ejcache.settings import Settings

__all__ = ["Compiler"]

log = logging.getLogger("ejcache")

_SMALL_PROGRAM: Final = 6000
"""Bytes of a program's canonical form below which it compiles in well under a second."""
_QUICK_SECONDS: Final = 0.2
"""With a floor below this, small programs are stored too."""
_SUCCESSION_SECONDS: Final = 30.0
"""When the next rank of a storage domain looks whether the rank before it has published."""


class Compiler:
    """The hooks that `seam.install` takes.

    Args:
        settings: the settings now.
        cache: the cache that these settings ask for, or None.
        reset: closes the caches; called when the program calls JAX's `reset_cache()`.
    """

    def __init__(
        self,
        *,
        settings: Callable[[], Settings],
        cache: Callable[[Settings], CompilationCache | None],
        reset: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._cache = cache
        self._close = reset
        self._pending = threading.local()
        self._loader = Loader()
        self._sharing = Sharing(trouble=self._trouble)
        self._variants = Variants(settings=settings)
        self._checked: set[str] = set()
        self._to_check: dict[str, tuple[str, Stored]] = {}
        self._hits_seen = 0
        self._xla_caches = XlaCaches(settings=settings, trouble=self._trouble)

    def make_key(
        self, *, module: Any, devices: Any, options: Any, backend: Any, profile_sentinel: bytes | None
    ) -> str | None:
        settings = self._settings()
        cache = self._cache(settings)
        if profile_sentinel is not None:
            self._variants.note(None, module=module, options=options)
        if cache is None:
            return None
        if not seam.can_serialize(backend):
            cache.count_skip(Skip.PLATFORM)
            return None
        try:
            key = make_key(
                module=module,
                devices=devices,
                options=options,
                backend=backend,
                profile_sentinel=profile_sentinel,
                settings=settings,
            )
        except CustomPartitioningError:
            cache.count_skip(Skip.PARTITIONING)
            record = _record(cache, key="", module_name=seam.module_name(module), reason="", compile_seconds=0.0)
            self._explain(cache, replace(record, outcome=Skip.PARTITIONING.value))
            cache.warn(
                "partitioning",
                f"{seam.module_name(module)} uses custom_partitioning, whose Python function has no identity outside "
                "this process, so it is compiled anew every time. If it does not change between runs, set "
                "jax_remove_custom_partitioning_ptr_from_cache_key; or use shard_map instead",
            )
            return None
        except Exception as exc:
            # Whatever a key cannot be made of is compiled without the cache, as in JAX.
            cache.count_skip(Skip.NO_KEY)
            cache.trouble("make a key", exc)
            return None
        self._variants.note(key, module=module, options=options)
        return key

    def contains(self, key: str) -> bool:
        cache = self._cache(self._settings())
        if cache is None:
            return False
        try:
            return self._variants.contains(cache, key)
        except Exception as exc:
            # A fault of ours costs the preference; `trouble` raises if the program asked for that.
            cache.trouble("look for an optimised entry", exc)
            return False

    def read(self, *, key: str, options: Any, backend: Any, devices: Any, callbacks: Sequence[Any]) -> Any:
        cache = self._cache(self._settings())
        if cache is None:
            return None, None
        found = self._loader.load(
            cache, key=key, options=options, backend=backend, devices=devices, callbacks=callbacks
        )
        for other in self._variants.stand_ins(cache, key) if isinstance(found, Miss) else ():
            instead = self._loader.load(
                cache, key=other, options=options, backend=backend, devices=devices, callbacks=callbacks
            )
            if isinstance(instead, Loaded):
                found = instead
                break
        if isinstance(found, Loaded) and self._wants_check(found, devices):
            self._to_check[str(key)] = (found.key, Stored(found.raw, found.executable))
            found = Miss.CHECKED
        if isinstance(found, Miss):
            self._pending.miss = (key, found)
            return None, None
        cache.count_hit(found.header, load_seconds=found.seconds)
        return found.executable, found.header.compile_seconds

    def compile(
        self,
        *,
        key: str,
        module: Any,
        module_name: str,
        options: Any,
        backend: Any,
        devices: Any,
        callbacks: Sequence[Any],
    ) -> Any:
        asked, (key, profile) = key, self._variants.prepare(key, options)
        cache = self._cache(self._settings())

        def work() -> Any:
            return self._compile_here(
                cache,
                asked=asked,
                profile=profile,
                key=key,
                module=module,
                module_name=module_name,
                options=options,
                backend=backend,
                devices=devices,
                callbacks=callbacks,
            )

        alone = (
            str(key) in self._to_check
            or key in self._loader.rejected
            or (callbacks and not seam.callbacks_are_cacheable())
            # The ranks of one program meet in it; they must not wait for each other here.
            or len({device.process_index for device in devices}) > 1
        )
        if alone or cache is None:
            return work()
        shared_cache = cache

        def lookup() -> Loaded | None:
            found = self._loader.look_again(
                shared_cache, key=key, options=options, backend=backend, devices=devices, callbacks=callbacks
            )
            return found if isinstance(found, Loaded) else None

        made = cache.once(str(key), lookup=lookup, work=work, between_hosts=self._is_worth_requests(key))
        if not isinstance(made, Loaded):
            return made
        cache.count_hit(made.header, load_seconds=made.seconds)
        seam.record_event("/jax/compilation_cache/cache_hits")
        return made.executable

    def _is_worth_requests(self, key: str) -> bool:
        """Whether to ask other hosts before compiling: not for what is surely too quick to be stored."""
        size = key.key.size if isinstance(key, KeyText) else _SMALL_PROGRAM
        return bool(self._settings().min_compile_seconds < _QUICK_SECONDS or size >= _SMALL_PROGRAM)

    def _compile_here(
        self,
        cache: CompilationCache | None,
        *,
        asked: str,
        profile: Profile | None,
        key: str,
        module: Any,
        module_name: str,
        options: Any,
        backend: Any,
        devices: Any,
        callbacks: Sequence[Any],
    ) -> Any:
        started = time.monotonic()
        executable = seam.compile_executable(
            backend=backend, module=module, devices=devices, options=options, callbacks=callbacks
        )
        seconds = time.monotonic() - started
        self._xla_caches.collect()
        if cache is None:
            return executable
        if callbacks and not seam.callbacks_are_cacheable():
            cache.count_skip(Skip.CALLBACK)
            record = _record(cache, key=key, module_name=module_name, reason="", compile_seconds=seconds)
            self._explain(cache, replace(record, outcome=Skip.CALLBACK.value))
            return executable
        to_check = self._to_check.pop(str(key), None)
        if to_check is not None:
            cache.count_miss(Miss.CHECKED, compile_seconds=seconds)
            self._check(
                cache,
                *to_check,
                fresh=executable,
                compile_again=lambda: seam.compile_executable(
                    backend=backend, module=module, devices=devices, options=options, callbacks=callbacks
                ),
            )
            return executable
        miss = self._reason_of(asked)
        cache.count_miss(miss, compile_seconds=seconds)
        record = _record(cache, key=key, module_name=module_name, reason=miss, compile_seconds=seconds)
        kept = self._keep(
            cache, record, key=key, module=module, backend=backend, executable=executable, profile=profile
        )
        self._explain(cache, kept)
        return executable

    def share(
        self,
        *,
        key: str,
        module: Any,
        module_name: str,
        options: Any,
        backend: Any,
        devices: Any,
        callbacks: Sequence[Any],
        client: Any,
        first_process: int,
    ) -> Any:
        def compile_here() -> Any:
            return self.compile(
                key=key,
                module=module,
                module_name=module_name,
                options=options,
                backend=backend,
                devices=devices,
                callbacks=callbacks,
            )

        def received(executable: Any, raw: bytes, compile_seconds: float) -> None:
            cache = self._cache(self._settings())
            if cache is None:
                return
            miss = self._reason_of(key)
            cache.count_miss(miss)
            record = _record(cache, key=key, module_name=module_name, reason=miss, compile_seconds=compile_seconds)
            kept = self._keep(
                cache, record, key=key, module=module, backend=backend, executable=executable, profile=None, raw=raw
            )
            self._explain(cache, kept)

        return self._sharing.run(
            key=key,
            options=options,
            backend=backend,
            devices=devices,
            callbacks=callbacks,
            client=client,
            first_process=first_process,
            compile_here=compile_here,
            received=received,
        )

    def _reason_of(self, key: str) -> Miss:
        """Why this thread's last lookup of `key` failed."""
        pending_key, pending = getattr(self._pending, "miss", (None, None))
        return pending if pending_key == key and pending else Miss.ABSENT

    def xla_caches(self, backend: Any) -> dict[str, str]:
        try:
            return self._xla_caches.paths(backend)
        except Exception as exc:
            self._trouble("find a place for XLA's own caches", exc)
            return {}

    def reset(self) -> None:
        self._loader.rejected.clear()
        self._checked.clear()
        self._close()

    def get(self, key: str) -> bytes | None:
        cache = self._cache(self._settings())
        return cache.get(key) if cache is not None else None

    def put(self, key: str, value: bytes) -> None:
        cache = self._cache(self._settings())
        if cache is not None:
            cache.put(key, value)

    def share_profile(
        self, *, module: Any, devices: tuple[int, ...], options: Any, client: Any, first_process: int
    ) -> bytes:
        try:
            return self._variants.share(
                module=module, devices=devices, options=options, client=client, first_process=first_process
            )
        except Exception as exc:
            self._trouble("share a profile", exc)
            return b""

    def _keep(
        self,
        cache: CompilationCache,
        record: MissRecord,
        *,
        key: str,
        module: Any,
        backend: Any,
        executable: Any,
        profile: Profile | None,
        raw: bytes | None = None,
    ) -> MissRecord:
        """Store what was compiled, if the policy has it; `record`, with what became of it.

        `raw` are the executable's bytes where they are at hand: XLA may not serialise again what it has loaded.
        """
        skip = cache.skip_before_serialising(record.compile_seconds)
        if skip is not None:
            cache.count_skip(skip)
            return replace(record, outcome=skip.value)
        try:
            raw = seam.serialize_executable(executable) if raw is None else raw
        except Exception as exc:
            cache.trouble(f"serialise {record.name}", exc)
            return replace(record, outcome=Skip.ERROR.value)
        where = str(key)
        if key in self._loader.rejected:
            # Hosts that disagree about an entry would replace each other's for ever; ours goes beside it.
            where = alternative_key(key, backend)
        made_of = key.key if isinstance(key, KeyText) else None
        seam.record_event("/jax/compilation_cache/cache_misses")
        if self._settings().expect_pgle:
            warnings.warn(
                f"PERSISTENT CACHE WRITE with key {key}, this is unexpected because "
                "JAX_COMPILATION_CACHE_EXPECT_PGLE is set. The execution that populated the cache may lack coverage",
                stacklevel=2,
            )
        try:
            # The text goes first: nothing may come after the entry that could evict it.
            record = replace(record, module=cache.keep_text(module_text(module)))
            details: dict[str, Any] = {"details": dict(record.details), "signature": record.signature}
            if profile is not None:
                details["profile"] = profile.fields()
                if not profile.kept:
                    self._variants.keep(cache, key, profile)
            header = entry.Header(
                key=where,
                name=record.name,
                compile_seconds=record.compile_seconds,
                platform=str(backend.platform),
                jax=jax.__version__,
                jaxlib=seam.jaxlib_version(),
                variant=made_of.variant if made_of else PLAIN,
                logical_key=made_of.logical if made_of else "",
                profile_digest=profile.digest if profile is not None else "",
                components=dict(record.components),
                extra={**details, "module": record.module},
            )
            turn = self._loader.turn(key)
            if turn:
                # Another rank publishes; the one after it looks after a while whether that happened.
                if turn == 1:
                    self._succeed(cache, header, raw)
                stored: Skip | None = Skip.OTHER_RANK
                cache.count_skip(Skip.OTHER_RANK)
            else:
                stored = cache.store(header, raw, heal=where in self._loader.rejected)
        except Exception as exc:
            # A fault of ours must not take the program's executable from it.
            cache.trouble(f"store {record.name}", exc)
            stored = Skip.ERROR
        return replace(record, outcome=stored.value if stored is not None else STORED)

    def _succeed(self, cache: CompilationCache, header: entry.Header, raw: bytes) -> None:
        def publish() -> None:
            if not cache.contains(header.key):
                cache.store(header, raw)

        timer = threading.Timer(_SUCCESSION_SECONDS, publish)
        timer.daemon = True
        timer.start()

    def _explain(self, cache: CompilationCache, record: MissRecord) -> None:
        record_miss(record)
        if not self._settings().explain_misses:
            return
        explanation = cache.explain(record)
        if explanation is not None:
            kept = "stored" if record.outcome == STORED else f"not stored: {why_not_stored(record.outcome)}"
            log.warning("ejcache: %s (%.2f s; %s)", explanation.sentence, record.compile_seconds, kept)

    def _wants_check(self, found: Loaded, devices: Any) -> bool:
        """The first hit of each key in this process with `check_contents`, one hit in N with `check_one_in`.

        Never of a program that spans processes: one rank that compiles while the others load is what the agreement
        is there to prevent. Never of an optimised executable: compiled without its profile it is another.
        """
        settings = self._settings()
        if len({device.process_index for device in devices}) > 1 or found.header.variant == PGLE:
            return False
        if settings.check_contents:
            return found.key not in self._checked
        every: int = settings.check_one_in
        if every <= 0:
            return False
        self._hits_seen += 1
        return self._hits_seen % every == 0

    def _check(
        self, cache: CompilationCache, key: str, stored: Stored, *, fresh: Any, compile_again: Callable[[], Any]
    ) -> None:
        verdict = judge(stored, fresh, compile_again=compile_again)
        self._checked.add(key)
        cache.count_check(verdict.value)
        if verdict is not Verdict.DIFFERENT:
            return
        cache.remove(key)
        cache.warn("check", f"{key} is not what a fresh compilation gives; it has been taken out")
        if self._settings().check_contents:
            # As in JAX, whoever asks for the check hears of it whatever `raise_persistent_cache_errors` says.
            raise seam.verification_error(key, stored.raw, serialized(fresh) or b"")

    def _trouble(self, doing: str, exc: Exception) -> None:
        cache = self._cache(self._settings())
        if cache is not None:
            cache.trouble(doing, exc)


def _record(
    cache: CompilationCache, *, key: str, module_name: str, reason: Miss | str, compile_seconds: float
) -> MissRecord:
    made_of = key.key if isinstance(key, KeyText) else None
    return MissRecord(
        time=time.time(),
        url=cache.url,
        reason=str(reason),
        outcome="",
        compile_seconds=compile_seconds,
        key=str(key),
        name=module_name,
        components=dict(made_of.components) if made_of else {},
        details=dict(made_of.details) if made_of else {},
        signature=made_of.signature if made_of else "",
    )
