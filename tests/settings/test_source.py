"""Settings are resolved again when, and only when, something that they depend on has changed."""

from __future__ import annotations

import os
import threading

import pytest

from ejcache.errors import SettingError
from ejcache.settings import resolve as source_module
from ejcache.settings.environment import child_environment
from ejcache.settings.resolve import SettingsSource, resolve_if_changed, set_command_line
from ejcache.settings.table import Origin, Value


class Flags:
    """JAX's flags, which a program may change at any time."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}

    def read(self, flag: str) -> Value | None:
        return self.values.get(flag)

    def fingerprint(self) -> tuple[Value, ...]:
        return tuple(self.values.values())


@pytest.fixture
def flags():
    return Flags()


@pytest.fixture
def source(flags):
    return SettingsSource(flags)


def test_nothing_changed(source):
    """The same object comes back as long as nothing has changed."""
    assert source.resolve_if_changed() is source.resolve_if_changed()


def test_environment_changed(source, monkeypatch):
    """A variable that is set, changed or removed counts at the next call."""
    assert source.resolve_if_changed().namespace == ""
    monkeypatch.setenv("EJCACHE_NAMESPACE", "a")
    assert source.resolve_if_changed().namespace == "a"
    os.environ["EJCACHE_NAMESPACE"] = "b"
    assert source.resolve_if_changed().namespace == "b"
    monkeypatch.delenv("EJCACHE_NAMESPACE")
    assert source.resolve_if_changed().namespace == ""


def test_home_changed(source, monkeypatch):
    """The default directory follows the variables that it is made of."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/one")
    assert source.resolve_if_changed().dir == "/one/ejcache"
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert source.resolve_if_changed().dir == "/two/ejcache"


def test_environment_replaced(source, monkeypatch):
    """A program may put a plain dictionary in the place of `os.environ`."""
    source.resolve_if_changed()
    monkeypatch.setattr(os, "environ", {"HOME": "/h", "EJCACHE_NAMESPACE": "c"})
    assert source.resolve_if_changed().namespace == "c"
    assert source.resolve_if_changed() is source.resolve_if_changed()


def test_flag_changed(source, flags):
    """A JAX flag counts at the next call."""
    source.resolve_if_changed()
    flags.values["jax_enable_compilation_cache"] = Value(value=False, origin=Origin.CALL)
    assert source.resolve_if_changed().enabled is False


def test_call_made_and_taken_back(source):
    """Values given to `enable` count at the next call, and no longer when they are gone."""
    source.calls = {"namespace": "mine"}
    assert source.resolve_if_changed()["namespace"].origin is Origin.CALL
    source.calls = {}
    assert source.resolve_if_changed().namespace == ""


def test_mapping_of_calls_belongs_to_the_source(source):
    """Changing the mapping that was assigned changes nothing."""
    given = {"namespace": "mine"}
    source.calls = given
    given["namespace"] = "other"
    assert source.resolve_if_changed().namespace == "mine"


def test_command_line_changed(source):
    """The command line's layer counts at the next call; a bad value leaves it as it was."""
    source.resolve_if_changed()
    set_command_line({"namespace": "n"})
    assert source.resolve_if_changed().namespace == "n"
    with pytest.raises(SettingError):
        set_command_line({"namespace": "m", "min_compile_seconds": "soon"})
    assert source.resolve_if_changed().namespace == "n"


def test_input_that_changes_during_the_resolution_is_not_remembered(source, monkeypatch):
    """What was read half before and half after a change is used once, not kept."""
    resolve = source_module.resolve

    def change_afterwards(**arguments):
        settings = resolve(**arguments)
        monkeypatch.setattr(source_module, "resolve", resolve)
        os.environ["EJCACHE_NAMESPACE"] = "late"
        return settings

    monkeypatch.setattr(source_module, "resolve", change_afterwards)
    monkeypatch.setenv("EJCACHE_NAMESPACE", "early")
    assert source.resolve_if_changed().namespace == "early"
    assert source.resolve_if_changed().namespace == "late"


def test_many_threads(source):
    """Each thread sees what it has set itself, while others resolve."""
    problems = []
    lock = threading.Lock()

    def work(number):
        for turn in range(50):
            with lock:
                source.calls = {"namespace": f"{number}-{turn}"}
                seen = source.resolve_if_changed().namespace
            source.resolve_if_changed()
            if seen != f"{number}-{turn}":
                problems.append(seen)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_settings_of_a_process_without_jax(monkeypatch):
    """The module's function resolves the process's own settings, without flags."""
    monkeypatch.setenv("EJCACHE_NAMESPACE", "p")
    assert resolve_if_changed().namespace == "p"
    assert resolve_if_changed() is resolve_if_changed()


def test_environment_of_a_child(monkeypatch):
    """A child inherits everything, with the changes on top; a change to None removes a variable."""
    monkeypatch.setenv("EJCACHE_NAMESPACE", "p")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--y")
    child = child_environment({"XLA_FLAGS": "--x", "LIBTPU_INIT_ARGS": None})
    assert "LIBTPU_INIT_ARGS" not in child
    assert child["EJCACHE_NAMESPACE"] == "p"
    assert child["XLA_FLAGS"] == "--x"
    assert "XLA_FLAGS" not in os.environ
