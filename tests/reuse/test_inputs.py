"""What counts of a start, looked at in this process: values, words, variables, files, packages."""

from __future__ import annotations

import base64
import fractions
import hashlib
import importlib
import os
import shutil
import sys
import time
import types
from collections import Counter
from decimal import Decimal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejcache
from ejcache.jax_integration.seam.reuse.refusal import RefusedError
from ejcache.reuse.declared import declared_texts
from ejcache.reuse.inputs import files
from ejcache.reuse.inputs import packages as installed
from ejcache.reuse.inputs.command_line import command_line
from ejcache.reuse.inputs.environment import environment
from ejcache.reuse.inputs.packages import changed_package, is_in_library, packages, sort_files
from ejcache.reuse.inputs.project import (
    ProjectPlaces,
    ProjectReader,
    difference,
    from_label,
    link_that_changed,
    looked_into,
    module_files,
    place_ahead,
    project_places,
    with_code,
)
from ejcache.reuse.values import lenient_text, plain_text
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
        return reader.read(project_places(main, map(str, modules)))

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


def test_a_link_to_nothing_counts(monkeypatch, project):
    """A directory may come where it leads to."""
    base, read = project
    (base / "conf/far").symlink_to("../../far")
    _began_now(monkeypatch)
    before = read()
    (base.parent / "far").mkdir()
    (base.parent / "far/a.yaml").write_text("1")
    assert differing_file(before, read()) == "conf/far"


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


def _volume(place, content, number):
    """Turn a directory as volumes of Kubernetes are turned: its file is a link, and what that leads to is old."""
    data = place / f"..data_{number}"
    data.mkdir(parents=True)
    (data / "c.yaml").write_text(content)
    if not (place / "c.yaml").is_symlink():
        (place / "c.yaml").symlink_to("..data/c.yaml")
    (place / "..new").symlink_to(data.name)
    (place / "..new").rename(place / "..data")


def test_a_link_behind_a_link_that_is_turned_while_the_program_runs_is_a_change(monkeypatch, project, tmp_path):
    """In the project, and where an argument names the file."""
    base, read = project
    for place in (base / "conf", tmp_path / "etc"):
        _volume(place, "1", 1)
    _began_now(monkeypatch)
    word = str(tmp_path / "etc/c.yaml")
    monkeypatch.setattr("sys.orig_argv", ["python", word])
    assert not read().changed
    assert not command_line(str(base / "main.py"))[1]
    for place in (base / "conf", tmp_path / "etc"):
        (place / "..new").symlink_to("..data_1")
        (place / "..new").rename(place / "..data")
    assert read().changed == "conf/c.yaml"
    assert command_line(str(base / "main.py"))[1] == word


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
        seen.append(reader.read(project_places(str(script), ())))
    assert differing_file(*seen) == "./train"


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


