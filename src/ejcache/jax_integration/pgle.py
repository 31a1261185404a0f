"""Settles which variant of a program PGLE uses, and with which profile it is compiled.

JAX asks whether its cache has the optimised executable. If the answer is True, it stops profiling and asks for that. If
not, it compiles the program to be profiled, and after some runs compiles it once more with the profile.
`choose_variant` settles the answer before JAX's function runs. A program without an optimised entry, but with a stored
profile, is answered True as well: a miss follows, and `choose_compiled` gives that compilation the profile. So is one
that comes with the profile of this process: JAX's own exchange of profiles is left out.

The ranks of a program that spans processes may see different entries, and a rank that goes on profiling would wait for
a profile that the others never send. So they agree: the optimised variant is used if all ranks see its entry, or if all
see the same profile.

Read for this: jax 0.4.38, 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1, `_resolve_compilation_strategy` and
`_share_fdo_profiles` in `compiler.py`.
"""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache import entry
from ejcache.cache.writing import EntryWriter
from ejcache.jax_integration.compilation import Profile
from ejcache.jax_integration.lowering.key import short_digest
from ejcache.jax_integration.lowering.module_digest import digest_module
from ejcache.jax_integration.ranks.agreement import agreement_of_job
from ejcache.jax_integration.seam import key_parts
from ejcache.jax_integration.seam.coordination_service import WITHDRAWN, coordination_client
from ejcache.jax_integration.seam.patch import CacheAnswer
from ejcache.keys.key import PLAIN, PROFILING, profile_key
from ejcache.keys.variants import untuned_key
from ejcache.keys.xla_messages import canonical_options
from ejcache.util.log import log

if TYPE_CHECKING:
    from ejcache.jax_integration.compilation import Compilation, KeyRequest
    from ejcache.jax_integration.seam.coordination_service import CoordinationClient
    from ejcache.jax_integration.seam.patch import JaxCall

PROFILE_KIND: Final = "pgle_profile"
"""`kind` in the header of a stored profile."""

_ENTRY: Final = "entry"
_PROFILE: Final = "profile"
_NEITHER: Final = "neither"
_PROFILE_SECONDS: Final = 120.0
"""How long a rank waits for the profile that the first rank collected: they have finished the same run."""
_SENT: Final = b"P"

# The programs of which JAX was told that only the plain entry exists.
_warned: Final[set[tuple[str, str]]] = set()


def choose_variant(optimised: Compilation, plain: Compilation, call: JaxCall) -> tuple[CacheAnswer, Compilation]:
    """Return what JAX is told of the variants of a program, and the compilation of the one that it is to take.

    Args:
        optimised: of the variant that is compiled with a profile.
        plain: of the other one.
        call: whose options get the profile that all ranks agree on, where the program has just been profiled.
    """
    answer, settings = CacheAnswer(plain.text, optimised=optimised.text), plain.settings
    try:
        is_wanted = _is_wanted(optimised)
    except Exception as exc:
        optimised.report_failure("look for an optimised entry", exc)
        is_wanted = False
    if not is_wanted and optimised.has_profile and settings.enable_pgle:
        _share_profile(call)
        is_wanted = True
    if is_wanted:
        return answer._replace(is_optimised=True), optimised
    try:
        is_news = settings.expect_pgle and _is_news(plain)
    except Exception as exc:
        plain.report_failure("look for an optimised entry", exc)
        is_news = False
    return answer._replace(is_expected=is_news), plain


def share_profile_without_cache(call: JaxCall) -> CacheAnswer:
    """Agree on the profile of a program that is not stored; return what makes JAX compile it with that."""
    _share_profile(call)
    name = key_parts.module_name(call.module)
    return CacheAnswer(name, optimised=f"{name}, optimised", is_optimised=True)


def _share_profile(call: JaxCall) -> None:
    if len({device.process_index for device in call.devices.flat}) > 1:
        first = min(call.devices.flat, key=lambda device: device.id).process_index
        call.options.executable_build_options.fdo_profile = share_profile(call.request(), first_process=first)


def _is_wanted(compilation: Compilation) -> bool:
    """Say whether to use the optimised variant."""
    exists = compilation.cache.contains(compilation.text, compilation.settings)
    if exists and (store := compilation.cache.opened(compilation.settings)) is not None:
        store.note_used(profile_key(compilation.key))  # nobody reads it now, and it is to be there if the entry is not
    profile = None if exists or compilation.has_profile else _stored_profile(compilation)
    choice = _ENTRY if exists else _PROFILE if profile is not None else _NEITHER
    if compilation.is_multi_process:
        choice = _agree_on_variant(compilation, choice, profile)
    if choice == _PROFILE and profile is not None:
        log.info("ejcache: %s is compiled with its stored profile", compilation.name)
        compilation.profile = profile
    return choice != _NEITHER


def fallbacks(compilation: Compilation) -> tuple[str, ...]:
    """Return the keys to load if the optimised executable cannot be: that is better than to compile a plain one.

    None, if there is a profile to compile the program with.
    """
    if compilation.has_profile:
        return ()
    if compilation.profile is None and not compilation.is_multi_process:
        compilation.profile = _stored_profile(compilation)
    if compilation.profile is not None:
        return ()
    plain = compilation.key._replace(variant=PLAIN)
    texts = plain.text, plain._replace(variant=PROFILING).text, untuned_key(plain)
    return tuple(filter(None, texts))


