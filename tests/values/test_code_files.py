"""Files of source: as a digest for a word, and those that are younger than the process."""

from __future__ import annotations

import json
import os
import sys
import types

import pytest
from helpers import run_program

from ejcache import code_digest
from ejcache.errors import UsageError
from ejcache.values.code_files import ChangedCode, read_code_file

DIGESTS = """
import importlib, json, sys
from ejcache import code_digest
for given in json.loads(sys.argv[1]):
    print(code_digest(*(given if type(given) is list else [importlib.import_module(given)])))
"""


@pytest.fixture
def package(tmp_path):
    """A package with a module in a package below it, and what is no source."""
    place = tmp_path / "modelled"
    for name, text in {"__init__.py": "", "a.py": "A = 1\n", "below/deep/b.py": "B = 1\n", "c.yaml": "c: 1\n"}.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


@pytest.fixture
def digests(tmp_path):
    """The digests of modules (names) and of lists of paths, in a new process that began after the last change."""

    def run(*given):
        command = [sys.executable, "-c", DIGESTS, json.dumps(given, default=str)]
        return run_program(command, env={"PYTHONPATH": str(tmp_path)}).stdout.split()

    return run


@pytest.fixture
def digest(digests):
    """The digest of one path."""
    return lambda path: digests([path])[0]


def test_every_source_below_a_package_counts(package, digest, digests):
    """By relative path and content; what is no source does not."""
    before, same = digests("modelled", [package])
    assert before == same
    (package / "c.yaml").write_text("c: 2\n")
    assert digests("modelled") == [before]
    found = {before}
    (package / "below/deep/b.py").write_text("B = 2\n")
    found.add(digest(package))
    (package / "below/deep/b.py").rename(package / "below/deep/c.py")
    found.add(digest(package))
    (package / "below/new.py").write_text("")
    found.update(digests([package], [package / "a.py"], [package / "a.py", package]))
    assert len(found) == 6


def test_links_are_followed_once(package, digest):
    """Python imports through a link; one that leads back has an end."""
    (package.parent / "elsewhere.py").write_text("E = 1\n")
    before = digest(package)
    (package / "linked.py").symlink_to("../elsewhere.py")
    (package / "below/back").symlink_to("..")
    after = digest(package)
    (package.parent / "elsewhere.py").write_text("E = 2\n")
    assert len({before, after, digest(package)}) == 3


CHANGED = """
import os, pathlib, sys
from ejcache import code_digest
import modelled, modelled.a
if {early}:
    print(code_digest(modelled))
path = pathlib.Path(modelled.a.__file__)
if {how!r} == "gone":
    path.unlink()
elif {how!r} == "as old":
    old, new = path.stat(), path.with_suffix(".new")
    new.write_text("A = 2")
    os.utime(new, ns=(old.st_atime_ns, old.st_mtime_ns))
    new.rename(path)
else:
    path.write_text("A = 2")
print(code_digest(modelled))
"""


@pytest.mark.parametrize("how", ["written", "as old", "gone"])
def test_what_was_changed_after_the_process_began(package, digest, tmp_path, how):
    """The process runs what was there before, so that no other process may have its digest, nor it that of another.

    It makes no difference whether the process has asked before.
    """
    before = digest(package)
    text = package.joinpath("a.py").read_text()
    found = set()
    for early in (False, True):
        package.joinpath("a.py").write_text(text)
        done = run_program([sys.executable, "-c", CHANGED.format(early=early, how=how)],
                           env={"PYTHONPATH": str(tmp_path)})  # fmt: skip
        *first, last = done.stdout.split("\n")[:-1]
        assert first == [before] * early
        found.add(last)
    assert len(found | {before, digest(package)}) == 4


@pytest.mark.parametrize("given", ["c.yaml", "none.py", "nowhere", "below/empty", sys, print, types.ModuleType("x"), 3])
def test_what_has_no_source(package, given):
    """An error says what to give."""
    (package / "below/empty").mkdir()
    with pytest.raises(UsageError, match=r"has no Python source: give modules, packages, \.py files, or directories"):
        code_digest(package / given if isinstance(given, str) else given)
    with pytest.raises(UsageError, match="give modules"):
        code_digest()


def test_a_file_that_changes(tmp_path):
    """It is younger than this process, or another one than before, or gone."""
    path = tmp_path / "m.py"
    path.write_text("1")
    assert "was modified after the process began" in read_code_file(str(path)).why_changed()
    assert isinstance(code_digest(path), ChangedCode)
    source = read_code_file(__file__)
    assert source.why_changed() == ""
    assert "was modified" in source._replace(status=(0, *source.status[1:])).why_changed()
    assert "is gone" in source._replace(path=str(tmp_path / "n.py")).why_changed()
    assert read_code_file("<string>") is read_code_file(str(tmp_path)) is None


WAY = """
import os, pathlib
from ejcache.values.code_files import read_code_file
place = pathlib.Path({place!r})
print(read_code_file(str(place / "v1/m.py")).why_changed() or "the same")
(place / "new").symlink_to("v1")
(place / "new").rename(place / "current")
print(read_code_file(str(place / "current/m.py")).why_changed())
"""


def test_a_way_that_changes(tmp_path):
    """A file that is as old as ever, behind a link that was switched."""
    (tmp_path / "v1").mkdir()
    path = tmp_path / "v1" / "m.py"
    path.write_text("1")
    os.link(path, path.with_name("other.py"))  # only what is in it counts
    first, second = run_program([sys.executable, "-c", WAY.format(place=str(tmp_path))]).stdout.splitlines()
    assert first == "the same"
    assert second.endswith("was modified after the process began")