def test_directories_where_imports_look_are_known(monkeypatch, project, tmp_path):
    """One that comes later is looked into, however deep its code lies."""
    base, _ = project
    for name in ("first/space/notes.txt", "first/my-data/x.txt", "second/other/x.txt", "first/__pycache__/x.pyc"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    monkeypatch.setattr("sys.path", [str(tmp_path / "first"), str(base)])
    found = project_places(str(base / "main.py"), (), search=[str(tmp_path / "second")])
    assert found.beside == (str(tmp_path / "first/space"), str(tmp_path / "second/other"))
    assert not with_code(found.beside)
    environment_of_python = tmp_path / "second/other/python/bin"
    environment_of_python.mkdir(parents=True)
    (environment_of_python / "activate_this.py").write_text("")
    (environment_of_python.parent / "pyvenv.cfg").write_text("")
    assert not with_code(found.beside)
    (tmp_path / "second/other/deep").mkdir()
    (tmp_path / "second/other/deep/piece.py").write_text("")
    assert with_code(found.beside) == str(tmp_path / "second/other")


def test_where_a_program_has_looked_for_modules_is_known(monkeypatch, tmp_path):
    """Also when it has taken the directory from the search path again, and found nothing there."""
    monkeypatch.setattr("sys.path_importer_cache", {})
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        with pytest.raises(ImportError):
            importlib.import_module("nothing_of_this_name")
    assert str(tmp_path) not in sys.path
    assert looked_into(ProjectPlaces(), sys.path) == [str(tmp_path)]
    assert looked_into(ProjectPlaces(search=(str(tmp_path),)), sys.path) == []
    assert looked_into(ProjectPlaces(directories=(str(tmp_path.parent),)), sys.path) == []


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
    places = project_places(main, ())
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


@pytest.fixture
def library(monkeypatch, tmp_path):
    """Makes a library with a distribution `alpha`, and says what of its packages was changed by hand."""
    places = []

    def changed(change=lambda _: None):
        root = tmp_path / f"library{len(places)}"
        places.append(root)
        (root / "alpha").mkdir(parents=True)
        (root / "alpha/__init__.py").write_text("k = 1\n")
        info = root / "alpha-1.0.dist-info"
        info.mkdir()
        (info / "INSTALLER").write_text("pip\n")
        digest = base64.urlsafe_b64encode(hashlib.sha256(b"k = 1\n").digest()).rstrip(b"=").decode()
        time.sleep(0.02)
        (info / "RECORD").write_text(f"alpha/__init__.py,sha256={digest},6\nalpha-1.0.dist-info/RECORD,,\n")
        time.sleep(0.02)
        change(root)
        _began_now(monkeypatch)
        monkeypatch.setattr("sys.path", [str(root)])
        return sort_files([str(root / "alpha/__init__.py")])[1]

    return changed


def _older(content):
    def change(root):
        """Put another file there, as `rsync -a` does."""
        (root / "coming").write_text(content)
        os.utime(root / "coming", (1, 1))
        (root / "coming").rename(root / "alpha/__init__.py")

    return change


def test_a_module_that_was_replaced_by_an_older_file_of_its_size_was_changed(library):
    """Of a copy that keeps its source's times, neither size nor time tells."""
    assert library() == library(_older("k = 1\n")) == {}
    assert set(library(_older("k = 2\n"))) == {"alpha/__init__.py"}


@pytest.mark.parametrize("name", ["alpha/_fast.py", "alpha/fast/__init__.py", "extra/__init__.py", "spaced/part.py"])
def test_code_that_comes_to_a_library_by_hand_counts(library, name):
    """A trace that asks for it would find it, in a package that is loaded or in a new one."""

    def come(root, content):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(content)

    found = [library(lambda root, content=content: come(root, content)) for content in "12"]
    found = [{name: digest for name, digest in each.items() if digest} for each in found]
    assert set(found[0]) == set(found[1]) == {name}
    assert found[0] != found[1]


def test_data_that_come_to_a_library_do_not_count(library):
    """Byte code and data are written there by whoever imports a package."""

    def come(root):
        for name in ("alpha/__pycache__/old.pyc", "alpha/data.bin", "data/x.bin"):
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text("1")

    assert not any(library(come).values())


def test_a_directory_that_comes_to_a_library_is_known(library):
    """Its code may lie deeper: whoever compares looks for it there."""

    def come(root):
        for name in ("far/deep/part.py", "alpha/near/deep/part.py"):
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text("1")

    assert library(come) == {"far/": "", "alpha/near/": ""}


def test_a_package_that_is_installed_anew_while_the_program_runs_is_a_change(monkeypatch, library, tmp_path):
    """The program has loaded modules of the one before."""
    monkeypatch.setattr(installed, "_changed", {})
    monkeypatch.setattr(installed, "_stamps", {})
    library()
    packages()
    assert not changed_package()
    (tmp_path / "library0/alpha-1.0.dist-info/RECORD").write_text("")
    assert changed_package() == "alpha-1.0.dist-info"


@pytest.mark.parametrize("name", ["alpha-1.0.dist-info/RECORD", "alpha/__init__.py", "alpha/new.py"])
def test_a_package_that_was_changed_since_the_program_began_is_a_change(monkeypatch, library, tmp_path, name):
    """It may be that the program has imported what was there before."""
    monkeypatch.setattr(installed, "_changed", {})
    library()
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "library0", again, copy_function=os.link)
    (again / "new").write_text("alpha/__init__.py,,2\n")
    (again / "new").rename(again / name)
    monkeypatch.setattr("sys.path", [str(again)])
    sort_files([str(again / "alpha/__init__.py")])
    packages()
    assert changed_package()


