"""What becomes of an executable that was compiled: stored or not, and the miss written down and explained."""

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
from ejcache.jaxside.keying import KeyText
from ejcache.jaxside.loading import alternative_key
from ejcache.jaxside.modules import module_text
from ejcache.keys.key import PLAIN
from ejcache.misses import STORED, MissRecord, record_miss
from ejcache.statistics import Miss, Skip
from ejcache.stores.opening import local_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.compilation import CompilationCache
    from ejcache.jaxside.loading import Loader
    from ejcache.jaxside.pgle import Profile, Variants
    from ejcache.jaxside.request import Request
    from ejcache.settings import Settings

__all__ = ["Keeper", "record_of"]

log = logging.getLogger("ejcache")

_SUCCESSION_SECONDS: Final = 30.0
"""When the next rank of a storage domain looks whether the rank before it has published."""


class Keeper:
    """Stores what was compiled.

    Args:
        settings: the settings now.
        loader: which knows whose turn it is to publish, and which entries XLA would not have.
        variants: which keeps profiles.
    """

    def __init__(self, *, settings: Callable[[], Settings], loader: Loader, variants: Variants) -> None:
        self._settings = settings
        self._loader = loader
        self._variants = variants

    def keep(
        self,
        cache: CompilationCache,
        record: MissRecord,
        request: Request,
        executable: Any,
        *,
        profile: Profile | None = None,
        raw: bytes | None = None,
    ) -> MissRecord:
        """Store what was compiled, if the policy has it; `record`, with what became of it.

        `raw` are the executable's bytes where they are at hand: XLA may not serialise again what it has loaded.
        """
        key, backend = request.key, request.target.backend
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
            record = replace(record, module=cache.keep_text(module_text(request.module)))
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

    def explain(self, cache: CompilationCache, record: MissRecord) -> None:
        """Write the miss down, and with `jax_explain_cache_misses` say why it was one."""
        record_miss(record)
        if not self._settings().explain_misses:
            return
        explanation = cache.explain(record)
        if explanation is not None:
            kept = "stored" if record.outcome == STORED else f"not stored: {why_not_stored(record.outcome)}"
            log.warning("ejcache: %s (%.2f s; %s)", explanation.sentence, record.compile_seconds, kept)


def record_of(
    cache: CompilationCache, key: str, module_name: str, *, reason: Miss | str = "", compile_seconds: float = 0.0
) -> MissRecord:
    """What the miss log says of a compilation, before it is known what becomes of it."""
    made_of = key.key if isinstance(key, KeyText) else None
    return MissRecord(
        time=time.time(),
        url=local_path(cache.url) or cache.url,  # a relative one means something else where `why` is called
        reason=str(reason),
        outcome="",
        compile_seconds=compile_seconds,
        key=str(key),
        name=module_name,
        components=dict(made_of.components) if made_of else {},
        details=dict(made_of.details) if made_of else {},
        signature=made_of.signature if made_of else "",
    )
