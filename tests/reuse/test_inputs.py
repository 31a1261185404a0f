"""What counts of a start, looked at in this process: values, words, variables, files, packages."""

from __future__ import annotations

import fractions
import os
import sys
import time
import types
from decimal import Decimal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ejcache.reuse.declared import declared_texts
from ejcache.reuse.inputs import files
from ejcache.reuse.inputs.command_line import command_line
from ejcache.reuse.inputs.environment import environment
from ejcache.reuse.inputs.packages import packages
from ejcache.reuse.inputs.project import ProjectPlaces, ProjectReader, difference, module_files, project_places
from ejcache.reuse.values import lenient_text
from ejcache.settings import start


def differing_file(recorded, now):
    """The file that differs; empty if none does."""
    found = difference(recorded, now)
    return found[1] if found else ""


class _Text(str):
    __slots__ = ()

    def __repr__(self):
        return "text"


class _Number(int):
    __slots__ = ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (jax.nn.relu, jax.nn.gelu),
        (jnp.sin, jnp.cos),
        (jnp.add, jnp.multiply),
        (np.add, np.multiply),
        (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
        (Decimal("0.1"), Decimal("0.2")),
        (_Text("a"), _Text("b")),
        (_Text("a"), "a"),
        (_Number(1), _Number(2)),
        (range(3), range(4)),
        (slice(0, 2), slice(0, 3)),
        (slice(0, 1), slice(0, True)),
    ],
)
def test_static_values_differ(one, other):
    """Numbers and texts of any class by value, and what JAX makes of a function by the function's name."""
    assert lenient_text(one) != lenient_text(other)
    assert lenient_text(one) == lenient_text(one)


def test_an_object_is_its_type_whatever_its_attributes_do():
    """An attribute that raises is the user's."""

    class Odd:
        @property
        def __name__(self):
            raise RuntimeError

    assert lenient_text(Odd()) == lenient_text(Odd())


def test_declared_directories_count_with_empty_ones(tmp_path):
    declared = {"k": tmp_path}
    before = declared_texts(declared)
    (tmp_path / "debug").mkdir()
    assert declared_texts(declared) != before


