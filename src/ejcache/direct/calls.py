"""The calls of a direct function: from JAX's C++ dispatch, which knows no executable, to one without tracing.

JAX's C++ function calls `DirectCalls.miss` where it would call JAX's own Python code to trace, lower, compile and run.
What that returns has the data with which C++ dispatches from then on, and so has what `miss` returns.

Each call is asked about (`question.py`), and then either answered from a record (`answering.py`) or traced as usual,
under observation (`tracing.py`). A failure of ours is reported, and the call is traced as if direct mode were off. An
exception of the user's function is the user's: it is never caught, and the function is never run twice.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax

from ejcache._tuples import NamedTuple
from ejcache.errors import DirectModeError
from ejcache.fingerprint.coverage import available
from ejcache.fingerprint.refusal import RefusedError
from ejcache.jax_integration.activate import compiler_in_use
from ejcache.jax_integration.direct.calls.answering import choose, start_loading
from ejcache.jax_integration.direct.calls.question import ask, is_due, why_plain_everywhere
from ejcache.jax_integration.direct.calls.remembered import why_remembered
from ejcache.jax_integration.direct.calls.roots import call_roots, function_name, nameless_code
from ejcache.jax_integration.direct.calls.tracing import Learnt, learn, observed, watch_compilations
from ejcache.jax_integration.direct.record_store import write_document
from ejcache.jax_integration.direct.verdicts import Verdict, record_verdict
from ejcache.jax_integration.seam.direct import fastpath as seam
from ejcache.jax_integration.seam.direct.plain_calls import why_plain
from ejcache.jax_integration.seam.direct.retracing import retracing_mismatches
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.cache.policy import CachePolicy
    from ejcache.jax_integration.compiling import Compiler
    from ejcache.jax_integration.direct.calls.answering import Chosen
    from ejcache.jax_integration.direct.calls.question import Question
    from ejcache.jax_integration.direct.calls.tracing import Observed
    from ejcache.settings.resolve import Settings

__all__ = ["DirectCalls", "direct_jit"]


class DirectCalls:
    """The calls of one function that JAX's C++ dispatch has no executable for. Safe for threads.

    Args:
        jitted: the function, as `jax.jit` made it.
        fun: the function itself.
        reads: what the user says that the trace reads, besides what the walk finds.
        always: direct mode is on whatever the settings say, because the decorator asks for it.
    """

    def __init__(self, jitted: Any, fun: Any, *, reads: Sequence[object], always: bool) -> None:
        self.name = function_name(fun)
        self.off = ""
        self._jitted = jitted
        self._always = always
        self._trace = seam.plain_miss(jitted)
        self._fun = fun
        self._reads = tuple(reads)
        self._loaded: dict[str, Any] = {}
        self._traced: set[tuple[str, str]] = set()
        self._refused: set[str] = set()
        self._said: set[tuple[str, ...]] = set()

    def miss(self, *args: Any, **kwargs: Any) -> Any:
        """What JAX's own `cache_miss` returns: the results, data for the C++ dispatch, and a function to rebuild it.

        Raises:
            DirectModeError: a record was wrong, and the mode is strict.
        """
        compiler = compiler_in_use()
        settings = compiler.settings() if compiler is not None else None
        if compiler is None or settings is None or (settings.direct == "off" and not self._always):
            return self._trace(*args, **kwargs)
        policy = compiler.cache_of(settings)
        if policy is None:
            return self._trace(*args, **kwargs)
        use = _Use(compiler, policy, settings)
        planned = self._plan(use, args, kwargs)
        if planned is None:
            return self._trace(*args, **kwargs)
        question, chosen, loaded = planned
        if loaded is not None:
            try:
                return *seam.run_loaded(*loaded, question.call.leaves), False
            except Exception as exc:
                if any(map(_is_deleted, question.call.leaves)):
                    raise  # the executable has taken its donated arguments, so nobody can run the call again
                policy.report_failure("run what a direct record names", exc, settings, program=self.name)
                return self._trace(*args, **kwargs)
        with observed(recording=chosen.record is None) as seen:
            result = self._trace(*args, **kwargs)
        self._learn(use, question, chosen, seen, result)
        return result

    def _plan(
        self, use: _Use, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Question, Chosen, tuple[Any, Any] | None] | None:
        """What is known about a call, and the loaded executable where a record answers it; None to trace plainly."""
        try:
            call = seam.parse_call(self._jitted, args, kwargs)
            reason = self.off or why_plain(call) or why_plain_everywhere(use.settings)
            if reason:
                self._say(use, Verdict.PLAIN, reason)
                return None
            question = ask(
                call,
                name=self.name,
                code=nameless_code(self._fun),
                roots=partial(call_roots, self._fun, call, reads=self._reads),
                policy=use.policy,
                settings=use.settings,
            )
            if question.document.off:
                self.off = question.document.off
                self._say(use, Verdict.PLAIN, self.off)
                return None
            if question.state in self._traced or question.key in self._refused:
                # JAX has the executable in memory; its C++ asks again for NumPy arrays instead of JAX's, say.
                return None
            reason = why_remembered(question.walked)
            if reason:
                self._say(use, Verdict.PLAIN, reason, *question.state)
                return None
            return self._choose(use, question)
        except RefusedError as exc:
            self._say(use, Verdict.REFUSED, exc.reason)
        except Exception as exc:
            use.policy.report_failure("use a direct record", exc, use.settings, program=self.name)
        return None

    def _choose(self, use: _Use, question: Question) -> tuple[Question, Chosen, tuple[Any, Any] | None]:
        must_trace = use.settings.direct == "explain" or is_due(use.settings.direct_check_one_in)
        loading = None
        if not must_trace:
            loading = start_loading(question, use.compiler, use.policy, use.settings, known=self._loaded)
        chosen = choose(question)
        if loading is None or chosen.record is not loading.record:
            return question, chosen, None
        executable = loading.executable.result()
        if executable is None:
            return question, chosen._replace(missed="its record is of no use: its entry is not in the cache"), None
        self._say(use, Verdict.HIT, "nothing that its trace reads has changed", *question.state)
        return question, chosen, (executable, loading.parts)

    def _learn(self, use: _Use, question: Question, chosen: Chosen, seen: Observed, result: Any) -> None:
        strict = use.settings.direct == "strict"
        self._traced.add(question.state)
        try:
            learnt = learn(question, chosen, seen, result, strict=strict)
            if learnt.document is not None:
                write_document(question.key, learnt.document, use.policy, use.settings)
        except RefusedError as exc:
            learnt = Learnt(Verdict.REFUSED, exc.reason)
            self._refused.add(question.key)
        except Exception as exc:
            use.policy.report_failure("make a direct record", exc, use.settings, program=self.name)
            return
        self._say(use, learnt.verdict, learnt.sentence, *question.state)
        if learnt.verdict is Verdict.WRONG:
            self.off = learnt.sentence
            use.policy.warn(f"direct:{self.name}", f"the record of {self.name} was wrong: {learnt.sentence}")
            if strict:
                raise DirectModeError(f"the record of {self.name} was wrong: {learnt.sentence}")

    def _say(self, use: _Use, verdict: Verdict, sentence: str, *about: str) -> None:
        """Count and log a verdict, once for each state that it is about: C++ may ask again for the same one."""
        said = (verdict.value, sentence, *about)
        if said not in self._said:
            self._said.add(said)
            use.policy.tally.add(**{f"direct_{verdict.value}": 1})
            record_verdict(self.name, verdict, sentence, url=use.policy.url)


class _Use(NamedTuple):
    """What a call is answered with: the cache, and the settings as they are now."""

    compiler: Compiler
    policy: CachePolicy
    settings: Settings


def _is_deleted(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _problems() -> list[str]:
    """Why there is no direct mode in this process; empty if there is."""
    if not available():
        return ["Python is older than 3.12"]
    return [*seam.fastpath_mismatches(), *retracing_mismatches()]


def direct_jit(fun: Any, options: dict[str, Any], *, reads: Sequence[object], always: bool) -> Any:
    """`jax.jit(fun, **options)`, whose calls direct mode answers where it can; plain `jax.jit` where it cannot at all.

    Args:
        fun: the function.
        options: of `jax.jit`.
        reads: values, functions, names of environment variables and files that the trace reads, besides what is found.
        always: on whatever the settings say.
    """
    jitted = jax.jit(fun, **options)
    problems = _problems()
    if problems:
        warn_once("direct mode", "ejcache: direct mode is off: %s", "; ".join(problems))
        return jitted
    watch_compilations()
    calls = DirectCalls(jitted, fun, reads=reads, always=always)
    return seam.direct_function(jitted, calls.miss)
