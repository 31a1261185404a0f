"""Answers the calls of a function that asks for reuse: from JAX's C++ dispatch to a lowered program, traced or reused.

JAX's C++ function calls `ReusingCalls.miss` where it would call JAX's own Python code to trace, lower, compile and run.
What that returns has the data with which C++ dispatches from then on, and so has what `miss` returns.

A failure of ours is reported, and the call is traced as usual. An exception of the user's function is the user's.
"""

from __future__ import annotations

import functools
import json
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax

from ejcache.errors import StoreError
from ejcache.jax_integration.activate import compiler_in_use
from ejcache.jax_integration.call_comparison import comparisons
from ejcache.jax_integration.lowering.module_digest import digest_module, expected_digests
from ejcache.jax_integration.seam.reuse import calls as seam
from ejcache.jax_integration.seam.reuse import lowered_program
from ejcache.jax_integration.seam.reuse.calls import RefusedError
from ejcache.jax_integration.seam.reuse.placements import DevicePlaces
from ejcache.keys.key import reuse_module_key, reuse_record_key
from ejcache.reuse.call_data import call_data
from ejcache.reuse.function import KnownFunction, place_of_call
from ejcache.reuse.notes import note
from ejcache.reuse.records import (
    LARGEST_MODULE,
    ReuseRecord,
    TurnedOff,
    is_independent,
    is_same_program,
    read_module,
    read_record,
    remove_record,
    witness,
    write_module,
    write_record,
)
from ejcache.reuse.result_trees import TreeCodec
from ejcache.reuse.start import checks_one_in, is_drawn, machine
from ejcache.reuse.votes import vote_on
from ejcache.reuse.warned import warnings_so_far
from ejcache.reuse.word import Word
from ejcache.settings.environment import environment_number
from ejcache.util.locks import ForkLock
from ejcache.util.log import warn_once
from ejcache.util.threads import submit
from ejcache.values.code_files import why_unknown
from ejcache.values.distributions import distributions_digest, why_packages_changed
from ejcache.values.plain_data import NotWholeError, digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from ejcache.cache.reading import CacheReader
    from ejcache.jax_integration.seam.reuse.calls import ParsedCall
    from ejcache.reuse.votes import Vote
    from ejcache.settings.table import Settings

_QUICK_SECONDS: Final = 0.05
"""A function that is traced and lowered in less stays plain: to ask about it takes about as long."""


def reusing_jit(fun: Any, wanted: Any, options: dict[str, Any]) -> Any:
    """Return the reusing function of `fun`, or a plain one where this JAX is not known.

    Args:
        fun: the function.
        wanted: its word, or a function that returns it.
        options: of `jax.jit`.

    Raises:
        UsageError: `wanted` is no word.
    """
    word = Word(wanted)
    jitted = jax.jit(fun, **options)
    problems = [*seam.mismatches(), *lowered_program.mismatches()]
    if problems:
        warn_once("reuse", "ejcache: reuse_lowering is off: %s", "; ".join(problems))
        return jitted
    _work_ahead()
    known = KnownFunction(fun, place_of_call())
    return seam.reusing_function(jitted, ReusingCalls(jitted, known, word).miss)


@functools.cache
def _work_ahead() -> Future[None]:
    """Begin to do in the background, once in a process, what the first reuse needs and no call decides."""
    return submit(_make_ready)


def _make_ready() -> None:
    distributions_digest()
    lowered_program.make_context_ahead()


class _Use(NamedTuple):
    """What a call is answered with: the cache, and the settings as they are now."""

    reader: CacheReader
    settings: Settings


class _Question(NamedTuple):
    """A call of this function with its word.

    Attributes:
        key: of the record that answers it.
        word: digest of the word.
        off_key: of the record that says that this name, code and word are off in this namespace.
        parts: a short digest of each part, by what a person calls it.
        call: its arguments, as JAX sees them.
        use: the cache and the settings.
        backend: the PJRT client.
        vote: of the ranks that the call spans.
    """

    key: str
    word: str
    off_key: str
    parts: Mapping[str, str]
    call: ParsedCall
    use: _Use
    backend: Any
    vote: Vote


