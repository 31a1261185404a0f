"""This process: its inputs, the record of earlier processes with the same ones, and whether it reuses or traces.

Inputs are read when the first function asks. A process reuses only if every function that was recorded for its inputs
is proven and readable: a function that is traced may depend on what another one does while it is traced. For the same
reason, a trace after a reuse neither records nor proves.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache.keys.key import reuse_module_key
from ejcache.reuse.inputs import known_starts
from ejcache.reuse.inputs.command_line import command_difference, command_line
from ejcache.reuse.inputs.environment import AT_START, environment
from ejcache.reuse.inputs.machine import machine
from ejcache.reuse.inputs.memo import memo_of_host
from ejcache.reuse.inputs.packages import changed_package, packages, root_of, sort_files
from ejcache.reuse.inputs.project import (
    Project,
    ProjectPlaces,
    ProjectReader,
    difference,
    from_label,
    label,
    link_that_changed,
    looked_into,
    made_since,
    module_files,
    path_in_library,
    place_ahead,
    with_code,
)
from ejcache.reuse.records import (
    ReuseRecord,
    StartInputs,
    document_key,
    is_independent,
    read_records,
    witness,
    write_records,
)
from ejcache.settings.directories import state_directory
from ejcache.settings.environment import environment_variable, variables_to_compare
from ejcache.settings.start import DIRECTORY
from ejcache.util.log import warn_once
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.cache.policy import CachePolicy
    from ejcache.reuse.records import RecordedFunction
    from ejcache.settings.table import Settings

_CHECK_ONE_IN: Final = 20
"""One process in so many traces although it could reuse, and compares."""


ANSWERED: Final = object()
"""Takes the place of the function that has asked a question, once it has its answer."""


def number(variable: str, default: float) -> float:
    """Read a number from a variable of ours that stands in for a constant."""
    try:
        return float(environment_variable(variable) or default)
    except ValueError:
        return default


def read_ahead() -> None:
    """Read the packages, and find out to what the loaded modules belong, before the first question."""
    packages()
    own, _ = sort_files(module_files())
    place_ahead(own)


class ProcessInputs:
    """The inputs of this process, and what earlier ones with the same inputs have recorded in one cache.

    Args:
        policy: of the cache.
        settings: the current ones.
        backend: the PJRT client.

    Attributes:
        asked: the questions of this process, each with the one that asks it at this moment, or `ANSWERED`.
        record: the record that has the same inputs; None if there is none.
        missed: what differs from the nearest record, as a sentence without a full stop; empty if nothing does.
        advice: an item of the setting `reuse_ignore` that would make the difference not count; empty if there is none.
        has_reused: True once a program was reused: from then on, no trace records or proves.
        is_reusing: True if the functions of `record` may be reused.

    Raises:
        RefusedError: the inputs of this process cannot be read.
    """

    has_reused = False  # of all caches

    def __init__(self, policy: CachePolicy, settings: Settings, backend: Any) -> None:
        self.lock = threading.RLock()
        self.asked: dict[str, object] = {}
        self._off: dict[str, str] = {}
        self.missed = self.advice = ""
        self._policy = policy
        self._settings = settings
        self._main = known_starts.MAIN or os.path.join(DIRECTORY, "__main__.py")  # noqa: PTH118
        ignored = settings.reuse_ignore
        ours = (policy.url, str(state_directory()))
        patterns = [each.removeprefix("./") for each in ignored if not each.startswith(("-", "env:"))]
        self._reader = ProjectReader(self._main, patterns, ours=ours, given=known_starts.MAIN_AS_GIVEN)
        self._files = module_files()
        self._machine = machine(backend)
        command, changed_argument = command_line(self._main, ignored)
        self._command = tuple(command)
        self._ignored = tuple(e.removeprefix("env:") for e in ignored if e.startswith("env:"))
        self._seen = dict(variables_to_compare())
        self._search = frozenset(sys.path)
        self._marks, self._variables = environment(self._ignored)
        self._packages = packages()
        own, self._edited = sort_files(self._files)
        self._places = self._reader.places(own)
        self._late: dict[str, None] = {}
        self._changed = (
            self._reader.read(self._places).changed
            or changed_argument
            or link_that_changed((known_starts.MAIN_AS_GIVEN, *own))
        )
        memo_of_host().write()
        self.key = document_key(label(self._main, self._reader.base), self._machine)
        differences: list[_Difference] = []
        self.record = None
        for each in read_records(self.key, policy, settings):
            found = self._difference(each.inputs)
            if found is None:
                self.record = each
                break
            differences.append(found)
        if self.record is None and differences:
            nearest = max(differences, key=lambda each: each.depth)
            self.missed, self.advice = nearest.sentence, nearest.advice
        self._counted = False
        self.is_reusing = self._may_reuse()

    # -- inputs ------------------------------------------------------------------------------------------------------

    def why_changed(self, *, is_just_read: bool = False) -> str:
        """Why this process neither records nor reuses any more, as a sentence; empty if it may.

        Args:
            is_just_read: True if the call that asks has read these inputs itself. What a reuse gives is what a trace at
                that moment would have given, so the project is not looked at a second time.
        """
        changed = self._changed or ("" if is_just_read else self._reader.changed_since()) or changed_package()
        return f"{changed} was changed after this process began" if changed else known_starts.why_moved()

    def changed_environment(self) -> str:
        """A digest of the environment if the program has changed what counts of it since the first question."""
        if variables_to_compare() == self._seen:
            return ""
        now = environment(self._ignored)[1]
        return "" if now == self._variables else now

    def changed_search_path(self) -> str:
        """Digest the code in directories that the program has put on the search path since the first question.

        Raises:
            RefusedError: they have more than 20,000 entries.
        """
        fresh = [each for each in sys.path if each not in self._search]
        fresh = [each for each in fresh if root_of(os.path.join(each, "")) is None]  # noqa: PTH118
        if not fresh:
            return ""
        found = self._reader.searched(fresh)
        self._changed = self._changed or found.changed
        return hashlib.sha256(json.dumps(sorted(found.code.items())).encode("utf-8", "surrogatepass")).hexdigest()

    def _inputs(self) -> StartInputs:
        """The inputs with those modules that were loaded meanwhile."""
        base = self._reader.base
        return StartInputs(
            command=self._command,
            environment=self._marks,
            variables=self._variables,
            project=self._reader.read(self._places),
            places=ProjectPlaces(*(tuple(label(each, base) for each in places) for places in self._places)),
            packages=self._packages,
            edited=self._edited,
            late=tuple(self._late),
            machine=self._machine,
        )

    def _look_again(self) -> None:
        """Take in what was imported since, and where it was looked for: places of the project, and of distributions."""
        files = module_files()
        base = self._reader.base
        known = set(self._files)
        fresh = [each for each in files if each not in known]
        search = looked_into(self._places, self._search)
        if not fresh and not search:
            return
        own, edited = sort_files(fresh)
        late = set(fresh).difference(own)
        self._late.update(dict.fromkeys(label(path, base) for path in fresh if path in late))
        self._edited.update(edited)
        searched = self._places._replace(search=(*self._places.search, *search))
        now = self._reader.places(own, searched)
        self._changed = self._changed or with_code(made_since(set(now.beside).difference(self._places.beside)))
        self._places = now
        self._changed = self._changed or self._reader.read(self._places).changed
        self._files = files

    def _difference(self, recorded: StartInputs) -> _Difference | None:
        """Find the first difference between recorded inputs and those of now."""
        for name in sorted(self._machine.keys() | recorded.machine.keys()):
            if self._machine.get(name) != recorded.machine.get(name):
                return _Difference(0, f"the machine's {name} changed")
        if self._command != recorded.command:
            return _Difference(1, *command_difference(recorded.command, self._command))
        for name in sorted(self._marks.keys() | recorded.environment.keys()):
            if self._marks.get(name) != recorded.environment.get(name):
                return _Difference(2, f"the variable {name} changed", f"env:{name.removesuffix(AT_START)}")
        if self._variables != recorded.variables:
            return _Difference(2, "a variable of the environment changed")
        for name in sorted(self._packages.keys() | recorded.packages.keys()):
            if self._packages.get(name) != recorded.packages.get(name):
                return _Difference(3, f"the package {name} changed")
        base = self._reader.base
        late = [from_label(each, base) for each in recorded.late]
        edited = {**self._edited, **sort_files(late)[1]}
        for name in sorted(edited.keys() | recorded.edited.keys()):
            if edited.get(name) == recorded.edited.get(name):
                continue
            # A directory counts if it is new and has code.
            if not name.endswith("/") or (name in edited and with_code([path_in_library(name)])):
                return _Difference(3, f"the file {name} of a package changed")
        here = {label(each, base): each for some in self._places for each in some}
        there = ProjectPlaces(
            *[tuple(here.get(each) or from_label(each, base) for each in some) for some in recorded.places]
        )
        places = self._places.joined(there)
        if there.search:
            places = self._reader.places((), places)
        changed = difference(recorded.project, self._reader.read(places))
        if changed is not None:
            return _Difference(4, *changed)
        new = with_code(sorted(set(places.beside).difference(there.beside)))
        return _Difference(4, f"the directory {label(new, base)} is new, and has code") if new else None

    # -- what is known -----------------------------------------------------------------------------------------------

    def _may_reuse(self) -> bool:
        if self.record is None:
            return False
        if self.record.off:
            self.missed = self.record.off
            return False
        waiting = self.record.waiting()
        if waiting:
            first = waiting[0]
            self.missed = (
                first.off or f"{first.name} is unproven: another start must trace it and find the same program"
            )
            return False
        one_in = int(number("EJCACHE_REUSE_CHECK_ONE_IN", _CHECK_ONE_IN))
        draws = jax.process_index() == 0  # in a job of several processes, its no is everybody's
        if draws and one_in > 0 and secrets.randbelow(one_in) == 0:  # not `random`, whose state belongs to the user
            self.missed = f"one start in {one_in} traces everything and compares"
            return False
        store = self._policy.opened(self._settings)
        ready = [each for each in self.record.functions.values() if each.is_ready]
        if store is None or not all(store.contains(reuse_module_key(each.module)) for each in ready):
            self.missed = "a module that was recorded is not in the cache any more"
            return False
        return True

    def function(self, question: str) -> RecordedFunction | None:
        """Look up the recorded function of a question; None if there is none."""
        return self.record.functions.get(question) if self.record is not None else None

    def learn(self, question: str, function: Callable[[RecordedFunction | None], RecordedFunction]) -> None:
        """Store what a trace gave, unless something was reused or changed.

        Args:
            question: digest of the question.
            function: gives what is to be stored, from what is stored now.
        """
        with self.lock:
            if self.has_reused or self.why_changed():
                return
            self._look_again()
            if self._changed:
                return
            inputs = self._inputs()
            records = read_records(self.key, self._policy, self._settings)
            mine = next((each for each in records if each.inputs == inputs or not self._difference(each.inputs)), None)
            if mine is None and self._counted and self.record is not None:
                # What this process has recorded before, when it had loaded less.
                mine = next((each for each in records if each.inputs == self.record.inputs), None)
            if mine is None:
                mine = ReuseRecord(inputs, {})
            traced = mine.traced + (not self._counted)
            self._counted = True
            now = function(mine.functions.get(question))
            now = now._replace(off=self._off.get(question, now.off))
            functions = {**mine.functions, question: now._replace(last=traced)}
            new = mine._replace(inputs=_joined(mine.inputs, inputs), functions=functions, traced=traced)
            others = tuple(each for each in records if each is not mine)
            if write_records(self.key, (new, *others), self._policy, self._settings):
                self.record = new

    def switch_off(self, why: str, *, question: str = "") -> None:
        """Never reuse for these inputs again: the one question, or anything."""
        with self.lock:
            self.is_reusing = False
            if question:
                self._off[question] = why  # the one that asks it at this moment has recorded nothing yet
            record = self.record
            if record is None:
                return
            known = record.functions.get(question)
            if question and (known is None or known.quick):
                return
            functions = dict(record.functions)
            if known is not None:
                functions[question] = known._replace(off=why)
            new = record._replace(functions=functions, off=record.off if known is not None else why)
            records = read_records(self.key, self._policy, self._settings)
            others = tuple(each for each in records if each.inputs != record.inputs)
            write_records(self.key, (new, *others), self._policy, self._settings)
            self.record = new


class _Difference(NamedTuple):
    """What differs between the inputs of two processes.

    Attributes:
        depth: how much was found to be equal before; the larger, the nearer they are.
        sentence: for a person, without a full stop.
        advice: an item of the setting `reuse_ignore` that would make it not count; empty if there is none.
    """

    depth: int
    sentence: str
    advice: str = ""


def _joined(one: StartInputs, other: StartInputs) -> StartInputs:
    """The inputs of two processes between which nothing differs, with what either of them loaded."""
    project = Project(
        {**one.project.code, **other.project.code},
        {**one.project.configuration, **other.project.configuration},
        one.project.directories | other.project.directories,
    )
    places = ProjectPlaces(*(tuple(sorted({*a, *b})) for a, b in zip(one.places, other.places, strict=True)))
    return one._replace(project=project, places=places, late=tuple(sorted({*one.late, *other.late})))


def same_program(one: RecordedFunction, program: Any, tree: Any, digest: str) -> bool:
    """True if a trace gave what is recorded."""
    return (dict(one.program), one.tree, one.content.digest) == (program, tree, digest)


def proven_by_this(recorded: RecordedFunction) -> RecordedFunction:
    """The function as it is after this process has found the same program."""
    if recorded.proven is None and recorded.recorded is not None and is_independent(recorded.recorded):
        return recorded._replace(proven=witness())
    return recorded


_plain: Final[set[str]] = set()


def stay_plain(reason: str) -> None:
    """Say once in a process why functions that ask for reuse are traced."""
    if reason not in _plain:
        _plain.add(reason)
        warn_once(
            ("reuse", reason),
            "ejcache: reuse_lowering traces as usual here, because %s; a mapping, {} too, says that what you declare "
            "is complete",
            reason,
        )
