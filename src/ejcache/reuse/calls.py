"""The calls of a function that asks for reuse: from JAX's C++ dispatch to a lowered program, with a trace or without.

JAX's C++ function calls `ReusingCalls.miss` where it would call JAX's own Python code to trace, lower, compile and run.
What that returns has the data with which C++ dispatches from then on, and so has what `miss` returns.

A failure of ours is reported, and the call is traced as usual. An exception of the user's function is the user's.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.errors import StoreError
from ejcache.jax_integration.activate import compiler_in_use, current_settings
from ejcache.jax_integration.lowering.module_digest import digest_is_known, digest_module
from ejcache.jax_integration.seam.reuse import calls as seam
from ejcache.jax_integration.seam.reuse import lowering
from ejcache.jax_integration.seam.reuse.refusal import RefusedError
from ejcache.keys.key import reuse_module_key
from ejcache.reuse.call import call_text
from ejcache.reuse.declared import check_declared, declared_texts
from ejcache.reuse.inputs import known_starts
from ejcache.reuse.log import note
from ejcache.reuse.process import ANSWERED, ProcessInputs, number, proven_by_this, read_ahead, same_program, stay_plain
from ejcache.reuse.records import LARGEST_MODULE, RecordedFunction, read_module, witness, write_module
from ejcache.reuse.trees import TreeCodec
from ejcache.reuse.votes import vote_on
from ejcache.util.locks import ForkLock
from ejcache.util.log import warn_once
from ejcache.util.threads import submit
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from ejcache.cache.policy import CachePolicy
    from ejcache.jax_integration.seam.reuse.calls import ParsedCall
    from ejcache.reuse.votes import Vote
    from ejcache.settings.table import Settings

_QUICK_SECONDS: Final = 0.05
"""A function that is traced and lowered in less stays plain: to ask about it takes about as long."""
_AHEAD_SECONDS: Final = 1.0
"""The first question waits so long for the work ahead, at most."""


def reusing_jit(fun: Any, options: dict[str, Any]) -> Any | None:
    """The reusing function of `fun`, or None if it is to be plain. Takes the options of this room out of `options`.

    Raises:
        UsageError: `reuse_lowering` is neither a boolean nor a mapping of names to callables and paths.
    """
    wanted, name = options.pop("reuse_lowering", None), options.pop("name", None)
    declared = None if wanted is None else check_declared(wanted)
    if wanted is False or (wanted is None and not current_settings().reuse_lowering):
        return None
    jitted = jax.jit(fun, **options)
    problems = [*seam.mismatches(), *lowering.mismatches()]
    if problems:
        warn_once("reuse", "ejcache: reuse_lowering is off: %s", "; ".join(problems))
        return jitted
    _work_ahead()
    calls = ReusingCalls(jitted, name or function_name(fun), declared, by_setting=wanted is None)
    return seam.reusing_function(jitted, calls.miss)


@functools.cache
def _work_ahead() -> Future[None]:
    """Begin to do in the background, once in a process, what the first reuse needs and no call decides."""
    return submit(_make_ready)


def _make_ready() -> None:
    read_ahead()
    lowering.make_context_ahead()


def function_name(fun: Any) -> str:
    """Module and qualified name of a function, or of the class of another callable."""
    while not isinstance(getattr(fun, "__qualname__", None), str) and hasattr(fun, "func"):
        fun = fun.func  # of a partial
    named = fun if isinstance(getattr(fun, "__qualname__", None), str) else type(fun)
    return f"{named.__module__}.{named.__qualname__}"


class _Use(NamedTuple):
    """What a call is answered with: the cache, and the settings as they are now."""

    policy: CachePolicy
    settings: Settings


class _Question(NamedTuple):
    """A call of this function, and what this process and earlier ones know of it.

    Attributes:
        digest: of all that counts of the call.
        call: its arguments, as JAX sees them.
        inputs: of this process.
        has_read_inputs: True if this call has read them.
        use: the cache and the settings.
        backend: the PJRT client.
        vote: of the ranks that the call spans.
    """

    digest: str
    call: ParsedCall
    inputs: ProcessInputs
    has_read_inputs: bool
    use: _Use
    backend: Any
    vote: Vote


_lock: Final = ForkLock()
_inputs: Final[dict[int, tuple[CachePolicy, ProcessInputs | str]]] = {}
"""By the cache: the inputs, or why they cannot be read."""


class ReusingCalls:
    """The calls of one function that JAX's C++ dispatch has no executable for. Safe for threads.

    Args:
        jitted: the function, as `jax.jit` made it.
        name: module and qualified name, or what the user calls it.
        declared: what the user declares; None if that is nothing.
        by_setting: True if the function asks because of the setting.
    """

    def __init__(self, jitted: Any, name: str, declared: dict[str, Any] | None, *, by_setting: bool = False) -> None:
        self.name = name
        self._jitted = jitted
        self._declared = declared
        self._by_setting = by_setting
        self._plain = seam.plain_miss(jitted)
        self._is_served = True  # False where JAX's dispatch never serves it, and asks at each call

    def miss(self, *args: Any, **kwargs: Any) -> Any:
        """Do as JAX's own `cache_miss`: return the results, data for the C++ dispatch, and whether to forget it."""
        if seam.is_traced() or not self._is_served:
            return self._plain(*args, **kwargs)
        use = self._use()
        vote = vote_on(self._jitted, self.name, args, kwargs, by_setting=self._by_setting)
        question = None if use is None else self._ask(use, vote, args, kwargs)
        if question is None:
            vote.trace()
            result = self._plain(*args, **kwargs)
            self._is_served = use is None or result[1] is not None
            return result
        asked = question.inputs.asked
        with question.inputs.lock:
            before = asked.get(question.digest)
            if before is None:
                asked[question.digest] = self
        if before is None:
            try:
                return self._answer(question, args, kwargs)
            finally:
                asked[question.digest] = ANSWERED
        if before is not self:
            return self._asked_before(question, args, kwargs)
        question.vote.trace()
        return self._plain(*args, **kwargs)  # another thread calls this function at this moment

    def _answer(self, question: _Question, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Reuse or trace, for a question that this process asks for the first time."""
        known = question.inputs.function(question.digest)
        if known is not None and known.quick:
            question.vote.trace()
            self._say_quick(question.use)
            return self._plain(*args, **kwargs)
        if question.inputs.is_reusing and known is not None and known.is_ready:
            found = self._load(question, known)
            if found is not None:
                computation, tree = found
                with digest_is_known(lowering.module_of(computation), known.content):
                    return lowering.run(computation, tree, question.call)
        question.vote.trace()
        return self._trace(question, args, kwargs)

    # -- the question ------------------------------------------------------------------------------------------------

    def _use(self) -> _Use | None:
        compiler = compiler_in_use()
        settings = compiler.settings() if compiler is not None else None
        if compiler is None or settings is None:
            return None
        policy = compiler.cache_of(settings)
        return None if policy is None else _Use(policy, settings)

    def _ask(self, use: _Use, vote: Vote, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Question | None:
        """Ask the records about a call; None if it is to be a plain call. Raises what a declared callable raises."""
        try:
            declared = declared_texts(self._declared) if self._declared else {}
        except RefusedError as exc:
            self._say(use, "plain", exc.reason)
            return None
        except BaseException:
            vote.trace()
            raise
        try:
            reason = vote.why_impossible or ("" if self._declared is not None else known_starts.why_unknown())
            if reason:
                stay_plain(reason)
                return None
            call = seam.parse_call(self._jitted, args, kwargs)
            backend = _backend_of(call)
            why = seam.why_plain(call)
            inputs, has_read = (why, False) if why else _inputs_of(use, backend)
            if isinstance(inputs, str):
                self._say(use, "plain", inputs)
                return None
            since = inputs.changed_environment(), inputs.changed_search_path()
            choices = use.settings.autotune_policy, use.settings.autotune_dir
            about = [self.name, call_text(call, lowering.DevicePlaces(backend)), declared, since, choices]
            digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()
            return _Question(digest, call, inputs, has_read, use, backend, vote)
        except RefusedError as exc:
            self._say(use, "plain", exc.reason)
        except Exception as exc:
            use.policy.report_failure("ask whether a program can be reused", exc, use.settings, program=self.name)
        return None

    # -- the answers -------------------------------------------------------------------------------------------------

    def _load(self, question: _Question, known: RecordedFunction) -> tuple[Any, Any] | None:
        """The program of a record, and the tree of its results; None if it must be traced after all."""
        policy, settings = question.use
        inputs = question.inputs
        try:
            why = inputs.why_changed(is_just_read=question.has_read_inputs)
            module = None if why else read_module(known.module, policy, settings)
            if module is not None:
                tree = TreeCodec(question.call).decode_tree(known.tree)
                computation = lowering.decode_program(known.program, module, question.backend)
                if question.vote.all_reuse(_compiled(known)):
                    ProcessInputs.has_reused = True
                    self._say(question.use, "reused", "a process with the same inputs has traced it")
                    return computation, tree
                self._say(question.use, "traced", "another rank traces it, has another program, or did not answer")
                return None
            self._say(question.use, "traced", why or "its module is not in the cache any more, or damaged")
        except RefusedError as exc:
            self._say(question.use, "traced", exc.reason)
        except StoreError as exc:
            policy.report_failure("read a lowered program", exc, settings, program=self.name)
        except Exception as exc:
            self._say(question.use, "traced", f"its record is of no use: {exc}")
        if not inputs.has_reused:
            inputs.is_reusing = False
        return None

    def _asked_before(self, question: _Question, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace a second time for one question: whatever differs between the two is in no record."""
        question.vote.trace()
        why = f"{self.name} was traced twice for one question, and only its own words could tell the two apart"
        try:
            question.inputs.switch_off(why, question=question.digest)
        except Exception as exc:
            question.use.policy.report_failure("write a record of reuse", exc, question.use.settings, program=self.name)
        self._say(question.use, "plain", why, 'ejit(…, name="…") gives each its own')
        return self._plain(*args, **kwargs)

    def _trace(self, question: _Question, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        began = time.perf_counter()
        refused = ""
        lowered = None
        try:
            lowered = lowering.lower(self._jitted, args, kwargs)
        except RefusedError as exc:
            refused = exc.reason
        seconds = time.perf_counter() - began
        result = self._plain(*args, **kwargs)
        if lowered is not None:
            try:
                refused = self._learn(question, lowered, result, seconds)
            except RefusedError as exc:
                refused = exc.reason
            except Exception as exc:
                question.use.policy.report_failure(
                    "record a lowered program", exc, question.use.settings, program=self.name
                )
        if refused:
            self._say(question.use, "plain", refused)
        return result

    def _learn(self, question: _Question, lowered: lowering.Lowered, result: Any, seconds: float) -> str:
        """Record or prove what a trace gave; returns why the function stays plain, or nothing."""
        inputs = question.inputs
        self._is_served = result[1] is not None
        if seconds < number("EJCACHE_REUSE_FLOOR", _QUICK_SECONDS):
            inputs.learn(question.digest, lambda _: RecordedFunction(self.name, quick=True))
            self._say_quick(question.use)
            return ""
        if lowered.has_arrays and self._declared is None:
            return "arrays of JAX are baked into its program, such as weights; give them as arguments"
        if not self._is_served:
            return "JAX's own dispatch does not serve it: it has effects, or its results are not plain arrays"
        policy, settings = question.use
        program, module = lowering.encode_program(lowered)
        if not question.vote.spans(lowering.DevicePlaces(question.backend).at(program["devices"])):
            return "its program spans processes of which its arguments say nothing"
        if len(module) > LARGEST_MODULE:
            return f"its module has {len(module):,} bytes, and at most {LARGEST_MODULE:,} are kept"
        tree = json.loads(json.dumps(TreeCodec(question.call).encode_tree(lowered.tree)))
        if TreeCodec(question.call).decode_tree(tree) != lowered.tree:
            return "the tree of its results would be read otherwise than it is"
        program = json.loads(json.dumps(program))
        content = digest_module(lowered.module)
        said: list[tuple[str, str]] = []

        def learnt(known: RecordedFunction | None) -> RecordedFunction:
            if known is None or known.quick:
                said.append(("recorded", inputs.missed or "nothing was recorded for these inputs"))
                digest = write_module(module, policy, settings)
                if not digest:
                    raise RefusedError("its module could not be stored")
                return RecordedFunction(self.name, False, program, tree, digest, content, witness())
            if not same_program(known, program, tree, content.digest):
                why = f"two traces of {self.name} with the same inputs gave different programs"
                said.append(("wrong", why))
                return known._replace(off=why)
            proven = proven_by_this(known)
            if proven.proven != known.proven:
                said.append(("proven", "an earlier start has recorded the same program"))
            elif proven.proven:
                said.append(("compared", inputs.missed or "this process reuses nothing"))
            else:
                said.append(("compared", "only a process with another hash seed can prove it"))
            if policy.contains(reuse_module_key(proven.module), settings):
                return proven
            return proven._replace(module=write_module(module, policy, settings) or proven.module)

        inputs.learn(question.digest, learnt)
        for did, sentence in said or [
            ("traced", inputs.why_changed() or "a program was reused before in this process")
        ]:
            self._say(question.use, did, sentence, _line_that_ignores(inputs.advice, settings.reuse_ignore))
            if did == "wrong":
                policy.warn(
                    f"reuse:{self.name}",
                    f"{sentence}, so nothing is reused with these inputs: declare what it depends on (docs/reuse.md)",
                )
        return ""

    def _say_quick(self, use: _Use) -> None:
        if not self._by_setting:  # of all the functions that have not asked themselves, most are quick
            self._say(use, "plain", f"to trace it takes less than {_QUICK_SECONDS} s")

    def _say(self, use: _Use, did: str, sentence: str, advice: str = "") -> None:
        """Remember what was done, for `ejcache why`."""
        note(self.name, did, sentence, advice, url=use.policy.url)


def _line_that_ignores(item: str, ignored: Sequence[str]) -> str:
    """Say which line makes an item not count, with those that do not count already: it sets them all."""
    if not item or item in ignored:
        return ""
    setting = f"reuse_ignore={','.join((*ignored, item))}"
    return f"if no program depends on it: ejcache config set {shlex.quote(setting)}"


def _compiled(known: RecordedFunction) -> dict[str, Any]:
    """Describe the program that a rank would compile, which must be the same on all ranks of a vote."""
    return {
        "content": known.content.digest,
        **{name: known.program[name] for name in ("devices", "options", "platforms")},
    }


def _backend_of(call: ParsedCall) -> Any:
    """The client of the devices of the first argument that is on one, or JAX's default one."""
    for leaf in call.leaves:
        if isinstance(leaf, jax.Array):
            return next(iter(leaf.sharding.device_set)).client
    device = jax.config.jax_default_device
    return device.client if isinstance(device, jax.Device) else jax.devices()[0].client


def _inputs_of(use: _Use, backend: Any) -> tuple[ProcessInputs | str, bool]:
    """The inputs, or why they cannot be read, and True if this call has read them."""
    with _lock:
        known = _inputs.get(id(use.policy))
        is_new = known is None
        if known is None:
            found: ProcessInputs | str
            try:
                # Both at once would do a part of the work twice. A forked child does not have the thread.
                wait([_work_ahead()], timeout=_AHEAD_SECONDS)
                found = ProcessInputs(use.policy, use.settings, backend)
            except RefusedError as exc:
                stay_plain(exc.reason)
                found = exc.reason
            known = _inputs[id(use.policy)] = (use.policy, found)
        return known[1], is_new
