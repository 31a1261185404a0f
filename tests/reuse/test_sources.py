"""Python source as a digest for a word, and files that are younger than the process."""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
import types
from pathlib import Path

import jax
import pytest

from ejcache import code_digest
from ejcache.errors import UsageError
from ejcache.reuse import sources
from ejcache.reuse.functions import know
from ejcache.reuse.sources import read_source


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a module in a package below it, and what is no source."""
    place = tmp_path / "modelled"
    for name, text in {"__init__.py": "", "a.py": "A = 1\n", "below/deep/b.py": "B = 1\n", "c.yaml": "c: 1\n"}.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield place
    sys.modules.pop("modelled", None)


def test_every_source_below_a_package_counts(package):
    """By relative path and content; what is no source does not."""
    module = importlib.import_module("modelled")
    before = code_digest(module)
    assert before == code_digest(package) == code_digest(str(package))
    (package / "c.yaml").write_text("c: 2\n")
    assert code_digest(module) == before
    found = {before}
    (package / "below/deep/b.py").write_text("B = 2\n")
    found.add(code_digest(module))
    (package / "below/deep/b.py").rename(package / "below/deep/c.py")
    found.add(code_digest(module))
    (package / "below/new.py").write_text("")
    found.add(code_digest(module))
    found |= {code_digest(package / "a.py"), code_digest(package / "a.py", package), code_digest(json)}
    assert len(found) == 7


def test_links_are_followed_once(package):
    """Python imports through a link; one that leads back has an end."""
    (package.parent / "elsewhere.py").write_text("E = 1\n")
    before = code_digest(package)
    (package / "linked.py").symlink_to("../elsewhere.py")
    (package / "below/back").symlink_to("..")
    after = code_digest(package)
    (package.parent / "elsewhere.py").write_text("E = 2\n")
    assert len({before, after, code_digest(package)}) == 3


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
    assert "was modified after the process began" in read_source(str(path)).why_changed()
    source = read_source(__file__)
    assert source.why_changed() == ""
    assert "was modified" in source._replace(status=(0, *source.status[1:])).why_changed()
    assert "is gone" in source._replace(path=str(tmp_path / "n.py")).why_changed()
    assert read_source("<string>") is read_source(str(tmp_path)) is None


def test_a_way_that_changes(tmp_path, monkeypatch):
    """A file that is as old as ever, behind a link that was switched."""
    began = time.time() - 1000
    (tmp_path / "v1").mkdir()
    path = tmp_path / "v1" / "m.py"
    path.write_text("1")
    path.with_name("other.py").hardlink_to(path)  # only what is in it counts
    (tmp_path / "current").symlink_to("v1")
    os.utime(path, (began - 10, began - 10))
    monkeypatch.setattr(sources, "_BEGAN", began)
    assert read_source(str(path)).why_changed() == ""
    assert "was modified" in read_source(str(tmp_path / "current" / "m.py")).why_changed()


def make(k):
    """A closure."""

    def inner(x):
        return x * k

    return inner


def bare(x):
    """A function that holds nothing."""
    return x


class Layer:
    """A callable object."""

    def __call__(self, x):
        return x

    def method(self, x):
        return x


def test_what_is_known_of_a_function():
    """Name, code and source, of all that it wraps; whether it holds something."""
    assert know(bare).is_bare
    assert not any(know(each).is_bare for each in (make(1), functools.partial(bare, 1), Layer(), Layer().method))
    assert know(make(1)).code == know(make(2)).code != know(bare).code
    gradient = know(jax.grad(bare))
    assert {Path(each.path).name for each in gradient.sources} >= {"api.py", Path(__file__).name}
    transforms = (jax.grad(bare), jax.value_and_grad(bare), jax.grad(bare, has_aux=True), jax.vmap(bare))
    transforms += (jax.vmap(bare, in_axes=1), jax.grad(make(1)), jax.checkpoint(bare), jax.vmap(jax.grad(bare)))
    assert len({know(each).code for each in transforms}) == len(transforms)
    assert know(jax.vmap(jax.grad(bare))).code == know(jax.vmap(jax.grad(bare))).code
    assert [know(each).why_unknown for each in (bare, make(1), Layer(), Layer().method, jax.jit(bare))] == [""] * 5
    assert know(len).why_unknown == "builtins.len is no Python function"
    assert "no Python source file" in know(eval("lambda x: x")).why_unknown
    wrapped = functools.wraps(bare)(eval("lambda x: x"))
    assert "no Python source file" in know(wrapped).why_unknown
