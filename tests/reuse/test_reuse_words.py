"""What commands say of functions that ask for reuse, and what `ejit` refuses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import jax
import pytest
from cli_helpers import ejcache

import ejcache as package
from ejcache.errors import UsageError
from ejcache.jax_integration.seam.reuse.lowering import DevicePlaces
from ejcache.reuse.declared import declared_texts
from ejcache.reuse.inputs.command_line import command_difference, command_line
from ejcache.reuse.inputs.project import Project, difference
from ejcache.reuse.log import note
from ejcache.reuse.values import lenient_text, plain_text


def test_why_names_what_differed(tmp_path):
    """The function, what was done, why, and the line that leaves the difference out."""
    note("train.step", "recorded", "the variable FOO changed", "ejcache config set reuse_ignore=env:FOO leaves it out",
         url=str(tmp_path))  # fmt: skip
    said = ejcache("why", "step").lines
    assert said[0] == "train.step was traced and recorded, because the variable FOO changed."
    assert any("reuse_ignore=env:FOO" in line for line in said)
    (found,) = ejcache("why", "--json").json["reuse"]
    assert (found["function"], found["did"]) == ("train.step", "recorded")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--reuse"], 2, "verify --reuse needs a program"),
        (["--reuse", "none.py"], 1, "ejcache: there is no script none.py"),
        (["--reuse", "--fix", "program.py"], 2, "--fix repairs entries, and --reuse reads none"),
        (["program.py"], 2, "program.py is for verify --reuse"),
    ],
)
def test_verify_refuses(arguments, status, said):
    """A command line that says two things is refused."""
    done = ejcache("verify", *arguments)
    assert (done.status, said in done.err) == (status, True), done


@pytest.mark.parametrize("declared", [{"k": 3}, {"k": "text"}, {3: lambda: 1}, "yes", 1])
def test_a_bare_value_is_refused(declared):
    """It would be read when the function is decorated, and not when it is called."""
    with pytest.raises(UsageError, match="callables"):
        package.ejit(lambda x: x, reuse_lowering=declared)


def test_plain_values_differ_by_bits():
    """1 and True, 0.0 and -0.0 are different; the order of a set is not."""
    assert len({plain_text(each) for each in (1, True, 1.0, 0.0, -0.0, "1", b"1", (1,), [1], None)}) == 10
    assert plain_text({"a", "b", "c"}) == plain_text({"c", "b", "a"})
    assert lenient_text([object()]) == lenient_text([object()])


def test_declared_paths_count_by_content(tmp_path):
    """A file by its bytes, a directory by its files, a path without a file as such."""
    place = tmp_path / "d"
    place.mkdir()
    declared = {"file": tmp_path / "k", "directory": place}
    seen = [declared_texts(declared)]
    (tmp_path / "k").write_text("2")
    seen.append(declared_texts(declared))
    (place / "a").write_text("2")
    seen.append(declared_texts(declared))
    assert len({each["file"] for each in seen}) == len({each["directory"] for each in seen}) == 2


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--run-name", "a", "b"], ["b"]),
        (["--run-name=a", "b"], ["b"]),
        (["-run_name=a", "b"], ["b"]),
        (["run_name=a", "+run_name=b", "lr=1"], ["lr=1"]),
        (["--run-name", "--lr", "1"], ["--lr", "1"]),
        (["--run-names", "a"], ["--run-names", "a"]),
    ],
)
def test_ignored_arguments(monkeypatch, words, left):
    """In each way in which argparse, absl and hydra write them."""
    monkeypatch.setattr("sys.orig_argv", ["python", "/somewhere/train.py", *words])
    found, changed = command_line(str(Path("/somewhere/train.py")), ["--run-name"])
    assert not changed
    assert found[1 : 1 + len(left)] == left
    assert found[1 + len(left)].startswith("switches ")


@pytest.mark.parametrize(
    ("before", "now", "said", "ignored"),
    [
        ("--name a", "--name b", "the argument '--name' changed", "--name"),
        ("--name=a", "--name=b", "the argument '--name' changed", "--name"),
        ("lr=1 name=a", "lr=1 name=b", "the argument 'name' changed", "--name"),
        ("+name=a", "+name=b", "the argument '+name' changed", "--name"),
        ("", "--name a", "the argument '--name' is new", "--name"),
        ("--lr 1", "--name a --lr 1", "the argument '--name' is new", "--name"),
        ("--name a --lr 1", "--lr 1", "the argument '--name' is gone", "--name"),
        ("--name a", "", "the argument '--name' is gone", "--name"),
        ("--x 1 --y 2", "--x 2 --y 1", "the argument '--x' changed", "--x"),
        ("--fast", "--slow", "the argument '--slow' changed", "--slow"),
        ("a", "b", "the argument 'b' changed", ""),
        ("a", "", "the argument 'a' is gone", ""),
    ],
)
def test_what_differs_between_command_lines(monkeypatch, before, now, said, ignored):
    """The argument is named with which the words differ, and ignored it makes them equal."""
    found = []
    for words in (before, now):
        monkeypatch.setattr("sys.orig_argv", ["python", "/somewhere/train.py", *words.split()])
        found.append(command_line("/somewhere/train.py")[0])
    assert command_difference(*found) == (said, ignored)


def test_what_differs_besides_the_words(monkeypatch, tmp_path):
    """A file that an argument names, and Python's switches: no argument is advised for these."""
    file = tmp_path / "k.dat"
    monkeypatch.setattr("sys.orig_argv", ["python", "/somewhere/train.py", "--data", str(file)])
    found = [command_line("/somewhere/train.py")[0]]
    for text in ("1", "2"):
        file.write_text(text)
        found.append(command_line("/somewhere/train.py")[0])
    said = f"a file changed that the argument {str(file)!r} names", "--data"
    assert [command_difference(*each) for each in pairwise(found)] == [said, said]
    assert command_difference(found[2], found[0]) == said
    other = [each.replace("optimize=0", "optimize=1") for each in found[0]]
    assert command_difference(found[0], other) == ("Python's switches changed", "")


