"""Named tuples behave as those of `typing` do, though they are made in another way."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing

import pytest

from ejcache.util.tuples import NamedTuple


class Ours(NamedTuple):
    """A point."""

    x: int
    y: int = 2
    name: str = "here"

    @property
    def total(self) -> int:
        """Of both."""
        return self.x + self.y


class Theirs(typing.NamedTuple):
    """A point."""

    x: int
    y: int = 2
    name: str = "here"


@pytest.mark.parametrize("kind", [Ours, Theirs])
def test_what_programs_rely_on(kind):
    """Fields by place and by name, defaults, copies, patterns, pickles and text."""
    made = kind(1, name="there")
    assert made == (1, 2, "there") == kind(x=1, y=2, name="there")
    assert (made.x, made.y, made.name) == tuple(made)
    assert isinstance(made, tuple)
    assert repr(made) == f"{kind.__name__}(x=1, y=2, name='there')"
    assert made._fields == ("x", "y", "name") == kind.__match_args__
    assert made._asdict() == {"x": 1, "y": 2, "name": "there"}
    assert made._replace(y=5) == (1, 5, "there")
    assert kind._make([4, 5, "6"]) == (4, 5, "6")
    assert kind._field_defaults == {"y": 2, "name": "here"}
    for same in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert same == made
        assert type(same) is kind
    assert list(inspect.signature(kind).parameters) == ["x", "y", "name"]
    assert kind.__doc__ == "A point."
    assert not hasattr(made, "__dict__")
    with pytest.raises(AttributeError):
        made.x = 3


@pytest.mark.parametrize("kind", [Ours, Theirs])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda kind: kind(),
        lambda kind: kind(1, 2, 3, 4),
        lambda kind: kind(1, z=3),
        lambda kind: kind(1, x=3),
        lambda kind: kind._make([1]),
        lambda kind: kind(1)._replace(z=3),
    ],
)
def test_what_does_not_fit_is_refused(kind, wrong):
    """Too few and too many values, and names that it does not have."""
    with pytest.raises((TypeError, ValueError)):
        wrong(kind)


def test_methods_of_the_class_stay():
    """A property of the class is one of its tuples."""
    assert Ours(1).total == 3
