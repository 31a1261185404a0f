"""The calls of a direct function: from JAX's C++ dispatch, which knows no executable, to one without tracing.

JAX's C++ function calls `DirectCalls.miss` where it would call JAX's own Python code to trace, lower, compile and run.
What that returns has the data with which C++ dispatches from then on, and so has what `miss` returns.

Each call is a question (`question`). Either a proven record answers it, or it is traced as usual, and something is
learnt from that (`recording`). A failure of ours is reported, and the call is traced as if direct mode were off. An
exception of the user's function is the user's: it is never caught, and the function is never run twice.

A function that is traced quickly stays plain: `quick`. Nothing but this module is imported for it.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import sys
import threading
import time
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.cache.counters import Verdict
from ejcache.direct.describing.code import code_digest
from ejcache.direct.records import QuickFunctions
from ejcache.direct.verdicts import record_verdict
from ejcache.jax_integration.activate import compiler_in_use
from ejcache.jax_integration.program import watch_made
from ejcache.jax_integration.seam.direct import fastpath as seam
from ejcache.jax_integration.seam.direct.refusal import RefusedError
from ejcache.jax_integration.seam.direct.traces import TRACED, later_traces_mismatches, watch_traces, why_plain
from ejcache.jax_integration.seam.tracing import around_each_compilation
from ejcache.settings.resolve import environment_variable
from ejcache.util.log import warn_once
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ejcache.cache.policy import CachePolicy
    from ejcache.direct.files.manifest import Opened
    from ejcache.direct.question import Question, Subject
    from ejcache.jax_integration.compiling import Compiler
    from ejcache.jax_integration.program import Made
    from ejcache.settings.table import Settings

__all__ = ["DirectCalls", "direct_jit"]

_CHECK_ONE_IN: Final = 20
"""One start in so many traces although a record would answer, and compares."""
_QUICK_SECONDS: Final = 0.05
"""A function that is traced and lowered in less stays plain: to ask about it takes about as long."""

_UNKNOWN_PYTHON: Final = (3, 14)
"""From this version on, code objects are others than those that the describer reads."""


def _number(variable: str, default: float) -> float:
    """What tests and `ejcache verify --direct` set in place of the constants above."""
    try:
        return float(environment_variable(variable) or default)
    except ValueError:
        return default


class _Tracing(threading.local):
    """The trace that this thread is in."""

    current: _Trace | None = None


class _Trace:
    """One trace: when JAX first got an executable in it, and what it opened."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.seconds: float | None = None
        self.opened: Opened | None = None
        self.made: list[Made] = []


_here: Final = _Tracing()


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Around each executable that JAX gets: what is opened meanwhile is not the program's."""
    trace = _here.current
    if trace is None:
        yield
        return
    trace.seconds = time.perf_counter() - trace.began
    opened = trace.opened
    if opened is None:
        yield
        return
    opened.paused = True
    try:
        yield
    finally:
        opened.paused = False


@contextlib.contextmanager
def _traced(*, recording: bool) -> Iterator[_Trace]:
    """Within the block a function is traced."""
    trace, before = _Trace(), _here.current
    _here.current = trace
    with contextlib.ExitStack() as stack:
        trace.made = stack.enter_context(watch_made())
        if recording:
            from ejcache.direct.files.manifest import recorded

            trace.opened = stack.enter_context(recorded())
        try:
            yield trace
        finally:
            _here.current = before


class _Use(NamedTuple):
    """What a call is answered with: the cache, and the settings as they are now."""

    compiler: Compiler
    policy: CachePolicy
    settings: Settings