class ReusingCalls:
    """The calls of one function that JAX's C++ dispatch has no executable for. Safe for threads.

    Args:
        jitted: the function, as `jax.jit` made it.
        known: the function itself.
        word: for all that it reads besides its arguments and what it holds.
    """

    def __init__(self, jitted: Any, known: KnownFunction, word: Word) -> None:
        self._jitted = jitted
        self._word = word
        self._known = known
        self._plain = seam.plain_miss(jitted)
        self._is_served = True  # False where JAX's dispatch never serves it, and asks at each call
        self._is_counted = False
        self._is_slow = False  # once it took long to trace; JAX remembers a trace for other calls of equal types
        self._asking: set[str] = set()
        self._lock = ForkLock()

    @property
    def name(self) -> str:
        """Module and qualified name of the function."""
        return self._known.name

    def miss(self, *args: Any, **kwargs: Any) -> Any:
        """Do as JAX's own `cache_miss`: return the results, data for the C++ dispatch, and whether to forget it."""
        if seam.is_traced() or not self._is_served:
            return self._plain(*args, **kwargs)
        use = self._use()
        vote = vote_on(self._jitted, self.name, args, kwargs)
        question = None if use is None else self._ask(use, vote, args, kwargs)
        if question is None:
            vote.trace()
            result = self._plain(*args, **kwargs)
            self._is_served = use is None or result[1] is not None
            return result
        with self._lock:
            is_first = question.key not in self._asking
            self._asking.add(question.key)
        if not is_first:  # another thread asks the same at this moment
            vote.trace()
            return self._plain(*args, **kwargs)
        try:
            found = self._answer(question)
            if found is None:
                vote.trace()
                return self._trace(question, args, kwargs)
            computation, tree, content = found
            module = lowered_program.module_of(computation)
            expected_digests[id(module)] = module, content
            try:
                return lowered_program.run(computation, tree, question.call)
            finally:
                expected_digests.pop(id(module), None)
        finally:
            self._asking.discard(question.key)

    # -- the question ------------------------------------------------------------------------------------------------

    def _use(self) -> _Use | None:
        compiler = compiler_in_use()
        settings = compiler.settings() if compiler is not None else None
        if compiler is None or settings is None:
            return None
        reader = compiler.cache_of(settings)
        return None if reader is None else _Use(reader, settings)

    def _ask(self, use: _Use, vote: Vote, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Question | None:
        """Ask the word, and take the call apart; None if it is to be a plain call. Raises what the word raises."""
        try:
            word = self._word.ask()
        except NotWholeError as exc:  # a file that it stands for was changed; an error of the user's is the user's
            self._stay_plain(use, exc.reason)
            return None
        except BaseException:
            vote.trace()
            raise
        try:
            call = seam.parse_call(self._jitted, args, kwargs)
            reason = why_unknown() or why_packages_changed() or vote.why_impossible or seam.why_plain(call)
            if not reason:
                return self._question(use, vote, call, word)
            self._stay_plain(use, reason)
        except (RefusedError, NotWholeError) as exc:
            self._stay_plain(use, exc.reason)
        except Exception as exc:
            use.reader.report_failure("ask whether a program can be reused", exc, use.settings, program=self.name)
        return None

    def _question(self, use: _Use, vote: Vote, call: ParsedCall, word: str) -> _Question:
        backend = _backend_of(call)
        function = digest_of(self._known.data())
        data = {
            "the word": word,
            "the function, what it holds, or the file in which it was made": function,
            **call_data(call, DevicePlaces(backend)),
            "an installed distribution": distributions_digest(),
            "the devices, the ranks, or the versions of Python and JAX": machine(backend),
            "a setting of autotuning": [use.settings.autotune_policy, use.settings.autotune_dir],
            "EJCACHE_NAMESPACE": use.settings.namespace,
        }
        parts = {what: digest_of(each)[:16] for what, each in data.items()}
        off = digest_of([self.name, function, word, use.settings.namespace])
        keys = [reuse_record_key(self.name, digest) for digest in (digest_of([self.name, data]), off)]
        return _Question(keys[0], word, keys[1], parts, call, use, backend, vote)

    # -- the answers -------------------------------------------------------------------------------------------------

    def _answer(self, question: _Question) -> tuple[Any, Any, Any] | None:
        """Return the program of a record, the tree of its results, and what is known of its module; None to trace."""
        reader, settings = question.use
        try:
            off = submit(lambda: read_record(question.off_key, reader, settings))
            record = read_record(question.key, reader, settings)
            if isinstance(off.result(), TurnedOff) or not isinstance(record, ReuseRecord):
                return None
            if record.proven is None or is_drawn() or settings.compare:
                return None
            module = read_module(record.module, reader, settings)
            if module is None:
                self._say(question, "traced", "its module is not in the cache any more, or damaged")
                return None
            tree = TreeCodec(question.call).decode_tree(record.tree)
            computation = lowered_program.decode_program(record.program, module, question.backend)
            if not question.vote.all_reuse(_compiled(record, question.word)):
                self._say(question, "traced", "another rank traces it, has another word or program, or did not answer")
                return None
        except RefusedError as exc:
            self._say(question, "traced", exc.reason)
        except StoreError as exc:
            reader.report_failure("read a lowered program", exc, settings, program=self.name)
        except Exception as exc:
            self._say(question, "traced", f"its record is of no use: {exc}")
        else:
            self._note_reuse(question)
            return computation, tree, record.content
        return None

    def _note_reuse(self, question: _Question) -> None:
        self._is_slow = True
        self._say(question, "reused", "earlier starts with this word, code and call have traced it")
        if not self._is_counted:
            self._is_counted = True
            question.use.reader.tally.add(not_traced=1)

    def _trace(self, question: _Question, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        began = time.perf_counter()
        refused = ""
        lowered = None
        warned = warnings_so_far()
        try:
            lowered = lowered_program.lower(self._jitted, args, kwargs)
        except RefusedError as exc:
            refused = exc.reason
        seconds = time.perf_counter() - began
        result = self._plain(*args, **kwargs)
        if lowered is not None and warnings_so_far() != warned:
            refused = "its trace or its lowering warned, and a start without a trace would not"
        elif lowered is not None:
            try:
                refused = self._learn(question, lowered, result, seconds)
            except RefusedError as exc:
                refused = exc.reason
            except Exception as exc:
                question.use.reader.report_failure(
                    "record a lowered program", exc, question.use.settings, program=self.name
                )
        if refused:
            self._stay_plain(question.use, refused)
        return result

    def _learn(self, question: _Question, lowered: lowered_program.Lowered, result: Any, seconds: float) -> str:
        """Record or prove what a trace gave; returns why the function stays plain, or nothing."""
        reader, settings = question.use
        self._is_served = result[1] is not None
        off, record = (read_record(key, reader, settings) for key in (question.off_key, question.key))
        if isinstance(off, TurnedOff):
            return off.off
        floor = environment_number("EJCACHE_REUSE_FLOOR", _QUICK_SECONDS)
        self._is_slow |= isinstance(record, ReuseRecord) or seconds >= floor
        if not self._is_slow:
            self._say(question, "plain", f"to trace it takes less than {_QUICK_SECONDS} s")
            return ""
        if lowered.has_arrays:
            return "arrays of JAX are baked into its program, such as weights; give them as arguments"
        if not self._is_served:
            return "JAX's own dispatch does not serve it: it has effects, or its results are not plain arrays"
        program, module = lowered_program.encode_program(lowered)
        if not question.vote.spans(DevicePlaces(question.backend).at(program["devices"])):
            return "its program spans processes of which its arguments say nothing"
        if len(module) > LARGEST_MODULE:
            return f"its module has {len(module):,} bytes, and at most {LARGEST_MODULE:,} are kept"
        tree = json.loads(json.dumps(TreeCodec(question.call).encode_tree(lowered.tree)))
        if TreeCodec(question.call).decode_tree(tree) != lowered.tree:
            return "the tree of its results would be read otherwise than it is"
        program = json.loads(json.dumps(program))
        content = digest_module(lowered.module)
        if not isinstance(record, ReuseRecord):
            digest = write_module(module, reader, settings)
            now = ReuseRecord(self.name, program, tree, digest, content, witness())
            if not digest or not write_record(question.key, now, reader, settings):
                return "its program could not be stored"
            self._say(question, "recorded", "nothing was recorded for this word, code and call")
        elif is_same_program(record, program, tree, content.digest):
            self._agree(question, record, module)
        else:
            if settings.compare and record.proven is not None:
                comparisons.note_word(reader, self.name, question.key)
            self._turn_off(question, f"two traces of {self.name} with the same word, code and call gave other programs")
        return ""

    def _agree(self, question: _Question, record: ReuseRecord, module: bytes) -> None:
        """Prove a record by a trace that gave the same program, if it can, and store its module if it is gone."""
        reader, settings = question.use
        now = record
        if record.proven is not None:
            drawn = is_drawn() and f"one start in {checks_one_in()} traces everything and compares"
            self._say(question, "compared", drawn or "it was not reused")
        elif is_independent(record.recorded):
            now = record._replace(proven=witness())
            self._say(question, "proven", "an earlier start has recorded the same program")
        else:
            self._say(question, "compared", "only another process with another hash seed can prove it")
        if not reader.contains(reuse_module_key(record.module, settings.namespace), settings):
            now = now._replace(module=write_module(module, reader, settings) or now.module)
        if now != record:
            write_record(question.key, now, reader, settings)

    def _turn_off(self, question: _Question, why: str) -> None:
        """Do not reuse this name, code and word again, and say so loudly."""
        reader, settings = question.use
        self._say(question, "wrong", why)
        reader.warn(
            f"reuse:{question.off_key}",
            f"{why}, so the word does not stand for all that it reads: it is traced until `ejcache prune --all`, or "
            "until it has another word (docs/reuse.md)",
        )
        try:
            write_record(question.off_key, TurnedOff(why), reader, settings)
            remove_record(question.key, reader, settings)
        except StoreError as exc:
            reader.report_failure("remove a record of reuse", exc, settings, program=self.name)

    def _stay_plain(self, use: _Use, why: str) -> None:
        """Remember, and say once in a process, why this function is traced although it has a word."""
        note(self.name, "plain", why, url=use.reader.url)
        warn_once(("reuse", self.name, why), "ejcache: %s has a word, and is traced: %s", self.name, why)

    def _say(self, question: _Question, did: str, sentence: str) -> None:
        """Remember what was done, for `ejcache why`."""
        note(self.name, did, sentence, question.parts, url=question.use.reader.url)


def _compiled(record: ReuseRecord, word: str) -> dict[str, Any]:
    """Describe the program that a rank would compile, and for which word: equal on all ranks of a vote that reuse."""
    names = ("devices", "options", "platforms")
    return {"word": word, "content": record.content.digest, **{name: record.program[name] for name in names}}


def _backend_of(call: ParsedCall) -> Any:
    """Return the client of the devices of the first argument that is on one, or JAX's default one."""
    for leaf in call.leaves:
        if isinstance(leaf, jax.Array):
            return next(iter(leaf.sharding.device_set)).client
    device = jax.config.jax_default_device
    return device.client if isinstance(device, jax.Device) else jax.devices()[0].client