def test_what_differs_between_projects():
    """A file that is new or gone has an asterisk for its number; outputs in a new directory do not count."""
    before = Project(
        {"train.py": "1"}, {"conf/k.yaml": "1", "out/run-20261101.json": "1"}, frozenset({".", "conf", "out"})
    )
    now = before._replace(configuration={**before.configuration, "new/k.yaml": "1"})
    assert difference(before, now) is None
    for changes, said in (
        ({"conf/k.yaml": "2"}, ("the file conf/k.yaml changed", "conf/k.yaml")),
        ({"conf/more.yaml": "1"}, ("the file conf/more.yaml is new", "conf/more.yaml")),
        ({"out/run-20261102.json": "1"}, ("the file out/run-20261102.json is new", "out/run-*.json")),
    ):
        after = before._replace(configuration={**before.configuration, **changes})
        assert difference(before, after) == said
    assert difference(after, before) == ("the file out/run-20261102.json is gone", "out/run-*.json")
    assert difference(before, before._replace(code={})) == ("the file train.py is gone", "train.py")
    # A word alone is refused by the setting.
    assert difference(Project({"my-job": "1"}), Project({"my-job": "2"})) == ("the file my-job changed", "./my-job")


def test_random_keys_of_an_unknown_kind_are_no_numbers():
    """A stored program with keys of a generator that this JAX does not know is an error, and so it is traced."""
    places = DevicePlaces(jax.devices()[0].client)
    _, *others = places.encode_aval(jax.typeof(jax.numpy.zeros(3)))
    with pytest.raises(ValueError, match="no random keys of the kind key<none>"):
        places.decode_aval(["key<none>", *others])