class DirectCalls:
    """The calls of one function that JAX's C++ dispatch has no executable for. Safe for threads.

    Args:
        jitted: the function, as `jax.jit` made it.
        fun: the function itself.
        reads: what the user says that the trace reads, besides what the walk finds.
        ignored: paths that the user leaves out.
        always: direct mode is on whatever the settings say, because the decorator asks for it.
    """

    def __init__(self, jitted: Any, fun: Any, *, reads: Sequence[object], ignored: Sequence[str], always: bool) -> None:
        self.name = function_name(fun)
        self.code = code_text(fun)
        self.off = ""
        self._jitted = jitted
        self._always = always
        self._trace = seam.plain_miss(jitted)
        self._fun = fun
        self._reads = tuple(reads)
        self._ignored = tuple(ignored)
        self._subject: Subject | None = None
        self._loaded: dict[str, Any] = {}
        self._asked: set[tuple[str, str]] = set()
        self._refused: set[str] = set()
        self._said: set[tuple[str, ...]] = set()
        self._answered: list[Question] = []
        self._traced_before = False
        """Something else than its calls made JAX trace it, perhaps with other values than those of now."""

    def miss(self, *args: Any, **kwargs: Any) -> Any:
        """What JAX's own `cache_miss` returns: the results, data for the C++ dispatch, and a function to rebuild it."""
        use = self._use()
        if use is None:
            return self._trace(*args, **kwargs)
        quick = QuickFunctions.of(use.policy, use.settings, at_most=_number("EJCACHE_DIRECT_FLOOR", _QUICK_SECONDS))
        if quick.has(self.name, self.code):
            self._say(use, Verdict.PLAIN, "it is traced quickly")
            with _traced(recording=False) as trace:
                result = self._trace(*args, **kwargs)
            quick.note(self.name, self.code, trace.seconds)
            return result
        planned = self._plan(use, args, kwargs)
        if planned is None:
            return self._trace(*args, **kwargs)
        question, loaded, missed = planned
        if loaded is not None:
            try:
                return *seam.run_loaded(*loaded, question.call), False
            except Exception as exc:
                if any(map(_is_deleted, question.call.leaves)):
                    raise  # the executable has taken its donated arguments, so nobody can run the call again
                use.policy.report_failure("run what a direct record names", exc, use.settings, program=self.name)
                return self._trace(*args, **kwargs)
        with _traced(recording=question.fitting is None) as trace:
            result = self._trace(*args, **kwargs)
        if question.fitting is None and quick.note(self.name, self.code, trace.seconds):
            self._say(use, Verdict.PLAIN, f"it is traced in {(trace.seconds or 0.0) * 1e3:.0f} ms, and stays plain")
        else:
            self._learn(use, question, trace, result, missed)
        return result

    def note_other_trace(self) -> None:
        """Something else than a call of the function makes JAX trace it."""
        self._traced_before |= not self._answered
        self.look_again()

    def look_again(self) -> None:
        """Switch direct mode off if the function is no longer what it was when it was answered without a trace.

        JAX would go on with the trace that it never made, and so with the values of then.
        """
        use = self._use() if self._answered and not self.off else None
        for question in self._answered if use is not None else ():
            changed = _changed(question)
            if changed:
                self.off = f"{changed} since it was answered without a trace"
                if use is not None:
                    use.policy.warn(
                        f"direct:{self.name}",
                        f"direct mode is off for {self.name}: {self.off}. JAX traces it now, with the values of now, "
                        "where without direct mode it might have gone on with the trace of its first call",
                    )
                return

    def _note_trace(self, name: str) -> None:
        """JAX has traced a function of this name: one of those that this function leads to, perhaps."""
        if not name or any(name in question.state.functions for question in self._answered):
            self.look_again()

    def _use(self) -> _Use | None:
        compiler = compiler_in_use()
        settings = compiler.settings() if compiler is not None else None
        if compiler is None or settings is None or not (self._always or settings.direct):
            return None
        policy = compiler.cache_of(settings)
        return None if policy is None else _Use(compiler, policy, settings)

    def _plan(
        self, use: _Use, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Question, tuple[Any, Any] | None, str] | None:
        """What is known about a call, and the loaded executable where a record answers it; None to trace plainly."""
        from ejcache.direct.question import ask, make_subject, why_plain_everywhere

        try:
            self.look_again()
            call = seam.parse_call(self._jitted, args, kwargs)
            reason = self.off or why_plain(call) or why_plain_everywhere(use.settings)
            self._traced_before |= reason == TRACED and not self._answered
            if not reason and self._traced_before:
                reason = "JAX has traced it before it was called"
            if reason:
                self._say(use, Verdict.PLAIN, reason)
                return None
            if self._subject is None:
                project = use.settings.project
                self._subject = make_subject(self._fun, self.name, self.code, self._reads, self._ignored, project)
            question = ask(call, self._subject, use.policy, use.settings)
            if question.document.off:
                self.off = question.document.off
                self._say(use, Verdict.PLAIN, self.off)
                return None
            if question.asked in self._asked or question.key in self._refused:
                # JAX has the executable in memory; its C++ asks again for NumPy arrays instead of JAX's, say.
                return None
            return self._answer(use, question)
        except RefusedError as exc:
            self._say(use, Verdict.REFUSED, exc.reason)
        except Exception as exc:
            use.policy.report_failure("use a direct record", exc, use.settings, program=self.name)
        return None

    def _answer(self, use: _Use, question: Question) -> tuple[Question, tuple[Any, Any] | None, str]:
        from ejcache.direct.recording import load

        record = question.fitting
        one_in = int(_number("EJCACHE_DIRECT_CHECK_ONE_IN", _CHECK_ONE_IN))
        # Not `random`, whose state belongs to the user.
        if record is None or record.proven is None or (one_in > 0 and secrets.randbelow(one_in) == 0):
            return question, None, question.missed
        loaded = load(record, question, use.compiler, use.policy, use.settings, known=self._loaded)
        if isinstance(loaded, str):
            return question, None, loaded
        self._answered.append(question._replace(call=question.call._replace(leaves=())))
        watch_traces(self._note_trace)
        self._say(use, Verdict.HIT, "it is the same call of the same function, between the same files", *question.asked)
        return question, loaded, ""

    def _learn(self, use: _Use, question: Question, trace: _Trace, result: Any, missed: str) -> None:
        from ejcache.direct.recording import Learnt, learn
        from ejcache.direct.records import write_document

        self._asked.add(question.asked)
        try:
            learnt = learn(question, trace.opened, trace.made, result, missed=missed)
            if learnt.document is not None:
                write_document(question.key, learnt.document, use.policy, use.settings)
        except RefusedError as exc:
            learnt = Learnt(Verdict.REFUSED, exc.reason)
            self._refused.add(question.key)
        except Exception as exc:
            use.policy.report_failure("make a direct record", exc, use.settings, program=self.name)
            return
        self._say(use, learnt.verdict, learnt.sentence, *question.asked)
        if learnt.verdict is Verdict.WRONG:
            self.off = learnt.sentence
            use.policy.warn(f"direct:{self.name}", f"the record of {self.name} was wrong: {learnt.sentence}")

    def _say(self, use: _Use, verdict: Verdict, sentence: str, *about: str) -> None:
        """Count and log a verdict, once for each state that it is about: C++ may ask again for the same one."""
        said = (verdict.value, sentence, *about)
        if said not in self._said:
            self._said.add(said)
            use.policy.tally.add(**{f"direct_{verdict.value}": 1})
            record_verdict(self.name, verdict, sentence, url=use.policy.url)


