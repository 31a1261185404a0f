"""What runs while a function is traced: the user's code, the libraries' code, and what neither should have done.

Python 3.12 and later report the start of each code object (`sys.monitoring`), and each one is reported once. In code of
the user and of packages other than JAX, calls are reported, too: they find clocks and random numbers, which C code
computes. An audit hook finds the files that C code opens. Code of other threads is not counted.
"""

from __future__ import annotations

import os
import sys
import threading
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.guarding.memos import MEMO, Memo, memo_name, shows_values
from ejcache.fingerprint.guarding.names import WARNING_FILTERS
from ejcache.fingerprint.watching.asked import Asked, asks_for_attributes, hides_attribute
from ejcache.fingerprint.watching.audit import report_to
from ejcache.fingerprint.watching.author import (
    CO_OPTIMIZED,
    Author,
    author_of_file,
    author_of_frame,
    belongs_to_listener,
    imports,
    listens_to_collections,
    nearest,
    owner_of,
    short_name,
)
from ejcache.fingerprint.watching.denied import CallEffect, denied_function, examine_call

if TYPE_CHECKING:
    from types import CodeType, FrameType, TracebackType
    from typing import Self

__all__ = ["Coverage", "LibraryCode", "available"]

_monitoring: Final[Any] = getattr(sys, "monitoring", None)

_TOOL_IDS: Final = (4, 3, 5)
"""The ids that Python names for no kind of tool, and then the one for optimizers."""

_one_at_a_time = threading.Lock()
"""Callbacks belong to a tool, not to a thread."""

_NOBODY: Final = -1


class LibraryCode(NamedTuple):
    """A code object of a library that ran."""

    code: CodeType
    namespace: dict[str, Any]
    """The globals that it reads."""
    owner: tuple[type[Any], str] | None
    """The class and the attribute that lead to it, where its own name does not: code that a library has generated."""


def available() -> bool:
    """Whether this Python reports what runs at a cost that a cold start can bear."""
    return _monitoring is not None


