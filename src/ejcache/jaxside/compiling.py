"""What happens at each compilation: look up, load, or compile and keep."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ejcache.jaxside import seam
from ejcache.jaxside.checking import Stored, Verdict, judge, serialized
from ejcache.jaxside.keeping import Keeper, record_of
from ejcache.jaxside.keying import KeyText, PointerError, make_key
from ejcache.jaxside.loading import Loaded, Loader
from ejcache.jaxside.pgle import Variants
from ejcache.jaxside.sharing import Sharing
from ejcache.jaxside.xla_caches import XlaCaches
from ejcache.keys.key import PGLE
from ejcache.statistics import Miss, Skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.compilation import CompilationCache
    from ejcache.jaxside.pgle import Profile
    from ejcache.jaxside.request import Request, Target
    from ejcache.settings import Settings

__all__ = ["Compiler"]

_SMALL_PROGRAM: Final = 6000
"""Bytes of a program's canonical form below which it compiles in well under a second."""
_QUICK_SECONDS: Final = 0.2
"""With a floor below this, small programs are stored too."""
_POINTERS: Final = {
    Skip.PARTITIONING: "uses custom_partitioning, whose Python function has no identity outside this process, so it is "
    "compiled anew every time. If it does not change between runs, set "
    "jax_remove_custom_partitioning_ptr_from_cache_key; or use shard_map instead",
    Skip.INSPECTION: "inspects shardings (jax.debug.inspect_array_sharding, visualize_array_sharding) with a Python "
    "function that is called while it compiles, so it is compiled anew every time; take that out to have it cached",
}
"""What is said of programs that hold the address of a Python function."""


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
        self._sharing = Sharing(settings=settings, trouble=self._trouble)
        self._variants = Variants(settings=settings)
        self._keeper = Keeper(settings=settings, loader=self._loader, variants=self._variants)
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
        except PointerError as exc:
            cache.count_skip(exc.skip)
            record = record_of(cache, "", seam.module_name(module))
            self._keeper.explain(cache, replace(record, outcome=exc.skip.value))
            cache.warn(exc.skip.value, f"{seam.module_name(module)} {_POINTERS[exc.skip]}")
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

    def read(self, key: str, target: Target) -> Any:
        cache = self._cache(self._settings())
        if cache is None:
            return None, None
        found = self._loader.load(cache, key, target)
        if isinstance(found, Loaded):
            if self._wants_check(found, target):
                self._to_check[str(key)] = (found.key, Stored(found.raw, found.executable))
                found = Miss.CHECKED
        else:
            # Not checked: what is compiled under this key is another variant.
            found = self._stand_in(cache, key, target) or found
        if isinstance(found, Miss):
            self._pending.miss = (key, found)
            return None, None
        cache.count_hit(found.header, load_seconds=found.seconds)
        return found.executable, found.header.compile_seconds

    def _stand_in(self, cache: CompilationCache, key: str, target: Target) -> Loaded | None:
        try:
            others = self._variants.stand_ins(cache, key)
        except Exception as exc:
            # A fault of ours costs the stand-in; `trouble` raises if the program asked for that.
            cache.trouble("look for another variant", exc)
            return None
        for other in others:
            instead = self._loader.load(cache, other, target)
            if isinstance(instead, Loaded):
                return instead
        return None

    def compile(self, request: Request) -> Any:
        key, profile = self._variants.prepare(request.key, request.target.options)
        return self._compile_prepared(replace(request, key=key), asked=request.key, profile=profile)

    def _compile_prepared(self, request: Request, *, asked: str, profile: Profile | None) -> Any:
        key, target = request.key, request.target
        cache = self._cache(self._settings())

        def work() -> Any:
            return self._compile_here(cache, request, asked=asked, profile=profile)

        alone = (
            str(key) in self._to_check
            or key in self._loader.rejected
            or (target.callbacks and not seam.callbacks_are_cacheable())
            # The ranks of one program meet in it; they must not wait for each other here.
            or len(target.ranks) > 1
        )
        if alone or cache is None:
            return work()
        shared_cache = cache

        def lookup() -> Loaded | None:
            found = self._loader.look_again(shared_cache, key, target)
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
        self, cache: CompilationCache | None, request: Request, *, asked: str, profile: Profile | None
    ) -> Any:
        def compile_now() -> Any:
            return seam.compile_executable(request.module, request.target)

        started = time.monotonic()
        executable = compile_now()
        seconds = time.monotonic() - started
        self._xla_caches.collect()
        if cache is None:
            return executable
        if request.target.callbacks and not seam.callbacks_are_cacheable():
            cache.count_skip(Skip.CALLBACK)
            record = record_of(cache, request.key, request.module_name, compile_seconds=seconds)
            self._keeper.explain(cache, replace(record, outcome=Skip.CALLBACK.value))
            return executable
        to_check = self._to_check.pop(str(request.key), None)
        if to_check is not None:
            cache.count_miss(Miss.CHECKED, compile_seconds=seconds)
            self._check(cache, *to_check, fresh=executable, compile_again=compile_now)
            return executable
        miss = self._reason_of(asked)
        cache.count_miss(miss, compile_seconds=seconds)
        record = record_of(cache, request.key, request.module_name, reason=miss, compile_seconds=seconds)
        self._keeper.explain(cache, self._keeper.keep(cache, record, request, executable, profile=profile))
        return executable

    def share(self, request: Request, *, client: Any, first_process: int) -> Any:
        asked = request.key
        executable = self._sharing.again(request)
        if executable is not None:
            return executable
        # Shared under what it is, not what was asked for: without its profile an optimised executable is a plain one.
        key, profile = self._variants.prepare(asked, request.target.options)
        request = replace(request, key=key)
        executable = self._sharing.again(request) if key != asked else None
        if executable is not None:
            return executable

        def received(executable: Any, raw: bytes, compile_seconds: float) -> None:
            cache = self._cache(self._settings())
            if cache is None:
                return
            miss = self._reason_of(asked)
            cache.count_miss(miss)
            record = record_of(cache, key, request.module_name, reason=miss, compile_seconds=compile_seconds)
            kept = self._keeper.keep(cache, record, request, executable, profile=profile, raw=raw)
            self._keeper.explain(cache, kept)

        return self._sharing.run(
            request,
            client=client,
            first_process=first_process,
            compile_here=partial(self._compile_prepared, request, asked=asked, profile=profile),
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

    def _wants_check(self, found: Loaded, target: Target) -> bool:
        """The first hit of each key in this process with `check_contents`, one hit in N with `check_one_in`.

        Never of a program that spans processes: one rank that compiles while the others load is what the agreement
        is there to prevent. Never of an optimised executable: compiled without its profile it is another.
        """
        settings = self._settings()
        if len(target.ranks) > 1 or found.header.variant == PGLE:
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