def _changed(question: Question) -> str:
    """What has changed since a question was answered, in words; empty if nothing has."""
    from ejcache.direct.describing.walk import difference

    try:
        now = question.look()
    except Exception as exc:
        return f"what it reads cannot be described any more: {exc}"
    if now.lasting == question.state.lasting:
        return ""
    return difference(question.state.tokens, now.tokens) or "something that it reads changed"


def function_name(fun: Any) -> str:
    """Module and qualified name of a function, or of the class of another callable."""
    named = fun if isinstance(getattr(fun, "__qualname__", None), str) else type(fun)
    return f"{named.__module__}.{named.__qualname__}"


def code_text(fun: Any) -> str:
    """A digest of the code of a function, which tells lambda functions apart; empty for other callables."""
    code = getattr(fun, "__code__", None)
    return code_digest(code).hex() if isinstance(code, CodeType) else ""


def _is_deleted(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


@functools.cache
def _problems() -> tuple[str, ...]:
    """Why there is no direct mode in this process; empty if there is."""
    unknown = [] if sys.version_info < _UNKNOWN_PYTHON else ["it does not know the bytecode of this Python"]
    return (*unknown, *seam.fastpath_mismatches(), *later_traces_mismatches())


def direct_jit(
    fun: Any, options: dict[str, Any], *, reads: Sequence[object], ignored: Sequence[str], always: bool
) -> Any:
    """`jax.jit(fun, **options)`, whose calls direct mode answers where it can; plain `jax.jit` where it cannot at all.

    Args:
        fun: the function.
        options: of `jax.jit`.
        reads: values, functions, names of environment variables and files that the trace reads, besides what is found.
        ignored: paths that are not compared.
        always: on whatever the settings say.
    """
    jitted = jax.jit(fun, **options)
    problems = _problems()
    if problems:
        warn_once("direct mode", "ejcache: direct mode is off: %s", "; ".join(problems))
        return jitted
    around_each_compilation(_compiling)
    calls = DirectCalls(jitted, fun, reads=reads, ignored=ignored, always=always)
    function = seam.direct_function(jitted, calls.miss)
    for name in ("lower", "trace", "eval_shape"):
        vars(function)[name] = _after_a_look(vars(jitted).get(name) or getattr(jitted, name), calls)
    return function


def _after_a_look(method: Callable[..., Any], calls: DirectCalls) -> Callable[..., Any]:
    @functools.wraps(method)
    def look_and_call(*args: Any, **kwargs: Any) -> Any:
        calls.note_other_trace()
        return method(*args, **kwargs)

    return look_and_call