def test_byte_code_in_a_namespace_of_a_package_is_no_change(monkeypatch, library, tmp_path):
    """Python writes it into a fresh environment while the first program imports; such a start records."""
    monkeypatch.setattr(installed, "_changed", {})
    monkeypatch.setattr(installed, "_examined", {})

    def spaced(root):
        (root / "alpha/spaced").mkdir()
        record = root / "alpha-1.0.dist-info/RECORD"
        record.write_text(f"{record.read_text()}alpha/spaced/part.py,,\n")

    library(spaced)
    time.sleep(0.02)
    (tmp_path / "library0/alpha/spaced/__pycache__").mkdir()
    assert sort_files([f"{tmp_path}/library0/alpha/spaced/"]) == ([], {})
    assert not changed_package()


def test_metadata_count_where_there_is_no_record(monkeypatch, tmp_path):
    """Operating systems install packages without one."""
    seen = []
    for number in "12":
        place = tmp_path / number
        (place / "old-1.0.dist-info").mkdir(parents=True)
        (place / "old-1.0.dist-info/entry_points.txt").write_text(f"[g]\na = old:{number}\n")
        monkeypatch.setattr("sys.path", [str(place)])
        seen.append(packages()["old"])
    assert seen[0] != seen[1]


def test_the_directory_of_the_program_is_searched(monkeypatch, project, tmp_path):
    """The entry "" of the search path means it."""
    base, read = project
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("sys.path", ["", str(base)])
    before = read()
    (tmp_path / "work/late.py").write_text("")
    assert differing_file(before, read()).endswith("late.py")


def test_directories_that_a_package_adds_to_its_own_are_the_project_s(monkeypatch, tmp_path):
    """A trace may import from there what no module did before."""
    own, plugins = tmp_path / "host", tmp_path / "plugins"
    own.mkdir()
    plugins.mkdir()
    host = types.ModuleType("host_of_a_test")
    host.__file__ = str(own / "__init__.py")
    host.__path__ = [str(own), str(plugins), str(tmp_path / "none")]
    monkeypatch.setitem(sys.modules, host.__name__, host)
    found = [each for each in module_files() if each.startswith(str(tmp_path))]
    assert found == [str(own / "__init__.py"), f"{plugins}{os.sep}"]


def test_ejcache_s_own_code_counts_where_no_index_has_it(monkeypatch, project):
    """An editable installation, or a copy on the search path, wherever the project lies."""
    _, read = project
    own = {name for name in read(ejcache.__file__).code if name.startswith("ejcache:")}
    path = next(from_label(name, "/elsewhere") for name in own if name.endswith("ejcache/reuse/calls.py"))
    assert Path(path).samefile(Path(ejcache.__file__).with_name("reuse") / "calls.py")


def test_a_pipe_is_not_read(project):
    """Whoever reads it takes away what the program needs, or waits for ever."""
    base, read = project
    os.mkfifo(base / ".env")
    with pytest.raises(RefusedError, match=r"\.env is a pipe"):
        read()
    (base / ".env").unlink()
    (base / ".env").symlink_to(os.devnull)
    assert read().configuration[".env"]


def test_files_in_a_long_list_count(monkeypatch, tmp_path):
    """A list can be longer than a path, and a name in it can hold what parts others."""
    names = [tmp_path / f"shard_{number:05},of=200" for number in range(200)]
    seen = []
    for content in "12":
        names[100].write_text(content)
        word = f"--data={','.join(map(str, names))}"
        seen.append(_words(monkeypatch, tmp_path / "main.py", tmp_path / "main.py", word))
    assert seen[0] != seen[1]


@pytest.mark.parametrize("word", ["w.bin", "--k=w.bin:10", "--k=x=w.bin:10"])
def test_a_word_names_a_file_from_any_directory_where_a_program_would_look(monkeypatch, tmp_path, word):
    """Where the program was started, where it is now, and where its main file lies: there may be one in each."""
    for place in ("start", "now", "main"):
        (tmp_path / place).mkdir()
        for name in ("w.bin", "x=w.bin"):
            (tmp_path / place / name).write_text("1")
    monkeypatch.chdir(tmp_path / "now")
    monkeypatch.setattr("ejcache.reuse.inputs.command_line.DIRECTORY", str(tmp_path / "start"))
    before = _words(monkeypatch, tmp_path / "main/main.py", word)
    for place in ("start", "now", "main"):
        name = tmp_path / place / ("x=w.bin" if "x=" in word else "w.bin")
        name.write_text("2")
        assert _words(monkeypatch, tmp_path / "main/main.py", word) != before
        name.write_text("1")