class Coverage:
    """A block in which everything that this thread runs is noted.

    Attributes:
        user: the user's code objects that ran, by identity.
        library: the libraries' code objects that ran, by identity.
        asked: what packages asked objects for by computed names, and settings of the process that the trace went by.
        variables: the names of the environment variables that were read.
        refusal: why what ran cannot be described by its content: "f calls time.time()". None if it can.
        lost_output: sentences about output that a start without tracing does not repeat: "f prints".
    """

    def __init__(self) -> None:
        self.user: dict[int, CodeType] = {}
        self.library: dict[int, LibraryCode] = {}
        self.asked = Asked()
        self.variables: set[str] = set()
        self.refusal: str | None = None
        self.lost_output: list[str] = []
        self._thread = _NOBODY
        self._owner = _NOBODY
        self._pauses = 0
        self._tool: int | None = None
        self._with_calls: list[CodeType] = []
        self._random: dict[str, object] = {}
        self._memos: dict[int, tuple[Any, int]] = {}
        """By identity, memos that had entries which cannot be read, and how often one of these had been used."""

    def __enter__(self) -> Self:
        if not available():
            self._refuse("this Python cannot report what runs: direct mode needs Python 3.12 or later")
            return self
        if not _one_at_a_time.acquire(blocking=False):
            self._refuse("another function was recorded at the same time")
            return self
        self._tool = next((each for each in _TOOL_IDS if _monitoring.get_tool(each) is None), None)
        if self._tool is None:
            _one_at_a_time.release()
            self._refuse("other tools use every id of sys.monitoring")
            return self
        # The first question reads the interpreter's configuration, and that must not happen in a callback.
        author_of_file(threading.__file__)
        self._owner = self._thread = threading.get_ident()
        self._random = _random_states()
        events = _monitoring.events
        _monitoring.use_tool_id(self._tool, "ejcache")
        _monitoring.register_callback(self._tool, events.PY_START, self._on_start)
        _monitoring.register_callback(self._tool, events.PY_RESUME, self._on_start)
        _monitoring.register_callback(self._tool, events.CALL, self._on_call)
        # What ran in an earlier recording is not reported again otherwise.
        _monitoring.restart_events()
        report_to(self._refuse_in_thread, thread=self._owner)
        _monitoring.set_events(self._tool, events.PY_START | events.PY_RESUME)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tool, self._tool = self._tool, None
        if tool is None:
            return
        self._thread = _NOBODY
        report_to(None)
        events = _monitoring.events
        _monitoring.set_events(tool, events.NO_EVENTS)
        for code in self._with_calls:
            _monitoring.set_local_events(tool, code, events.NO_EVENTS)
        for event in (events.PY_START, events.PY_RESUME, events.CALL):
            _monitoring.register_callback(tool, event, None)
        _monitoring.free_tool_id(tool)
        _one_at_a_time.release()
        self._refuse_memos()
        for name, state in _random_states().items():
            if state != self._random.get(name, state):
                self._refuse(f"random numbers of {name} were drawn while tracing")

    def include(self, other: Coverage) -> None:
        """Add what libraries did in another block."""
        self.library = {**other.library, **self.library}
        self.asked.attributes |= other.asked.attributes
        self.asked.places |= other.asked.places
        self.variables |= other.variables
        self.refusal = self.refusal or other.refusal
        self.lost_output += [each for each in other.lost_output if each not in self.lost_output]

    def pause(self) -> None:
        """Stop noting what runs: JAX compiles now, and compilations differ from one process to the next."""
        if threading.get_ident() == self._owner:
            self._pauses += 1
            self._thread = _NOBODY

    def resume(self) -> None:
        """Note again what runs, once each pause has ended."""
        if threading.get_ident() == self._owner:
            self._pauses -= 1
            if not self._pauses and self._tool is not None:
                self._thread = self._owner

    def _refuse(self, sentence: str) -> None:
        if self.refusal is None and not belongs_to_listener(sys._getframe(1)):  # noqa: SLF001  # as below
            self.refusal = sentence

    def _refuse_in_thread(self, sentence: str) -> None:
        if self._thread == self._owner:
            self._refuse(sentence)

    def _on_start(self, code: CodeType, _offset: int) -> object:
        if threading.get_ident() != self._thread:
            return None  # reported again: this thread may run it later
        try:
            again = self._note_start(code, sys._getframe(1))  # noqa: SLF001  # the documented way to a caller
        except Exception as error:  # an exception here would be the program's
            self._refuse(f"what {code.co_qualname} is cannot be told ({error!r})")
            again = True
        return None if again else _monitoring.DISABLE

    def _note_start(self, code: CodeType, frame: FrameType) -> bool:
        """Note code that starts. True: its next start is to be reported, too."""
        author = author_of_frame(frame)
        if author is Author.OURS:
            return False
        if author is Author.USER:
            if belongs_to_listener(frame):
                return True  # the traced function may call it, too
            self.user[id(code)] = code
            self._report_calls(code)
            return False
        if not code.co_flags & CO_OPTIMIZED:
            return False  # the body of a module or a class, because a part of a library is imported only now
        if id(code) not in self.library:
            if listens_to_collections() and belongs_to_listener(frame):
                return True
            generated = code.co_filename.startswith("<") and not code.co_filename.startswith("<frozen ")
            self.library[id(code)] = LibraryCode(code, frame.f_globals, owner_of(frame) if generated else None)
            if author is Author.PACKAGE:
                self._report_calls(code)
        return author is Author.STDLIB and self._examine_stdlib(code, frame)

    def _report_calls(self, code: CodeType) -> None:
        self._with_calls.append(code)
        _monitoring.set_local_events(self._tool, code, _monitoring.events.CALL)

    def _on_call(self, code: CodeType, offset: int, called: object, first: object) -> None:
        if threading.get_ident() != self._thread:
            return
        try:
            of_user = id(code) in self.user
            if type(called) is Memo:
                self._note_memo(called)
            finding = examine_call(called, first, of_user=of_user)
            if asks_for_attributes(called):
                if not of_user:
                    self.asked.note(code, offset, called, first)
                elif hides_attribute(code, offset, called, first):
                    finding = CallEffect("asks a function for an attribute whose name it computes")
        except Exception as error:  # an exception here would be the program's
            finding = CallEffect(f"calls what cannot be examined ({error!r})")
        if finding is None or imports(sys._getframe(1)):  # noqa: SLF001  # the documented way to a caller
            return
        sentence = f"{code.co_qualname} {finding.text}"
        if finding.lost_output:
            (self._note_warning if finding.warns else self._note_output)(sentence)
        else:
            self._refuse(sentence)

    def _note_memo(self, called: Any) -> None:
        """Note what a memo of a library remembers, and its function: that does not run if it was called before."""
        function = called.__wrapped__
        if (
            not isinstance(function, FunctionType)
            or author_of_file(function.__code__.co_filename) is not Author.PACKAGE
        ):
            return
        code = function.__code__
        self.library.setdefault(id(code), LibraryCode(code, function.__globals__, None))
        if id(called) in self._memos:
            return
        name = memo_name(called, function.__globals__)
        if name is not None:
            self.asked.places.add((function.__globals__["__name__"], name + MEMO))
        if called.cache_info().currsize and (name is None or not shows_values(called)):
            self._memos[id(called)] = (called, called.cache_info().hits)

    def _refuse_memos(self) -> None:
        """Refuse what came from a memo that was filled before, and whose values cannot be read."""
        for memo, hits in self._memos.values():
            if memo.cache_info().hits > hits:
                self._refuse(f"{memo.__wrapped__.__qualname__} remembers what it returned before")

    def _note_warning(self, sentence: str) -> None:
        """Note a warning. The filters decide whether it is shown, or becomes an error."""
        self.asked.places.add(WARNING_FILTERS)
        self._note_output(sentence)

    def _note_output(self, sentence: str) -> None:
        if sentence not in self.lost_output and not belongs_to_listener(sys._getframe(1)):  # noqa: SLF001  # as above
            self.lost_output.append(sentence)

    def _examine_stdlib(self, code: CodeType, frame: FrameType) -> bool:
        """Note what a function of the standard library does. True: its next start is to be reported, too."""
        module = str(frame.f_globals.get("__name__"))
        name = code.co_qualname
        if module == "os" and name.startswith("_Environ."):
            self._note_environment(name, frame)
            return True
        if module in ("warnings", "_py_warnings") and name in ("_showwarnmsg", "showwarning"):
            self._note_warning("a warning was shown")
            return True
        if module == "logging" and name == "Logger._log":
            caller = nearest(frame)
            if caller is not None and author_of_frame(caller) in (Author.USER, Author.PACKAGE):
                self._note_output(f"{short_name(caller)} logs")
            return True
        denied = denied_function(module, name, frame.f_locals)
        if denied is None:
            return module == "random"
        caller = nearest(frame)
        if caller is not None and author_of_frame(caller) in denied and not _shows(frame) and not imports(frame):
            self._refuse(f"{short_name(caller)} uses {name} of {module}")
        return True

    def _note_environment(self, name: str, frame: FrameType) -> None:
        method = name.removeprefix("_Environ.")
        caller = nearest(frame)
        if caller is None or author_of_frame(caller) is Author.OURS:
            return
        if method == "__getitem__":
            key = frame.f_locals.get("key")
            self.variables.add(os.fsdecode(key) if isinstance(key, bytes) else str(key))
        elif method in ("__setitem__", "__delitem__"):
            if imports(caller):
                return  # what a part of a library sets for itself when it is imported
            self._refuse(f"{short_name(caller)} changes the environment variable {frame.f_locals.get('key')}")
        elif method in ("__iter__", "__len__", "__repr__", "copy", "__or__", "__ror__"):
            self._refuse(f"{short_name(caller)} reads all environment variables")


def _shows(frame: FrameType) -> bool:
    """Whether source is read only to show it with a warning, a traceback or a line of a log."""
    each: FrameType | None = frame
    while each is not None and author_of_frame(each) is Author.STDLIB:
        if str(each.f_globals.get("__name__")).partition(".")[0] in ("warnings", "_py_warnings", "logging"):
            return True
        each = each.f_back
    return False


def _random_states() -> dict[str, object]:
    """The states of the generators that modules share, of those that are loaded."""
    states: dict[str, object] = {}
    if (python := sys.modules.get("random")) is not None:
        states["random"] = python.getstate()
    if (numpy := sys.modules.get("numpy.random.mtrand")) is not None:
        state = numpy._rand.get_state(legacy=False)  # noqa: SLF001  # the public functions of numpy.random are its methods
        states["numpy.random"] = repr((state["state"]["pos"], state["state"]["key"].tobytes(), state.get("gauss")))
    return states