def test_large_declared_files_count_by_content(tmp_path):
    """A declared path is the remedy for large files that would count by size and time."""
    path = tmp_path / "k"
    texts = []
    for letter in b"ab":
        with path.open("wb") as file:
            file.truncate(files.LARGEST + 1)
            file.write(bytes([letter]))
        os.utime(path, (1, 1))
        texts.append(declared_texts({"k": path}))
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_NODEID", "SLURM_NNODES", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", "PMIX_RANK", "PBS_ARRAYID"),
        *("SLURM_CPUS_PER_TASK", "SLURM_ARRAY_TASK_COUNT"),
    ],
)
def test_ranks_and_counts_of_schedulers_count(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    before = environment()
    monkeypatch.setenv(name, "2")
    assert environment()[1] != before[1]
    assert name in before[0]


def test_no_device_is_one_less(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    before = environment()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert environment() == before
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert environment() != before


def _words(monkeypatch, main, *words):
    monkeypatch.setattr("sys.orig_argv", ["python", *map(str, words)])
    return command_line(str(main))[0]


def test_a_file_behind_two_short_options_counts(monkeypatch, tmp_path):
    path = tmp_path / "k"
    seen = []
    for content in "12":
        path.write_text(content)
        seen.append(_words(monkeypatch, tmp_path / "main.py", tmp_path / "main.py", f"-vc{path}"))
    assert seen[0] != seen[1]


def test_how_the_main_file_is_written_counts_unless_it_says_where_the_project_lies(monkeypatch, tmp_path):
    """A program may read sys.argv[0]."""
    monkeypatch.setattr("ejcache.reuse.inputs.command_line.DIRECTORY", str(tmp_path))
    main = tmp_path / "main.py"
    main.write_text("")
    seen = {word: _words(monkeypatch, main, word)[0] for word in ("main.py", "./main.py", str(main))}
    assert seen == {"main.py": "main.py", "./main.py": "./main.py", str(main): "/main.py"}


def test_the_directory_of_the_start_is_known_after_the_program_has_left_it(monkeypatch, tmp_path):
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    module.__file__ = f"{tmp_path}/../{tmp_path.name}/sub/main.py"
    (tmp_path / "sub").mkdir()
    monkeypatch.setattr("sys.orig_argv", ["python", "-X", "utf8", "sub/main.py", "--lr"])
    assert start._directory() == f"{tmp_path}/../{tmp_path.name}"
    module.__file__ = str(tmp_path / "main.py")
    assert start._directory() == str(Path.cwd())


# -- files ------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(monkeypatch, tmp_path):
    """A project, older than this process, and a function that reads it."""
    base = tmp_path / "project"
    (base / "conf/prod").mkdir(parents=True)
    (base / "conf/test").mkdir()
    (base / "conf/prod/a.yaml").write_text("1")
    (base / "conf/test/a.yaml").write_text("2")
    (base / "main.py").write_text("")
    (base / "conf/used").symlink_to("prod")
    monkeypatch.setattr("sys.path", [str(base)])
    _began_now(monkeypatch)

    def read(*modules, ignored=()):
        main = str(base / "main.py")
        reader = ProjectReader(main, ignored)
        return reader.read(ProjectPlaces(*map(tuple, project_places(main, map(str, modules)))))

    return base, read


def _began_now(monkeypatch):
    time.sleep(0.02)  # a tick of the clock of files
    monkeypatch.setattr(files, "BEGAN", time.time())
    time.sleep(0.02)


def test_a_link_from_one_directory_of_the_project_to_another_counts(monkeypatch, project):
    """Its name comes behind that of the directory, which has been read when the link is found."""
    base, read = project
    before = read()
    assert not before.changed
    (base / "conf/used").unlink()
    (base / "conf/used").symlink_to("test")
    assert read().changed == "conf/used"
    _began_now(monkeypatch)
    assert differing_file(before, read()) == "conf/used"


def test_a_link_to_what_is_written_does_not_count(monkeypatch, project):
    base, read = project
    (base / "outputs/1").mkdir(parents=True)
    before = read()
    (base / "outputs/1/a.yaml").write_text("1")
    (base / "newest").symlink_to("outputs/1")
    now = read()
    assert (now.changed, differing_file(before, now)) == ("", "")


def test_a_directory_that_is_replaced_while_the_program_runs_is_a_change(project):
    """Renaming touches none of its files."""
    base, read = project
    (base / "conf/prod").rename(base / "conf/between")
    (base / "conf/test").rename(base / "conf/prod")
    (base / "conf/between").rename(base / "conf/test")
    assert read().changed


def test_files_that_come_and_go_in_a_directory_are_no_move(project):
    base, read = project
    (base / "conf/x.log").write_text("")
    (base / "conf/x.log").unlink()
    (base / "events.bin").write_text("")
    assert not read().changed


def test_configuration_from_the_future_counts(monkeypatch, project):
    """It is no output of this process, whatever time its writer gave it."""
    base, read = project
    path = base / "ahead/a.yaml"
    path.parent.mkdir()
    path.write_text("1")
    os.utime(path, (4_000_000_000, 4_000_000_000))
    _began_now(monkeypatch)
    assert "ahead/a.yaml" in read().configuration


@pytest.mark.parametrize("name", [".json", "conf/.yaml", ".py"])
def test_a_name_that_is_an_ending_counts(monkeypatch, project, name):
    base, read = project
    before = read()
    (base / name).write_text("1")
    _began_now(monkeypatch)
    assert differing_file(before, read()) == name


def test_code_with_other_endings_counts(project, tmp_path):
    """Modules of somebody's own loader, and a main file without an ending."""
    base, read = project
    (base / "rules.expr").write_text("1")
    (tmp_path / "far.expr").write_text("1")
    modules = base / "rules.expr", tmp_path / "far.expr"
    before = read(*modules)
    for path in modules:
        path.write_text("2")
        assert differing_file(before, read(*modules)).endswith(path.name)
        path.write_text("1")
    script = base / "train"
    seen = []
    for text in "12":
        script.write_text(text)
        reader = ProjectReader(str(script))
        seen.append(reader.read(ProjectPlaces(*map(tuple, project_places(str(script), ())))))
    assert differing_file(*seen) == "train"


@pytest.mark.parametrize("new", ["late.py", "late/__init__.py", "space/part.py"])
def test_code_counts_where_imports_look_for_it(monkeypatch, project, tmp_path, new):
    """A module that a trace imports may come from a directory in which there was none before."""
    base, read = project
    place = tmp_path / "first"
    place.mkdir()
    monkeypatch.setattr("sys.path", [str(place), str(base), str(tmp_path / "none")])
    before = read()
    for each in (place / new, tmp_path / "none" / new):
        each.parent.mkdir(parents=True, exist_ok=True)
        each.write_text("")
        assert differing_file(before, read()).endswith(new)
        each.unlink()
    (place / "data.bin").write_text("")
    (place / "__pycache__").mkdir()
    (place / "__pycache__/late.pyc").write_text("")
    assert not differing_file(before, read())


def test_configuration_beside_a_link_to_the_main_file_counts(monkeypatch, project, tmp_path):
    """A program that looks beside `__file__` finds what lies beside the link."""
    base, _ = project
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/c.json").write_text("1")
    (tmp_path / "bin/train.py").symlink_to(base / "main.py")
    _began_now(monkeypatch)

    def read():
        reader = ProjectReader(str(base / "main.py"), given=str(tmp_path / "bin/train.py"))
        return reader.read(reader.places(()))

    before = read()
    (tmp_path / "bin/c.json").write_text("2")
    _began_now(monkeypatch)
    assert differing_file(before, read()).endswith("c.json")


def test_an_archive_of_the_search_path_counts(monkeypatch, project, tmp_path):
    base, read = project
    paths = tmp_path / "a.zip", tmp_path / "b.bin"
    for path in paths:
        path.write_text("1")
    monkeypatch.setattr("sys.path", [str(paths[0]), str(paths[1] / "lib"), str(base)])
    before = read()
    for path in paths:
        path.write_text("2")
        assert differing_file(before, read()).endswith(path.name)
        path.write_text("1")


def test_the_directories_of_a_namespace_package_are_the_project_s(monkeypatch, project, tmp_path):
    _, read = project
    place = tmp_path / "assets_of_a_test"
    place.mkdir()
    (place / "scale.json").write_text("1")
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(sys.modules, place.name, __import__(place.name))
    assert f"{place}{os.sep}" in module_files()
    _began_now(monkeypatch)
    before = read(f"{place}{os.sep}")
    (place / "scale.json").write_text("2")
    _began_now(monkeypatch)
    assert differing_file(before, read(f"{place}{os.sep}")).endswith("scale.json")


def test_packages_beside_the_main_file_do_not_make_a_library_of_the_project(monkeypatch, tmp_path):
    """`pip install --target` puts them there."""
    base = tmp_path / "vendored"
    (base / "dep-1.0.dist-info").mkdir(parents=True)
    (base / "main.py").write_text("")
    (base / "a.yaml").write_text("1")
    monkeypatch.setattr("sys.path", [str(base)])
    main = str(base / "main.py")
    places = ProjectPlaces(*map(tuple, project_places(main, ())))
    _began_now(monkeypatch)
    before = ProjectReader(main).read(places)
    (base / "a.yaml").write_text("2")
    _began_now(monkeypatch)
    assert differing_file(before, ProjectReader(main).read(places))


def test_egg_info_counts(monkeypatch, tmp_path):
    place = tmp_path / "lib"
    (place / "old-1.0.egg-info").mkdir(parents=True)
    (place / "old-1.0.egg-info/PKG-INFO").write_text("Version: 1.0\n")
    monkeypatch.setattr("sys.path", [*sys.path, str(place)])
    before = packages()["old-1.0.egg-info"]
    (place / "old-1.0.egg-info/entry_points.txt").write_text("[g]\n")
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path)])  # what is installed is read once in a process
    assert packages()["old-1.0.egg-info"] != before