def test_declared_arrays_count_by_content():
    """NumPy keeps long texts beside the array, and JAX's random keys are no numbers to it."""
    values = [
        *(
            np.array([text], np.dtypes.StringDType())
            for text in ("a text of many letters 1", "a text of many letters 2")
        ),
        *(np.array(["a text of many letters"], dtype) for dtype in (np.dtypes.StringDType(), "U32")),
        *(jax.random.key(number) for number in range(2)),
        *(jax.random.key(0, impl="rbg"), np.zeros(2, np.uint32)),
    ]
    assert len({plain_text(each) for each in values}) == len(values)
    for each in (np.array([None]), np.zeros(1, [("a", object)])):
        with pytest.raises(RefusedError, match="objects"):
            plain_text(each)
    donated = jnp.zeros(3)
    donated.delete()
    with pytest.raises(RefusedError, match="cannot be read"):
        plain_text(donated)


def test_a_question_looks_once_at_each_file_and_directory(monkeypatch, tmp_path):
    """Code of the search path that is read with its directory is not read a second time, nor is a link sought twice."""
    base = tmp_path / "real"
    names = ["main.py", "one/__init__.py", "one/a.py", "one/a.yaml", "one/below/b.py", "two/c.json"]
    for name in names:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("")
    _began_now(monkeypatch)
    monkeypatch.setattr("sys.path", [str(base)])
    looks = Counter()

    def counted(name):
        function = getattr(os, name)

        def count(path=".", *rest, **options):
            if str(path).startswith(f"{base}{os.sep}") and not str(path).endswith("pyvenv.cfg"):
                looks[name, os.path.relpath(path, base)] += 1
            return function(path, *rest, **options)

        monkeypatch.setattr(os, name, count)

    for name in ("stat", "scandir"):
        counted(name)
    reader = ProjectReader(str(base / "main.py"))
    found = reader.read(reader.places([str(base / "one/a.py")]))
    assert {*found.code, *found.configuration} == set(names)
    directories = ("one", "one/below", "two")
    # Whether the file of a module is there is asked when the places are found.
    modules = ("main.py", "one/a.py")
    expected = {(how, name): 1 for how in ("stat", "scandir") for name in directories}
    assert looks == expected | {("stat", name): 1 for name in modules}


def test_links_are_sought_by_directory_where_files_do_not_count(monkeypatch):
    """A process has loaded hundreds of files of Python's library, and none of them counts."""
    library = [path for path in module_files() if is_in_library(path)]
    looked = []
    lstat = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: looked.append(path) or lstat(path))
    assert link_that_changed(library) == ""
    assert len(library) > 50
    assert not set(library) & set(looked)
    assert len(looked) == len(set(looked))


def test_a_module_s_file_that_goes_after_it_was_placed_is_a_change(monkeypatch, tmp_path):
    """Where it lies is found out before the first question, and what it held is not known any more."""
    module, archive = tmp_path / "late.py", tmp_path / "late.zip"
    module.write_text("")
    archive.write_bytes(b"")
    link = tmp_path / "link.py"
    link.symlink_to(module)
    paths = [str(module), f"{archive}/inside.py", str(link)]
    _began_now(monkeypatch)
    place_ahead(paths)
    assert link_that_changed(paths) == ""
    module.unlink()
    archive.unlink()
    assert [link_that_changed([path]) for path in paths] == paths


def test_what_is_imported_late_is_read_with_the_directory_that_it_is_in(project):
    """A record would name both, and each later start would read the files twice."""
    base, _ = project
    (base / "package/below").mkdir(parents=True)
    for name in ("package/a.py", "package/below/b.py"):
        (base / name).write_text("")
    reader = ProjectReader(str(base / "main.py"))
    before = reader.places([str(base / "package/a.py")])
    assert reader.places([str(base / "package/below/b.py")], before) == before