def choose_compiled(compilation: Compilation, options: Any) -> None:
    """Settle which variant is compiled, and give `options` the stored profile if it is compiled with that.

    If the optimised entry that JAX has seen cannot be read and there is no profile, the program is compiled without
    one. JAX would store the result as the optimised executable.
    """
    given = bytes(options.executable_build_options.fdo_profile or b"")
    if given:
        settings = compilation.settings
        compilation.profile = Profile(
            given,
            percentile=settings.pgle_aggregation_percentile,
            runs=settings.pgle_profiling_runs,
            devices=len(compilation.device_ids),
        )
    elif compilation.profile is None:
        compilation.use_variant(PLAIN)
    else:
        options.executable_build_options.fdo_profile = compilation.profile.data


def write_beside(compilation: Compilation, profile: Profile) -> None:
    """Store a profile for every process that compiles this program with another tool chain."""
    key = compilation.key
    header = entry.Header(
        key=profile_key(key),
        kind=PROFILE_KIND,
        name=key.name,
        platform=key.platform,
        jax=jax.__version__,
        jaxlib=key_parts.jaxlib_version(),
        logical_key=key.logical,
        profile_digest=profile.digest,
        extra=profile.fields(),
    )
    EntryWriter(compilation.cache).write_beside(header, profile.data, compilation.settings)


def _is_news(compilation: Compilation) -> bool:
    """Return true the first time that only the plain entry exists, so that JAX warns once per program."""
    program = compilation.cache.url, compilation.key.logical
    if program in _warned or not compilation.cache.contains(compilation.text, compilation.settings):
        return False
    _warned.add(program)
    return True


def _agree_on_variant(compilation: Compilation, choice: str, profile: Profile | None) -> str:
    agreement = agreement_of_job()
    if agreement is None:
        return _NEITHER
    decision = agreement.decide(
        agreement.topic(f"variant/{compilation.name}/{short_digest(repr(compilation.device_ids))}"),
        participants=compilation.ranks,
        mine={"key": compilation.text, "choice": choice, "profile": profile.digest if profile is not None else ""},
        decide=lambda said: _agreed_variant(said, len(compilation.ranks)),
        about=compilation.name,
    )
    return decision if decision in {_ENTRY, _PROFILE} else _NEITHER


def _stored_profile(compilation: Compilation) -> Profile | None:
    """Return the stored profile of this program, if it is to be used now."""
    settings, cache, key = compilation.settings, compilation.cache, compilation.key
    profiling = settings.enable_pgle and settings.pgle_profiling_runs > 0
    if not profiling and cache.contains(key._replace(variant=PROFILING).text, settings):
        # Nothing would be profiled, and nothing has to be compiled.
        return None
    found = cache.read(profile_key(key), settings, kind=PROFILE_KIND)
    if not isinstance(found, entry.Entry) or found.header.logical_key != key.logical:
        return None
    devices = len(compilation.device_ids)
    percentile, runs = found.header.extra.get("percentile"), found.header.extra.get("runs")
    if not (isinstance(percentile, int) and isinstance(runs, int) and found.raw):
        return None
    if found.header.extra.get("devices") != devices:
        return None
    if profiling and percentile != settings.pgle_aggregation_percentile:
        return None
    return Profile(found.raw, percentile, runs, devices, from_store=True)


def _agreed_variant(said: dict[int, Any], ranks: int) -> str:
    """Return the variant that all ranks chose; neither if one did not answer, or if they see different things."""
    views = {(each["choice"], each["profile"], each["key"]) for each in said.values()}
    if len(said) != ranks or len(views) != 1:
        return _NEITHER
    return str(views.pop()[0])


def share_profile(request: KeyRequest, *, first_process: int) -> bytes:
    """Agree on the profile that all ranks of this program compile with: the first rank's, or an empty one on each.

    This takes the place of JAX's own exchange, which uses a name that differs from rank to rank on some platforms,
    remembers the profile under the key alone, and raises in the program if it does not come.

    Args:
        request: the program, its devices, and its compile options with this rank's profile.
        first_process: the rank whose profile is used.
    """
    coordination = coordination_client()
    profile = bytes(request.options.executable_build_options.fdo_profile or b"")
    if not profile or coordination is None:
        return profile
    options = copy.deepcopy(request.options)
    options.executable_build_options.fdo_profile = b""
    try:
        about = (
            digest_module(request.module, metadata=False, ignore_custom_partitioning=True).digest,
            canonical_options(key_parts.serialized_options(options)),
            [device.id for device in request.devices.flat],
        )
    except Exception as exc:
        log.warning("ejcache: a profile has no name for the other ranks, so it is not used: %s", exc)
        return b""
    name = f"ejcache/profile/{hashlib.sha256(repr(about).encode()).hexdigest()[:40]}"
    mine = profile if coordination.process == first_process else None
    return exchange(coordination, name, mine, seconds=_PROFILE_SECONDS)


def exchange(coordination: CoordinationClient, name: str, profile: bytes | None, *, seconds: float) -> bytes:
    """Return the first rank's profile on every rank; nothing on every rank if one of them timed out waiting for it.

    The first rank sets the name to its profile, and a rank that times out sets it to `WITHDRAWN`. The service keeps the
    first value, so that all ranks read the same.

    Args:
        coordination: the job's coordination service.
        name: of the value.
        profile: what this rank sends; None if it waits for another's.
        seconds: how long to wait.
    """
    try:
        awaited = "the first rank, which profiles a program that all ranks compile"
        value = coordination.get(name, timeout=seconds, what=awaited) if profile is None else None
        if value is None:
            if profile is None:
                log.warning("ejcache: no profile came from the first rank, so all ranks compile without one")
            value = WITHDRAWN if profile is None else _SENT + profile
            if not coordination.set_once(name, value):
                value = coordination.get(name, timeout=1.0) or WITHDRAWN
    except Exception as exc:
        # The service is gone, and the job with it.
        log.warning("ejcache: the ranks could not exchange a profile: %s", exc)
        return b""
    return value[1:] if value.startswith(_SENT) else b""
